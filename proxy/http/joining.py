"""Connections on which the head of a reply leaves with what follows it.

An ASGI server writes a head and each part of a body by themselves, and each write is a call to the system and often a
packet: the dearest thing that a small reply costs. A head is therefore held until the first part of its body is
written, for one turn of the event loop at most: where nothing follows at once, it leaves alone. No body waits, but for
one that looks like a head, and that no longer.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as ServerProtocol
else:
    # The other one where httptools is not installed; that is known at run time only.
    from uvicorn.protocols.http.auto import AutoHTTPProtocol as ServerProtocol

_BEGINS = b"HTTP/1."


class Joining:
    """A transport that writes a head with what follows it; in all else, the one that it writes to."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Writes data, a head not before the turn is over."""
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head + data)
        elif data.startswith(_BEGINS):
            self._head = data
            asyncio.get_running_loop().call_soon(self.flush)
        else:
            self._transport.write(data)

    def close(self) -> None:
        """Closes the connection behind what was written."""
        self.flush()
        self._transport.close()

    def flush(self) -> None:
        """Writes the head that is held, if there is one, unless its connection is gone."""
        head, self._head = self._head, b""
        if head and not self._transport.is_closing():
            self._transport.write(head)


class JoiningProtocol(ServerProtocol):
    """The server's side of a connection, on which heads are joined."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Takes a connection."""
        self._joining = Joining(transport)
        super().connection_made(cast("asyncio.Transport", self._joining))

    def eof_received(self) -> None:
        """Called when the client writes no more, which closes the connection."""
        self._joining.flush()
        super().eof_received()
