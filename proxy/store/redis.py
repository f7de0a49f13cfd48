"""The client of Redis 7 or Valkey; the only module that imports redis-py.

A `Node` is one server behind a pool of connections. It is asked a list of `Command`s, which are sent as one pipeline.
`redis_routes` decides which node is asked, `redis_store` what it is asked.

Time-outs and retries. By default redis-py sends a write again if its answer was lost, and waits a minute for a hung
server. Here getting a free connection, connecting and an exchange have a bound each, and a command that may have been
executed is never sent twice. Only three things show that a command was not executed, and allow another try: a
`NotSent`, a redirection, and a script that the server does not know. `_pool` is the only place that builds connections,
and a URL cannot change what it sets.

Errors. Every exception of the client becomes a StoreError. Errors of a server or a connection have no cause attached,
since their texts may quote user names. Any other exception is a defect, of ours or of the client; it is kept as the
cause, and logged.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from hiredis import pack_command
from redis import exceptions
from redis.asyncio import BlockingConnectionPool
from redis.asyncio.connection import AbstractConnection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.maint_notifications import MaintNotificationsConfig

from proxy.store.base import StoreError

Word: TypeAlias = str | bytes | int
Address: TypeAlias = tuple[str, int]

_REASONS: tuple[tuple[type[Exception], str], ...] = (
    # The first match counts; several of these derive from ConnectionError.
    (exceptions.AuthenticationError, "store-refused"),
    (exceptions.AuthenticationWrongNumberOfArgsError, "store-refused"),
    (exceptions.AuthorizationError, "store-refused"),
    (exceptions.NoPermissionError, "store-refused"),
    (exceptions.BusyLoadingError, "store-loading"),
    (exceptions.OutOfMemoryError, "store-full"),
    (exceptions.ReadOnlyError, "store-read-only"),
    (exceptions.TimeoutError, "store-timeout"),
    (TimeoutError, "store-timeout"),
    (exceptions.ConnectionError, "store-unavailable"),
    (exceptions.ClusterDownError, "store-unavailable"),
    (OSError, "store-unavailable"),
)
_CONNECTING = re.compile(r"^Error -\d+ connecting to [^ ]+ ")
_SYSTEM = re.compile(r"\bErr(?:or|no) (\d+)\b")
CLIENT_ERRORS = (exceptions.RedisError, OSError)
"""Errors of a server, a connection or a time-out, which is an OSError; any other exception is a defect."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of one process on its use of one server."""

    connect: float = 0.25
    """Seconds to connect."""
    operation: float = 0.5
    """Seconds for one exchange: a pipeline and its answers."""
    free_connection: float = 0.25
    """Seconds to wait for a free connection."""
    call: float = 1.0
    """Seconds for one call of the store, all its exchanges included."""
    health_check: int = 30
    """Seconds without use after which a connection is checked before it is used again."""
    connections: int = 32
    """The most connections."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command. `key` determines its slot; `source` is the text of the script that `words` name by digest."""

    words: tuple[Word, ...]
    key: str = ""
    source: str = ""

    def in_full(self) -> Command:
        """The same command with the script's text, for a server that does not know the script yet."""
        return Command(("EVAL", self.source, *self.words[2:]), self.key)


class NotSent(StoreError):
    """There was no connection: nothing was executed, and the command may be sent again."""


class CrossSlot(StoreError):
    """The server refuses a command with keys in several slots; nothing was executed."""


@dataclass(frozen=True, slots=True)
class Redirect:
    """The answer of a node that does not serve the slot; nothing was executed. `ask` redirects this command only."""

    address: Address
    slot: int
    ask: bool


@dataclass(frozen=True, slots=True)
class TryAgain:
    """The answer of a node while the keys of a slot are moved; nothing was executed."""


