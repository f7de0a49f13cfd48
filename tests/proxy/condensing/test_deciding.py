"""Which view is forwarded: the one that stands, a new one, or the client's own list."""

from __future__ import annotations

import json

import pytest

from proxy.errors import ContextLengthExceeded
from proxy.reasons import Action, Trigger
from tests.support.driver import conversation, exchange_for, request, running_services

pytestmark = pytest.mark.anyio


async def test_a_list_below_the_marks_is_forwarded_with_the_clients_own_bytes() -> None:
    exchange = await exchange_for(conversation(2))
    assert exchange.decision.action is Action.PASSED
    assert exchange.decision.body == exchange.request.body.data


async def test_a_list_beyond_the_trigger_is_condensed_below_it() -> None:
    decision = (await exchange_for(conversation(40))).decision
    budget = decision.policy.budget
    assert (decision.action, decision.trigger) == (Action.CONDENSED, Trigger.CONTEXT_LIMIT)
    assert budget is not None
    assert decision.tokens_after < budget.trigger


async def test_a_condensation_is_replayed_with_the_bytes_that_it_had() -> None:
    async with running_services() as services:
        first = await services.exchanges.open(request(conversation(40)))
        await first.store()
        again = await services.exchanges.open(request(conversation(40)))
    assert again.decision.action is Action.REPLAYED
    assert again.decision.body == first.decision.body


async def test_nothing_is_changed_under_observe_but_the_plan_is_told() -> None:
    exchange = await exchange_for(conversation(40), strategy="observe:extract")
    decision = exchange.decision
    assert (decision.action, decision.applied) == (Action.WOULD_CONDENSE, None)
    assert decision.body == exchange.request.body.data
    assert decision.tokens_saved == 0


async def test_off_forwards_the_list_however_long_it_is() -> None:
    exchange = await exchange_for(conversation(400), strategy="off")
    assert exchange.decision.reason == "strategy-off"
    assert exchange.decision.body == exchange.request.body.data


async def test_what_no_upstream_could_serve_is_refused_with_where_its_tokens_are() -> None:
    long = [{"role": "system", "content": "rule " * 9_000}, {"role": "user", "content": "hi"}]
    with pytest.raises(ContextLengthExceeded, match="system messages 9,0"):
        await exchange_for(long)


async def test_a_forced_condensation_keeps_the_newest_question() -> None:
    decision = (await exchange_for(conversation(8), force="true")).decision
    assert (decision.action, decision.trigger) == (Action.CONDENSED, Trigger.FORCED)
    assert json.loads(decision.body)["messages"][-1] == conversation(8)[-1]
