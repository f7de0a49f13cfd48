"""The published prices of pictures, PDF pages and sounds, by the model's vendor; nothing is fetched, and no picture is
decoded.

`imagesize` reads the size of a picture from the beginning of a `data:` URI. A picture elsewhere, or one whose header is
not understood, has no price. The prices are those of the vendors' documentation (OpenAI's also in litellm 1.109):
tiles, or patches up to a cap, after the picture was fitted into a square. A model of another vendor is charged the
lowest price that anyone has published: a guess must not cut history.

Of a file in base64 only the two ends are decoded; they tell the pages of a PDF and the seconds of a sound.
"""

from __future__ import annotations

import base64
import math
import re
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from itertools import islice
from typing import NamedTuple

import imagesize

from proxy.tokens.models import claude_version, is_openais

END_CHARS = 256 * 1024
"""Base64 characters of a file that are looked at, at each of its two ends.

No pattern gets more at once: `re` keeps the interpreter's lock, and so every other request waiting, until it returns.
"""
MAX_STREAM_BYTES, MAX_STREAM_EXPANSION = 256 * 1024, 32
"""How far an object stream is unpacked, also in times of its own bytes; a list of pages has up to 20 times as many."""
MAX_UNPACKED = 1024 * 1024  # bytes of all object streams at one end
MAX_NODES = 10_000  # how many nodes of a page tree are read
_PAGE = re.compile(rb"/Type\s*/Page(?![a-zA-Z])")
_COUNT = re.compile(rb"/Count\s{1,9}(\d{1,6})")
_PAGES = re.compile(rb"/Type\s*/Pages\b")
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]+={0,2}")
BASE64_CHARS = 1_024  # a word of this many characters of base64 is data
_PCM16_BYTES = 48_000  # bytes of a second of raw sound, in the form in which OpenAI takes it: 24 kHz, 16 bit, mono
_MP3_KBITS = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 0)
_MP3_KBITS_LOW = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 0)


def is_base64(text: str) -> bool:
    """Whether a text is a `data:` URI, or a long run of base64 without a space."""
    if len(text) < BASE64_CHARS:
        return text.startswith("data:") and ";base64," in text
    return text.startswith("data:") or _BASE64.fullmatch(text, 0, BASE64_CHARS) is not None


class Ends(NamedTuple):
    """What is read of a file: its first and its last bytes, and how many bytes it has."""

    head: bytes
    tail: bytes  # without what is in `head`; empty for a file that `head` has all of
    size: int


