"""What comes over a connection and is no HTTP is refused in the form of all our errors."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

import pytest

from tests.http.strict import assert_openai_error
from tests.support.proxy import Proxy
from tests.support.signals import BOUND

GARBAGE = {
    "no request line": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "a method that there is not": b"FROB /v1/models HTTP/1.1\r\nhost: x\r\n\r\n",
    "a length that is none": b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: many\r\n\r\n",
}


def answer_to(data: bytes, proxy: Proxy) -> tuple[bytes, bytes]:
    """Head and body of what comes back until the connection is closed."""
    address = urlsplit(proxy.url)
    with socket.create_connection((str(address.hostname), int(address.port or 0)), BOUND) as connection:
        connection.sendall(data)
        head, _, body = b"".join(iter(lambda: connection.recv(65_536), b"")).partition(b"\r\n\r\n")
    return head, body


@pytest.mark.parametrize("name", GARBAGE)
def test_what_is_no_http_is_a_400_in_openai_form(name: str, proxy: Proxy) -> None:
    head, body = answer_to(GARBAGE[name], proxy)
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"content-type: application/json" in head
    assert assert_openai_error(body)["code"] == "bad_http"


def test_a_body_that_says_it_is_too_large_is_refused_before_it_arrives(proxy: Proxy) -> None:
    request = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
    head, body = answer_to(request + b"content-length: 10000000000\r\n\r\n", proxy)
    assert head.startswith(b"HTTP/1.1 413 ")
    assert assert_openai_error(body)["code"] == "body_too_large"
