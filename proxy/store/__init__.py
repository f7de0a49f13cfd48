"""Stores; `open_store` picks one by the scheme of a URL.

    sqlite:///sessions.db     a file, relative; four slashes make it absolute
    memory://                 SQLite without a file, gone with the process
    redis://, rediss://       redis[s]://[[user]:password@]host[:port][/db][?ssl_ca_certs=...]
    redis+sentinel://         redis+sentinel://[[user]:password@]host:port[,host:port...]/service[/db]
    redis+cluster://          redis+cluster://[[user]:password@]host:port[,host:port...]

With `rediss+` the last two use TLS, for Sentinels too; `?ssl_ca_certs=...` and the like are as for one server.
The hosts of `redis+sentinel` are the Sentinels. User and password are for the servers that hold the data; Sentinels
that need an account too get it by `?sentinel_username=...&sentinel_password=...`.

A client library is imported only by the scheme that needs it. A URL may hold credentials, so logs and errors show
`redacted(url)`.

A store keeps the bytes that it is given; writers compress them first (`access`), and `sealing` encrypts them. Redis is
behind a circuit breaker (`Breaker`); in a cluster each node has its own. The stores themselves enforce quotas (`base`).

The `reason` of a StoreError is one of `proxy.reasons.Reason`, whether a store raises it or a writer that gives up. If a
write raises, it is unknown whether it happened, except with `store-quota` and `store-contended`: then it did not. All
writes may be repeated; repeating a `save` that did happen returns False, because its revision is stale by then.

Secrets of an installation are files in the folder of its SQLite store, created once and readable by their owner only.
"""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from proxy.quoting import redacted
from proxy.store.base import CHECK, KeptBytes, Quotas, Store, StoreError

if TYPE_CHECKING:
    from proxy.runtime.loops import Loops

_SQLITE = "sqlite:///"
TENANT_ON_ONE_MACHINE = 4 * 1024**3  # bytes of one tenant where sessions share a disk with everything else
_REDIS = tuple(f"{name}{kind}" for kind in ("", "+sentinel", "+cluster") for name in ("redis", "rediss"))
SCHEMES = ("sqlite", "memory", *_REDIS)


async def open_store(
    url: str,
    *,
    clock: Callable[[], float] = time.time,
    max_session_bytes: int = 0,
    max_tenant_bytes: int | None = 0,
    keys: Sequence[bytes] = (),
    loops: Loops | None = None,
) -> Store:
    """Opens the store at `url`: SQLite at once, Redis with the first call, because it may be down when we start.

    `clock` decides what has expired in SQLite; Redis uses its own clock. Quotas are bytes as stored, 0 for none; None
    is what suits the scheme. With `keys` of 32 bytes it is encrypted; the first one writes. In one of `loops` it is
    tidied. Raises ValueError for a URL that is not valid, and StoreError for a store that cannot be opened.
    """
    if max_tenant_bytes is None:
        # A Redis is bounded by its own `maxmemory`, and would be asked twice more for each turn that is stored.
        max_tenant_bytes = 0 if url.lower().startswith("redis") else TENANT_ON_ONE_MACHINE
    store = await _open_plain(url, clock, Quotas(max_session_bytes, max_tenant_bytes), loops)
    if not keys:
        return store
    from proxy.store.sealing import SealedStore  # noqa: PLC0415

    return SealedStore(store, keys)


async def try_store(store: Store, keys: Sequence[bytes]) -> None:
    """Returns when the store has answered; raises `store-key` if it is encrypted under none of its keys."""
    await store.ping()
    if not keys and await store.load(CHECK) is not None:
        raise StoreError("store-key", "the store is encrypted: set store.encryption_key")


async def _open_plain(url: str, clock: Callable[[], float], quotas: Quotas, loops: Loops | None) -> KeptBytes:
    scheme, _, place = url.partition("://")
    kind = scheme.lower()
    if kind in ("sqlite", "memory"):
        from proxy.store.sqlite import TIDY_EVERY, SqliteStore  # noqa: PLC0415

        if place if kind == "memory" else not place.startswith("/") or place == "/":
            raise ValueError(f"{url}: write memory://, sqlite:///relative/path or sqlite:////absolute/path")
        store = await SqliteStore.open(Path(place[1:]) if place else None, clock=clock, quotas=quotas)
        if place and loops is not None:
            await loops.start("tidying", TIDY_EVERY, store.keep_tidy)
        return store
    if kind in _REDIS:
        from proxy.store.redis import Breaker  # noqa: PLC0415
        from proxy.store.redis_store import RedisStore  # noqa: PLC0415

        breaker = None if kind.endswith("+cluster") else Breaker("the store", time.monotonic)
        return RedisStore(url, shown=redacted(url), quotas=quotas, breaker=breaker)
    schemes = ", ".join(f"{name}://" for name in SCHEMES)
    raise ValueError(f"unknown store URL {redacted(url)}; known are {schemes}")


# -- secrets beside the store ----------------------------------------------------------------------------


def file_of(store_url: str) -> Path | None:
    """The file of a SQLite store; None for other stores."""
    return Path(store_url.removeprefix(_SQLITE)) if store_url.startswith(_SQLITE) else None


def path_beside(store_url: str, name: str) -> Path | None:
    """The path of a file of this name in the folder of a SQLite store; None for other stores."""
    file = file_of(store_url)
    return file.parent / name if file else None


def read_or_create(path: Path) -> bytes:
    """The secret in `path`, created if there is none; processes that start together all get the same one.

    Raises ValueError for a file that somebody else may have written, or that is empty.
    """
    if path.exists():
        return _own_secret(path)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, written = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    with os.fdopen(handle, "wb") as file:
        file.write(secrets.token_hex(32).encode())
    try:
        # Linking is atomic, and fails if another process was first.
        os.link(written, path)
    except FileExistsError:
        pass
    finally:
        os.unlink(written)
    return _own_secret(path)


def _own_secret(path: Path) -> bytes:
    with path.open("rb") as file:
        status, secret = os.fstat(file.fileno()), file.read()
    if status.st_uid not in (os.getuid(), 0):
        raise ValueError(f"{path} belongs to another user, who may know what is in it; remove it")
    if status.st_mode & 0o022:
        raise ValueError(f"{path} can be written by other users; remove it, or make it yours alone: chmod 600")
    if not secret.strip():
        raise ValueError(f"{path} is empty; remove it, and it is made anew")
    return secret
