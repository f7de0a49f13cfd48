"""What the app needs to use a store: a bound on waiting, one log line for an outage, facts, and compression.

Whoever writes a document, a record, a block or a fact compresses it. A compressed value begins with two bytes: the
version of this format, and the codec. Any other value is stored as it is: a small one is. The version byte begins no
UTF-8 text; a value that begins with it by chance is wrapped with the codec that changes nothing. `sealing` encrypts
what has been compressed.

A value with a codec that this version does not know reads as `NEWER`, a document of a newer version, which every reader
treats as a miss. A value that cannot be decompressed, or that would have more than `MAX_BYTES` bytes, is corrupt.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import sys
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from inspect import iscoroutinefunction
from time import perf_counter
from typing import Any, TypeVar, cast

from proxy.store.base import ANSWERS, FOR_GOOD, REFUSED_WRITES, SECRET, Store, StoreError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

T = TypeVar("T")

VERSION = 0xC1  # a byte that does not occur in UTF-8
PLAIN, ZSTD, SEALED = 0, 1, 2

SMALLEST = 512  # bytes, less than a usual turn has; compressing takes 20 µs, and makes smaller values little smaller
MAX_BYTES = 64 * 1024 * 1024  # bytes that one value may decompress to
LEVEL = 3
NEWER = b'{"v":1000000}'
UNREADABLE = bytes((VERSION, 0xFF))  # stands for a value that cannot be decrypted

_log = logging.getLogger(__name__)


def timed(store: Store, timer: Callable[[str], Callable[[float], None]]) -> Store:
    """The same store; the `timer` of an operation, which has a name, is called with the seconds that each one took."""
    return cast(Store, _Timed(store, timer))


class _Timed:
    def __init__(self, store: Store, timer: Callable[[str], Callable[[float], None]]) -> None:
        self._store, self._timer = store, timer

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not iscoroutinefunction(found):
            return found
        note = self._timer(name)

        async def operation(*arguments: Any, **named: Any) -> Any:
            began = perf_counter()
            try:
                return await getattr(self._store, name)(*arguments, **named)
            finally:
                note(perf_counter() - began)

        setattr(self, name, operation)
        return operation


class Patience:
    """The total seconds for which one piece of work, such as a request, may wait for the store.

    Each step reduces `remaining`. Steps that run at the same time are each charged in full.
    """

    def __init__(self, seconds: float) -> None:
        self.total = seconds
        self.remaining = seconds

    def fresh(self) -> Patience:
        """A full budget of the same size, for another piece of work."""
        return Patience(self.total)

    def spend(self, seconds: float) -> None:
        """Charges seconds that were waited elsewhere."""
        self.remaining = max(self.remaining - seconds, 0.0)

    async def read(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`; raises `StoreError` if it takes longer than what remains.

        If nothing remains, `work` is not begun.
        """
        left = self.remaining
        if left <= 0:
            work.close()
            raise StoreError("store-timeout", f"{self.total} s were used up before")
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            async with asyncio.timeout(left):
                return await work
        except TimeoutError:
            raise StoreError("store-timeout", f"not done in the {left:.2f} s that were left") from None
        finally:
            self.remaining = max(self.remaining - (clock() - began), 0.0)

    async def wait_for(self, task: asyncio.Future[T], at_least: float = 0.0) -> T:
        """The result of a task; raises `StoreError` if it takes longer than both what remains and `at_least` seconds.

        A task that is no longer waited for is not cancelled.
        """
        limit = max(self.remaining, at_least)
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            # A store in this process finishes at the task's first step.
            await asyncio.sleep(0)
            if not task.done():
                await asyncio.wait({task}, timeout=limit)
        finally:
            self.remaining = max(self.remaining - (clock() - began), 0.0)
        if not task.done():
            raise StoreError("store-timeout", f"not done in {limit:.2f} s, and not waited for any longer")
        return task.result()


