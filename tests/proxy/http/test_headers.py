"""Which headers are passed on, in either direction."""

import pytest

from proxy.http.headers import CREDENTIALS, encode_headers, first, to_client, to_upstream

HOP_BY_HOP = [
    *(b"Connection", b"Keep-Alive", b"Proxy-Authenticate", b"Proxy-Authorization", b"Proxy-Connection"),
    *(b"TE", b"Trailer", b"Transfer-Encoding", b"Upgrade"),
]
OURS = [b"X-Condenser-Session", b"x-condenser-unheard-of", b"X-CONDENSER-", b"X_Condenser_Window", b"x-condenser_a"]
PLAIN = [(b"accept", b"*/*"), (b"x-twice", b"1"), (b"x-twice", b"2"), (b"authorization", b"Bearer k")]


@pytest.mark.parametrize("name", [*HOP_BY_HOP, *OURS])
def test_private_headers_are_passed_on_in_neither_direction(name: bytes) -> None:
    assert to_upstream([(name, b"x"), *PLAIN], None) == PLAIN
    assert to_client([(name, b"x"), *PLAIN]) == PLAIN


def test_headers_of_one_connection_are_not_forwarded() -> None:
    given = [(b"Connection", b"close, X-Mine ,x-other"), (b"connection", b"X-More")]
    given += [(b"x-mine", b"1"), (b"X-OTHER", b"2"), (b"x-more", b"3")]
    assert to_upstream([*given, *PLAIN], None) == PLAIN
    assert to_client([*given, *PLAIN]) == PLAIN
    for name in [b"Host", b"Content-Length", b"Expect"]:
        assert to_upstream([(name, b"x"), *PLAIN], None) == PLAIN
        assert to_client([(b"Content-Length", b"5")]) == [(b"content-length", b"5")]


def test_the_operators_key_takes_the_place_of_credentials_and_tricks() -> None:
    for name in [b"X-HTTP-Method-Override", b"X-Original-URL", b"X-Rewrite-URL"]:
        assert to_upstream([(name, b"/v1/files"), *PLAIN], "key") == [*PLAIN[:-1], (b"authorization", b"Bearer key")]
        assert to_upstream([(name, b"/v1/files"), *PLAIN], None, without=CREDENTIALS) == PLAIN[:-1]
        assert to_upstream([(name, b"/v1/files"), *PLAIN], None) == [(name.lower(), b"/v1/files"), *PLAIN]
    given = [(b"Authorization", b"Bearer a"), (b"API-Key", b"b"), (b"x-api-key", b"c"), (b"accept", b"*/*")]
    assert to_upstream(given, "own") == [(b"accept", b"*/*"), (b"authorization", b"Bearer own")]
    assert to_upstream(given, None, without=CREDENTIALS) == [(b"accept", b"*/*")]


def test_order_duplicates_and_odd_bytes_stay() -> None:
    odd = [(b"x-b", b"\xe9\xff"), (b"x-a", b""), (b"x-b", b" spaces "), (b"x-condense", b"not ours")]
    assert to_upstream(odd, None) == odd
    assert to_client(odd) == odd


def test_first_values_and_our_own_headers_are_read_and_written() -> None:
    assert first([(b"A", b"0"), (b"X-Id", b"1"), (b"x-id", b"2")], b"x-id") == "1"
    assert first([], b"x-id") is None
    assert encode_headers([("X-Condenser-Session", "é→")]) == [(b"x-condenser-session", b"\xe9?")]
