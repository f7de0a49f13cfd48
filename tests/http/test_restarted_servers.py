"""A server is started again with another window: what it refused before binds no request longer than it is true."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support import replies
from tests.support.proxy import running_proxy
from tests.support.recording import Exchange
from tests.support.replies import Reply
from tests.support.stage import MODEL, Stage, chat, controls, count
from tests.support.upstream import ScriptedUpstream
from tests.support.virtual_time import Clock
from tests.support.wire import Answer

LONG = 40  # rounds that 2,048 tokens do not hold, and 16,384 do
DISCOVERS: Mapping[str, Any] = {"strategy": "recent", "upstream": {"discover": True}}


@dataclass
class Server:
    """A model server that takes `window` tokens, and states them on its pages, or others, or none."""

    upstream: ScriptedUpstream
    window: int
    owner: str = "llamacpp"
    states: int | None = None
    is_silent: bool = False
    refused: int = 0  # how many requests it has refused for their length

    def answer(self, exchange: Exchange) -> Reply | None:
        if exchange.method == "GET" and self.is_silent:
            return replies.error(503)
        if exchange.method == "GET":
            stated = self.states or self.window
            row = {"id": MODEL, "owned_by": self.owner, "max_model_len": stated, "meta": {"n_ctx": stated}}
            page = {"data": [{name: row[name] for name in ("id", "owned_by", PLACES[self.owner])}]}
            props = {"default_generation_settings": {"n_ctx": stated}, "total_slots": 1}
            return replies.json_reply(props if exchange.path == "/props" else page)
        used = count(exchange.json())
        self.refused += used > self.window
        return replies.overflow(self.window, used) if used > self.window else None


PLACES = {"llamacpp": "meta", "vllm": "max_model_len"}


@contextmanager
def server(window: int, **more: Any) -> Iterator[Server]:
    with ScriptedUpstream() as upstream:
        made = Server(upstream, window, **more)
        upstream.answer(made.answer)
        yield made


@contextmanager
def proxy_before(served: Server, store: str, **settings: Any) -> Iterator[Stage]:
    with running_proxy(served.upstream.url, **DISCOVERS, store={"url": store}, **settings) as proxy:
        yield Stage(proxy, served.upstream)


def asked(stage: Stage, session: str, rounds: int = LONG) -> Answer:
    """The answer to a conversation, once all that it has started is over; it is never a refusal."""
    answer = stage.ask(chat(rounds), controls(session=session))
    stage.proxy.quiet()
    return answer


@pytest.mark.parametrize("owner", PLACES)
def test_a_server_that_is_started_again_with_a_larger_window_is_used_up_to_that(owner: str, tmp_path: Path) -> None:
    store, clock = f"sqlite:///{tmp_path / 's.db'}", Clock(1_000_000.0)
    with server(2_048, owner=owner) as served:
        with proxy_before(served, store, clock=clock) as stage, proxy_before(served, store) as other:
            first = asked(stage, "old")
            assert (first.trigger, first.window) == ("overflow", "2048")
            assert asked(stage, "old", LONG + 1).window == "2048"
            served.window = 16_384
            clock.now += 601  # what any server states is read again, at the latest
            asked(stage, "old", LONG + 2)
            for session, rounds in (("old", LONG + 3), ("new", LONG)):
                assert asked(stage, session, rounds).window == "16384"
            assert asked(other, "elsewhere").action == "passed"
        with proxy_before(served, store) as stage:
            assert asked(stage, "newest").action == "passed"  # before the server is asked
            assert asked(stage, "newest", LONG + 1).window == "16384"
    assert served.refused == 1


def test_a_window_that_is_first_stated_after_the_refusal_takes_the_place_of_the_lesson() -> None:
    clock = Clock(1_000_000.0)
    with server(2_048, is_silent=True) as served, proxy_before(served, "memory://", clock=clock) as stage:
        for rounds in (LONG, LONG + 1):
            assert asked(stage, "s", rounds).window == "2048"
        served.window, served.is_silent = 16_384, False
        clock.now += 901  # until one that has stated nothing is asked again
        asked(stage, "s", LONG + 2)
        assert asked(stage, "s", LONG + 3).window == "16384"


def test_a_window_that_was_smaller_for_a_while_is_forgotten() -> None:
    with server(4_096) as served, proxy_before(served, "memory://") as stage:
        asked(stage, "a", 4)
        for window in (1_024, 4_096, 1_024, 4_096):
            served.window = window
            asked(stage, "a", 20)
            assert asked(stage, f"b{window}", 20).window == str(window)


def test_a_server_that_states_more_than_it_takes_refuses_twice_at_most(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 's.db'}"
    with server(2_048, states=32_768) as served:
        for _ in range(2):
            with proxy_before(served, store) as stage, proxy_before(served, store) as other:
                for number in range(4):
                    assert asked(stage, f"s{number}").window == "2048"
                    assert number == 0 or asked(other, f"o{number}").window == "2048"
            assert served.refused <= 2
        with proxy_before(served, store) as stage:
            served.window = served.states = 16_384
            asked(stage, "s")
            assert asked(stage, "s", LONG + 1).window == "16384"
