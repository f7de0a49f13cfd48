"""A failed call to an upstream is reported in words, over either HTTP client, and never by the name of a class."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from proxy.errors import UpstreamUnavailable
from proxy.settings.tables import UpstreamSettings
from proxy.upstream import Upstream, UpstreamRequest
from proxy.upstream.messages import sentence

pytestmark = pytest.mark.anyio

NO_HTTP = b"SSH-2.0-OpenSSH_9.6\r\n\r\n"
REFUSED = "The upstream cannot be reached: connection refused."
BROKEN_OFF = "The upstream broke off the connection."
PLAIN = "The upstream cannot be reached: TLS: wrong version number; perhaps the server speaks plain HTTP."


@asynccontextmanager
async def server(answer: bytes) -> AsyncIterator[str]:
    """Host and port of a server that says these bytes and hangs up."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1_000)
        writer.write(answer)
        writer.close()

    listening = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with listening:
        yield f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"


async def messages_of_both_clients(base_url: str) -> list[str]:
    """The error of a client's request, and of a call of the proxy's own."""
    upstream = Upstream(UpstreamSettings(base_url=base_url))
    messages = []
    try:
        for call in (upstream.send(UpstreamRequest("GET", b"/v1/models", b"", [], b"")), upstream.probe()):
            with pytest.raises(UpstreamUnavailable) as raised:
                await call
            messages.append(raised.value.message)
    finally:
        await upstream.close()
    return messages


async def test_a_port_where_nobody_listens_is_a_refused_connection() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert await messages_of_both_clients(f"http://127.0.0.1:{bound.getsockname()[1]}/v1") == [REFUSED] * 2


@pytest.mark.parametrize(
    ("scheme", "answer", "says"),
    [
        ("https", NO_HTTP, PLAIN),
        ("http", NO_HTTP, "The upstream's answer is not HTTP."),
        ("http", b"", BROKEN_OFF),
        ("http", b"HTTP/1.1 200 OK\r\ncontent-le", BROKEN_OFF),
    ],
)
async def test_an_odd_server_is_described_in_words(scheme: str, answer: bytes, says: str) -> None:
    async with server(answer) as place:
        assert await messages_of_both_clients(f"{scheme}://{place}/v1") == [says] * 2


def raised_from(*errors: BaseException) -> BaseException:
    """The first of these errors, each raised from the next."""
    for error, cause in pairwise(errors):
        error.__cause__ = cause
    return errors[0]


def not_trusted() -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed: self-signed certificate (_ssl.c:1006)")
    error.verify_message = "self-signed certificate"
    return error


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (socket.gaierror(-2, "Name or service not known"), "cannot be reached: no such host."),
        (not_trusted(), "cannot be reached: TLS: self-signed certificate."),
        (ssl.SSLError(1, "something"), "cannot be reached: the TLS handshake failed."),
        (OSError(113, "No route to host"), "cannot be reached: no route to the host."),
        (OSError(24, "Too many open files"), "cannot be reached: the connection failed."),
        (ConnectionResetError(104, "Connection reset by peer"), "broke off the connection."),
        (ExceptionGroup("multiple connection attempts failed", [ConnectionRefusedError(111, "x")]), REFUSED[-19:]),
    ],
)
async def test_the_systems_error_below_a_librarys_decides_the_message(error: Exception, says: str) -> None:
    assert sentence(raised_from(RuntimeError("All connection attempts failed"), error)).endswith(says)


async def test_errors_that_were_raised_from_each_other_end_the_search() -> None:
    one, other = RuntimeError("one"), RuntimeError("other")
    one.__cause__, other.__cause__ = other, one
    assert sentence(one) == "The upstream cannot be reached: the connection failed."
