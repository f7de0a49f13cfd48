"""A request that was taken in: where it may leave at once, and what it names its work."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.condensing.account import Timing
from proxy.condensing.turn import RequestContext, idle_decision, undecided
from proxy.reasons import Action, Reason
from tests.support.driver import Message, conversation, request, running_services

pytestmark = pytest.mark.anyio


async def taken_in(messages: list[Message], strategy: str = "extract", settings: Any = None, **control: str) -> Any:
    async with running_services(strategy, **(settings or {})) as services:
        return await services.exchanges.intake.build_context(request(messages, **control), Timing())


async def test_a_short_request_leaves_at_once() -> None:
    context: RequestContext = await taken_in(conversation(2))
    decision = idle_decision(context)
    assert context.is_idle
    assert (decision.action, decision.reason, decision.precision) == (Action.PASSED, Reason.BELOW_MARKS, "estimate")


@pytest.mark.parametrize(
    ("strategy", "turns", "control"),
    [("extract", 40, {}), ("extract", 2, {"force": "true"}), ("off", 2, {})],
    ids=["long", "forced", "off"],
)
async def test_a_request_that_asks_for_more_is_decided_on(strategy: str, turns: int, control: dict[str, str]) -> None:
    assert not (await taken_in(conversation(turns), strategy, **control)).is_idle


async def test_what_is_not_decided_on_is_the_clients_own_list() -> None:
    context: RequestContext = await taken_in(conversation(6))
    decision = undecided(context)
    assert not decision.view.is_changed
    assert decision.tokens_before == decision.tokens_after == context.measured.tokens


async def test_work_has_another_name_for_another_head_pipeline_or_kind() -> None:
    context, other = await taken_in(conversation(6)), await taken_in(conversation(6), "half-window")
    names = {
        context.shared_work_id("vote", b"head", ""),
        context.shared_work_id("prepare", b"head", ""),
        context.shared_work_id("vote", b"head", "applied"),
        context.shared_work_id("vote", b"other head", ""),
        other.shared_work_id("vote", b"head", ""),
    }
    assert len(names) == 5
    assert context.shared_work_id("vote", b"head", "") in names


async def test_a_dry_run_and_no_store_store_nothing() -> None:
    assert (await taken_in(conversation(2))).may_store
    assert not (await taken_in(conversation(2), dry_run="true")).may_store
    assert not (await taken_in(conversation(2), no_store="true")).may_store
