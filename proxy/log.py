"""The log on standard error: a line for each request, as text or JSON.

A line carries only counts and names, never content and never a credential. Names chosen by clients are cut, and no
character of them can end or colour a line.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
import time
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from http import HTTPStatus
from time import perf_counter
from typing import TYPE_CHECKING, Any, TextIO

from proxy import LOGGER
from proxy.bodies.measure import Precision
from proxy.condensing import account
from proxy.conversations.requests import RequestRecord
from proxy.conversations.session import MAIN, MAX_MODEL_NAME
from proxy.conversations.totals import MILLION
from proxy.errors import CLIENT_CLOSED_REQUEST, UpgradeRefused
from proxy.protocols.endpoint import Endpoint
from proxy.quoting import label, printable
from proxy.reasons import Action, Trigger
from proxy.settings import LogSettings

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from proxy.condensing.attempt import Turn

LINE = "condenser.line"  # the key of a request's line in its ASGI scope
_LONGEST_PATH = 200
_LONGEST_MODEL = 128
_QUIET = frozenset(("/livez", "/readyz", "/health", "/healthz", "/metrics"))
_TRACE = re.compile(rb"[0-9a-f]{2}-((?!0{32})[0-9a-f]{32})-[0-9a-f]{16}-")
_OWN = _QUIET | {"/"}
_REFUSED = "refused"  # the action of a request that the proxy itself refused
_READING = ("GET", "HEAD")
_log = logging.getLogger(LOGGER)
_audit = logging.getLogger(f"{LOGGER}.audit")  # what operators change, and who is refused; written at any `log.level`


@dataclass(slots=True, eq=False)
class RequestLine:
    """The log line of one request; its fields are set while the request is served."""

    id: str
    method: str
    path: str
    status: int | None = None
    is_complete: bool = False
    model: str | None = None
    turn: Turn | None = None
    outcome: tuple[str, str] = ("", "")  # action and reason of a request without a turn
    error: str | None = None  # the code of one of the proxy's own errors
    tenant: str = ""  # its name, else the beginning of its digest; "" if it is not known
    operator: str = ""  # who administers: `token`, the name of a key, or `unknown`; "" for all other requests
    deed: str = ""  # what the form of a page asks for
    upstream: str = ""  # the name of the upstream that it goes to
    endpoint: Endpoint | None = None  # the one whose requests are read at its path
    trace: bytes = b""  # its `traceparent`, as the upstream gets it
    span: Span | None = None  # its OpenTelemetry span, if there are any
    is_relayed: bool = False  # whether the reply is the upstream's
    upstream_ms: float = 0.0  # milliseconds until the upstream answered a request without a turn
    first_byte: float | None = None  # seconds until the first byte of the reply's body was sent
    seconds: float = 0.0  # from the head of the request to the end of its reply
    started: float = field(default_factory=perf_counter)  # on the clock of `perf_counter`

    def write(self) -> None:
        """Writes the line of a request that has ended; its text is made only if its level is logged."""
        self.seconds = perf_counter() - self.started
        level = logging.INFO if self.status is not None and self.status < 500 else logging.WARNING
        log = _log
        if self.path in _QUIET:
            level = logging.DEBUG
        if self.operator and (self.method not in _READING or (self.status or 0) >= HTTPStatus.BAD_REQUEST):
            log, level = _audit, max(level, logging.INFO)
        if log.isEnabledFor(level):
            # `log` would search the stack for the caller, which is always this function.
            log.handle(_log.makeRecord(LOGGER, level, __file__, 0, self, (), None))

    def __str__(self) -> str:
        if self.turn is not None:
            has_tools = self.turn.asked.body.has_tools
            line = account.log_line(self.turn.sent.decision, self.turn.timing, has_tools=has_tools)
            what, timing = f"{label(self.model or '', _LONGEST_MODEL)} {line}", self.turn.timing
            upstream, again = timing.upstream, f", sent {timing.sends} times" if timing.sends > 1 else ""
        else:
            place = f"{self.method} {label(self.path, _LONGEST_PATH)}"
            what = f"{place} {', '.join(filter(None, self.outcome))}" if self.outcome[0] else place
            upstream, again = self.upstream_ms, ""
        parts = [
            f"{self.status or '-'} {what}",
            f"error {self.error}" if self.error else "",
            "" if self.is_complete else "broken off",
            f"upstream {upstream:.0f} ms{again}" if upstream else "",
            f"{self.seconds * 1000:.0f} ms in all",
            f"tenant {self.tenant}" if self.tenant else "",
            f"by {self.operator}" if self.operator else "",
            self.deed,
            f"request {self.id}",
        ]
        return ", ".join(filter(None, parts))

    @property
    def protocol(self) -> str:
        """The protocol of the request; `own` for what the proxy answers itself, `other` for all else."""
        if self.endpoint is not None:
            return self.endpoint.dialect.name
        return "own" if self.path in _OWN or self.path.startswith("/_condenser/") else "other"

    def amounts(self) -> Mapping[str, int]:
        """What the request adds to the sums of all requests; nothing if it asked no model.

        An upgrade asks none: Codex tries a web socket at each start, and goes on over HTTP.
        A `POST` that asked no model and got 404 counts as `stray`: mostly the client has a wrong address.
        """
        turn, endpoint, (action, reason) = self.turn, self.endpoint, self.outcome
        status = self.status or CLIENT_CLOSED_REQUEST
        if turn is None or turn.record is None:
            if not (action or (self.error and endpoint)) or self.error == UpgradeRefused.code:
                return {"stray": 1} if self._is_stray else {}
            failed = int(status >= HTTPStatus.BAD_REQUEST)
            found = {"requests": 1, f"action_{action or _REFUSED}": 1, "failed": failed}
        else:
            if turn.asked.controls.dry_run:
                return {}
            record, decision = turn.record, turn.sent.decision
            status, reason = record.status, decision.reason
            found = {f"action_{record.action}": 1, **turn.amounts}
            found |= {f"trigger_{record.trigger}": 1} if record.action is Action.CONDENSED else {}
        found |= {f"protocol_{endpoint.dialect.name}": 1} if endpoint else {}
        found |= {f"reason_{reason}": 1} if reason else {}
        if status >= HTTPStatus.BAD_REQUEST:
            found[f"error_{self.error}" if self.error else f"status_{status}"] = 1
        return found

    def refused(self, now: float) -> RequestRecord:
        """The record of a request that has ended without a turn."""
        return RequestRecord(
            at=now - self.seconds,
            branch=MAIN,
            action=Action.BYPASSED,
            trigger=Trigger.NONE,
            condensation="",
            before=0,
            after=0,
            precision=Precision.ESTIMATE,
            status=self.status or CLIENT_CLOSED_REQUEST,
            milliseconds=round(self.seconds * 1000),
            model=(self.model or "")[:MAX_MODEL_NAME],
            window=None,
        )

    @property
    def trace_id(self) -> str | None:
        found = _TRACE.match(self.trace)
        return found[1].decode() if found else None

    @property
    def _is_stray(self) -> bool:
        is_ours = self.path.startswith("/_condenser/")
        return self.method == "POST" and self.status == HTTPStatus.NOT_FOUND and not is_ours

    def fields(self) -> dict[str, Any]:
        """The line as members of a JSON object; unknown values are left out."""
        turn, (action, reason) = self.turn, self.outcome
        fields: dict[str, Any] = {
            "request_id": self.id,
            "method": printable(self.method),
            "path": printable(self.path, _LONGEST_PATH),
            "status": self.status,
            "complete": self.is_complete,
            "tenant": self.tenant or None,
            "operator": self.operator or None,
            "deed": self.deed or None,
            "trace_id": self.trace_id,
            "upstream": self.upstream or None,
            "model": None if self.model is None else printable(self.model, _LONGEST_MODEL),
            "action": action or None,
            "reason": reason or None,
            "error": self.error,
            "upstream_ms": round(self.upstream_ms, 2) or None,
            "first_byte_ms": None if self.first_byte is None else round(self.first_byte * 1000, 2),
            "total_ms": round(self.seconds * 1000, 2),
        }
        if turn is not None:
            fields |= account.fields(turn.sent.decision, turn.timing) | (_usage(turn.record) if turn.record else {})
        return {name: value for name, value in fields.items() if value is not None}


def _usage(record: RequestRecord) -> dict[str, Any]:
    """What the upstream has counted and what that cost, as far as it is known; money in the prices' currency."""
    return {
        "tokens_prompt": record.prompt or None,
        "tokens_cached": record.cached if record.prompt else None,
        "tokens_reply": record.reply if record.prompt else None,
        "cost": record.cost / MILLION or None,
    }


