"""Entries in Redis 7 or Valkey, shared by many replicas: one server, one behind Sentinels, or a cluster.

Keys of one entry share the hash tag in braces, so they are in one slot of a cluster:

    condenser:{<tenant>:<session>}:meta        hash: body, revision, bytes (of blocks and records)
    condenser:{<tenant>:<session>}:records     hash: name -> record
    condenser:{<tenant>:<session>}:standing    set of names
    condenser:{<tenant>:<session>}:blocks      hash: end digest -> block
    condenser:{<tenant>:<session>}:journal     list of items; the number of the newest is in meta
    condenser:{<tenant>:<c>}:chain:<digest>    the session, a hint; c is the first character of the digest
    condenser:{<tenant>:<name>}:claim          its holder
    condenser:{<name>}:fact                    the fact
    condenser:{<name>}:sum                     hash: amounts by name
    condenser:{<name>}:ring                    list of items; it lives as long as its newest one
    condenser:{<name>}:budget                  empty; lives for as long as is missing from the budget
    condenser:{<tenant>}:sizes                 hash: session -> bytes, and "" -> all of them; only with a quota
    condenser:{<tenant>}:ends                  the same sessions, sorted by when they expire
    condenser:{<tenant>}:newest                its entries saved last, sorted by when; of all without a tenant

Each operation is one script or one command, so it is atomic, and it renews the time to live in the same step. Scripts
get their keys as arguments and build none. The keys of the index are in other slots: a single server writes them in the
entry's script, but in a cluster they are written after it. The hash tag with one character of the digest keeps a
tenant's index in sixteen slots: a single server looks up a transcript with one command, a cluster with at most sixteen.

A tenant's usage is in another slot too. It is read before a write, which may then use what the quota leaves, and the
entry's new size is noted afterwards. So simultaneous writers can exceed the quota by what each of them writes. A size
is noted as an absolute number, never as a difference: if a note is lost, or a fail-over makes it wrong, the next write
of that entry corrects it. The sizes of expired entries are subtracted from the sum. Entries that are older than the
quota count once they are written again.

Cancellation. redis-py has been seen to give the answer of a cancelled call to the next caller. So a call runs in a task
of its own that is never cancelled: a caller that is cancelled, or out of time, leaves it to end within its own bounds.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import nullcontext
from hashlib import sha1
from pathlib import Path
from typing import Any, TypeVar

from proxy.store.base import (
    EVICTS,
    JOURNAL,
    MOST_MISSING,
    MOST_SUMMED,
    RING,
    FindResult,
    Part,
    Quotas,
    Snapshot,
    Store,
    StoreError,
    StoreKey,
    Write,
)
from proxy.store.redis import Breaker, Client, Command, Limits, Word, open_client, store_errors

T = TypeVar("T")

LISTING = 5.0  # seconds that a listing of entries may take; each of its steps is bounded like any other exchange

_NUMBER = re.compile(rb"-?[0-9]{1,19}")
_WEAK: Mapping[str, Callable[[Mapping[str, str]], bool]] = {
    # As far as a server tells: some hide their configuration, and say nothing of snapshots then.
    EVICTS: lambda told: told.get("maxmemory_policy", "noeviction") != "noeviction",
    "store-unkept": lambda told: (told.get("aof_enabled"), told.get("save")) == ("0", ""),
    "store-read-only": lambda told: (told.get("role"), told.get("slave_read_only")) == ("slave", "1"),
}
_STALE, _REFUSED = -1, -2  # returned by save.lua instead of a size
_ONLY_ASK = -1  # given to usage.lua as the size, to read the usage and note nothing


class RedisStore(Store):
    """`Store` over Redis, connected by the first call; `shown` is the URL as errors quote it."""

    def __init__(
        self,
        url: str,
        *,
        shown: str,
        limits: Limits | None = None,
        quotas: Quotas | None = None,
        breaker: Breaker | None = None,
    ) -> None:
        self._limits = limits or Limits()
        self._quotas = quotas or Quotas()
        self._shown = shown
        self._breaker = breaker
        self._client: Client = open_client(url, shown, self._limits)
        self._running: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def load(self, key: StoreKey) -> Snapshot | None:
        return _snapshot(await self._call(self._ask_one(_script("load", _keys(key)[:3]))))

    async def save(self, key: StoreKey, write: Write) -> bool:
        return await self._call(self._save(key, write))

    async def put_record(self, key: StoreKey, name: str, record: bytes, ttl: int) -> bytes:
        return await self._call(self._put_record(key, name, record, ttl))

    async def mark(self, key: StoreKey, name: str) -> None:
        await self._call(self._ask_one(_script("stand", _keys(key)[:3], name)))

    async def swap(self, key: StoreKey, part: Part, name: str, before: bytes, after: bytes) -> bool:
        meta, records, _, blocks, _ = _keys(key)
        place = {"meta": meta, "records": records, "blocks": blocks}[part]
        return bool(await self._call(self._ask_one(_script("swap", [place], name or "body", before, after))))

    async def blocks(self, key: StoreKey, names: Sequence[str] | None = None) -> dict[str, bytes]:
        name = _keys(key)[3]
        if names is None:
            return _mapping(await self._call(self._ask_one(Command(("HGETALL", name), name))))
        if not names:
            return {}
        blocks = await self._call(self._ask_one(Command(("HMGET", name, *names), name)))
        return {digest: block for digest, block in zip(names, blocks, strict=True) if block is not None}

    async def journal(self, key: StoreKey) -> list[tuple[int, bytes]]:
        meta, *_, journal = _keys(key)
        last, items = await self._call(self._ask_one(_script("journal", [meta, journal])))
        return list(enumerate(items, int(last) - len(items) + 1))

    async def find(self, tenant: str, digests: Sequence[str], likely: Sequence[str] = ()) -> FindResult:
        return await self._call(self._find(tenant, digests, likely))

    async def claim(self, tenant: str, name: str, holder: str, ttl: float) -> bool:
        command = _script("claim", [_key("claim", tenant, name)], holder, _ms(ttl))
        return bool(await self._call(self._ask_one(command)))

    async def get_fact(self, name: str) -> bytes | None:
        key = _key("fact", name)
        fact: bytes | None = await self._call(self._ask_one(Command(("GET", key), key)))
        return fact

    async def put_fact(self, name: str, fact: bytes, ttl: int) -> None:
        key = _key("fact", name)
        await self._call(self._ask_one(Command(("SET", key, fact, "PX", _ms(ttl)), key)))

    async def add(self, name: str, amounts: Mapping[str, int], ttl: int) -> None:
        pairs = (part for amount in amounts.items() for part in amount)
        await self._call(self._ask_one(_script("add", [_key("sum", name)], _ms(ttl), MOST_SUMMED, *pairs)))

    async def sums(self, names: Sequence[str]) -> list[dict[str, int]]:
        keys = [_key("sum", name) for name in names]
        found = await self._call(self._ask_all([Command(("HGETALL", key), key) for key in keys]))
        return [
            {name: int(value) for name, value in _mapping(pairs).items() if _NUMBER.fullmatch(value)} for pairs in found
        ]

    async def push(self, name: str, items: Sequence[bytes], ttl: int) -> None:
        # An item more than a ring has room for would be dropped at once; a command has no room for any number.
        await self._call(self._ask_one(_script("push", [_key("ring", name)], _ms(ttl), RING, *items[-RING:])))

    async def ring(self, name: str) -> list[bytes]:
        key = _key("ring", name)
        return list(await self._call(self._ask_one(Command(("LRANGE", key, "0", "-1"), key))))

    async def spend(self, name: str, amount: int, most: int) -> int:
        return int(
            await self._call(self._ask_one(_script("spend", [_key("budget", name)], amount, most, MOST_MISSING)))
        )

    async def keys(self, tenant: str | None = None) -> list[StoreKey]:
        pattern = _key("meta", tenant or "*", "*")
        until = asyncio.get_running_loop().time() + LISTING
        names = await self._call(self._client.keys(pattern, until), LISTING)
        tags = (name.decode().partition("{")[2].rpartition("}")[0] for name in names)
        keys = sorted(StoreKey(*tag.split(":")) for tag in tags)
        # The tenant may hold characters that are special in a pattern.
        return [key for key in keys if tenant in (None, key.tenant)]

    async def newest(self, count: int, tenant: str = "") -> list[StoreKey]:
        key = _key("newest", tenant)
        command = Command(("ZREVRANGE", key, "0", str(count - 1)), key)
        return [StoreKey(*_text(named).split(":")) for named in await self._call(self._ask_one(command))]

    async def delete(self, key: StoreKey) -> bool:
        return await self._call(self._delete(key))

    async def ping(self) -> None:
        await self._call(self._client.ping())

    async def weaknesses(self) -> set[str]:
        told = await self._call(self._client.about())
        return {word for each in told for word, holds in _WEAK.items() if holds(each)}

    async def close(self) -> None:
        """Waits for the running calls, which end within their bounds, then closes. May be repeated."""
        self._closed = True
        if self._running:
            await asyncio.wait(self._running, timeout=self._limits.call)
        await self._client.close()

    async def _save(self, key: StoreKey, write: Write) -> bool:
        room = self._quotas.for_blocks(await self._bytes_of_others(key))
        blocks = (part for block in write.blocks.items() for part in block)
        named = ":".join(key)
        values = (write.revision, _ms(write.ttl), room, key.name, write.meta, named, write.journal, JOURNAL, *blocks)
        items = [_chain(key.tenant, digest) for digest in write.index]
        # A script may have keys of one slot only, except on a single server.
        newest = [_key("newest", each) for each in ("", key.tenant)]
        within = [*newest, *items] if self._client.is_one_server else []
        size = await self._ask_one(_script("save", [*_keys(key), *within], *values))
        if size == _STALE:
            return False
        if size == _REFUSED:
            raise StoreError("store-quota", f"blocks that would make the session larger than {room} bytes")
        after = [] if self._client.is_one_server else items
        pointers = [Command(("SET", item, key.name, "PX", _ms(write.ttl)), item) for item in after]
        if not self._client.is_one_server:
            pointers += [_script("newest", [each], named, _ms(write.ttl)) for each in newest]
        await self._ask_all([*pointers, *self._usage_notes(key, size, write.ttl)])
        return True

    async def _put_record(self, key: StoreKey, name: str, record: bytes, ttl: int) -> bytes:
        room = self._quotas.for_records(await self._bytes_of_others(key))
        answer = await self._ask_one(_script("put_record", _keys(key), name, record, _ms(ttl), room))
        if answer is None:
            raise StoreError("store-quota", f"a record that would make the session larger than {room} bytes")
        stored, size = answer
        await self._ask_all(self._usage_notes(key, size, ttl))
        return bytes(stored)

    async def _find(self, tenant: str, digests: Sequence[str], likely: Sequence[str]) -> FindResult:
        # Each group of digests is looked up by one command: all of them, or those whose items share a slot.
        groups: dict[str, list[str]] = {}
        for digest in dict.fromkeys(digests):
            groups.setdefault("" if self._client.is_one_server else digest[:1], []).append(digest)
        keys = [[_chain(tenant, digest) for digest in group] for group in groups.values()]
        loading = [_script("load", _keys(StoreKey(tenant, name))[:3]) for name in likely]
        answers = await self._ask_all([*(Command(("MGET", *group), group[0]) for group in keys), *loading])
        names = (session for answer in answers[: len(groups)] for session in answer)
        pairs = zip((digest for group in groups.values() for digest in group), names, strict=True)
        read = zip(likely, map(_snapshot, answers[len(groups) :]), strict=True)
        return FindResult(
            {digest: _text(session) for digest, session in pairs if session is not None},
            {name: snapshot for name, snapshot in read if snapshot is not None},
        )

    async def _delete(self, key: StoreKey) -> bool:
        existed = await self._ask_one(_script("delete", _keys(key)))
        await self._ask_all(self._usage_notes(key, 0, 0))
        return bool(existed)

    async def _bytes_of_others(self, key: StoreKey) -> int:
        """The bytes of the tenant's other entries; 0 without a tenant quota, which alone needs it."""
        if not self._quotas.tenant:
            return 0
        return int(await self._ask_one(_usage(key, _ONLY_ASK, 0)))

    def _usage_notes(self, key: StoreKey, size: int, ttl: int) -> list[Command]:
        return [_usage(key, size, ttl)] if self._quotas.tenant else []

    async def _ask_one(self, command: Command) -> Any:
        (answer,) = await self._client.ask([command])
        return answer

    async def _ask_all(self, commands: Sequence[Command]) -> list[Any]:
        return await self._client.ask(commands) if commands else []

    async def _call(self, work: Coroutine[Any, Any, T], limit: float | None = None) -> T:
        if self._closed:
            work.close()
            raise StoreError("store-closed")
        limit = limit or self._limits.call
        task = asyncio.create_task(self._guarded(work))
        self._running.add(task)
        task.add_done_callback(self._call_done)
        # asyncio.wait cancels nothing, neither when time is up nor when we are cancelled ourselves.
        done, _ = await asyncio.wait({task}, timeout=limit)
        if not done:
            raise StoreError("store-timeout", f"{self._shown} took more than {limit} s")
        return task.result()

    def _call_done(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # marks it as retrieved, in case the caller has gone

    async def _guarded(self, work: Coroutine[Any, Any, T]) -> T:
        """The one place where exceptions of any kind become StoreErrors, and where the breaker counts."""
        try:
            with store_errors(self._shown), self._breaker.guard() if self._breaker else nullcontext():
                return await work
        finally:
            work.close()


def _snapshot(answer: Any) -> Snapshot | None:
    if answer is None:
        return None
    meta, revision, records, standing = answer
    try:
        number = int(revision)
    except (TypeError, ValueError):
        raise StoreError("store-corrupt", "its revision is not a number") from None
    return Snapshot(meta, number, _mapping(records), frozenset(_text(name) for name in standing))


def _script(name: str, keys: Sequence[str], *values: Word) -> Command:
    source, digest = _SCRIPTS[name]
    return Command(("EVALSHA", digest, len(keys), *keys, *values), keys[0], source)


def _read(name: str) -> tuple[str, str]:
    source = Path(__file__).with_name(f"{name}.lua").read_text(encoding="utf-8")
    return source, sha1(source.encode(), usedforsecurity=False).hexdigest()


_OF_ENTRIES = ("load", "save", "put_record", "stand", "swap", "journal", "delete", "usage", "newest")
_NAMES = (*_OF_ENTRIES, "claim", "add", "push", "spend")
_SCRIPTS = {name: _read(name) for name in _NAMES}


def _key(kind: str, *tag: str) -> str:
    """The name of a key; keys with the same tag are in one slot of a cluster."""
    return f"condenser:{{{':'.join(tag)}}}:{kind}"


def _keys(key: StoreKey) -> list[str]:
    prefix = _key("", *key)
    return [prefix + part for part in ("meta", "records", "standing", "blocks", "journal")]


def _chain(tenant: str, digest: str) -> str:
    return _key(f"chain:{digest}", tenant, digest[:1])


def _usage(key: StoreKey, size: int, ttl: int) -> Command:
    keys = [_key("sizes", key.tenant), _key("ends", key.tenant)]
    return _script("usage", keys, key.name, size, _ms(ttl))


def _mapping(pairs: Sequence[bytes]) -> dict[str, bytes]:
    """A hash as RESP2 returns it: names and values in turns."""
    names: Iterable[str] = (_text(name) for name in pairs[::2])
    return dict(zip(names, pairs[1::2], strict=True))


def _text(name: bytes) -> str:
    """A stored name; one that is damaged matches nothing."""
    return name.decode(errors="replace")


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
