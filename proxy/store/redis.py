"""The clients of Redis 7 or Valkey; the only module that imports redis-py.

Clients are asked lists of `Command`s. `Server` is one server, or the master that Sentinels name, behind a pool of
connections: a list is one exchange. `Cluster` is redis-py's own client, which finds the node of each command by itself.

Time-outs and retries. By default redis-py sends a command again if its answer was lost, and waits long for a hung
server. Here getting a free connection, connecting and an exchange each have a bound. Nothing is sent again, except a
script that a server does not know, and a command that a cluster node refuses because another node serves the slot. A
URL cannot change these bounds.

Errors. Every exception of the client becomes a StoreError. Errors of a server or a connection have no cause attached,
since their texts may quote user names. Any other exception is a defect, of ours or of the client; it is kept as the
cause, and logged.

A breaker makes calls fail at once while it is out. Without one they would time out one by one.

    closed --- failures in a row, within a window ---> open --- cool-down is over ---> half-open
       ^                                                 ^                                  |
       +-------------- the probe succeeded --------------+-------- the probe failed -------+

Half-open lets one call through, the probe, and refuses all others. Each failed probe doubles the cool-down, up to a
maximum. A call counts only in the state that it began in: one that ends after the state has changed is ignored.

Only whether the store answers in time matters. A stale revision, an unknown session, an exceeded quota, and a full or
read-only server are answers; time-outs, refused connections, no free connection, and unexpected errors are failures. A
caller that gives up changes nothing: its call continues by itself, and is counted when it ends.

In a cluster each node has its own breaker, so that a node that is down does not shut off the others.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, TypeAlias
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

from hiredis import pack_command
from redis import exceptions
from redis.asyncio import BlockingConnectionPool
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.connection import AbstractConnection, parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.maint_notifications import MaintNotificationsConfig

from proxy.store.base import ANSWERS, StoreError

# -- the breaker ---------------------------------------------------------------------------------------------------

FAILURES = 3  # in a row
WINDOW = 10.0  # seconds in which they happen
COOL_DOWN = 1.0  # seconds, the first time


class State(Enum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


@dataclass(slots=True, eq=False)
class Breaker:
    """Guards calls on a monotonic `clock`, in seconds; errors and the log call what it protects by `name`."""

    name: str
    clock: Callable[[], float]
    longest_cool_down: float = 10.0
    state: State = State.CLOSED
    """The state after the last call; an open breaker whose cool-down is over becomes half-open at the next call."""
    transitions: Counter[State] = field(default_factory=Counter)  # how often each state was entered
    failures: list[float] = field(default_factory=list)  # the times of the failures that count while it is closed
    cool_down: float = 0.0  # seconds of the last cool-down; 0 after a success
    until: float = 0.0  # when the cool-down is over, while it is open
    _last_error: str = ""

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Counts a call by how it ends; raises StoreError `store-unavailable` while no calls are let through."""
        self._admit()
        age = self.transitions.total()
        try:
            yield
        except BaseException as error:
            if age == self.transitions.total():
                if isinstance(error, StoreError) and error.reason in ANSWERS:
                    self._answered()
                else:
                    self._failed(str(error) or type(error).__name__)
            raise
        if age == self.transitions.total():
            self._answered()

    def _admit(self) -> None:
        now = self.clock()
        if self.state is State.OPEN and now >= self.until:
            self._enter(State.HALF_OPEN)
            _log.debug("one call tries whether %s answers", self.name)
        elif self.state is not State.CLOSED:
            again = f"again in {self.until - now:.1f} s" if self.state is State.OPEN else "by another call now"
            told = f"{self.name} has failed and is asked {again}; {self._last_error}"
            raise StoreError("store-unavailable", told.removesuffix("; "))

    def _answered(self) -> None:
        self.failures.clear()
        if self.state is not State.CLOSED:
            self.cool_down = 0.0
            self._enter(State.CLOSED)
            _log.debug("%s answers again", self.name)

    def _failed(self, why: str) -> None:
        now = self.clock()
        self._last_error = why.removeprefix("store-unavailable").removeprefix(": ")
        self.failures = [*(at for at in self.failures if now - at <= WINDOW), now]
        if self.state is State.HALF_OPEN or len(self.failures) >= FAILURES:
            self.cool_down = min(self.cool_down * 2, self.longest_cool_down) or COOL_DOWN
            self.until = now + self.cool_down
            self._enter(State.OPEN)
            _log.debug("%s is left alone for %.0f s: %s", self.name, self.cool_down, self._last_error)

    def _enter(self, state: State) -> None:
        self.state, self.failures = state, []
        self.transitions[state] += 1