@dataclass(slots=True, eq=False)
class ServedRequest:
    """What tasks and connections that a request starts know of it; they outlive it, so it is no more than its id."""

    id: str
    is_over: bool = False

    def concerns(self, record: logging.LogRecord) -> bool:
        """Whether a record made in this request, or in a task that it started, is about this request.

        What a task logs later is about it only if it is a failure of the task's work.
        """
        return bool(record.exc_info) or not self.is_over


CURRENT: ContextVar[ServedRequest | None] = ContextVar("condenser.request", default=None)
"""The request that is served; tasks that it starts have it too."""


def _request_id(record: logging.LogRecord) -> str | None:
    if isinstance(record.msg, RequestLine):
        return record.msg.id
    request = CURRENT.get()
    return request.id if request is not None and request.concerns(record) else None


def _message(record: logging.LogRecord) -> str:
    is_line, request_id = isinstance(record.msg, RequestLine), _request_id(record)
    return record.getMessage() if is_line or request_id is None else f"request {request_id}: {record.getMessage()}"


@lru_cache(2)
def _second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def _time(record: logging.LogRecord) -> str:
    """The time of a record, in UTC, to the millisecond."""
    return f"{_second(int(record.created))}.{int(record.msecs):03}Z"


class JsonLines(logging.Formatter):
    """Formats log records as JSON, one per line; the record of a request has its fields too."""

    def format(self, record: logging.LogRecord) -> str:
        document = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
        }
        if isinstance(record.msg, RequestLine):
            document |= record.msg.fields()
        elif request_id := _request_id(record):
            document["request_id"] = request_id
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return json.dumps(document, ensure_ascii=False)


