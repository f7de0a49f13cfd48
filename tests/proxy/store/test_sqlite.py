"""What only the SQLite store promises: a private file, WAL, several processes, schema versions."""

import asyncio
import gc
import multiprocessing
import os
import sqlite3
import stat
import subprocess
import sys
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from proxy.store.base import Quotas, Snapshot, StoreError, StoreKey, Write
from proxy.store.sqlite import PURGE_EVERY, PURGE_SESSIONS, SqliteStore
from proxy.store.sqlite_file import SCHEMA_VERSION
from tests.support.signals import BOUND
from tests.support.virtual_time import Clock

KEY = StoreKey("tenant", "session")

SAVE_ELSEWHERE = """
import asyncio, sys
from pathlib import Path
from proxy.store.base import StoreKey, Write
from proxy.store.sqlite import SqliteStore

async def main():
    store = await SqliteStore.open(Path(sys.argv[1]))
    for _ in range(int(sys.argv[2])):
        saved = False
        while not saved:
            old = await store.load(StoreKey("tenant", "session"))
            revision = old.revision if old else 0
            write = Write(b"elsewhere", revision, ttl=600)
            saved = await store.save(StoreKey("tenant", "session"), write)
    await store.close()

asyncio.run(main())
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "made" / "for us" / "sessions.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(path)
    yield store
    await store.close()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def elsewhere(path: Path, saves: int) -> subprocess.Popen[bytes]:
    """Another process that saves the session so many times."""
    return subprocess.Popen([sys.executable, "-c", SAVE_ELSEWHERE, str(path), str(saves)])


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


class Blocks(dict[str, bytes]):
    """The blocks of a write, to which there can be a weak reference."""


async def test_a_write_that_fails_leaves_nothing_for_the_garbage_collector(path: Path) -> None:
    store = await SqliteStore.open(path, quotas=Quotas(entry=10))
    gc.collect()
    gc.disable()
    try:
        blocks = Blocks(block=b"more than ten bytes")
        seen = weakref.ref(blocks)
        with pytest.raises(StoreError, match="store-quota"):
            await store.save(KEY, Write(b"meta", 0, 600, blocks))
        del blocks
        await store.ping()  # the thread is done with the write
        assert seen() is None
    finally:
        gc.enable()
        await store.close()


@pytest.mark.usefixtures("open_umask")
async def test_what_is_made_is_closed_to_others_and_one_file_is_left(path: Path) -> None:
    store = await SqliteStore.open(path)
    await store.save(KEY, Write(b"meta", 0, ttl=600))
    files = sorted(path.parent.iterdir())
    assert [file.name for file in files] == ["sessions.db", "sessions.db-shm", "sessions.db-wal"]
    assert [mode(file) for file in files] == [0o600] * 3
    assert mode(path.parent) == mode(path.parent.parent) == 0o700
    await store.close()
    assert [file.name for file in path.parent.iterdir()] == ["sessions.db"]


async def test_a_directory_that_was_there_keeps_its_mode(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o755)
    await (await SqliteStore.open(tmp_path / "sessions.db")).close()
    assert mode(tmp_path) == 0o755


async def test_a_second_process_sees_the_session_and_loses_no_save(store: SqliteStore, path: Path) -> None:
    await store.save(KEY, Write(b"ours", 0, ttl=600))
    assert await asyncio.to_thread(elsewhere(path, 1).wait) == 0
    assert await store.load(KEY) == Snapshot(b"elsewhere", 2)


async def test_no_save_of_several_processes_that_start_together_is_lost(path: Path) -> None:
    processes = [elsewhere(path, 25) for _ in range(4)]
    assert [await asyncio.to_thread(process.wait) for process in processes] == [0] * 4
    store = await SqliteStore.open(path)
    assert await store.load(KEY) == Snapshot(b"elsewhere", 100)
    await store.close()


@pytest.mark.torture
def test_many_processes_can_open_a_new_file_at_once(tmp_path: Path) -> None:
    spawning = multiprocessing.get_context("spawn")
    start = spawning.Barrier(6)
    processes = [spawning.Process(target=open_new_files, args=(tmp_path, 150, start)) for _ in range(6)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 6


def open_new_files(folder: Path, count: int, start: Barrier) -> None:
    """In a process of its own: a failure is an exit code."""

    async def open_one(path: Path) -> None:
        await (await SqliteStore.open(path)).close()

    failures = []
    for n in range(count):
        start.wait(BOUND)
        try:
            asyncio.run(open_one(folder / f"{n}.db"))
        except StoreError as error:
            failures.append(error)
    assert failures == []


async def test_a_file_that_another_holds_is_busy_and_reading_goes_on(store: SqliteStore, path: Path) -> None:
    await store.save(KEY, Write(b"meta", 0, ttl=600))
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError) as raised:
            await store.save(KEY, Write(b"other", 1, ttl=600))
        assert raised.value.reason == "store-busy"
        assert await store.load(KEY) == Snapshot(b"meta", 1)
    assert await store.save(KEY, Write(b"other", 1, ttl=600))


async def test_a_cancelled_call_that_has_not_begun_is_dropped(store: SqliteStore, path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        ahead = asyncio.create_task(store.put_record(KEY, "r", b"record", 600))
        behind = asyncio.create_task(store.save(KEY, Write(b"meta", 0, ttl=600)))
        await asyncio.sleep(0)
        behind.cancel()
        await asyncio.gather(behind, return_exceptions=True)
    assert await ahead == b"record"
    assert await store.load(KEY) is None


async def test_the_usage_of_a_tenant_is_read_from_an_index_alone(store: SqliteStore, path: Path) -> None:
    query = "SELECT sum(bytes) FROM sessions WHERE tenant = 't' AND expires_at > 1 AND session <> 's'"
    with closing(sqlite3.connect(path)) as other:
        (plan,) = other.execute(f"EXPLAIN QUERY PLAN {query}").fetchall()
    assert "COVERING INDEX sessions_by_tenant" in plan[3]


@pytest.mark.parametrize("version", [SCHEMA_VERSION - 1, SCHEMA_VERSION + 1])
async def test_another_schema_is_refused_and_left_alone(version: int, path: Path) -> None:
    await (await SqliteStore.open(path)).close()
    with closing(sqlite3.connect(path)) as other:
        other.execute(f"PRAGMA user_version = {version}")
    with pytest.raises(StoreError, match=f"version {version}, .*name another file in store.url") as raised:
        await SqliteStore.open(path)
    assert raised.value.reason == "store-schema"
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("PRAGMA user_version").fetchone() == (version,)


async def test_a_new_file_that_several_processes_open_gets_its_tables_once(tmp_path: Path) -> None:
    stores = await asyncio.gather(*(SqliteStore.open(tmp_path / "new.db") for _ in range(8)))
    for store in stores:
        await store.ping()
        await store.close()


async def test_a_database_of_another_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE theirs (x)")
    with pytest.raises(StoreError, match="another program"):
        await SqliteStore.open(path)
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("SELECT name FROM sqlite_master").fetchall() == [("theirs",)]


async def test_a_file_that_is_no_database_is_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "text.db"
    path.write_text("not a database, but long enough to be looked at " * 10)
    with pytest.raises(StoreError) as raised:
        await SqliteStore.open(path)
    assert raised.value.reason == "store-corrupt"


async def test_a_place_where_no_file_can_be_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError) as raised:
        await SqliteStore.open(tmp_path / "file" / "sessions.db")
    assert raised.value.reason == "store-unavailable"


async def test_a_statement_that_fails_leaves_nothing_of_its_transaction(store: SqliteStore) -> None:
    unstorable = "\ud800"  # a lone surrogate has no UTF-8 form
    write = Write(b"meta", 0, ttl=600, blocks={"d": b"block", unstorable: b"block"})
    with pytest.raises(StoreError):
        await store.save(KEY, write)
    assert await store.load(KEY) is None
    assert await store.save(KEY, Write(b"meta", 0, ttl=600))


async def test_what_has_expired_leaves_the_file_in_time(path: Path) -> None:
    clock = Clock()
    store = await SqliteStore.open(path, clock=clock)
    for n in range(PURGE_EVERY):
        write = Write(b"meta", 0, ttl=600, blocks={"d": b"block"}, index=[f"d{n}"])
        await store.save(StoreKey("tenant", f"s{n}"), write)
    await store.claim("tenant", "work", "holder", 3)
    clock.now += 601
    for revision in range(PURGE_EVERY):
        await store.save(KEY, Write(b"meta", revision, ttl=600))
    await store.close()
    with closing(sqlite3.connect(path)) as other:
        left = {
            table: count(other, table) for table in ("sessions", "records", "standing", "blocks", "chain", "claims")
        }
    assert left == {"sessions": 1, "records": 0, "standing": 0, "blocks": 0, "chain": 0, "claims": 0}


def count(connection: sqlite3.Connection, table: str) -> int:
    number: int = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    return number


async def test_nothing_of_a_deleted_session_stays_in_the_files(store: SqliteStore, path: Path) -> None:
    text, digest = os.urandom(64), os.urandom(16).hex()
    await store.save(KEY, Write(text, 0, ttl=600, blocks={"d": text[::-1]}, index=[digest], journal=text))
    await store.put_record(KEY, "r", text, 600)
    assert {text, text[::-1], digest.encode()} == left(path, text, text[::-1], digest.encode())
    await store.delete(KEY)
    assert left(path, text, text[::-1], digest.encode()) == set()


def left(path: Path, *texts: bytes) -> set[bytes]:
    """Those of the texts that are in the files of a store."""
    written = b"".join(each.read_bytes() for each in path.parent.glob("sessions.db*"))
    return {text for text in texts if text in written}


async def test_what_is_deleted_while_another_process_reads_leaves_the_files_after_it(
    store: SqliteStore, path: Path
) -> None:
    text = os.urandom(64)
    await store.save(KEY, Write(text, 0, ttl=600))
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN")
        other.execute("SELECT * FROM sessions").fetchall()
        await store.delete(KEY)
        assert await store.tidy()
        assert left(path, text)
    assert not await store.tidy()
    assert not left(path, text)


async def test_what_expires_leaves_the_files_though_nothing_is_written(path: Path) -> None:
    clock, text = Clock(), os.urandom(64)
    store = await SqliteStore.open(path, clock=clock)
    for n in range(PURGE_SESSIONS + 1):
        await store.save(StoreKey("tenant", f"s{n}"), Write(text, 0, ttl=600))
    clock.now += 601
    while await store.tidy():
        pass
    assert not left(path, text)
    await store.close()