def ends_of(data: str) -> Ends:
    """The ends of a file in base64, or in a `data:` URI with base64; empty if it is neither."""
    start = _start_of(data)
    chars, at = len(data) - start, start + END_CHARS
    last = "".join(data[max(at, len(data) - END_CHARS) :].split())
    try:
        head, tail = _beginning_of(data), base64.b64decode(last[len(last) % 4 :])
    except ValueError:
        return Ends(b"", b"", 0)
    return Ends(head, tail, len(head) + len(tail) if chars <= 2 * END_CHARS else chars * len(head) // END_CHARS)


def _start_of(data: str) -> int:
    return data.find(",", 0, 256) + 1 if data.startswith("data:") else 0


def _beginning_of(data: str) -> bytes:
    start = _start_of(data)
    first = "".join(data[start : start + END_CHARS].split())
    return base64.b64decode(first[: len(first) // 4 * 4])  # where lines are broken it may stop within a group of four


def pages_of(pdf: Ends) -> int | None:
    """The pages of a PDF; None if they cannot be read, as of an encrypted one.

    They are counted as objects, and stated by the root of the page tree. The lower figure holds: a file that was
    changed has some pages twice. Of a long file only the statement counts, since most of its pages are not looked at.
    """
    ends = (pdf.head, pdf.tail)
    streams = [text for end in ends for text in _object_streams(end)]
    if len(pdf.head) + len(pdf.tail) < pdf.size:
        return max(_stated_pages((*ends, *streams)), default=0) or None
    counted = sum(1 for text in (*ends, *streams) for _ in _PAGE.finditer(text))
    stated = max(_stated_pages(ends), default=0)
    return min(filter(None, (counted, stated)), default=None)


def _stated_pages(texts: Iterable[bytes]) -> Iterator[int]:
    for text, node, low, high in islice(_nodes(texts), MAX_NODES):
        start, end = text.rfind(b"obj", low, node.start()), text.find(b"endobj", node.end(), high)
        if start < 0:  # one in an object stream, which has dictionaries only
            start, end = text.rfind(b"<<", low, node.start()), text.find(b">>", node.end(), high)
        start, end = max(start, low), end if end >= 0 else high
        # Only the root has no parent; any other node states the pages of its part.
        if text.find(b"/Parent", start, end) < 0 and (count := _COUNT.search(text, start, end)) is not None:
            yield int(count[1])


def _nodes(texts: Iterable[bytes]) -> Iterator[tuple[bytes, re.Match[bytes], int, int]]:
    """The nodes of a page tree, each between its neighbours, so that no byte is read for each of many nodes."""
    for text in texts:
        low, node = 0, _PAGES.search(text)
        while node is not None:
            after = _PAGES.search(text, node.end())
            yield text, node, low, len(text) if after is None else after.start()
            low, node = node.end(), after


def _object_streams(pdf: bytes) -> Iterator[bytes]:
    at, left = 0, MAX_UNPACKED
    while left > 0 and (at := pdf.find(b"/ObjStm", at)) >= 0 and (start := pdf.find(b"stream", at)) >= 0:
        start += 8 if pdf.startswith(b"stream\r\n", start) else 7
        # The next search begins where this one has ended, so that no byte is read for each of many streams.
        end = pdf.find(b"endstream", start)
        at = end if end >= 0 else len(pdf)
        packed = pdf[start:at]
        try:
            most = min(MAX_STREAM_EXPANSION * len(packed), MAX_STREAM_BYTES)
            text = zlib.decompressobj().decompress(packed, most)
        except zlib.error:
            continue
        left -= len(text)
        yield text


def seconds_of(sound: Ends, form: str) -> float | None:
    """The seconds of a sound: WAV, raw 16-bit PCM, or MP3 of a constant rate; None if they cannot be read."""
    try:
        if sound.head.startswith(b"RIFF") and sound.head[8:12] == b"WAVE":
            (rate,) = struct.unpack_from("<I", sound.head, 28)
            return sound.size / rate if rate else None
        if form in ("pcm16", "pcm"):
            return sound.size / _PCM16_BYTES
        return _seconds_of_mp3(sound.head, sound.size)
    except (struct.error, IndexError):
        return None


def _seconds_of_mp3(head: bytes, size: int) -> float | None:
    at = 0
    if head.startswith(b"ID3"):
        at = 10 + sum((byte & 0x7F) << shift for byte, shift in zip(head[6:10], (21, 14, 7, 0), strict=False))
    if head[at] != 0xFF or head[at + 1] & 0xE6 != 0xE2:
        return None
    is_first_version = head[at + 1] & 0x18 == 0x18
    kbits = (_MP3_KBITS if is_first_version else _MP3_KBITS_LOW)[head[at + 2] >> 4]
    return (size - at) / (kbits * 125) if kbits else None


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
MOST_FOR_PAGE = 765  # a page as DEFAULT prices it


class MediaPrices(NamedTuple):
    """What the models of one vendor charge for what is no text, in tokens."""

    picture: Family
    page: int  # for a page of a PDF; where the vendor states a range, its lower end
    second: float  # for a second of sound


def _flat(price: int) -> Grid:
    """The same price for every picture."""
    return Grid(20_000, 1, price)


LEAST = MediaPrices(_flat(85), 258, 6.25)
"""The lowest prices: of OpenAI for any picture at low detail, of Gemini for a page, of Gemma 3n for a second."""
_SQUARE = Grid(28, 1_568, longest=1_568)
_FINE_SQUARE = Grid(28, 4_784, longest=2_576)
_FINE = (4, 7)  # the first version of Claude that sees large pictures in full
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


def size_of(picture: str) -> Size | None:
    """Width and height in pixels of a picture in base64, or in a `data:` URI with base64; None if that is unknown."""
    try:
        # Whatever it meets in a file, it answers (-1, -1).
        width, height = map(round, imagesize.get(BytesIO(_beginning_of(picture)), exif_rotation=False))
    except ValueError:
        return None
    return (width, height) if width > 0 and height > 0 else None


def _tiles(size: Size) -> int:
    width, height = _fit(size, 2048)
    scale = min(1.0, 768 / min(width, height))
    return math.ceil(round(width * scale) / 512) * math.ceil(round(height * scale) / 512)


def _fit(size: Size, longest: int) -> Size:
    scale = min(1.0, longest / max(size))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))