# -- the clients ---------------------------------------------------------------------------------------------------

Word: TypeAlias = str | bytes | int
Address: TypeAlias = tuple[str, int]

_REASONS: tuple[tuple[tuple[type[Exception], ...], str], ...] = (
    # The first match counts; several of these derive from ConnectionError.
    ((exceptions.AuthenticationError, exceptions.AuthenticationWrongNumberOfArgsError), "store-refused"),
    ((exceptions.AuthorizationError, exceptions.NoPermissionError), "store-refused"),
    ((exceptions.BusyLoadingError,), "store-loading"),
    ((exceptions.OutOfMemoryError,), "store-full"),
    ((exceptions.ReadOnlyError,), "store-read-only"),
    ((exceptions.TimeoutError, TimeoutError), "store-timeout"),
    ((exceptions.ConnectionError, exceptions.ClusterError, exceptions.RedisClusterException), "store-unavailable"),
    ((exceptions.AskError, OSError), "store-unavailable"),
)
_TLS = re.compile(r"\[SSL: \w+\] ([^(']+)")
_SYSTEM = re.compile(r"\bErr(?:or|no) (\d+)\b")
CLIENT_ERRORS = (exceptions.RedisError, exceptions.RedisClusterException, OSError)
"""Errors of a server, a connection or a time-out, which is an OSError; any other exception is a defect."""

SENTINEL_PORT, CLUSTER_PORT = 26_379, 6_379
_SENTINEL_WORDS = {"sentinel_username": "username", "sentinel_password": "password"}

_ABOUT: tuple[tuple[Word, ...], ...] = (("INFO",), ("CONFIG", "GET", "save"))
SCANNED_AT_ONCE = 1_000  # keys that a server looks at in one step of a listing
NODE_COOL_DOWN = 1.0  # seconds at most; a failed call to a node makes the client look for its successor

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of one process on its use of one server."""

    connect: float = 0.25  # seconds
    operation: float = 0.5  # seconds for one exchange: a pipeline and its answers
    free_connection: float = 0.25  # seconds to wait for one
    call: float = 1.0  # seconds for one call of the store, all its exchanges included
    health_check: int = 30  # seconds without use after which a connection is checked before it is used again
    connections: int = 32  # at most


@dataclass(frozen=True, slots=True)
class Command:
    """One command. `key` determines its slot; `source` is the text of the script that `words` name by digest."""

    words: tuple[Word, ...]
    key: str = ""
    source: str = ""

    def in_full(self) -> tuple[Word, ...]:
        """The words with the script's text, for a server that does not know the script yet."""
        return ("EVAL", self.source, *self.words[2:])


