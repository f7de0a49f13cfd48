"""Pictures are priced from their header alone."""

import base64
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.tokens import media


def png(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", width, height) + b"\x08\x06\0\0\0"


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\0\0\0"


def jpeg(width: int, height: int) -> bytes:
    exif = b"\xff\xe1" + struct.pack(">H", 5_000) + b"x" * 4_998
    tables = b"\xff\xff\xc4" + struct.pack(">H", 4) + b"ab"
    frame = b"\xff\xc2" + struct.pack(">HBHH", 17, 8, height, width) + b"\x03" + b"\0" * 9
    return b"\xff\xd8" + exif + tables + frame


def webp(kind: bytes, body: bytes) -> bytes:
    return b"RIFF\0\0\0\0WEBP" + kind + struct.pack("<I", len(body)) + body


def lossy(width: int, height: int) -> bytes:
    return webp(b"VP8 ", b"\0\0\0\x9d\x01\x2a" + struct.pack("<HH", width, height))


def lossless(width: int, height: int) -> bytes:
    return webp(b"VP8L", b"\x2f" + struct.pack("<I", (height - 1) << 14 | (width - 1)) + b"\0" * 8)


def extended(width: int, height: int) -> bytes:
    sides = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return webp(b"VP8X", b"\0\0\0\0" + sides)


def tiff(width: int, height: int) -> bytes:
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in ((256, width), (257, height)))
    return b"II*\0" + struct.pack("<IH", 8, 2) + entries


def uri(data: bytes) -> str:
    return "data:image/whatever;base64," + base64.b64encode(data).decode()


@pytest.mark.parametrize("make", [png, gif, jpeg, lossy, lossless, extended, tiff])
def test_the_size_is_read_from_the_header(make: object) -> None:
    assert callable(make)
    assert media.size_of(uri(make(1126, 488))) == (1126, 488)


def test_only_the_beginning_of_a_picture_is_decoded() -> None:
    whole = uri(png(10, 20) + b"\0" * media.END_CHARS)
    assert media.size_of(whole[: media.END_CHARS + 100] + "€ is no base64" * 1_000_000) == (10, 20)
    for model, like in (("gpt-4o-mini-2024-07-18", "gpt-4o-mini"), ("gpt-5.2-pro", "gpt-5.2"), ("o3-pro", "o3")):
        assert media.media_prices(model) == media.media_prices(like)


@pytest.mark.parametrize(
    "place",
    ["https://example.test/cat.png", "data:image/png,raw", "data:image/png;base64,", "data:", "", "data:;base64,AAAA"],
)
def test_a_picture_that_cannot_be_read_has_no_size(place: str) -> None:
    assert media.size_of(place) is None


@given(st.binary(max_size=60), st.sampled_from([b"", b"\xff\xd8", b"\xff\xd8\xff", b"GIF89a", b"RIFF0000WEBPVP8X"]))
def test_no_bytes_make_the_reader_fail(data: bytes, head: bytes) -> None:
    size = media.size_of(uri(head + data))
    assert size is None or min(size) > 0


@pytest.mark.parametrize(
    ("model", "size", "detail", "tokens"),
    [
        ("gpt-4o", (1, 1), "auto", 255),
        ("gpt-4o", (1, 1), "low", 85),
        ("gpt-4o-mini", (1, 1), "auto", 8500),
        ("gpt-4o-mini", (1, 1), "low", 2833),
        ("gpt-4o", (1024, 1024), "high", 765),
        ("gpt-4o", (2048, 4096), "high", 1105),
        ("gpt-4.1-mini", (1024, 1024), "auto", 1659),
        ("claude-sonnet-4-5", (1000, 1000), "auto", 1296),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", (4000, 3000), "auto", 1568),
        ("claude-opus-4-7", (4000, 3000), "auto", 4784),
        ("gemini-2.5-pro", (300, 300), "auto", 258),
        ("gemini-2.5-pro", (1500, 700), "auto", 516),
        ("gemini-3-pro", (1500, 700), "auto", 1120),
        ("gemma-3-27b-it", (1500, 700), "auto", 256),
        ("grok-4", (448, 448), "auto", 512),
        ("glm-5v", (2048, 2048), "auto", 85),
    ],
)
def test_published_prices_are_met(model: str, size: media.Size, detail: str, tokens: int) -> None:
    assert media.media_prices(model).picture.tokens(size, detail) == tokens


SIDES = st.tuples(st.integers(1, 20_000), st.integers(1, 20_000))


@given(SIDES, st.sampled_from(["high", "auto", "?"]))
def test_no_vendor_takes_less_than_a_guess_for_a_real_picture(size: media.Size, detail: str) -> None:
    least = media.LEAST.picture.tokens((512, 512), detail)
    for model in ("gpt-4o", "gpt-4o-mini", "gpt-5", "gpt-5-mini", "gpt-5.2", "o3", "claude-x", "gemini-x", "grok-4"):
        tokens = media.media_prices(model).picture.tokens((max(size[0], 512), max(size[1], 512)), detail)
        assert (least or 0) <= (tokens or 0)
        assert media.media_prices(model).picture.tokens(None, detail) is None
