"""How long a file in base64 is: pages of a PDF, seconds of a sound. Only what is needed is decoded."""

from __future__ import annotations

import base64
import re
import struct
import zlib
from collections.abc import Iterator
from itertools import islice

MAX_STREAMS, MAX_STREAM_BYTES = 64, 1_000_000
"""How many object streams of a PDF are unpacked, and how far each."""
MAX_NODES = 10_000
"""How many nodes of a page tree are read."""
_PAGE = re.compile(rb"/Type\s*/Page(?![a-zA-Z])")
_COUNT = re.compile(rb"/Count\s{1,9}(\d{1,6})")
_PAGES = re.compile(rb"/Type\s*/Pages\b")
_STREAM = re.compile(rb"/Type\s*/ObjStm\b.{0,400}?stream\r?\n", re.DOTALL)
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]+={0,2}")
BASE64_CHARS = 1_024
"""A word of this many characters of base64 is data."""
_PCM16_BYTES = 48_000
"""Bytes of a second of raw sound, in the form in which OpenAI takes it: 24 kHz, 16 bit, mono."""
_MP3_KBITS = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 0)
_MP3_KBITS_LOW = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 0)


def is_base64(text: str) -> bool:
    """Whether a text is a `data:` URI, or a long run of base64 without a space."""
    if len(text) < BASE64_CHARS:
        return text.startswith("data:") and ";base64," in text
    return text.startswith("data:") or _BASE64.fullmatch(text, 0, BASE64_CHARS) is not None


def bytes_of(data: str) -> bytes:
    """The bytes of base64, or of a `data:` URI with base64; empty if it is neither."""
    start = data.find(",", 0, 256) + 1 if data.startswith("data:") else 0
    try:
        return base64.b64decode(data[start:])
    except ValueError:
        return b""


def pages_of(pdf: bytes) -> int | None:
    """The pages of a PDF; None if they cannot be read, as of an encrypted one.

    They are counted as objects, and stated in the nodes of the page tree. The lower figure holds: a file that was
    changed has some pages twice, and a node may be of one part.
    """
    texts = [pdf, *_object_streams(pdf)]
    counted = sum(1 for text in texts for _ in _PAGE.finditer(text))
    stated = max(_stated_pages(pdf), default=0)
    return min(filter(None, (counted, stated)), default=None)


def _stated_pages(pdf: bytes) -> Iterator[int]:
    nodes = list(islice(_PAGES.finditer(pdf), MAX_NODES))
    # A node is searched for its count between its neighbours, so that no byte is read for each of many nodes.
    lows, highs = (0, *(node.end() for node in nodes)), (*(node.start() for node in nodes[1:]), len(pdf))
    for node, low, high in zip(nodes, lows, highs, strict=False):
        start, end = pdf.rfind(b"obj", low, node.start()), pdf.find(b"endobj", node.end(), high)
        if (count := _COUNT.search(pdf, max(start, low), end if end >= 0 else high)) is not None:
            yield int(count[1])


def _object_streams(pdf: bytes) -> Iterator[bytes]:
    """The objects of newer PDFs, most of which are packed into streams."""
    for number, found in enumerate(_STREAM.finditer(pdf)):
        if number == MAX_STREAMS:
            return
        try:
            yield zlib.decompressobj().decompress(pdf[found.end() : found.end() + MAX_STREAM_BYTES], MAX_STREAM_BYTES)
        except zlib.error:
            continue


def seconds_of(sound: bytes, form: str) -> float | None:
    """The seconds of a sound: WAV, raw 16-bit PCM, or MP3 of a constant rate; None if they cannot be read."""
    try:
        if sound.startswith(b"RIFF") and sound[8:12] == b"WAVE":
            (rate,) = struct.unpack_from("<I", sound, 28)
            return len(sound) / rate if rate else None
        if form in ("pcm16", "pcm"):
            return len(sound) / _PCM16_BYTES
        return _seconds_of_mp3(sound)
    except (struct.error, IndexError):
        return None


def _seconds_of_mp3(sound: bytes) -> float | None:
    at = 0
    if sound.startswith(b"ID3"):
        at = 10 + sum((byte & 0x7F) << shift for byte, shift in zip(sound[6:10], (21, 14, 7, 0), strict=True))
    if sound[at] != 0xFF or sound[at + 1] & 0xE6 != 0xE2:
        return None
    is_first_version = sound[at + 1] & 0x18 == 0x18
    kbits = (_MP3_KBITS if is_first_version else _MP3_KBITS_LOW)[sound[at + 2] >> 4]
    return (len(sound) - at) / (kbits * 125) if kbits else None
