"""A decoder keeps no more of a body than it needs."""

import gzip

import pytest

from proxy.http.encodings import ALWAYS_DECODED, TooMuchData, decoder_for
from tests.support.packing import PACKS


def test_bytes_after_an_encoded_body_are_not_kept() -> None:
    decoder = decoder_for("gzip")
    assert decoder is not None
    assert decoder.feed(gzip.compress(b"{}")) == b"{}"
    for _ in range(1_000):
        assert decoder.feed(b"x" * 4_096) == b""
    assert len(decoder._member.unused_data) <= 4_096
    assert decoder.is_complete


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd"])
def test_a_body_is_not_complete_before_its_end(encoding: str) -> None:
    decoder, packed = decoder_for(encoding), PACKS[encoding](b"{}")
    assert decoder is not None
    assert not decoder.is_complete
    for byte in packed:
        assert not decoder.is_complete
        decoder.feed(bytes([byte]))
    assert decoder.is_complete


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd"])
def test_a_decompression_bomb_is_not_decoded(encoding: str) -> None:
    decoder, bomb = decoder_for(encoding), PACKS[encoding](b"x" * (ALWAYS_DECODED * 2))
    assert decoder is not None
    with pytest.raises(TooMuchData):
        decoder.feed(bomb)
