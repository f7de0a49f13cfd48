"""What is sent, and what its success stores."""

from __future__ import annotations

import pytest

from proxy.condensing.account import Timing
from proxy.condensing.attempt import attempt_of, original_of
from tests.support.driver import conversation, request, running_services

pytestmark = pytest.mark.anyio


async def test_nothing_is_stored_for_a_request_that_forbids_it() -> None:
    async with running_services() as services:
        exchange = await services.exchanges.open(request(conversation(40), no_store="true"))
    assert not exchange.stores


async def test_the_request_as_it_came_follows_only_if_it_fits() -> None:
    async with running_services() as services:
        parts = services.exchanges
        found = []
        for turns in (10, 400):
            context = await parts.intake.build_context(request(conversation(turns), force="true"), Timing())
            refused = parts.attempt(await parts.decider.decide(context), context)
            found.append(original_of(refused.decision, context, parts.decider.keeper))
    original, too_long = found
    assert original is not None
    assert original.decision.body == original.context.request.body.data if original.context else False
    assert (original.decision.reason, too_long) == ("rewrite-refused", None)


async def test_an_update_names_what_was_sent_and_what_was_saved() -> None:
    async with running_services() as services:
        parts = services.exchanges
        context = await parts.intake.build_context(request(conversation(40)), Timing())
        decision = await parts.decider.decide(context)
        update = attempt_of(decision, context, parts.decider.keeper, None).update
    assert update is not None
    assert decision.applied is not None
    assert (update.applied, update.tokens_before > update.tokens_after) == (decision.applied.id, True)
