"""The server's side of a client connection: uvicorn's protocol with joined heads and errors in the proxy's form."""

from __future__ import annotations

from proxy.errors import error_body
from proxy.http.joining import JoiningProtocol

_HEAD = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"


class Connection(JoiningProtocol):
    """One connection of a client."""

    def send_400_response(self, msg: str) -> None:
        """Answers bytes that are not HTTP, which uvicorn refuses before they reach the application."""
        body = error_body(msg, "invalid_request_error", None, "bad_http")
        self.transport.write(_HEAD % len(body) + body)
        self.transport.close()
