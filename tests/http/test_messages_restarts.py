"""Proxies come and go under the Messages API: its views and its thinking do not depend on which one serves a turn."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import cycle, islice, pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.http.test_messages import Agent, client_bodies, is_own, reader
from tests.support.messages_upstream import MESSAGES, StrictMessages
from tests.support.proxy import Proxy, running_proxy
from tests.support.redis_server import RedisServer

TURNS, WINDOW = 20, 15_000


@contextmanager
def on(upstream: StrictMessages, store: str, strategy: str) -> Iterator[Proxy]:
    with running_proxy(upstream.url, strategy=strategy, window=WINDOW, store={"url": store}) as proxy:
        yield proxy


def condensed_where(agent: Agent, proxy: Proxy) -> bool:
    """One turn of an agent; whether it was condensed."""
    agent.url = proxy.url
    action = agent.turn().action
    proxy.quiet()
    return action == "condensed"


def through_one(store: str, strategy: str) -> list[bytes]:
    """What one proxy forwards, turn by turn."""
    with StrictMessages(reader, window=WINDOW) as upstream, on(upstream, store, strategy) as proxy:
        agent = Agent(proxy.url)
        return checked(upstream, [condensed_where(agent, proxy) for _ in range(TURNS)])


def through_many(store: str, strategy: str) -> list[bytes]:
    """What is forwarded when each turn has a proxy of its own."""
    condensed = []
    with StrictMessages(reader, window=WINDOW) as upstream:
        agent = Agent("")
        for _ in range(TURNS):
            with on(upstream, store, strategy) as proxy:
                condensed.append(condensed_where(agent, proxy))
        return checked(upstream, condensed)


def through_two(store: str, strategy: str) -> list[bytes]:
    """What is forwarded when two proxies on one store take turns."""
    with StrictMessages(reader, window=WINDOW) as upstream, ExitStack() as stack:
        agent = Agent("")
        pair = [stack.enter_context(on(upstream, store, strategy)) for _ in range(2)]
        return checked(upstream, [condensed_where(agent, proxy) for proxy in islice(cycle(pair), TURNS)])


def checked(upstream: StrictMessages, condensed: list[bool]) -> list[bytes]:
    """The requests that the upstream got, each of which it took, and which grow between two condensations."""
    assert upstream.refusals == []
    assert sum(condensed) > 1
    views: list[list[Any]] = [body["messages"] for body in client_bodies(upstream)]
    for is_new, (before, after) in zip(condensed[1:], pairwise(views), strict=True):
        assert is_new or after[: len(before)] == before
    rested = [view for is_new, view in zip(condensed, views, strict=True) if not is_new][condensed.index(True) :]
    assert any('"thinking"' in json.dumps(view) for view in rested)
    return [exchange.body for exchange in upstream.journal.to(MESSAGES) if not is_own(exchange.json())]


@pytest.mark.parametrize("strategy", ["mask", "half-window"])
def test_a_proxy_that_is_restarted_between_all_turns_forwards_the_same_bytes(strategy: str, tmp_path: Path) -> None:
    without = through_one(f"sqlite:///{tmp_path / 'one.db'}", strategy)
    assert through_many(f"sqlite:///{tmp_path / 'many.db'}", strategy) == without


def test_two_proxies_on_one_redis_forward_the_same_bytes_as_one() -> None:
    with RedisServer() as one, RedisServer() as two:
        assert through_two(two.url, "extract") == through_one(one.url, "extract")
