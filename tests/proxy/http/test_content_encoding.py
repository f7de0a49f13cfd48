"""What undoes a content encoding keeps no more than it needs."""

from __future__ import annotations

import gzip

from proxy.http.content_encoding import decoder


def test_what_stands_behind_a_packed_body_is_not_kept_while_more_of_it_comes() -> None:
    undoing = decoder("gzip")
    assert undoing is not None
    assert undoing.feed(gzip.compress(b"{}")) == b"{}"
    for _ in range(1_000):
        assert undoing.feed(b"x" * 4_096) == b""
    assert len(undoing._inflating.unused_data) <= 4_096
    assert undoing.is_whole


def test_a_body_is_not_whole_before_its_end_has_come() -> None:
    undoing, packed = decoder("gzip"), gzip.compress(b"{}")
    assert undoing is not None
    assert not undoing.is_whole
    for byte in packed:
        assert not undoing.is_whole
        undoing.feed(bytes([byte]))
    assert undoing.is_whole
