"""What the proxy answers when it is the one that says no.

    ProxyError                     status  type                    code
     ├── BadRequest                400     invalid_request_error   (given)
     ├── ContextLengthExceeded     400     invalid_request_error   context_length_exceeded
     ├── HeadMismatch              409     conflict_error          head_mismatch
     ├── BodyTooLarge              413     invalid_request_error   body_too_large
     ├── HistoryUnavailable        503     server_error            history_unavailable
     └── UpstreamUnavailable       502     upstream_error          upstream_unreachable, upstream_timeout

Every one of them is written as `{"error": {"message", "type", "param", "code"}}` with JSON nulls, the form that
OpenAI's SDKs read. Errors of the upstream are not here: they pass through as they are.
"""

from __future__ import annotations

import json
from http import HTTPStatus

DEFECT = "The proxy failed; its log says why."


class ProxyError(Exception):
    """An error of ours; `param` names what of the request is wrong, where anything is.

    `headers` are those of ours that are sent with it.
    """

    status = 500
    type = "server_error"
    code: str | None = "internal_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or self.code
        self.headers: list[tuple[str, str]] = []

    def to_json(self) -> bytes:
        """The body in OpenAI's form."""
        return error_body(self.message, self.type, self.param, self.code)


class BadRequest(ProxyError):
    """The request cannot be read or asks for what there is not."""

    status = 400
    type = "invalid_request_error"
    code: str | None = None


class ContextLengthExceeded(BadRequest):
    """What cannot be condensed is larger than the window; the message says where the tokens are."""

    code = "context_length_exceeded"


class HeadMismatch(ProxyError):
    """The stored history is not the one that an append was made for, but ends with `head`."""

    status = 409
    type = "conflict_error"
    code = "head_mismatch"

    def __init__(self, head: str, given: str) -> None:
        super().__init__(f"The stored history ends with {head}, not with {given}.", param="X-Condenser-If-Head")
        self.headers = [("X-Condenser-Head", head)]


class BodyTooLarge(ProxyError):
    """The body is larger than the limit in the settings."""

    status = 413
    type = "invalid_request_error"
    code = "body_too_large"


class HistoryUnavailable(ProxyError):
    """Append mode needs a history that the store cannot give now; nothing may be sent without it."""

    status = 503
    code = "history_unavailable"


class UpstreamUnavailable(ProxyError):
    """No answer came from the upstream."""

    status = 502
    type = "upstream_error"
    code = "upstream_unreachable"


def error_body(message: str, kind: str, param: str | None = None, code: str | None = None) -> bytes:
    """An error as OpenAI writes it."""
    error = {"message": message, "type": kind, "param": param, "code": code}
    return json.dumps({"error": error}).encode()


def http_error_body(status: int) -> bytes:
    """The body for a plain HTTP error, such as 404 or 405."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    phrase = HTTPStatus(status).phrase
    return error_body(phrase, kind, None, phrase.lower().replace(" ", "_"))
