"""A finished request leaves nothing for the garbage collector."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product

import pytest

from proxy.condensing.attempt import Turn
from proxy.condensing.turn import Decision
from tests.support import wire
from tests.support.recording import CHAT
from tests.support.stage import body_of, chat, controls, proxy_with_upstream


@contextmanager
def without_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def decisions() -> int:
    return sum(isinstance(each, Decision | Turn) for each in gc.get_objects())


@pytest.mark.parametrize("streamed", [False, True])
def test_nothing_of_a_request_is_left_when_it_is_over(streamed: bool) -> None:
    with proxy_with_upstream(strategy="half-window") as stage, without_collections():
        before = decisions()
        for memory, rounds in product(("off", "inject", "tool"), (3, 30, 31)):
            stage.ask(chat(rounds), controls(session=memory, memory=memory), stream=streamed)
            stage.proxy.quiet()
        assert decisions() == before


def test_a_connection_that_waits_keeps_nothing_of_its_last_request() -> None:
    with proxy_with_upstream(strategy="half-window") as stage, without_collections():
        before = decisions()
        headers = [*wire.JSON, ("Authorization", "Bearer k")]
        with wire.opened(stage.proxy.url, "POST", CHAT, body_of(chat(3)), headers) as response:
            assert response.read()
            stage.proxy.quiet()
            assert decisions() == before
