"""A long list that is new to the proxy: sent on a sample if it is far below every mark, and counted beside."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from proxy import controls
from proxy.bodies.measure import Precision
from proxy.bodies.wire import ClientRequest, read_through_cache
from proxy.condensing.attempt import Turn
from proxy.protocols.chat import CHAT_ENDPOINT
from proxy.reasons import Action
from proxy.services import Services, open_services
from proxy.settings import Settings
from proxy.store import open_store
from proxy.turn import drive
from tests.support.histories import Message, long_chat

LIST = long_chat(1_300)  # 610 kB, 200,000 tokens


@asynccontextmanager
async def services() -> AsyncIterator[Services]:
    upstream = {"base_url": "http://localhost/v1"}
    settings = Settings.model_validate({"upstream": upstream, "background": {"mode": "off"}, "marks": {"most": 0}})
    store = await open_store("memory://")
    async with open_services(settings, store=store) as built:
        yield built
    await store.close()


async def decided(built: Services, messages: list[Message], window: int) -> Turn:
    data = json.dumps({"model": "gpt-4o", "messages": messages}).encode()
    body = await read_through_cache(data, CHAT_ENDPOINT, built.message_cache, built.bounds, owner="t")
    asked = controls.read([(b"x-condenser-window", str(window).encode())], None, None)
    return await drive.decide(built, ClientRequest("t", [], body, built.destinations[0], "gpt-4o", False, asked))


def precision(turn: Turn) -> Precision:
    return turn.sent.decision.context.history.measured.precision


async def test_far_below_the_marks_a_sample_is_enough_and_the_next_request_is_counted() -> None:
    async with services() as built:
        first = await decided(built, LIST, 900_000)
        assert (precision(first), first.sent.decision.action) == (Precision.ESTIMATE, Action.PASSED)
        assert first.sent.decision.body == first.asked.body.data
        await built.background.idle()
        assert precision(await decided(built, [*LIST, {"role": "user", "content": "hi"}], 900_000)) == Precision.EXACT


async def test_near_the_marks_it_is_counted() -> None:
    async with services() as built:
        assert precision(await decided(built, LIST, 350_000)) == Precision.EXACT


async def test_what_a_sample_may_not_decide_is_counted() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    async with services() as built:
        shown = [*LIST[:-1], {"role": "user", "content": [{"type": "text", "text": "Look."}, picture]}]
        assert precision(await decided(built, shown, 900_000)) == Precision.INEXACT  # the picture has no price
