"""A memory block: chosen for a new user message, the same for its whole turn, gone with the next."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from proxy.condensing.turn import Decision
from proxy.services import Services
from tests.support.driver import Message, conversation, request, running_services

pytestmark = pytest.mark.anyio

LONG = conversation(40)
RECALLING = [*LONG, {"role": "assistant", "content": "Nothing yet."}, {"role": "user", "content": "Who waters bed 3?"}]
SAID = "Bed 3 gets kale."


@asynccontextmanager
async def condensed() -> AsyncIterator[Services]:
    """A proxy with one session, whose beginning is condensed and indexed."""
    async with running_services(memory={"default": "inject"}) as services:
        exchange = await services.exchanges.open(request(LONG))
        await exchange.store()
        exchange.follow_up()
        yield services


async def decision_on(services: Services, messages: list[Message]) -> Decision:
    exchange = await services.exchanges.open(request(messages))
    await exchange.store()
    return exchange.decision


async def test_a_question_about_what_was_condensed_gets_a_block_with_it() -> None:
    async with condensed() as services:
        decision = await decision_on(services, RECALLING)
    block, question = json.loads(decision.body)["messages"][-2:]
    assert block == json.loads(decision.memory_block.raw)
    assert SAID in block["content"]
    assert question == RECALLING[-1]


async def test_the_block_stands_byte_for_byte_through_its_turn() -> None:
    async with condensed() as services:
        first = await decision_on(services, RECALLING)
        again = await decision_on(services, RECALLING)
    assert first.memory_block.raw
    assert again.memory_block == first.memory_block
    assert again.body == first.body


async def test_the_block_leaves_with_the_next_user_message() -> None:
    async with condensed() as services:
        first = await decision_on(services, RECALLING)
        later = [*RECALLING, {"role": "assistant", "content": "Ann."}, {"role": "user", "content": "Thanks, go on!"}]
        after = await decision_on(services, later)
    assert first.memory_block.raw
    assert first.memory_block.raw.encode() not in after.body


async def test_a_history_that_is_shown_whole_gets_no_block() -> None:
    async with running_services(memory={"default": "inject"}) as services:
        decision = await decision_on(services, conversation(6))
    assert not decision.memory_block.raw
