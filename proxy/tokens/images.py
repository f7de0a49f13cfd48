"""The published prices of pictures, PDF pages and sounds, by the model's vendor; nothing is fetched or decoded.

The size of a picture is read from the first bytes of a `data:` URI. A picture elsewhere, or one whose header is not
understood, has no price. The prices are those of the vendors' documentation (OpenAI's also in litellm 1.109): tiles, or
patches up to a cap, after the picture was fitted into a square. A model of another vendor is charged the lowest price
that anyone has published: a guess must not cut history.
"""

from __future__ import annotations

import base64
import math
import re
import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from proxy.tokens.names import claude_version, is_openais

HEADER_CHARS = 65_536
"""Base64 characters of a picture that are read; a JPEG may have a long preview before its size."""

Size = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Tiles:
    """A base price and a price for each 512 px tile; `low` is the base alone."""

    base: int
    tile: int

    def tokens(self, size: Size | None, detail: str) -> int | None:
        if detail == "low":
            return self.base
        return size and self.base + self.tile * _tiles(size)


@dataclass(frozen=True, slots=True)
class Grid:
    """A price for each square of `side` px, after fitting into `longest` px and `cap` squares, `more` besides.

    `low` detail shrinks to 512 px.
    """

    side: int
    cap: int
    each: float = 1.0
    longest: int = 20_000
    more: int = 0

    def tokens(self, size: Size | None, detail: str) -> int | None:
        if size is None:
            return None
        width, height = _fit(size, 512 if detail == "low" else self.longest)
        squares = math.ceil(width / self.side) * math.ceil(height / self.side) + self.more
        return math.ceil(round(min(self.cap, squares) * self.each, 6))


Family = Tiles | Grid
"""How a family of models prices pictures.

`tokens` takes a size in pixels (None: unknown) and a `detail`: low, high or auto. None means that there is no price.
"""
DEFAULT = Tiles(85, 170)
MOST_FOR_PAGE = 765
"""A page as DEFAULT prices it."""


class MediaPrices(NamedTuple):
    """What the models of one vendor charge for what is no text, in tokens."""

    picture: Family
    page: int
    """For a page of a PDF; where the vendor states a range, its lower end."""
    second: float
    """For a second of sound."""


def _flat(price: int) -> Grid:
    """The same price for every picture."""
    return Grid(20_000, 1, price)


LEAST = MediaPrices(_flat(85), 258, 6.25)
"""The lowest prices: of OpenAI for any picture at low detail, of Gemini for a page, of Gemma 3n for a second."""
_SQUARE = Grid(28, 1_568, longest=1_568)
_FINE_SQUARE = Grid(28, 4_784, longest=2_576)
_FINE = (4, 7)
"""The first version of Claude that sees large pictures in full."""
_OTHERS = (
    (re.compile(r"gemini-[12]"), MediaPrices(Grid(768, 16, 258), 258, 32)),
    (re.compile("gemini"), MediaPrices(_flat(1_120), 560, 32)),
    (re.compile("gemma"), MediaPrices(_flat(256), 258, 6.25)),
    (re.compile("grok"), MediaPrices(Grid(448, 7, 256, more=1), 258, 6.25)),
)

# Longest prefix wins. gpt-4o, gpt-4.1, gpt-4-turbo and what is not listed take DEFAULT.
_FAMILIES: dict[str, Family] = {
    "gpt-4o-mini": Tiles(2833, 5667),
    "gpt-4.1-mini": Grid(32, 1536, 1.62),
    "gpt-4.1-nano": Grid(32, 1536, 2.46),
    "gpt-5": Tiles(70, 140),
    "gpt-5-mini": Grid(32, 1536, 1.62),
    "gpt-5-nano": Grid(32, 1536, 2.46),
    **{f"gpt-5.{minor}": Grid(32, 2500, 1.2) for minor in range(2, 10)},
    "gpt-6": Grid(32, 2500, 1.2),
    "o1": Tiles(75, 150),
    "o3": Tiles(75, 150),
    "o4-mini": Grid(32, 1536, 1.72),
}


@lru_cache(maxsize=256)
def media_prices(model: str) -> MediaPrices:
    """The prices of a model, named in lower case."""
    if (version := claude_version(model)) is not None:
        return MediaPrices(_FINE_SQUARE if version >= _FINE else _SQUARE, 1_500, 6.25)
    if is_openais(model):
        plain = model.removeprefix("ft:")
        best = max((prefix for prefix in _FAMILIES if plain.startswith(prefix)), key=len, default=None)
        family = DEFAULT if best is None else _FAMILIES[best]
        # A page is shown as a picture of an unpublished size, with its text besides.
        return MediaPrices(family, min(family.tokens((768, 1_024), "auto") or 0, MOST_FOR_PAGE), 10)
    return next((prices for pattern, prices in _OTHERS if pattern.search(model)), LEAST)


def size_of(uri: str) -> Size | None:
    """Width and height in pixels of a picture in base64 or in a `data:` URI with base64; None if that is unknown."""
    if not uri.startswith("data:"):
        return size_of_base64(uri)
    head, _, _ = uri[:256].partition(",")
    start = len(head) + 1
    return size_of_base64(uri[start : start + HEADER_CHARS]) if head.endswith("base64") else None


def size_of_base64(text: str) -> Size | None:
    """Width and height from the beginning of a base64 PNG, GIF, WebP or JPEG, or None."""
    try:
        width, height = _size(base64.b64decode(text[: min(len(text), HEADER_CHARS) // 4 * 4])) or (0, 0)
    except (ValueError, struct.error):
        return None
    return (width, height) if width and height else None


def _size(data: bytes) -> tuple[int, ...] | None:
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return struct.unpack_from(">II", data, 16)
    if data[:6] in (b"GIF87a", b"GIF89a"):
        return struct.unpack_from("<HH", data, 6)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return _size_of_webp(data)
    return _size_of_jpeg(data) if data.startswith(b"\xff\xd8") else None


def _size_of_webp(data: bytes) -> tuple[int, ...] | None:
    match data[12:16]:
        case b"VP8 ":
            return tuple(side & 0x3FFF for side in struct.unpack_from("<HH", data, 26))
        case b"VP8L":
            (bits,) = struct.unpack_from("<I", data, 21)
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8X" if len(data) >= 30:
            return int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
    return None


def _size_of_jpeg(data: bytes) -> tuple[int, ...] | None:
    """Walks the segments to the first start-of-frame one, which has the size."""
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return struct.unpack_from(">HH", data, at + 5)[::-1]
        # A marker may be preceded by fill bytes.
        at += 1 if marker == 0xFF else 2 + struct.unpack_from(">H", data, at + 2)[0]
    return None


def _tiles(size: Size) -> int:
    width, height = _fit(size, 2048)
    scale = min(1.0, 768 / min(width, height))
    return math.ceil(round(width * scale) / 512) * math.ceil(round(height * scale) / 512)


def _fit(size: Size, longest: int) -> Size:
    scale = min(1.0, longest / max(size))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))
