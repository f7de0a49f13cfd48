"""Sessions in Redis 7 or Valkey, shared by many replicas; the only module that knows redis.

Keys of one session share the hash tag in braces, so that a script over them works in a cluster too:

    condenser:{<tenant>:<session>}:meta        hash: body, revision
    condenser:{<tenant>:<session>}:records     hash: name -> record
    condenser:{<tenant>:<session>}:standing    set of names
    condenser:{<tenant>:<session>}:blocks      hash: end digest -> block
    condenser:<tenant>:chain:<digest>          the session, a hint

Each operation is one script or one command, so it happens wholly or not at all, and the server renews the
time to live in the same step. The scripts are told their keys and build none. The index is written after the
session's script, by itself, as its keys live in other slots.

Time and repetition. redis-py would send a write again whose answer was lost, and would wait a minute for a
hung server. Here nothing is sent twice, connecting, a free connection and an answer have a bound each, and
all of a call has one. `_connections` is the only place that builds connections; a URL cannot change what it
sets.

Cancellation. redis-py has given the answer of a cancelled call to the next caller. So a call runs in a task
of its own, which nobody cancels: a caller that is cancelled, or out of time, leaves it to end within its own
bounds.

Errors. Whatever the client raises becomes a StoreError in `_guarded`, without the cause attached, since a
server quotes user names.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

from redis import exceptions
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.maint_notifications import MaintNotificationsConfig

from proxy.store.base import SessionKey, Snapshot, StoreError, Write

T = TypeVar("T")

_SCRIPTS = ("load", "save", "put_record", "stand", "delete")

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


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds, and the number of connections of one process."""

    connect: float = 0.25
    operation: float = 0.5
    free_connection: float = 0.25
    call: float = 1.0
    health_check: int = 30
    connections: int = 32