@dataclass(slots=True, eq=False)
class Outage:
    """Whether the store fails now; `clock` is monotonic, in seconds.

    It logs one line when an outage begins, and one when it ends. A store that cannot write, such as a full or read-only
    one, counts as failing until something is written again.

    `unwritten` is why the last write failed, "" if it did not, and `refuses` the same of a store that refuses writes.
    `on_write` is called with the first when a write has failed, and with "" when one succeeds again.
    """

    _clock: Callable[[], float]
    _on_write: Callable[[str], None] = lambda _reason: None
    unwritten: str = field(default="", init=False)
    refuses: str = field(default="", init=False)
    _since: float | None = field(default=None, init=False)
    _served: int = field(default=0, init=False)
    _refused: int = field(default=0, init=False)
    _writes_only: bool = field(default=False, init=False)

    def failed(self, what: str, error: StoreError) -> None:
        """Logs that the operation `what` failed: an outage once, when it begins; any other error each time."""
        refuses_writes = error.reason in REFUSED_WRITES
        if error.reason in ANSWERS and not refuses_writes:
            _log.warning("%s: %s", what, error)
            return
        if self._since is None:
            self._since, self._writes_only = self._clock(), refuses_writes
            _log.warning("the store fails, and requests are served without it: %s", error)
        _log.debug("%s: %s", what, error)

    def count_request(self, *, is_refused: bool = False) -> None:
        """Counts a request that had to do without the store, or was refused because it cannot."""
        if self._since is not None:
            self._served += not is_refused
            self._refused += is_refused

    def write_failed(self, error: StoreError) -> None:
        """Records that a write failed, if the store is the cause and not the value."""
        if error.reason in REFUSED_WRITES or error.reason not in ANSWERS:
            self.unwritten, self.refuses = error.reason, error.reason if error.reason in REFUSED_WRITES else ""
            self._on_write(error.reason)

    def answered(self, *, wrote: bool = False) -> None:
        """Records that the store did what it was asked, and whether it `wrote`."""
        if wrote and self.unwritten:
            self.unwritten = self.refuses = ""
            self._on_write("")
        if self._since is None or (self._writes_only and not wrote):
            return
        seconds, served = self._clock() - self._since, self._served
        refused = f", refused: {self._refused}" if self._refused else ""
        self._since, self._served, self._refused = None, 0, 0
        _log.warning("the store works again after %.1f s; requests served without it: %d%s", seconds, served, refused)


async def secret_of(store: Store) -> bytes:
    """The secret that all processes on a store share: what the first of them has drawn; raises `StoreError`."""
    drawn = secrets.token_hex().encode()
    secret = await store.put_record(SECRET, SECRET.name, drawn, FOR_GOOD)
    if len(secret) != len(drawn):  # else what stands for any value that cannot be read would be the secret
        raise StoreError("store-corrupt", "the secret of compactions was altered, or its key is gone")
    return secret


@dataclass(slots=True)
class Facts:
    """Small values of one store that belong to no entry, shared by replicas and kept over a restart.

    Nothing depends on them: a fact that cannot be read is unknown, one that cannot be written is lost, and both are
    logged.
    """

    _store: Store
    _timeout: float  # seconds that each access may take
    _outage: Outage

    async def get(self, name: str, what: str, patience: Patience | None = None) -> bytes | None:
        """The value of a fact, which the log calls `what`; None if there is none or it cannot be read."""
        try:
            stored = await (patience or Patience(self._timeout)).read(self._store.get_fact(name))
            return None if stored is None else decompress(stored)
        except StoreError as error:
            self._outage.failed(f"{what} was not read", error)
            return None

    async def put(self, name: str, value: bytes, ttl: int, what: str) -> bool:
        """Writes a fact that lives for `ttl` seconds, and returns whether it was written."""
        try:
            await Patience(self._timeout).read(self._store.put_fact(name, compress(value), ttl))
        except StoreError as error:
            self._outage.failed(f"{what} was not stored", error)
            return False
        return True


# -- the stored form -------------------------------------------------------------------------------------


class _Packing(threading.local):
    """One compressor per thread, because creating one takes longer than compressing most values."""

    def __init__(self) -> None:
        self.compressor = zstd.ZstdCompressor(LEVEL)


_packing = _Packing()


def compress(data: bytes) -> bytes:
    """`data` in its stored form: compressed if that makes it smaller."""
    if len(data) >= SMALLEST:
        packed = bytes((VERSION, ZSTD)) + _packing.compressor.compress(data, zstd.ZstdCompressor.FLUSH_FRAME)
        if len(packed) < len(data):
            return packed
    return bytes((VERSION, PLAIN)) + data if data[:1] == bytes((VERSION,)) else data


def plain_size(stored: bytes) -> int:
    """The bytes that a value in stored form has when it is decompressed, without decompressing it."""
    if stored[:2] != bytes((VERSION, ZSTD)):
        return len(stored)
    try:
        return zstd.get_frame_info(stored[2:20]).decompressed_size or MAX_BYTES
    except zstd.ZstdError:
        return MAX_BYTES  # a broken one, which `decompress` refuses


def decompress(stored: bytes) -> bytes:
    """The value in stored form, decompressed; raises `store-corrupt`."""
    if stored[:1] != bytes((VERSION,)):
        return stored
    if stored[1:2] == bytes((PLAIN,)):
        return stored[2:]
    if stored == UNREADABLE:
        raise StoreError("store-corrupt", "a value is not what was encrypted here, or its key is gone")
    if stored[1:2] != bytes((ZSTD,)):
        return NEWER
    decompressor = zstd.ZstdDecompressor()
    try:
        data = decompressor.decompress(stored[2:], MAX_BYTES)
    except zstd.ZstdError as error:
        raise StoreError("store-corrupt", f"a compressed value is broken: {error}") from None
    if not decompressor.eof:
        raise StoreError("store-corrupt", f"a compressed value is cut, or larger than {MAX_BYTES} bytes")
    return data