class TextLines(logging.Formatter):
    """Formats log records for people: time, level, message, and the traceback of an error."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{_time(record)} {record.levelname} {_message(record)}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


_SAID_BY_US = (
    "ASGI callable returned without completing response.",
    "Unsupported upgrade request.",
    "No supported WebSocket library detected.",
)


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    """Whether a record of uvicorn says anything new.

    A refused upgrade has a line of its own, and the package that uvicorn names would not help. If the upstream leaves a
    reply unfinished, so does the relay, which lets the client see that, and logs it. uvicorn takes this for a defect of
    the app, and also a request that is cancelled when the server stops.
    """
    is_cancelled = record.exc_info is not None and isinstance(record.exc_info[1], asyncio.CancelledError)
    return not (is_cancelled or str(record.msg).startswith(_SAID_BY_US))


class _StandardError(logging.StreamHandler[TextIO]):
    """Writes to the current standard error, which may be replaced while the program runs."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


def configure_logging(settings: LogSettings) -> None:
    """Sends the log to standard error, including the libraries' log. Only the program calls this, never the app."""
    handler = _StandardError()
    handler.setFormatter(JsonLines() if settings.format == "json" else TextLines())
    root, level = logging.getLogger(), logging.getLevelNamesMapping()[settings.level.upper()]
    root.handlers = [handler]
    root.setLevel(max(level, logging.WARNING))
    logging.getLogger("uvicorn.error").addFilter(_is_worth_a_line)
    # No line shows these, and finding them takes longer than writing the line.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    # Each try of each batch would be a line while the receiver of spans cannot be reached; the end of the tries is one.
    logging.getLogger("opentelemetry.exporter").setLevel(logging.ERROR)
    for name in (LOGGER, "proxy"):
        logging.getLogger(name).setLevel(level)
    _audit.setLevel(min(level, logging.INFO))
