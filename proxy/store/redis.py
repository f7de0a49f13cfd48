"""The client of Redis 7 or Valkey; the only module that knows redis.

A `Node` is one server behind a pool of connections. What is asked of it is a list of `Command`s, sent as one
pipeline. `redis_routes` decides which node is asked, `redis_store` what.

Time and repetition. redis-py would send a write again whose answer was lost, and would wait a minute for a hung
server. Here a free connection, connecting and an exchange have a bound each, and nothing is sent twice that may
have been executed. Three things say that it was not: a `NotSent`, a redirection, and a script that the server does
not know; only these may be followed by another try. `_pool` is the only place that builds connections; a URL
cannot change what it sets.

Errors. Whatever the client raises becomes a StoreError. What a server or a connection says has no cause attached, since
it may quote user names; anything else is a defect, ours or the client's, which keeps its cause and is logged with it.
"""

from __future__ import annotations

import asyncio
import logging
import math
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
    # The first that fits; several of these derive from ConnectionError.
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
SAID = (exceptions.RedisError, OSError)
"""What a server, a connection or a bound of time may say; a time-out is an OSError."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds, and the number of connections of one process to one server."""

    connect: float = 0.25
    operation: float = 0.5
    free_connection: float = 0.25
    call: float = 1.0
    health_check: int = 30
    connections: int = 32


@dataclass(frozen=True, slots=True)
class Command:
    """What a server is asked. `key` tells the slot; `source` is the text of the script that `words` name by digest."""

    words: tuple[Word, ...]
    key: str = ""
    source: str = ""

    def in_full(self) -> Command:
        """The same for a server that does not know the script, which it knows from then on."""
        return Command(("EVAL", self.source, *self.words[2:]), self.key)


class NotSent(StoreError):
    """No connection: nothing was executed, and the same may be asked again."""


class Scattered(StoreError):
    """The keys of one command live in several slots, which the servers behind this address tell apart: nothing done."""


@dataclass(frozen=True, slots=True)
class Redirect:
    """The answer of a node that does not serve the slot; nothing was executed. `ask`: for this once only."""

    address: Address
    slot: int
    ask: bool


@dataclass(frozen=True, slots=True)
class Again:
    """The answer of a node while the keys of a slot move; nothing was executed."""


class Node:
    """One server; `options` are those that `server_options` gave, `shown` is what errors call it."""

    def __init__(self, options: dict[str, Any], *, shown: str, limits: Limits) -> None:
        self._limits = limits
        self._shown = shown
        self._host = str(options.get("host", "localhost"))
        self._pool = _pool(options, shown, limits)

    async def ask(self, commands: Sequence[Command], *, asking: bool = False) -> list[Any]:
        """The answers in order; a Redirect, Again or StoreError stands for a command that was not executed.

        Raises `NotSent`, or StoreError where it is unknown what was executed. `asking` is what Redis wants before a
        command that it redirected for once.
        """
        answers = await self._exchange(commands, asking=asking)
        unknown = [n for n, each in enumerate(answers) if isinstance(each, exceptions.NoScriptError)]
        if unknown:
            full = [commands[n].in_full() for n in unknown]
            for n, answer in zip(unknown, await self._exchange(full, asking=asking), strict=True):
                answers[n] = answer
        return [self._translated(answer) for answer in answers]

    async def close(self) -> None:
        """Closes all connections; what does not close in time is dropped as well."""
        try:
            await self._pool.aclose()
        except SAID as error:
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
            # An answer may still come; nobody else may read it as his own.
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

    def _translated(self, answer: Any) -> Any:
        match answer:
            case exceptions.AskError():  # MovedError is one too
                address = (answer.host or self._host, answer.port)
                return Redirect(address, answer.slot_id, ask=not isinstance(answer, exceptions.MovedError))
            case exceptions.TryAgainError():
                return Again()
            case exceptions.ClusterCrossSlotError():
                return store_error(answer, self._shown, Scattered)
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
        return error  # an answer like any other: those of the next commands follow


def cause_of(error: Exception) -> Exception | None:
    """What a StoreError has as its cause: nothing that a server or a connection says, but a defect, which is logged."""
    if isinstance(error, SAID):
        return None
    _log.error("the client of a store failed", exc_info=error)
    return error


def store_error(error: Exception, shown: str, kind: type[StoreError] = StoreError) -> StoreError:
    """What is said of an error of the client, or of one of its bugs."""
    reason = next((word for fits, word in _REASONS if isinstance(error, fits)), "store-error")
    name = type(error).__name__
    # What a server says of credentials and permissions quotes them.
    detail = name if reason == "store-refused" else f"{name}: {error}"
    return kind(reason, f"{shown} {detail}")


def _pool(options: dict[str, Any], shown: str, limits: Limits) -> BlockingConnectionPool:
    """Every connection to Redis is made by this pool."""
    policy: dict[str, Any] = {
        "socket_connect_timeout": limits.connect,
        "socket_timeout": limits.operation,
        "health_check_interval": limits.health_check,
        "retry": Retry(NoBackoff(), 0),
        "retry_on_error": [],
        "decode_responses": False,
        # The older protocol has no pushed messages, and to connect costs no commands but AUTH and SELECT.
        "protocol": 2,
        "driver_info": None,
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
    }
    pool = BlockingConnectionPool(
        max_connections=limits.connections, timeout=limits.free_connection, **options, **policy
    )
    try:
        # Connects nothing, and refuses options that it does not know.
        pool.connection_class(**pool.connection_kwargs)
    except (TypeError, ValueError, exceptions.RedisError):
        raise ValueError(f"{shown}: an option in the URL is unknown or wrong") from None
    return pool


def server_options(url: str, shown: str) -> dict[str, Any]:
    """What a `redis[s]://` URL may say: where, as whom, which database, and how to check a certificate.

    Raises ValueError for anything else.
    """
    try:
        path, options = urlsplit(url).path, dict(parse_url(url))
    except ValueError:
        # Its text can hold a part of the password, as one with an unescaped slash is read as a port.
        raise ValueError(f"not a URL of a Redis: {shown}; escape / ? # @ in a password as %XX") from None
    if not re.fullmatch(r"/?|/\d+", path):
        raise ValueError(f"{shown}: a path can only be the number of a database")
    tls = url.lower().startswith("rediss:")
    allowed = {"connection_class", "host", "port", "username", "password", "db"}
    for option in options:
        if option not in allowed and not (tls and option.startswith("ssl_")):
            raise ValueError(f"{shown}: no option {option!r} in the URL of a Redis; time-outs are fixed")
    return options
