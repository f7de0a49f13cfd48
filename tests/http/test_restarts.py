"""Proxies come and go: what is forwarded does not depend on which one serves a turn, nor on its age."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from tests.support.proxy import running_proxy
from tests.support.recording import Exchange
from tests.support.redis_server import RedisServer
from tests.support.replies import Reply
from tests.support.stage import MORE, WINDOW, Stage, agent, chat, controls, count, is_summary_call, summary
from tests.support.upstream import Counting, ScriptedUpstream

TURNS = {"chat": [chat(rounds) for rounds in range(2, 32, 3)], "agent": [agent(rounds) for rounds in range(4, 64, 6)]}


def replying(exchange: Exchange) -> Reply | None:
    """A summary that tells histories apart, and is the same each time for the same one."""
    if not is_summary_call(exchange):
        return None
    said = exchange.json()["messages"][1]["content"]
    return summary(
        f"Goal: go on with the task that was given.\nDone: {len(said)} characters of history were read. {MORE}"
    )


@contextmanager
def upstream() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream(counting=Counting(count)) as server:
        server.answer(replying)
        yield server


def through_one(form: str, store: str, session: str | None = "s") -> list[bytes]:
    """What one proxy forwards, turn by turn."""
    with upstream() as server, running_proxy(server.url, store={"url": store}, window=WINDOW) as proxy:
        stage = Stage(proxy, server)
        return [forwarded(stage, turn, session) for turn in TURNS[form]]


def through_many(form: str, store: str, session: str | None = "s") -> list[bytes]:
    """What is forwarded when each turn has a proxy of its own, started for it and stopped after it."""
    seen = []
    with upstream() as server:
        for turn in TURNS[form]:
            with running_proxy(server.url, store={"url": store}, window=WINDOW) as proxy:
                seen.append(forwarded(Stage(proxy, server), turn, session))
    return seen


def through_two(form: str, store: str, session: str | None = "s") -> list[bytes]:
    """What is forwarded when two proxies on one store take turns."""
    with upstream() as server, ExitStack() as stack:
        pair = [
            Stage(stack.enter_context(running_proxy(server.url, store={"url": store}, window=WINDOW)), server)
            for _ in range(2)
        ]
        return [forwarded(stage, turn, session) for stage, turn in zip(cycle(pair), TURNS[form], strict=False)]


def forwarded(stage: Stage, turn: list[Any], session: str | None) -> bytes:
    stage.ask(turn, controls(session=session))
    stage.proxy.quiet()
    return stage.forwarded[-1].body


def condensed(bodies: list[bytes]) -> int:
    return sum(b"[Condensed history]" in body or b"left out" in body for body in bodies)


@pytest.fixture
def two_stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[str]]:
    """The URLs of two stores that are empty."""
    if request.param == "sqlite":
        yield [f"sqlite:///{tmp_path / name}" for name in ("one.db", "another.db")]
    else:
        with RedisServer() as one, RedisServer() as another:
            yield [one.url, another.url]


@pytest.mark.parametrize(
    ("form", "session", "through", "two_stores"),
    [
        ("chat", "s", through_many, "sqlite"),
        ("chat", None, through_two, "redis"),
        ("agent", "s", through_two, "sqlite"),
        ("agent", None, through_many, "redis"),
        ("agent", None, through_two, "sqlite"),
    ],
    indirect=["two_stores"],
)
def test_the_same_bytes_are_forwarded_whichever_proxy_serves_a_turn(
    form: str, session: str | None, through: Callable[..., list[bytes]], two_stores: list[str]
) -> None:
    one, another = two_stores
    bodies = through_one(form, one, session)
    assert condensed(bodies) > 1
    assert through(form, another, session) == bodies


def test_embedded_and_shared_stores_make_no_difference(tmp_path: Path) -> None:
    assert through_one("agent", "memory://") == through_one("agent", f"sqlite:///{tmp_path / 's.db'}")
