"""A finished request leaves nothing for the garbage collector."""

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from http.client import HTTPException
from itertools import product

import httpx
import pytest

from proxy import LOGGER
from proxy.condensing.attempt import Turn
from proxy.condensing.turn import Decision
from tests.support import replies, wire
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


CUT = {
    "no head": replies.hang_up(),
    "a part of an answer": replace(replies.completion("Yes, it is so."), cut=True),
    "a part of a stream": replies.stream(*replies.text_chunks("Yes, it is so."), cut=True),
}


@pytest.mark.parametrize("cut", CUT)
def test_nothing_is_left_of_a_request_whose_upstream_breaks_off(cut: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, LOGGER)  # pytest keeps the lines of requests that failed
    with proxy_with_upstream(strategy="mask+extract") as stage, without_collections():
        stage.ask(chat(3), controls(session="s"))
        before = decisions()
        for rounds in (3, 30):
            stage.upstream.reply(CUT[cut], CUT[cut])  # the first one may be asked for again
            with suppress(HTTPException):
                stage.post(body_of(chat(rounds), stream=cut.endswith("stream")), controls(session="s"))
            stage.upstream.drop_queue()
            stage.proxy.quiet()
        assert decisions() == before


def test_the_body_of_an_own_call_is_freed_with_its_answer() -> None:
    with proxy_with_upstream(strategy="summary") as stage, without_collections():
        others = exchanged()  # that a library has made for itself when it was imported
        stage.ask(chat(30), controls(session="s", force="true"))
        stage.proxy.quiet()
        assert [each for each in exchanged() if all(each is not other for other in others)] == []


def exchanged() -> list[httpx.Response | httpx.Request]:
    return [each for each in gc.get_objects() if isinstance(each, httpx.Response | httpx.Request)]


def test_a_connection_that_waits_keeps_nothing_of_its_last_request() -> None:
    with proxy_with_upstream(strategy="half-window") as stage, without_collections():
        before = decisions()
        headers = [*wire.JSON, ("Authorization", "Bearer k")]
        with wire.opened(stage.proxy.url, "POST", CHAT, body_of(chat(3)), headers) as response:
            assert response.read()
            stage.proxy.quiet()
            assert decisions() == before
