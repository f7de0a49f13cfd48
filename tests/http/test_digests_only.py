"""`store.content = "digests"` through the real proxy: what is kept, and what a client that trims gets."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis import Redis

from proxy.store.access import VERSION, decompress
from tests.support import redis_server
from tests.support.proxy import proxying
from tests.support.recording import CHAT
from tests.support.redis_server import RedisServer
from tests.support.upstream import ScriptedUpstream

Message = dict[str, Any]
Values = Callable[[], list[bytes]]

FORCED = {"x-condenser-force": "true"}
TASK = {"role": "user", "content": "the task: plan a garden"}
NEXT = {"role": "user", "content": "and then?"}


def dialogue(turns: int, marked: str = "") -> list[Message]:
    """The task and what followed, long enough to be worth condensing; `marked` stands in all but the task."""
    said = [f"{marked} said {i}" + " word" * 150 for i in range(2 * turns)]
    later = [{"role": "assistant" if i % 2 == 0 else "user", "content": each} for i, each in enumerate(said)]
    return [TASK, *later]


@contextmanager
def talking(upstream: ScriptedUpstream, url: str = "memory://", **settings: Any) -> Iterator[httpx.Client]:
    """A client of a proxy that keeps digests only."""
    defaults = {"window": 4096, "store": {"url": url, "content": "digests"}, "strategy": "extract"}
    with (
        proxying(upstream.url, **{**defaults, **settings}) as running,
        httpx.Client(base_url=running.url, headers={"x-condenser-session": "s"}, timeout=20) as client,
    ):
        yield client


def send(client: httpx.Client, messages: list[Message], **headers: str) -> httpx.Response:
    return client.post(CHAT, json={"model": "gpt-4o", "messages": messages}, headers=headers)


def forwarded(upstream: ScriptedUpstream) -> list[Message]:
    messages: list[Message] = upstream.journal.to(CHAT)[-1].json()["messages"]
    return messages


# Clients that trim


def test_what_was_covered_keeps_standing_and_nothing_else_is_put_back(upstream: ScriptedUpstream) -> None:
    history = dialogue(8)
    with talking(upstream) as client:
        send(client, history, **FORCED)
        condensed = forwarded(upstream)
        kept = len(condensed) - 2  # the task and the replacement stand for the rest
        assert 4 < kept < len(history) - 4
        answer = send(client, [*history[-kept - 4 :], {"role": "assistant", "content": "so"}, NEXT])
        assert forwarded(upstream) == [*condensed, {"role": "assistant", "content": "so"}, NEXT]
        send(client, [*history[-4:], {"role": "assistant", "content": "so"}, NEXT])
    assert forwarded(upstream) == [*condensed[:2], *history[-4:], {"role": "assistant", "content": "so"}, NEXT]
    assert condensed[0] == TASK
    assert answer.headers["x-condenser-action"] == "replayed"
    assert answer.headers["x-condenser-reason"] == "aligned"
    assert answer.headers["x-condenser-branch"] == "main+"


def test_a_kept_first_message_is_the_clients_own(upstream: ScriptedUpstream) -> None:
    history = dialogue(8)
    with talking(upstream) as client:
        send(client, history, **FORCED)
        condensed = forwarded(upstream)
        send(client, [TASK, *history[-6:], {"role": "assistant", "content": "so"}, NEXT])
        assert forwarded(upstream) == [*condensed[:2], *history[-6:], {"role": "assistant", "content": "so"}, NEXT]


def test_the_task_of_an_agent_that_trims_it_still_stands(upstream: ScriptedUpstream) -> None:
    """Its only user message is the first one, which is then the last one too."""
    rounds = [
        message
        for i in range(12)
        for message in (
            {
                "role": "assistant",
                "content": f"look {i}" + " word" * 60,
                "tool_calls": [{"id": f"c{i}", "type": "function", "function": {"name": "ls", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": f"c{i}", "content": f"seen {i}" + " word" * 120},
        )
    ]
    with talking(upstream) as client:
        send(client, [TASK, *rounds[:22]], **FORCED)
        assert forwarded(upstream)[0] == TASK
        answer = send(client, rounds[16:])
    assert answer.headers["x-condenser-reason"] == "aligned"
    assert forwarded(upstream)[0] == TASK
    assert forwarded(upstream)[-8:] == rounds[16:]


def test_the_next_window_rests_on_what_the_last_one_made(upstream: ScriptedUpstream) -> None:
    history = dialogue(16)
    with talking(upstream) as client:
        send(client, history[:18], **FORCED)
        send(client, history[11:24], **FORCED)
        condensed = forwarded(upstream)
        assert condensed[0] == TASK
        later = [{"role": "assistant", "content": "so"}, NEXT]
        kept = len(condensed) - 2
        answer = send(client, [*history[22 - kept : 24], *later])
    assert answer.headers["x-condenser-action"] == "replayed"
    assert forwarded(upstream) == [*condensed, *later]


def test_where_nothing_covered_stands_there_is_no_alignment(upstream: ScriptedUpstream) -> None:
    history = dialogue(4)
    window = [*history[-6:], {"role": "assistant", "content": "so"}, NEXT]
    with talking(upstream) as client:
        send(client, history)
        answer = send(client, window)
    assert forwarded(upstream) == window
    assert answer.headers["x-condenser-reason"] == "new-branch"


def test_off_and_observe_send_a_window_as_it_came(upstream: ScriptedUpstream) -> None:
    history = dialogue(8)
    window = [*history[-6:], {"role": "assistant", "content": "so"}, NEXT]
    with talking(upstream) as client:
        send(client, history, **FORCED)
        for strategy in ("off", "observe:extract"):
            send(client, window, **{"x-condenser-strategy": strategy})
            assert forwarded(upstream) == window


def test_a_client_that_sends_all_gets_the_same_bytes_as_before(upstream: ScriptedUpstream) -> None:
    history = dialogue(8)
    with talking(upstream) as client:
        send(client, history, **FORCED)
        condensed = forwarded(upstream)
        send(client, [*history, {"role": "assistant", "content": "so"}, NEXT])
    assert forwarded(upstream)[: len(condensed)] == condensed


# What is stored


def test_append_is_refused(upstream: ScriptedUpstream) -> None:
    with talking(upstream) as client:
        answer = send(client, [TASK], **{"x-condenser-history": "append"})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "X-Condenser-History"
    assert not upstream.journal.to(CHAT)


@pytest.fixture(params=["sqlite", "redis"])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Values]]:
    """The URL of a store, and all values that are in it, decompressed."""
    if request.param == "sqlite":
        path = tmp_path / "sessions.db"
        yield f"sqlite:///{path}", lambda: _in_sqlite(path)
        return
    if not redis_server.available():
        pytest.skip(redis_server.HOW_TO_GET_IT)
    with RedisServer() as server:
        yield server.url, lambda: _in_redis(server.url)


def _in_sqlite(path: Path) -> list[bytes]:
    """Every cell, and the bytes of the files: what was overwritten may still stand in them."""
    with closing(sqlite3.connect(path)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        rows = [row for table in tables for row in connection.execute(f"SELECT * FROM {table}")]
    files = [each.read_bytes() for each in path.parent.glob("sessions.db*")]
    return [_plain(cell) for row in rows for cell in row] + files


def _in_redis(url: str) -> list[bytes]:
    client: Any = Redis.from_url(url)
    values: list[bytes] = []
    for name in client.scan_iter("*"):
        values.append(name)
        match client.type(name):
            case b"hash":
                values += [part for pair in client.hgetall(name).items() for part in pair]
            case b"set":
                values += client.smembers(name)
            case b"zset":
                values += client.zrange(name, 0, -1)
            case _:
                values.append(client.get(name))
    client.close()
    return [_plain(value) for value in values]


def _plain(value: Any) -> bytes:
    data = value if isinstance(value, bytes) else str(value).encode()
    return decompress(data) if data[:1] == bytes((VERSION,)) else data


def holds(values: Values, text: str) -> bool:
    return any(text.encode() in each for each in values())


def test_no_text_of_a_client_is_stored_but_its_task(upstream: ScriptedUpstream, stored: tuple[str, Values]) -> None:
    url, values = stored
    history = dialogue(16, marked="planted-marker")
    with talking(upstream, url, strategy="recent") as client:
        send(client, history[:6])
        send(client, history[:18], **FORCED)
        send(client, [*history[11:24]], **FORCED)
        send(client, [*history[17:25]])
        assert send(client, [*history[17:25]], **{"x-condenser-strategy": "off"}).status_code == 200
        assert holds(values, TASK["content"])
        assert not holds(values, "planted-marker")


def test_with_texts_the_same_search_finds_them(upstream: ScriptedUpstream, stored: tuple[str, Values]) -> None:
    url, values = stored
    with (
        proxying(upstream.url, store={"url": url}) as running,
        httpx.Client(base_url=running.url, headers={"x-condenser-session": "s"}, timeout=20) as client,
    ):
        send(client, dialogue(2, marked="planted-marker"))
        assert holds(values, "planted-marker")


@pytest.mark.parametrize("content", ["full", "digests"])
def test_of_a_request_that_wants_nothing_stored_nothing_is(
    upstream: ScriptedUpstream, stored: tuple[str, Values], content: str
) -> None:
    url, values = stored
    with talking(upstream, url, store={"url": url, "content": content}) as client:
        before = sorted(values())
        answer = send(client, dialogue(8, marked="planted-marker"), **FORCED, **{"x-condenser-no-store": "true"})
        assert answer.headers["x-condenser-action"] == "condensed"
        if url.startswith("redis"):
            assert sorted(values()) == before == []
        assert not holds(values, "planted-marker")
        assert not holds(values, TASK["content"])