class Node:
    """One server; `options` come from `server_options`, `shown` is its name in errors."""

    def __init__(self, options: dict[str, Any], *, shown: str, limits: Limits) -> None:
        self._limits = limits
        self._shown = shown
        self._host = str(options.get("host", "localhost"))
        self._pool = _pool(options, shown, limits)

    async def ask(self, commands: Sequence[Command], *, asking: bool = False) -> list[Any]:
        """The answers in order; a Redirect, TryAgain or StoreError stands for a command that was not executed.

        Raises `NotSent`, or StoreError where it is unknown what was executed. With `asking`, ASKING is sent before each
        command, as Redis requires after a redirection with `ask`.
        """
        answers = await self._exchange(commands, asking=asking)
        unknown = [n for n, each in enumerate(answers) if isinstance(each, exceptions.NoScriptError)]
        if unknown:
            full = [commands[n].in_full() for n in unknown]
            for n, answer in zip(unknown, await self._exchange(full, asking=asking), strict=True):
                answers[n] = answer
        return [self._translate(answer) for answer in answers]

    async def close(self) -> None:
        """Closes all connections; one that does not close in time is dropped."""
        try:
            await self._pool.aclose()
        except CLIENT_ERRORS as error:
            _log.debug("%s", store_error(error, self._shown))

    async def _exchange(self, commands: Sequence[Command], *, asking: bool) -> list[Any]:
        before: list[tuple[Word, ...]] = [("ASKING",)] if asking else []
        lines = [line for command in commands for line in (*before, command.words)]
        connection = await self._connection()
        try:
            async with asyncio.timeout(self._limits.operation):
                # redis-py packs in Python, and has a time-out for each answer; the whole exchange has ours.
                await connection.send_packed_command([_packed(line) for line in lines])
                answers = [await _answer(connection) for _ in lines]
        except BaseException as error:
            # The answer may still come, and must not be read as that of the next command.
            await connection.disconnect(nowait=True)
            if not isinstance(error, Exception):
                raise
            raise store_error(error, self._shown) from cause_of(error)
        finally:
            await self._pool.release(connection)
        return answers[1::2] if asking else answers

    async def _connection(self) -> AbstractConnection:
        try:
            connection: AbstractConnection = await self._pool.get_connection()  # type: ignore[no-untyped-call]
        except Exception as error:  # noqa: BLE001
            raise store_error(error, self._shown, NotSent) from cause_of(error)
        return connection

    def _translate(self, answer: Any) -> Any:
        match answer:
            case exceptions.AskError():  # MovedError is one too
                address = (answer.host or self._host, answer.port)
                return Redirect(address, answer.slot_id, ask=not isinstance(answer, exceptions.MovedError))
            case exceptions.TryAgainError():
                return TryAgain()
            case exceptions.ClusterCrossSlotError():
                return store_error(answer, self._shown, CrossSlot)
            case Exception():
                return store_error(answer, self._shown)
        return answer


def _packed(words: tuple[Word, ...]) -> bytes:
    packed: bytes = pack_command(words)  # type: ignore[arg-type]  # its stub knows tuples of one word only
    return packed


async def _answer(connection: AbstractConnection) -> Any:
    try:
        return await connection.read_response(timeout=math.inf)
    except exceptions.ResponseError as error:
        return error  # not raised, since the answers of the next commands follow


def cause_of(error: Exception) -> Exception | None:
    """The cause of a StoreError: None for an error of a server or a connection; a defect, which is also logged here."""
    if isinstance(error, CLIENT_ERRORS):
        return None
    _log.error("the client of a store failed", exc_info=error)
    return error


def store_error(error: Exception, shown: str, kind: type[StoreError] = StoreError) -> StoreError:
    """The StoreError for an exception of the client."""
    reason = next((word for fits, word in _REASONS if isinstance(error, fits)), "store-error")
    if isinstance(error, exceptions.ResponseError) and str(error).startswith("WRONGTYPE"):
        reason = "store-corrupt"
    # A server's message about credentials or permissions quotes them.
    detail = "" if reason == "store-refused" else _in_words(error)
    return kind(reason, f"{shown} {detail}".rstrip())


def _in_words(error: Exception) -> str:
    """What the system or the server said, without the client's and asyncio's words around it."""
    told = str(error)
    if number := _SYSTEM.search(told):
        return os.strerror(int(number[1]))
    return _CONNECTING.sub("", told).rstrip(".") or type(error).__name__


def _pool(options: dict[str, Any], shown: str, limits: Limits) -> BlockingConnectionPool:
    """The pool that makes every connection to Redis."""
    policy: dict[str, Any] = {
        "socket_connect_timeout": limits.connect,
        "socket_timeout": limits.operation,
        "health_check_interval": limits.health_check,
        "retry": Retry(NoBackoff(), 0),
        "retry_on_error": [],
        "decode_responses": False,
        # RESP2 has no push messages, and connecting takes no commands but AUTH and SELECT.
        "protocol": 2,
        "driver_info": None,
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
    }
    pool = BlockingConnectionPool(
        max_connections=limits.connections, timeout=limits.free_connection, **options, **policy
    )
    try:
        # Does not connect, but refuses options that it does not know.
        pool.connection_class(**pool.connection_kwargs)
    except (TypeError, ValueError, exceptions.RedisError):
        raise ValueError(f"{shown}: an option in the URL is unknown or wrong") from None
    return pool


def server_options(url: str, shown: str) -> dict[str, Any]:
    """The options in a `redis[s]://` URL: address, account, database, and how to check a certificate.

    Raises ValueError for any other option.
    """
    try:
        path, options = urlsplit(url).path, dict(parse_url(url))
    except ValueError:
        # The error's text can hold part of the password: after an unescaped slash it is read as a port.
        raise ValueError(f"not a URL of a Redis: {shown}; escape / ? # @ in a password as %XX") from None
    if not re.fullmatch(r"/?|/\d+", path):
        raise ValueError(f"{shown}: a path can only be the number of a database")
    tls = url.lower().startswith("rediss:")
    allowed = {"connection_class", "host", "port", "username", "password", "db"}
    for option in options:
        if option not in allowed and not (tls and option.startswith("ssl_")):
            raise ValueError(f"{shown}: no option {option!r} in the URL of a Redis; time-outs are fixed")
    return options
