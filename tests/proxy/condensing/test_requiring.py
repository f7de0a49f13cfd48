"""Which requirement a view raises, and what keeps it from its target."""

from __future__ import annotations

import pytest

from proxy.condensing.account import Timing
from proxy.condensing.deciding import Need, assess_need, with_floor_reason
from proxy.condensing.turn import Decision, undecided
from proxy.reasons import Reason
from proxy.request.wire import ClientRequest
from strategies.core.requirement import Requirement
from tests.support.driver import Message, conversation, request, running_services

pytestmark = pytest.mark.anyio


async def taken_in(asked: ClientRequest) -> Decision:
    """A request, counted, and the decision to forward it as it is."""
    async with running_services() as services:
        intake = services.exchanges.intake
        context = await intake.with_counts(await intake.build_context(asked, Timing()))
        return undecided(context)


async def need(messages: list[Message], **control: str) -> Need:
    return assess_need(await taken_in(request(messages, **control)))


async def test_a_short_view_needs_nothing() -> None:
    assert await need(conversation(2)) == Need(None, Reason.BELOW_MARKS)


@pytest.mark.parametrize(("turns", "raised"), [(22, Requirement.SOFT), (40, Requirement.HARD)])
async def test_a_view_that_does_not_fit_must_be_condensed(turns: int, raised: Requirement) -> None:
    assert (await need(conversation(turns))).requirement is raised


async def test_a_request_may_force_it_however_short_its_view_is() -> None:
    assert (await need(conversation(2), force="true")).requirement is Requirement.FORCED


async def test_nothing_is_required_while_the_window_is_unknown() -> None:
    decision = await taken_in(request(conversation(40)))
    unknown = decision.in_context(decision.context._replace(own_budget=None))
    assert assess_need(unknown) == Need(None, Reason.WINDOW_UNKNOWN)


async def test_the_floor_is_what_no_condensation_can_take_away() -> None:
    rules = {"role": "system", "content": "rule " * 4_000}
    decision = await taken_in(request([rules, *conversation(2)[1:]]))
    floored = with_floor_reason(decision)
    assert floored.floor is not None
    assert (floored.reason, floored.floor > 4_000) == (Reason.IRREDUCIBLE, True)


async def test_a_view_below_its_marks_has_no_floor_to_speak_of() -> None:
    decision = await taken_in(request(conversation(2)))
    assert with_floor_reason(decision) == decision
