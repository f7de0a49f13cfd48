"""The tokens of a picture in a message, from its size and the model's family; nothing is fetched or decoded.

The size is read from the first bytes of a `data:` URI. A picture elsewhere, or one whose header is not understood,
costs the family's upper bound, because a count that is too low would overflow the window. The prices are the published
ones (and those of litellm 1.109): tiles of 512 px after fitting into 2048 and a short side of 768, or patches of 32 px
up to a cap.
"""

from __future__ import annotations

import base64
import math
import struct
from dataclasses import dataclass
from functools import lru_cache

HEADER_CHARS = 65_536
"""Base64 characters of a picture that are read; a JPEG may have a long preview before its size."""

Size = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Tiles:
    """A base price and a price for each 512 px tile; `low` is the base alone."""

    base: int
    tile: int

    @property
    def key(self) -> str:
        return f"tiles-{self.base}-{self.tile}"

    def tokens(self, size: Size | None, detail: str) -> int:
        if detail == "low":
            return self.base
        return self.base + self.tile * (MAX_TILES if size is None else _tiles(size))


@dataclass(frozen=True, slots=True)
class Patches:
    """A factor per 32 px patch, after shrinking to at most `cap` patches; `low` shrinks to 512 px."""

    per_thousand: int
    cap: int

    @property
    def key(self) -> str:
        return f"patches-{self.per_thousand}-{self.cap}"

    def tokens(self, size: Size | None, detail: str) -> int:
        if detail == "low":
            size = _fit(size, 512) if size else (512, 512)
        patches = self.cap if size is None else min(self.cap, math.ceil(size[0] / 32) * math.ceil(size[1] / 32))
        return math.ceil(patches * self.per_thousand / 1000)


Family = Tiles | Patches
"""How a family of models prices pictures: `key` names the prices, for caches of message counts.

`tokens` takes a size in pixels (None: unknown) and a `detail`: low, high or auto.
"""
MAX_TILES = 8
"""2048 x 768 after fitting."""
DEFAULT = Tiles(85, 170)

# Longest prefix wins. gpt-4o, gpt-4.1, gpt-4-turbo and whatever is unknown take DEFAULT.
_FAMILIES: dict[str, Family] = {
    "gpt-4o-mini": Tiles(2833, 5667),
    "gpt-4.1-mini": Patches(1620, 1536),
    "gpt-4.1-nano": Patches(2460, 1536),
    "gpt-5": Tiles(70, 140),
    "gpt-5-mini": Patches(1620, 1536),
    "gpt-5-nano": Patches(2460, 1536),
    **{f"gpt-5.{minor}": Patches(1200, 2500) for minor in range(2, 10)},
    "gpt-6": Patches(1200, 2500),
    "o1": Tiles(75, 150),
    "o3": Tiles(75, 150),
    "o4-mini": Patches(1720, 1536),
}


@lru_cache(maxsize=256)
def family_of(model: str) -> Family:
    """The price list of a model, named without vendor prefix in lower case."""
    prefixes = (prefix for prefix in _FAMILIES if model.startswith(prefix))
    best = max(prefixes, key=len, default=None)
    return DEFAULT if best is None else _FAMILIES[best]


def size_of(uri: str) -> Size | None:
    """Width and height in pixels from the header of a base64 `data:` URI, or None."""
    head, comma, _ = uri[:256].partition(",")
    if not comma or not head.startswith("data:") or not head.endswith("base64"):
        return None
    start = len(head) + 1
    return size_of_base64(uri[start : start + HEADER_CHARS])


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