class RedisStore:
    """`SessionStore` over one Redis, connected by the first call; `shown` is the URL as errors quote it."""

    def __init__(self, url: str, *, shown: str, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._shown = shown
        self._pool = _connections(url, shown, self._limits)
        self._client = Redis(connection_pool=self._pool)
        self._scripts = {name: self._client.register_script(_source(name)) for name in _SCRIPTS}
        self._running: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def load(self, key: SessionKey) -> Snapshot | None:
        answer = await self._call(self._script("load", _keys(key)[:3]))
        if answer is None:
            return None
        meta, revision, records, standing = answer
        names = (name.decode() for name in records[::2])
        return Snapshot(
            meta=meta,
            revision=int(revision),
            records=dict(zip(names, records[1::2], strict=True)),
            standing=frozenset(name.decode() for name in standing),
        )

    async def save(self, key: SessionKey, write: Write) -> bool:
        return await self._call(self._save(key, write))

    async def put_record(self, key: SessionKey, name: str, record: bytes, ttl: int) -> bytes:
        kept: bytes = await self._call(self._script("put_record", _keys(key), name, record, _ms(ttl)))
        return kept

    async def stand(self, key: SessionKey, name: str) -> None:
        await self._call(self._script("stand", _keys(key)[:3], name))

    async def blocks(self, key: SessionKey) -> dict[str, bytes]:
        answer = await self._call(_command(self._client.hgetall, _keys(key)[3]))
        return {digest.decode(): block for digest, block in cast("dict[bytes, bytes]", answer).items()}

    async def find(self, tenant: str, digests: Sequence[str]) -> dict[str, str]:
        if not digests:
            return {}
        answer = await self._call(_command(self._client.mget, [_chain(tenant, digest) for digest in digests]))
        found = zip(digests, cast("list[bytes | None]", answer), strict=True)
        return {digest: session.decode() for digest, session in found if session is not None}

    async def delete(self, key: SessionKey) -> bool:
        return bool(await self._call(self._script("delete", _keys(key))))

    async def ping(self) -> None:
        await self._call(_command(self._client.ping))

    async def close(self) -> None:
        """Lets the calls that are running end within their bounds, then closes. Again is harmless."""
        self._closed = True
        if self._running:
            await asyncio.wait(self._running, timeout=self._limits.call)
        with suppress(StoreError):  # a connection that does not close in time is dropped as well
            await self._guarded(self._pool.aclose())

    async def _save(self, key: SessionKey, write: Write) -> bool:
        blocks = (part for block in write.blocks.items() for part in block)
        values = (write.revision, _ms(write.ttl), write.meta, *blocks)
        if not await self._script("save", _keys(key), *values):
            return False
        if write.index:
            await self._point(key, write)
        return True

    async def _point(self, key: SessionKey, write: Write) -> None:
        async with self._client.pipeline(transaction=False) as pipeline:
            for digest in write.index:
                pipeline.set(_chain(key.tenant, digest), key.session, px=_ms(write.ttl))
            await pipeline.execute()

    async def _script(self, name: str, keys: Sequence[str], *values: str | bytes | int) -> Any:
        # Loads the script and asks again where the server does not know it: it has then not run.
        return await self._scripts[name](keys=keys, args=values)

    async def _call(self, operation: Coroutine[Any, Any, T]) -> T:
        if self._closed:
            operation.close()
            raise StoreError("store-closed")
        task = asyncio.create_task(self._guarded(operation))
        self._running.add(task)
        task.add_done_callback(self._ended)
        # asyncio.wait cancels nothing, neither when time is up nor when we are cancelled ourselves.
        done, _ = await asyncio.wait({task}, timeout=self._limits.call)
        if not done:
            raise StoreError("store-timeout", f"{self._shown} took more than {self._limits.call} s")
        return task.result()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # seen, for when the caller is gone

    async def _guarded(self, operation: Awaitable[T]) -> T:
        """The one boundary where the client's errors, and its bugs, become ours."""
        try:
            return await operation
        except Exception as error:  # noqa: BLE001
            raise self._store_error(error) from None

    def _store_error(self, error: Exception) -> StoreError:
        reason = next((word for kind, word in _REASONS if isinstance(error, kind)), "store-error")
        kind = type(error).__name__
        # What a server says of credentials and permissions quotes them.
        detail = kind if reason == "store-refused" else f"{kind}: {error}"
        return StoreError(reason, f"{self._shown} {detail}")


def _connections(url: str, shown: str, limits: Limits) -> BlockingConnectionPool:
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
        max_connections=limits.connections,
        timeout=limits.free_connection,
        **_address(url, shown),
        **policy,
    )
    try:
        # Connects nothing, and refuses options that it does not know.
        pool.connection_class(**pool.connection_kwargs)
    except (TypeError, ValueError, exceptions.RedisError):
        raise ValueError(f"{shown}: an option in the URL is unknown or wrong") from None
    return pool


def _address(url: str, shown: str) -> dict[str, Any]:
    """What a URL may say: where, as whom, which database, and how to check a certificate."""
    try:
        path, address = urlsplit(url).path, dict(parse_url(url))
    except ValueError:
        # Its text can hold a part of the password, as one with an unescaped slash is read as a port.
        raise ValueError(f"not a URL of a Redis: {shown}; escape / ? # @ in a password as %XX") from None
    if not re.fullmatch(r"/?|/\d+", path):
        raise ValueError(f"{shown}: a path can only be the number of a database")
    tls = url.lower().startswith("rediss:")
    allowed = {"connection_class", "host", "port", "username", "password", "db"}
    for option in address:
        if option not in allowed and not (tls and option.startswith("ssl_")):
            raise ValueError(f"{shown}: no option {option!r} in the URL of a Redis; time-outs are fixed")
    return address


def _source(name: str) -> str:
    return Path(__file__).with_name(f"{name}.lua").read_text(encoding="utf-8")


def _keys(key: SessionKey) -> list[str]:
    prefix = f"condenser:{{{key.tenant}:{key.session}}}:"
    return [prefix + part for part in ("meta", "records", "standing", "blocks")]


def _chain(tenant: str, digest: str) -> str:
    return f"condenser:{tenant}:chain:{digest}"


def _ms(seconds: int) -> int:
    return seconds * 1000


async def _command(method: Callable[..., Any], *values: object) -> Any:
    # redis-py types its commands for both of its clients: they return a value or an awaitable of it.
    return await method(*values)
