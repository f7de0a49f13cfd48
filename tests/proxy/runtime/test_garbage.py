"""A finished request leaves nothing for the garbage collector, and full collections wait until no request is served."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from proxy.condensing.decision import Decision
from proxy.runtime.garbage import MOST_PUT_OFF, scheduled_collections
from tests.http.talking import asked, garden, staged

PAUSE = 0.001


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@contextmanager
def full_collections() -> Iterator[asyncio.Event]:
    """Tells of the first full collection inside."""
    done = asyncio.Event()

    def told(phase: str, info: dict[str, Any]) -> None:
        if phase == "stop" and info["generation"] == 2:
            done.set()

    gc.callbacks.append(told)
    try:
        yield done
    finally:
        gc.callbacks.remove(told)


@contextmanager
def without_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def decisions() -> int:
    return sum(isinstance(each, Decision) for each in gc.get_objects())


@pytest.mark.parametrize("memory", ["off", "inject", "tool"])
@pytest.mark.parametrize("streamed", [False, True])
def test_nothing_of_a_request_is_left_when_it_is_over(streamed: bool, memory: str) -> None:
    with staged(strategy="half-window") as stage, without_collections():
        before = decisions()
        for rounds in (3, 30, 31):
            stage.ask(garden(rounds), asked(session="s", memory=memory), stream=streamed)
            stage.proxy.quiet()
        assert decisions() == before


@pytest.mark.anyio
async def test_a_full_collection_is_made_when_it_is_quiet() -> None:
    with full_collections() as made:
        async with scheduled_collections(lambda: True, PAUSE), asyncio.timeout(10):
            await made.wait()


@pytest.mark.anyio
async def test_a_full_collection_is_put_off_while_requests_are_under_way_and_not_for_ever() -> None:
    asked_for = 0

    def never_quiet() -> bool:
        nonlocal asked_for
        asked_for += 1
        return False

    with full_collections() as made:
        async with scheduled_collections(never_quiet, PAUSE), asyncio.timeout(10):
            await made.wait()
    assert asked_for > MOST_PUT_OFF


@pytest.mark.anyio
async def test_the_interpreter_collects_as_before_when_the_server_has_ended() -> None:
    before = gc.get_threshold()
    async with scheduled_collections(lambda: True, PAUSE):
        assert gc.get_threshold()[2] > before[2]
        assert gc.get_threshold()[:2] == before[:2]
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0
