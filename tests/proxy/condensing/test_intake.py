"""What is known of a request before anything is decided on it."""

from __future__ import annotations

from typing import Any, cast

import pytest

from proxy.condensing.account import Timing
from proxy.condensing.turn import RequestContext
from proxy.services import Services, open_services
from proxy.settings import Settings
from proxy.store import open_store
from proxy.store.base import Store, StoreError
from tests.support.driver import Message, conversation, request, running_services

pytestmark = pytest.mark.anyio
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


class WithoutBlocks:
    """A store that gives all but blocks in time."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def blocks(self, *_: Any) -> dict[str, bytes]:
        raise StoreError("store-timeout")


async def case_of(services: Services, messages: list[Message], **more: str) -> RequestContext:
    return await services.exchanges.intake.build_context(request(messages, **more), Timing())


async def test_only_a_long_list_is_counted() -> None:
    async with running_services() as services:
        short, long = await case_of(services, conversation(1)), await case_of(services, conversation(40))
    assert (short.is_estimated, long.is_estimated) == (True, False)
    assert short.is_idle
    assert not long.is_idle


async def test_a_dry_run_counts_even_a_short_list() -> None:
    async with running_services() as services:
        context = await case_of(services, conversation(1), dry_run="true")
    assert not context.is_estimated
    assert not context.may_store


async def test_a_session_is_found_again_by_its_history() -> None:
    async with running_services() as services:
        exchange = await services.exchanges.open(request(conversation(3)))
        await exchange.store()
        context = await case_of(services, conversation(4))
        other = await case_of(services, [{"role": "user", "content": "Something else."}])
    assert (context.branch is not None, context.recognition_reason) == (True, "")
    assert (other.branch, other.recognition_reason) == (None, "new-branch")


async def test_whether_the_client_offers_tools_is_known() -> None:
    async with running_services() as services:
        intake = services.exchanges.intake
        with_tools = await intake.build_context(request(conversation(1), {"tools": [TOOL]}), Timing())
        without = await intake.build_context(request(conversation(1), {"tools": []}), Timing())
    assert (with_tools.has_tools, without.has_tools) == (True, False)
    assert with_tools.overhead > without.overhead


async def test_the_window_of_a_request_comes_before_that_of_the_settings() -> None:
    async with running_services() as services:
        context = await case_of(services, conversation(1), window="2048")
    assert context.policy.window.tokens == 2_048


@pytest.mark.parametrize(("last", "failure"), [("And then?", ""), (None, "store-timeout")])
async def test_a_found_branch_needs_no_history(last: str | None, failure: str) -> None:
    first, other = conversation(3), [{"role": "user", "content": f"Something else, part {i}."} for i in range(5)]
    rewritten = [*first[:-1], {"role": "user", "content": last}] if last else other[::-1]
    store = await open_store("memory://")
    async with open_services(Settings(), store=store) as services:
        for messages in (first, other):
            await (await services.exchanges.open(request(messages))).store()
    async with open_services(Settings(), store=cast(Store, WithoutBlocks(store))) as services:
        recognised = (await case_of(services, rewritten)).recognised
    await store.close()
    assert recognised.failure == failure
    assert (recognised.session is None) == bool(failure)