class Server:
    """One server, or the master of the service called `name` behind Sentinels.

    `options` come from `server_options`, `shown` is its name in errors.
    """

    is_one_server = True  # one command may have keys of any slots

    def __init__(
        self, options: dict[str, Any], *, shown: str, limits: Limits, sentinel: Sentinel | None = None, name: str = ""
    ) -> None:
        self._limits = limits
        self._shown = shown
        self._sentinel = sentinel
        kind = partial(_MasterPool, name, sentinel) if sentinel else BlockingConnectionPool
        self._pool: BlockingConnectionPool = kind(
            max_connections=limits.connections, timeout=limits.free_connection, **options, **_policy(limits)
        )
        try:
            # Does not connect, but refuses options that it does not know.
            self._pool.connection_class(**self._pool.connection_kwargs)
        except (TypeError, ValueError, exceptions.RedisError):
            raise ValueError(f"{shown}: an option in the URL is unknown or wrong") from None

    async def ask(self, commands: Sequence[Command]) -> list[Any]:
        """All answers in order; raises StoreError if any is missing, even if other commands were executed."""
        answers = await self._exchange([command.words for command in commands])
        unknown = [n for n, answer in enumerate(answers) if isinstance(answer, exceptions.NoScriptError)]
        if unknown:
            full = [commands[n].in_full() for n in unknown]
            for n, answer in zip(unknown, await self._exchange(full), strict=True):
                answers[n] = answer
        for answer in answers:
            if isinstance(answer, Exception):
                raise store_error(answer, self._shown)
        return answers

    async def ping(self) -> None:
        """Returns when every server that takes writes has answered."""
        await self.ask([Command(("PING",))])

    async def about(self) -> list[dict[str, str]]:
        """What each server that takes writes tells of itself, by name; nothing of what it refuses to tell."""
        return [_told(await self._exchange(_ABOUT))]

    async def keys(self, pattern: str, until: float) -> set[bytes]:
        """The keys that match, of all servers that take writes; raises `store-timeout` if time runs out."""
        # By SCAN, because KEYS would block the server for all its clients.
        names: set[bytes] = set()
        cursor = b"0"
        while True:
            step = Command(("SCAN", cursor, "MATCH", pattern, "COUNT", SCANNED_AT_ONCE))
            ((cursor, keys),) = await self.ask([step])
            names.update(keys)
            if cursor == b"0":
                return names
            _check_time(until)

    async def close(self) -> None:
        """Closes all connections; one that does not close in time is dropped."""
        with suppress(*CLIENT_ERRORS):
            await self._pool.aclose()
            if self._sentinel:
                await self._sentinel.aclose()

    async def _exchange(self, lines: Sequence[tuple[Word, ...]]) -> list[Any]:
        with store_errors(self._shown):
            connection: AbstractConnection = await self._pool.get_connection()  # type: ignore[no-untyped-call]
            try:
                async with asyncio.timeout(self._limits.operation):
                    # redis-py packs in Python, and has a time-out for each answer; the whole exchange has ours.
                    await connection.send_packed_command([pack_command(line) for line in lines])  # type: ignore[arg-type]
                    return [await _answer(connection) for _ in lines]
            except BaseException:
                # The answer may still come, and must not be read as that of the next command.
                await connection.disconnect(nowait=True)
                raise
            finally:
                await self._pool.release(connection)


