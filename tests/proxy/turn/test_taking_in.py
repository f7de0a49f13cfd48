"""What is known of a request before anything is decided on it."""

from typing import Any, cast

import pytest

from proxy.condensing.account import Timing
from proxy.condensing.making import shared_id
from proxy.condensing.turn import RequestContext
from proxy.services import Services, open_services
from proxy.settings import Settings
from proxy.store import open_store
from proxy.store.base import Store, StoreError
from proxy.turn import drive
from strategies.core.messages import Role
from tests.support.driver import Message, conversation, request, running_services


class WithoutBlocks:
    """A store that gives all but blocks in time."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def blocks(self, *_: Any) -> dict[str, bytes]:
        raise StoreError("store-timeout")


async def case_of(services: Services, messages: list[Message], **more: str) -> RequestContext:
    return await drive.take_in(services, request(messages, **more), Timing())


async def test_tool_output_sent_first_answers_what_is_put_before_it() -> None:
    texts = "task", "look", "Observation: a", "Observation: b", "look on", "Observation: c", "done", "thanks"
    roles = ["user", "assistant", "user", "user", "assistant", "user", "assistant", "user"]
    said: list[Message] = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
    async with running_services() as services:
        await drive.store(services, await drive.decide(services, request(said)))
        whole = (await case_of(services, said[2:])).history.transcript
    kinds = [Role.USER, Role.ASSISTANT, Role.TOOL, Role.TOOL, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT, Role.USER]
    assert [each.role for each in whole.chain] == kinds


async def test_work_has_another_name_for_another_head_pipeline_or_kind() -> None:
    async with running_services("extract") as services, running_services("half-window") as others:
        context, other = await case_of(services, conversation(6)), await case_of(others, conversation(6))
    names = {
        shared_id(context, "vote", b"head", ""),
        shared_id(context, "prepare", b"head", ""),
        shared_id(context, "vote", b"head", "applied"),
        shared_id(context, "vote", b"other head", ""),
        shared_id(other, "vote", b"head", ""),
    }
    assert len(names) == 5
    assert shared_id(context, "vote", b"head", "") in names


@pytest.mark.parametrize(("last", "failure"), [("And then?", ""), (None, "store-timeout")])
async def test_a_found_branch_needs_no_history(last: str | None, failure: str) -> None:
    first, other = conversation(3), [{"role": "user", "content": f"Something else, part {i}."} for i in range(5)]
    rewritten = [*first[:-1], {"role": "user", "content": last}] if last else other[::-1]
    store = await open_store("memory://")
    async with open_services(Settings(), store=store) as services:
        for messages in (first, other):
            await drive.store(services, await drive.decide(services, request(messages)))
    async with open_services(Settings(), store=cast(Store, WithoutBlocks(store))) as services:
        recognised = (await case_of(services, rewritten)).recognised
    await store.close()
    assert recognised.failure == failure
    assert (recognised.session is None) == bool(failure)
