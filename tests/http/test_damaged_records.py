"""One damaged record costs its own session its memory, and nobody else anything."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from proxy.cli import main
from tests.support import wire
from tests.support.admin_api import TOKEN
from tests.support.redis_server import RedisServer, asking
from tests.support.stage import Stage, body_of, chat, controls, proxy_with_upstream


def _another_type(client: Any, key: str) -> None:
    client.delete(key)
    client.rpush(key, "x")


DAMAGES: dict[str, Callable[[Any, str], object]] = {
    "a revision that is no number": lambda client, meta: client.hset(meta, "revision", ""),
    "no revision": lambda client, meta: client.hdel(meta, "revision"),
    "a document of another type": _another_type,
    "records of another type": lambda client, meta: _another_type(client, meta.replace(":meta", ":records")),
    "a document that is no JSON": lambda client, meta: client.hset(meta, "body", "{damaged"),
}


@pytest.fixture
def stage(redis: RedisServer) -> Iterator[Stage]:
    with proxy_with_upstream(store={"url": redis.url}, admin={"token": TOKEN}) as built:
        yield built


def damage(redis: RedisServer, damages: Callable[[Any, str], object]) -> tuple[str, str]:
    """Damages the only session, and returns its tenant and its name."""
    with asking(redis.port) as client:
        (meta,) = client.keys("condenser:*:meta")
        damages(client, meta)
    tenant, session = meta.partition("{")[2].partition("}")[0].split(":")
    return tenant, session


@pytest.mark.parametrize("damages", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_session_costs_its_tenant_its_memory_until_deletion(
    redis: RedisServer,
    stage: Stage,
    damages: Callable[[Any, str], object],
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert append(stage, "first").status == 200
    tenant, session = damage(redis, damages)
    other = replace(stage, key="sk-second", sent=[])
    for _ in range(4):
        answer = stage.ask(chat(12), controls(session="s"))
        assert (answer.action, answer.reason) == ("degraded", "store-corrupt")
        assert other.ask(chat(2), controls(session="s")).action == "passed"
    assert f"session {tenant}/{session} cannot be read" in caplog.text
    before = len(stage.forwarded)
    refused = append(stage, "second")
    assert (refused.status, refused.json()["error"]["code"]) == (503, "history_unavailable")
    assert len(stage.forwarded) == before
    assert command(stage, "list") == 0
    assert f"not readable: {tenant}/{session}" in capsys.readouterr().err
    assert command(stage, "delete", session, "--tenant", tenant) == 0
    assert capsys.readouterr().out == "deleted 1 session\n"
    assert append(stage, "third").status == 200
    assert [each["content"] for each in stage.last_view] == ["third"]


def test_a_damaged_record_harms_no_other(redis: RedisServer, stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    assert stage.ask(chat(12), controls(session="s")).action == "condensed"
    view = stage.last_view
    with asking(redis.port) as client:
        (key,) = client.keys("condenser:*:records")
        earlier = client.hkeys(key)
        assert stage.ask(chat(24), controls(session="s")).action == "condensed"
        (newest,) = set(client.hkeys(key)) - set(earlier)
        client.hset(key, newest, "{damaged")
    assert stage.ask(chat(12), controls(session="s")).action == "replayed"
    assert stage.last_view == view
    actions = [stage.ask(chat(24), controls(session="s")).action for _ in range(2)]
    assert actions == ["condensed", "replayed"]
    assert "is not used: " in caplog.text


def append(stage: Stage, text: str) -> wire.Answer:
    return stage.post(body_of([{"role": "user", "content": text}]), controls(session="s", history="append"))


def command(stage: Stage, *words: str) -> int:
    action, *rest = words
    return main(["sessions", action, *rest, "--url", stage.proxy.url, "--token", TOKEN])
