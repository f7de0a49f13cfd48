"""An encrypted store: nothing of a conversation can be read in it, under the wrong key nothing is lost or written."""

import base64
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from proxy.cli import main
from proxy.store import open_store
from proxy.store.access import secret_of
from proxy.store.base import StoreError, StoreKey
from tests.support.redis_server import RedisServer
from tests.support.stage import agent, chat, controls, proxy_with_upstream

FIRST, SECOND = (base64.b64encode(bytes([byte]) * 32).decode() for byte in (1, 2))
NAME = "annas-garden"
COMPRESSED = b"(\xb5/\xfd"
"""What every compressed value begins with: in a store in plain, compression alone would hide most words."""
WORDS = [word.encode() for word in ("gardener", "noon", "seed3x7", "hinge", "make step", "beds 1 to 9", NAME)]


@pytest.fixture(params=["sqlite", "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """The URL of a store, and what reads every byte that it has written."""
    if request.param == "sqlite":
        files = lambda: b"".join(each.read_bytes() for each in sorted(tmp_path.glob("of-anna.db*")))  # noqa: E731
        yield f"sqlite:///{tmp_path}/of-anna.db", files
        return
    with RedisServer("--rdbcompression", "no") as server:
        yield server.url, lambda: _dumped(server)


def _dumped(server: RedisServer) -> bytes:
    with Redis.from_url(server.url) as client:
        client.save()
        keys: Any = client.keys()
        return (server.folder / "dump.rdb").read_bytes() + b"".join(keys)


def talk(url: str, key: str | None, old_keys: tuple[str, ...] = (), *, rounds: int = 12) -> tuple[str | None, bytes]:
    """A condensed conversation with memory and an agent's one; returns the action and the view of the first."""
    store = {"url": url} | ({"encryption_key": key, "encryption_old_keys": old_keys} if key else {})
    with proxy_with_upstream(store=store, memory={"default": "inject"}) as stage:
        answer = stage.ask(chat(rounds), controls(session=NAME))
        view = repr(stage.last_view)
        stage.ask(agent(20))
        stage.proxy.quiet()
    return answer.action, view.encode()


def test_no_word_of_a_conversation_can_be_read_in_an_encrypted_store(
    place: tuple[str, Callable[[], bytes]],
) -> None:
    url, written = place
    assert talk(url, FIRST)[0] == "condensed"
    stored = written()
    assert len(stored) > 10_000
    assert [word for word in (*WORDS, COMPRESSED, b"scripted-1") if word in stored] == []
    action, view = talk(url, FIRST, rounds=13)
    assert (action, b"Never water at noon" in view) == ("replayed", True)


def test_an_old_key_reads_until_the_store_is_under_the_new_one(
    place: tuple[str, Callable[[], bytes]], caplog: pytest.LogCaptureFixture
) -> None:
    url, _ = place
    talk(url, FIRST)
    assert talk(url, SECOND, (FIRST,), rounds=13)[0] == "replayed"
    assert "the store is encrypted with the new key; values changed: " in caplog.text
    action, view = talk(url, SECOND, rounds=14)
    assert (action, b"Never water at noon" in view) == ("replayed", True)
    assert "store-corrupt" not in caplog.text


def test_a_wrong_key_starts_nothing_and_writes_nothing(
    place: tuple[str, Callable[[], bytes]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url, _ = place
    talk(url, FIRST)
    assert main(["serve", "--port", "0", "--store", url]) != 0
    assert "the store is encrypted: set store.encryption_key" in capsys.readouterr().err
    with monkeypatch.context() as environment:
        environment.setenv("CONDENSER_STORE__ENCRYPTION_KEY", SECOND)
        assert main(["serve", "--port", "0", "--store", url]) != 0
    assert "encrypted under another key than store.encryption_key" in capsys.readouterr().err
    assert talk(url, SECOND)[0] == "degraded"
    assert talk(url, FIRST, rounds=13)[0] == "replayed"


def test_a_store_in_plain_is_not_continued_under_a_key(
    place: tuple[str, Callable[[], bytes]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url, written = place
    talk(url, None)
    assert COMPRESSED in written()
    with monkeypatch.context() as environment:
        environment.setenv("CONDENSER_STORE__ENCRYPTION_KEY", FIRST)
        assert main(["serve", "--port", "0", "--store", url]) != 0
    assert "has sessions that are not encrypted: name an empty one" in capsys.readouterr().err
    assert talk(url, None, rounds=13)[0] == "replayed"


def test_values_that_were_moved_between_sessions_are_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/of-anna.db"
    store = {"url": url, "encryption_key": FIRST}
    with proxy_with_upstream(store=store) as stage:
        stage.ask(chat(12), controls(session="a"))
        stage.ask(chat(11), controls(session="b"))
        stage.proxy.quiet()
    with closing(sqlite3.connect(tmp_path / "of-anna.db")) as base, base:
        (one, first), (two, second) = base.execute("SELECT id, meta FROM sessions WHERE tenant <> 'encryption'")
        base.executemany("UPDATE sessions SET meta = ? WHERE id = ?", [(second, one), (first, two)])
    with proxy_with_upstream(store=store) as stage:
        answer = stage.ask(chat(13), controls(session="a"))
    assert (answer.action, answer.reason) == ("degraded", "store-corrupt")


async def test_two_that_begin_a_store_with_different_keys_do_not_both_go_on(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/of-anna.db"
    first, second = [await open_store(url, keys=[bytes([byte]) * 32]) for byte in (1, 2)]
    await first.ping()
    with pytest.raises(StoreError, match="store-key"):
        await second.put_fact("f", b"1", 60)
    assert await first.newest(5) == await first.keys() == []
    assert await first.load(StoreKey("t", "s")) is None
    for store in (first, second):
        await store.close()


async def test_the_secret_of_compactions_is_encrypted_and_survives_a_change_of_keys(
    place: tuple[str, Callable[[], bytes]],
) -> None:
    url, written = place
    keys = [bytes([byte]) * 32 for byte in (1, 2)]

    async def secret(*used: bytes) -> bytes:
        store = await open_store(url, keys=used)
        try:
            await store.reseal()
            return await secret_of(store)
        finally:
            await store.close()

    first = await secret(keys[0])
    assert first not in written()
    assert await secret(keys[1], keys[0]) == await secret(keys[1]) == first
    plain = await open_store(url)
    with pytest.raises(StoreError, match="store-corrupt"):  # not what stands for any value that cannot be read
        await secret_of(plain)
    await plain.close()


@pytest.mark.parametrize("key", ["short", base64.b64encode(b"x" * 31).decode()])
def test_a_key_of_another_length_is_refused_without_being_shown(
    key: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CONDENSER_STORE__ENCRYPTION_KEY", FIRST)
    monkeypatch.setenv("CONDENSER_STORE__ENCRYPTION_OLD_KEYS", key)
    assert main(["check", "--offline"]) != 0
    shown = capsys.readouterr().err
    assert "store.encryption_old_keys.0: must be 32 bytes in base64" in shown
    assert key not in shown
