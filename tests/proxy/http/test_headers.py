"""Which headers are passed on, in either direction."""

from __future__ import annotations

import pytest

from proxy.http.headers import encode_headers, first, to_client, to_upstream

HOP_BY_HOP = [
    b"Connection",
    b"Keep-Alive",
    b"Proxy-Authenticate",
    b"Proxy-Authorization",
    b"Proxy-Connection",
    b"TE",
    b"Trailer",
    b"Transfer-Encoding",
    b"Upgrade",
]
PLAIN = [(b"accept", b"*/*"), (b"x-twice", b"1"), (b"x-twice", b"2"), (b"authorization", b"Bearer k")]


@pytest.mark.parametrize("name", HOP_BY_HOP)
def test_hop_by_hop_headers_are_passed_on_in_neither_direction(name: bytes) -> None:
    assert to_upstream([(name, b"x"), *PLAIN], None) == PLAIN
    assert to_client([(name, b"x"), *PLAIN]) == PLAIN


def test_headers_named_by_connection_are_hop_by_hop_too() -> None:
    given = [
        (b"Connection", b"close, X-Mine ,x-other"),
        (b"connection", b"X-More"),
        (b"x-mine", b"1"),
        (b"X-OTHER", b"2"),
    ]
    assert to_upstream([*given, (b"x-more", b"3"), *PLAIN], None) == PLAIN
    assert to_client([*given, (b"x-more", b"3"), *PLAIN]) == PLAIN


@pytest.mark.parametrize("name", [b"X-HTTP-Method-Override", b"X-Original-URL", b"X-Rewrite-URL"])
def test_no_header_leads_a_request_with_the_operators_key_to_another_path_or_method(name: bytes) -> None:
    assert to_upstream([(name, b"/v1/files"), *PLAIN], "key") == [*PLAIN[:-1], (b"authorization", b"Bearer key")]
    assert to_upstream([(name, b"/v1/files"), *PLAIN], None) == [(name.lower(), b"/v1/files"), *PLAIN]


@pytest.mark.parametrize("name", [b"Host", b"Content-Length", b"Expect"])
def test_headers_of_one_connection_or_transfer_are_not_forwarded(name: bytes) -> None:
    assert to_upstream([(name, b"x"), *PLAIN], None) == PLAIN


def test_a_replys_length_is_passed_on() -> None:
    assert to_client([(b"Content-Length", b"5")]) == [(b"content-length", b"5")]


@pytest.mark.parametrize(
    "name",
    [b"X-Condenser-Session", b"x-condenser-unheard-of", b"X-CONDENSER-", b"X_Condenser_Window", b"x-condenser_a"],
)
def test_the_proxys_own_headers_are_passed_on_in_neither_direction(name: bytes) -> None:
    assert to_upstream([(name, b"x"), *PLAIN], None) == PLAIN
    assert to_client([(name, b"x"), *PLAIN]) == PLAIN


def test_order_duplicates_and_odd_bytes_stay() -> None:
    odd = [(b"x-b", b"\xe9\xff"), (b"x-a", b""), (b"x-b", b" spaces "), (b"x-condense", b"not ours")]
    assert to_upstream(odd, None) == odd
    assert to_client(odd) == odd


def test_the_operators_key_takes_the_place_of_every_credential() -> None:
    given = [(b"Authorization", b"Bearer a"), (b"API-Key", b"b"), (b"x-api-key", b"c"), (b"accept", b"*/*")]
    assert to_upstream(given, "own") == [(b"accept", b"*/*"), (b"authorization", b"Bearer own")]


def test_the_first_value_of_a_header_is_read_in_any_case() -> None:
    assert first([(b"A", b"0"), (b"X-Id", b"1"), (b"x-id", b"2")], b"x-id") == "1"
    assert first([], b"x-id") is None


def test_the_proxys_own_headers_are_written_in_lower_case_and_latin_1() -> None:
    assert encode_headers([("X-Condenser-Session", "é→")]) == [(b"x-condenser-session", b"\xe9?")]
