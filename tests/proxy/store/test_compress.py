"""Compression: values survive a round trip, uncompressed old values can be read, and broken ones are reported."""

from __future__ import annotations

import random
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.store.access import MAX_BYTES, NEWER, SMALLEST, compress, decompress
from proxy.store.base import StoreError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

TEXT = b'{"role":"user","content":"the same words again"}' * 100
UNKNOWN = b"\xc1\x07whatever"


@given(st.binary(max_size=2 * SMALLEST) | st.binary(max_size=64).map(lambda part: part * 64))
def test_what_goes_in_comes_out(data: bytes) -> None:
    assert decompress(compress(data)) == data


@given(st.binary(max_size=2 * SMALLEST))
def test_no_value_grows_by_more_than_its_two_bytes(data: bytes) -> None:
    assert len(compress(data)) <= len(data) + 2


@given(st.text())
def test_text_from_before_there_was_compression_reads_as_ever(text: str) -> None:
    assert decompress(text.encode()) == text.encode()


def test_a_value_that_looks_compressed_is_not_mistaken() -> None:
    for data in (b"\xc1", b"\xc1\x00", b"\xc1\x01", UNKNOWN, compress(TEXT)):
        assert decompress(compress(data)) == data


def test_small_and_incompressible_values_stay_as_they_are() -> None:
    noise = random.Random(1).randbytes(4 * SMALLEST).replace(b"\xc1", b"\xc2")
    assert compress(noise) == noise
    assert compress(TEXT[: SMALLEST - 1]) == TEXT[: SMALLEST - 1]
    assert len(compress(TEXT)) < len(TEXT) / 10


@pytest.mark.parametrize("stored", [b"\xc1", UNKNOWN])
def test_an_unknown_codec_reads_as_a_newer_version(stored: bytes) -> None:
    assert decompress(stored) == NEWER


@pytest.mark.parametrize("stored", [compress(TEXT)[:-5], b"\xc1\x01not zstd", b"\xc1\x01"])
def test_a_value_that_is_cut_or_overwritten_is_corrupt(stored: bytes) -> None:
    with pytest.raises(StoreError) as raised:
        decompress(stored)
    assert raised.value.reason == "store-corrupt"


def test_a_value_that_would_fill_the_memory_is_corrupt() -> None:
    bomb = b"\xc1\x01" + zstd.compress(bytes(MAX_BYTES + 1))
    assert len(bomb) < 10_000
    with pytest.raises(StoreError, match="larger than") as raised:
        decompress(bomb)
    assert raised.value.reason == "store-corrupt"
