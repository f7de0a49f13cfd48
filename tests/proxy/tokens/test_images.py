"""Pictures are priced from their header alone."""

from __future__ import annotations

import base64
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.tokens import images


def png(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", width, height) + b"\x08\x06\0\0\0"


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\0\0\0"


def jpeg(width: int, height: int) -> bytes:
    exif = b"\xff\xe1" + struct.pack(">H", 5_000) + b"x" * 4_998
    tables = b"\xff\xff\xc4" + struct.pack(">H", 4) + b"ab"
    frame = b"\xff\xc2" + struct.pack(">HBHH", 17, 8, height, width) + b"\x03" + b"\0" * 9
    return b"\xff\xd8" + exif + tables + frame


def uri(data: bytes) -> str:
    return "data:image/whatever;base64," + base64.b64encode(data).decode()


@pytest.mark.parametrize("make", [png, gif, jpeg])
def test_the_size_is_read_from_the_header(make: object) -> None:
    assert callable(make)
    assert images.size_of(uri(make(1126, 488))) == (1126, 488)


def test_only_the_beginning_of_a_picture_is_decoded() -> None:
    whole = uri(png(10, 20) + b"\0" * 100_000)
    assert images.size_of(whole[:90_000] + "€ is no base64" * 1_000_000) == (10, 20)


@pytest.mark.parametrize(
    "place",
    [
        "https://example.test/cat.png",
        "data:image/png,raw",
        "data:image/png;base64,",
        "data:",
        "",
        "data:;base64,AAAA",
    ],
)
def test_a_picture_that_cannot_be_read_has_no_size(place: str) -> None:
    assert images.size_of(place) is None


@given(
    st.binary(max_size=60),
    st.sampled_from([b"", b"\xff\xd8", b"\xff\xd8\xff", b"GIF89a"]),
)
def test_no_bytes_make_the_reader_fail(data: bytes, head: bytes) -> None:
    size = images.size_of(uri(head + data))
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
    ],
)
def test_published_prices_are_met(model: str, size: images.Size, detail: str, tokens: int) -> None:
    assert images.family_of(model).tokens(size, detail) == tokens


@given(st.tuples(st.integers(1, 20_000), st.integers(1, 20_000)), st.sampled_from(["low", "high", "auto", "?"]))
def test_an_unknown_size_costs_at_least_as_much_as_any_size(size: images.Size, detail: str) -> None:
    for model in ("gpt-4o", "gpt-4o-mini", "gpt-5", "gpt-5-mini", "gpt-5.2", "o3", "unheard-of"):
        family = images.family_of(model)
        assert 0 < family.tokens(size, detail) <= family.tokens(None, detail)


@pytest.mark.parametrize(
    ("model", "like"),
    [("gpt-4o-mini-2024-07-18", "gpt-4o-mini"), ("gpt-5.2-pro", "gpt-5.2"), ("o3-pro", "o3")],
)
def test_a_variant_is_priced_like_its_family(model: str, like: str) -> None:
    assert images.family_of(model) == images.family_of(like)
