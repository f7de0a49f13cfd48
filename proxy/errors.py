"""The proxy's own errors, as clients get them; docs/reference/http.md lists them.

They are sent as `{"error": {"message", "type", "param", "code"}}`, the form that OpenAI's SDKs read; missing values are
null. The upstream's errors are not among them: they pass through unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from http import HTTPStatus
from math import ceil

from proxy.quoting import quoted
from proxy.values import json_or_none

DEFECT = "The proxy failed; its log says why."
RETRY_AFTER = 1  # seconds
CLIENT_CLOSED_REQUEST = 499  # the status of a request whose client has left; only the log and the sums have it
_INVALID = "invalid_request_error"


class ProxyError(Exception):
    """The base of all errors of the proxy. `message` is a default for errors that always say the same.

    `param` names the wrong header or member of the request, if there is one. `headers` are sent with the error.
    """

    status, type = 500, "server_error"
    code: str | None = "internal_error"

    message = ""
    param: str | None = None
    headers: Sequence[tuple[str, str]] = ()

    def __init__(self, message: str = "", *, param: str | None = None, code: str | None = None) -> None:
        self.message = message or self.message
        super().__init__(self.message)
        self.param = param or self.param
        self.code = code or self.code

    def to_json(self) -> bytes:
        return error_body(self.message, self.type, self.param, self.code)


class BadRequest(ProxyError):
    """The request cannot be read, or a value in it is wrong."""

    status, type = 400, _INVALID
    code: str | None = None


class NotKnown(ProxyError):
    """The caller has no such session or message; whether another tenant has one is not told."""

    status, type, code = 404, _INVALID, "not_known"


class NotHere(ProxyError):
    """The path is served at another address of the proxy (`admin.listen`), or of none."""

    status, type, code = 404, _INVALID, "not_served_here"
    param = "path"


class PathNotAllowed(ProxyError):
    """The settings do not allow the path, or its method, to be passed on."""

    status, type, code = 403, _INVALID, "path_not_allowed"
    param = "path"


class NoUpstream(ProxyError):
    """None of the upstreams takes requests of the protocol, or the model."""

    status, type, code = 404, _INVALID, "no_upstream"


class ContextLengthExceeded(BadRequest):
    """The part of the request that cannot be condensed exceeds the window; the message says what takes the tokens."""

    code = "context_length_exceeded"


class CredentialUnproven(ProxyError):
    """A request for what is stored, with a credential that the upstream has neither accepted nor refused."""

    status, type, code = 403, _INVALID, "credential_unproven"
    message = (
        "Stored text is shown and used only for a credential that the upstream has accepted in the last ten minutes."
        " Send a normal request with this one first."
    )


class CredentialRefused(ProxyError):
    """The upstream refuses the caller's credential; the client gets its status and its error."""

    status, type, code = 401, _INVALID, "credential_refused"

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__("The upstream refuses this credential.")
        self.status = status
        self._body = body

    def to_json(self) -> bytes:
        """The upstream's own error if it is JSON, else the proxy's."""
        return self._body if json_or_none(self._body) is not None else super().to_json()


class InvalidKey(ProxyError):
    """The key is missing, expired or revoked."""

    status, type, code = 401, _INVALID, "invalid_api_key"
    headers = (("WWW-Authenticate", "Bearer"),)


class TooManyAttempts(ProxyError):
    """Too many failed logins to the administration at this moment."""

    status, type, code = 429, _INVALID, "too_many_attempts"
    headers = (("Retry-After", "1"),)


class NotPermitted(ProxyError):
    """The key of the request is not for this model, this strategy, or the administration."""

    status, type, code = 403, _INVALID, "model_not_allowed"


class HeadMismatch(ProxyError):
    """An append names a head other than `head`, that of the stored history, or another replica appends just now.

    The head of a history without messages begins with `0-`.
    """

    status, type, code = 409, "conflict_error", "head_mismatch"

    def __init__(self, head: str, given: str | None = None) -> None:
        message = f"The stored history ends with {head}, not with {quoted(given or '')}."
        if given is None:
            message = f"The stored history ends with {head}, and another append to it is under way; try again after it."
        elif head.startswith("0-"):
            message = (
                f"The session has no stored history yet, so its head is not {quoted(given)}."
                " X-Condenser-If-Head may be left out of its first append."
            )
        super().__init__(message, param="X-Condenser-If-Head")
        self.headers = [("X-Condenser-Head", head)]


class HistoryIncomplete(ProxyError):
    """The store has lost a part of the history that an append continues; a shorter one is never used in its place."""

    status, type, code = 409, "conflict_error", "history_incomplete"
    message = "The store has lost a part of this history. Delete the session, or append to another one."
    param = "X-Condenser-Session"


class BodyTooLarge(ProxyError):
    """The body is larger than the limit in the settings."""

    status, type, code = 413, _INVALID, "body_too_large"
    headers = (("connection", "close"),)  # the rest of it is not wanted


class UpgradeRefused(ProxyError):
    """The request asks for another protocol on its connection, such as WebSocket; clients fall back to HTTP."""

    status, type, code = 426, _INVALID, "upgrade_refused"
    message = "This proxy serves HTTP only; send the request without an upgrade."
    param = "Upgrade"
    headers = (("connection", "close"),)  # the client may send the other protocol after an upgrade


class HistoryUnavailable(ProxyError):
    """The request needs a stored history, or the secret of a compaction, and the store does not answer."""

    status = 503
    code = "history_unavailable"


class ShuttingDown(ProxyError):
    """The proxy is stopping before the reply has ended."""

    status = 503
    code = "shutting_down"
    message = "The proxy is shutting down; send the request again."


class Overloaded(ProxyError):
    """The proxy has too much work; the request may be sent again after `RETRY_AFTER` seconds."""

    status = 503
    code = "overloaded"
    headers = (("Retry-After", str(RETRY_AFTER)),)


class TokensSpent(ProxyError):
    """The tenant has spent its tokens; some are left again in so many seconds. The words are those that SDKs read."""

    status, type, code = 429, "tokens", "rate_limit_exceeded"

    def __init__(self, seconds: float) -> None:
        wait = ceil(seconds)
        super().__init__(f"Rate limit reached for tokens per minute (TPM). Please try again in {wait}s.")
        self.headers = [("Retry-After", str(wait))]


class UpstreamUnavailable(ProxyError):
    """The upstream gave no answer, or broke it off."""

    status, type, code = 502, "upstream_error", "upstream_unreachable"


def error_body(message: str, kind: str, param: str | None = None, code: str | None = None) -> bytes:
    error = {"message": message, "type": kind, "param": param, "code": code}
    return json.dumps({"error": error}).encode()


def http_error_body(status: int, message: str = "") -> bytes:
    """The body for a plain HTTP error, such as 404 or 405; the default message is the phrase of the status."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    phrase = HTTPStatus(status).phrase
    return error_body(message or phrase, kind, None, phrase.lower().replace(" ", "_"))


class SettingsError(Exception):
    """The settings cannot be used; the message has a line for each wrong key. Clients never get this error."""


class CommandFailed(Exception):
    """A command failed; the message is for the user, and `code` is the exit code."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code
