"""The end of an app: nothing of it is left running, whatever was under way."""

import asyncio
from collections.abc import Sequence

import pytest

from proxy.asking import Caller, Roles
from proxy.services import open_services
from proxy.settings import Settings
from proxy.store import open_store
from strategies.core.effects import Effect, Result
from tests.support.driver import request
from tests.support.signals import BOUND
from tests.support.stage import chat

pytestmark = pytest.mark.timeout(BOUND)


class Silent:
    """A summarizer that never answers."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def resolve(self, effects: Sequence[Effect], roles: Roles, caller: Caller) -> tuple[Result, ...]:
        """Waits for ever."""
        self.asked.set()
        await asyncio.Event().wait()
        return ()


@pytest.mark.parametrize("strategy", ["half-window", "dynacontext"])
async def test_work_for_a_client_that_left_ends_with_the_app(strategy: str) -> None:
    silent, store = Silent(), await open_store("memory://")
    before = asyncio.all_tasks()
    async with open_services(Settings(strategy=strategy, window=16_384), store=store, summarizer=silent) as built:
        client = asyncio.create_task(built.exchanges.open(request(chat(12), force="true")))
        await silent.asked.wait()
        client.cancel()
        await asyncio.wait({client})
        assert asyncio.all_tasks() > before
    assert asyncio.all_tasks() == before
    await store.close()


async def test_a_summary_that_comes_too_late_ends_with_the_app() -> None:
    silent, store = Silent(), await open_store("memory://")
    before = asyncio.all_tasks()
    settings = Settings(strategy="half-window", window=16_384, inline_timeout=0.05)
    async with open_services(settings, store=store, summarizer=silent) as built:
        exchange = await built.exchanges.open(request(chat(12), force="true"))
        assert exchange.decision.reason == "summary-timeout"
        assert exchange.stores
        await exchange.store()
    assert asyncio.all_tasks() == before
    await store.close()