class Cluster:
    """The nodes of a cluster, found from some of their addresses.

    Each node has a breaker: while it is down, its slots fail at once and the others continue.
    """

    is_one_server = False

    def __init__(self, seeds: Sequence[Address], options: dict[str, Any], *, shown: str, limits: Limits) -> None:
        self._shown = shown
        self._places = asyncio.Semaphore(limits.connections)
        self._breakers: dict[str, Breaker] = {}
        self._client = RedisCluster(
            startup_nodes=[ClusterNode(*seed) for seed in seeds],
            require_full_coverage=False,
            reinitialize_steps=0,  # else every few redirections end all connections, with the calls that use them
            max_connections=2 * limits.connections,
            **options,
            **_policy(limits),
        )
        for word in ("HGETALL", "INFO"):
            self._client.set_response_callback(word, lambda answer, **_: answer)  # type: ignore[arg-type]

    async def ask(self, commands: Sequence[Command]) -> list[Any]:
        return await asyncio.gather(*map(self._ask_one, commands))

    async def ping(self) -> None:
        await self._find_nodes()
        masters = self._client.get_primaries()
        await asyncio.gather(*(self._send(master.name, "PING", target_nodes=master) for master in masters))

    async def about(self) -> list[dict[str, str]]:
        await self._find_nodes()
        masters = self._client.get_primaries()
        return [_told([await self._told(master, *words) for words in _ABOUT]) for master in masters]

    async def _told(self, master: ClusterNode, *words: Word) -> Any:
        try:
            return await self._send(master.name, *words, target_nodes=master)
        except StoreError as refused:
            if refused.reason in ("store-refused", "store-error"):
                return refused
            raise

    async def keys(self, pattern: str, until: float) -> set[bytes]:
        await self._find_nodes()
        names: set[bytes] = set()
        async for key in self._client.scan_iter(match=pattern, count=SCANNED_AT_ONCE):
            names.add(key)
            _check_time(until)
        return names

    async def close(self) -> None:
        await self._client.aclose()

    async def _find_nodes(self) -> None:
        """Finds the nodes if none is known; later the client looks for them again whenever one fails."""
        if not self._client.get_primaries():
            await self._guarded("", self._client.initialize)

    async def _ask_one(self, command: Command) -> Any:
        await self._find_nodes()
        node = self._client.get_node_from_key(command.key)
        name = node.name if node else ""
        answer = await self._send(name, *command.words)
        if isinstance(answer, exceptions.NoScriptError):
            return await self._send(name, *command.in_full())
        return answer

    async def _send(self, name: str, *words: Word, **target: Any) -> Any:
        return await self._guarded(name, lambda: self._client.execute_command(*words, **target))

    async def _guarded(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        """The result of a call to the node of this name, or of a search for nodes."""
        if name not in self._breakers:
            self._breakers[name] = Breaker(f"the node {name} of the store", time.monotonic, NODE_COOL_DOWN)
        breaker = self._breakers[name]
        async with self._places:
            with breaker.guard(), store_errors(f"{self._shown} ({name})"):
                try:
                    return await call()
                except exceptions.NoScriptError as unknown:
                    return unknown
                except AttributeError:
                    # After a failure the client drops connections, even one that another call has just been given.
                    raise StoreError("store-unavailable", f"{self._shown} ({name}) connection dropped") from None


Client: TypeAlias = Server | Cluster


def _told(answers: Sequence[Any]) -> dict[str, str]:
    """What the answers to `_ABOUT` say, by name."""
    info, saves = answers
    lines = info.decode(errors="replace").splitlines() if isinstance(info, bytes) else ()
    told = {name: value for name, _, value in (line.partition(":") for line in lines)}
    return told | ({"save": saves[1].decode(errors="replace")} if isinstance(saves, list) and len(saves) > 1 else {})


def _check_time(until: float) -> None:
    if asyncio.get_running_loop().time() >= until:
        raise StoreError("store-timeout", "there are more keys than can be listed in time")


async def _answer(connection: AbstractConnection) -> Any:
    try:
        return await connection.read_response(timeout=math.inf)
    except exceptions.ResponseError as error:
        return error  # not raised, because the answers of the next commands follow


@contextmanager
def store_errors(shown: str) -> Iterator[None]:
    """Turns every exception into a StoreError; a defect becomes its cause, and is logged."""
    try:
        yield
    except StoreError:
        raise
    except CLIENT_ERRORS as error:
        raise store_error(error, shown) from None
    except Exception as error:
        _log.exception("the Redis client failed")
        raise store_error(error, shown) from error


def store_error(error: Exception, shown: str) -> StoreError:
    if isinstance(error, exceptions.RedisClusterException) and isinstance(error.__cause__, Exception):
        error = error.__cause__  # why no node could be asked
    reason = next((word for fits, word in _REASONS if isinstance(error, fits)), "store-error")
    if isinstance(error, exceptions.ResponseError) and str(error).startswith("WRONGTYPE"):
        reason = "store-corrupt"
    # A server's message about credentials or permissions quotes them.
    detail = "" if reason == "store-refused" else _in_words(error)
    return StoreError(reason, f"{shown} {detail}".rstrip())


def _in_words(error: Exception) -> str:
    if isinstance(error, exceptions.AskError | exceptions.ClusterCrossSlotError):
        return "is part of a cluster: redis+cluster://"
    if isinstance(error, MasterNotFoundError):
        return "has no master that a Sentinel names"
    if encrypted := _TLS.search(str(error)):
        return f"TLS: {encrypted[1].rstrip()}"
    number = _SYSTEM.search(str(error))
    return os.strerror(int(number[1])) if number else str(error).rstrip(".") or type(error).__name__


class _MasterPool(SentinelConnectionPool, BlockingConnectionPool):
    """Connections to the master; each asks the Sentinels for its address when it connects."""


def _policy(limits: Limits) -> dict[str, Any]:
    return {
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


def open_client(url: str, shown: str, limits: Limits) -> Client:
    """The client of the servers of `url`, not yet connected; raises ValueError for a URL that is not valid.

    Errors quote nothing of a URL but `shown`, its redacted form.
    """
    scheme, _, place = url.partition("://")
    one, _, kind = scheme.lower().partition("+")  # redis or rediss; sentinel, cluster or none
    if not kind:
        return Server(server_options(url, shown), shown=shown, limits=limits)
    # Only the hosts may be quoted.
    account, at, rest = place.rpartition("@")
    rest, _, query = rest.partition("?")
    hosts, _, path = rest.partition("/")
    if kind == "cluster":
        if path not in ("", "0") or (query and one != "rediss"):
            raise ValueError(f"{shown}: a cluster has one database, 0, and no options")
        options = _of_many(server_options(f"{one}://{account}{at}?{query}", shown))
        return Cluster(_addresses(hosts, CLUSTER_PORT, shown), options, shown=shown, limits=limits)
    name, _, db = path.partition("/")
    if not name:
        raise ValueError(f"{shown} names no service; write redis+sentinel://host:port,host:port/service")
    try:
        words = {word: value for word, (value,) in parse_qs(query, strict_parsing=bool(query)).items()}
        of_tls = {word: words.pop(word) for word in list(words) if one == "rediss" and word.startswith("ssl_")}
        account_of_sentinels = {_SENTINEL_WORDS[word]: value for word, value in words.items()}
    except (KeyError, ValueError):
        names = ", ".join(_SENTINEL_WORDS)
        raise ValueError(f"{shown}: the only options are {names}, once each") from None
    options = _of_many(server_options(f"{one}://{account}{at}/{db}?{urlencode(of_tls)}", shown))
    addresses = _addresses(hosts, SENTINEL_PORT, shown)
    encrypted = {name: value for name, value in options.items() if name.startswith("ssl")}
    # They are asked one after the other, so one that hangs gets no longer than one that does not connect.
    policy = {**account_of_sentinels, **encrypted, **_policy(limits), "socket_timeout": limits.connect}
    sentinel = Sentinel(addresses, sentinel_kwargs=policy)  # type: ignore[no-untyped-call]
    return Server(options, shown=shown, limits=limits, sentinel=sentinel, name=unquote(name))


def _of_many(options: dict[str, Any]) -> dict[str, Any]:
    """The options of one server, for clients of several, which choose the class of a connection by themselves."""
    return {**options, "ssl": True} if options.pop("connection_class", None) else options


def _addresses(hosts: str, port: int, shown: str) -> list[Address]:
    addresses = []
    for host in hosts.split(","):
        options = server_options(f"redis://{host}", shown)
        if not options.get("host"):
            raise ValueError(f"{shown} names no host, or an empty one")
        addresses.append((str(options["host"]), int(options.get("port", port))))
    return addresses
