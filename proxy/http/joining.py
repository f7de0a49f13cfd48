"""Connections that send the head of a reply together with the first part of its body.

An ASGI server writes the head and each part of the body separately, and each write is a system call and often a packet,
which is the largest cost of a small reply. The head is therefore held until the first part of the body is written, but
for one turn of the event loop at most: if nothing follows at once, it is sent alone. Parts of a body are not held,
except one that begins like a head, and that no longer either.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_HEAD_START = b"HTTP/1."


class JoiningTransport:
    """Wraps a transport, which it writes to, and joins a head with what is written next."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Writes data; a head is held until the next write or the end of this turn of the event loop."""
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head + data)
        elif data.startswith(_HEAD_START):
            self._head = data
            asyncio.get_running_loop().call_soon(self.flush)
        else:
            self._transport.write(data)

    def close(self) -> None:
        """Closes the connection after what was written."""
        self.flush()
        self._transport.close()

    def flush(self) -> None:
        """Writes the head that is held, if there is one and the connection still exists."""
        head, self._head = self._head, b""
        if head and not self._transport.is_closing():
            self._transport.write(head)


class JoiningProtocol(HttpToolsProtocol):
    """The server's side of a connection, with a `JoiningTransport`."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Called with the transport of a new connection."""
        self._joining = JoiningTransport(transport)
        super().connection_made(cast("asyncio.Transport", self._joining))

    def eof_received(self) -> None:
        """Called when the client sends nothing more, which closes the connection."""
        self._joining.flush()
        super().eof_received()
