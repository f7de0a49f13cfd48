"""A response that is still to be made, and the responses for errors of the proxy itself."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from proxy.errors import DEFECT, ProxyError
from proxy.log import RequestLine
from proxy.reply.keepalive import KeepAlive
from proxy.reply.relay import CLIENT_CLOSED_REQUEST, ClientGone, Incoming

_log = logging.getLogger(__name__)


class PendingResponse(Response):
    """An ASGI response that is still to be made: `answer` makes it, and it is sent through `keep_alive`.

    An exception becomes an error response, and is noted in the `line` of the log. If the client leaves, everything is
    cancelled. `under_way` is closed at the end in any case.
    """

    def __init__(
        self,
        incoming: Incoming,
        keep_alive: KeepAlive,
        answer: Callable[[], Coroutine[Any, Any, Response]],
        under_way: ExitStack,
        line: RequestLine,
    ) -> None:
        self._incoming = incoming
        self._keep_alive = keep_alive
        self._answer = answer
        self._under_way = under_way
        self._line = line
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Waits for the response and sends it, or an error in its place."""
        with self._under_way:
            keeping_alive = self._keep_alive.start(send)
            try:
                response = await self._response()
                await response(scope, receive, keeping_alive)
                await self._keep_alive.close()
            finally:
                self._incoming.close()
                await self._keep_alive.stop()

    async def _response(self) -> Response:
        try:
            return await self._incoming.unless_gone(self._answer())
        except ClientGone:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        except ProxyError as error:
            self._line.error = error.code or error.type
            return error_response(error)
        except Exception:  # noqa: BLE001
            _log.exception("a request failed")
            return error_response(ProxyError(DEFECT))


def error_response(error: ProxyError) -> Response:
    """The response for an error of the proxy's own."""
    return Response(error.to_json(), error.status, dict(error.headers), media_type="application/json")
