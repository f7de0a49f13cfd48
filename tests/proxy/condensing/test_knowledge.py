"""What replies and refusals teach about an upstream, told once after each."""

from __future__ import annotations

import pytest

from proxy.condensing.account import Timing
from proxy.condensing.turn import undecided
from proxy.endpoints.replies import Usage
from proxy.services import Services
from tests.support.driver import conversation, request, running_services

pytestmark = pytest.mark.anyio


async def learn(services: Services, turns: int, counted: int, **control: str) -> None:
    """A complete reply to a conversation of so many turns, whose prompt the upstream has counted."""
    parts = services.exchanges
    context = await parts.intake.with_counts(
        await parts.intake.build_context(request(conversation(turns), **control), Timing())
    )
    parts.refusals.knowledge.learn_from_usage(undecided(context), Usage(counted))


async def test_a_count_is_expected_of_the_next_request_of_its_conversation() -> None:
    async with running_services() as services:
        parts = services.exchanges
        before = undecided(await parts.intake.build_context(request(conversation(10), force="true"), Timing()))
        await learn(services, 10, before.tokens_after * 2)
        after = undecided(await parts.intake.build_context(request(conversation(10), force="true"), Timing()))
    assert before.expected_tokens == before.tokens_after
    assert after.expected_tokens > before.expected_tokens


async def test_nothing_is_calibrated_by_a_request_that_must_not_be_stored() -> None:
    async with running_services() as services:
        parts = services.exchanges
        before = undecided(await parts.intake.build_context(request(conversation(10), force="true"), Timing()))
        await learn(services, 10, before.tokens_after * 2, no_store="true")
        after = undecided(await parts.intake.build_context(request(conversation(10), force="true"), Timing()))
    assert after.expected_tokens == before.expected_tokens
