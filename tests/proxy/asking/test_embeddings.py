"""Embeddings over a socket: the vectors of texts, faulty answers, and whose credential is used."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.asking.calls import Embedded
from proxy.asking.dispatch import CREDENTIAL_LIFE
from proxy.settings.tables import ModelRole
from strategies.core.effects import Failure
from tests.proxy.asking.support import CALLER, LATER, Clock, asking
from tests.support.replies import Reply, error, hang, hang_up, json_reply
from tests.support.signals import Signal
from tests.support.upstream import ScriptedUpstream

pytestmark = pytest.mark.anyio

ROLE = ModelRole(model="embed-1", timeout=5)
PATH = "/v1/embeddings"


def vectors(*data: tuple[int, Any], tokens: int = 9) -> Reply:
    listed = [{"object": "embedding", "index": index, "embedding": vector} for index, vector in data]
    return json_reply({"object": "list", "data": listed, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}})


async def test_each_text_has_its_vector_in_whatever_order_they_come(upstream: ScriptedUpstream) -> None:
    upstream.reply(vectors((1, [0.5, 1]), (0, [1.0, 2.0])))
    async with asking(upstream.base_url) as own:
        found = await own.asking.embed(["one", "\ud800"], ROLE, CALLER)
        assert found == Embedded(([1.0, 2.0], [0.5, 1]), 9)
        assert [(call.role, call.failure, call.tokens) for call in own.calls] == [("embeddings", "", 9)]
    asked = upstream.journal.only(PATH)
    assert asked.json() == {"model": "embed-1", "input": ["one", "\ud800"]}
    assert asked.header("authorization") == "Bearer sk-1"


UNREADABLE = {
    "too-few": vectors((0, [1.0])),
    "twice-the-same": vectors((0, [1.0]), (0, [1.0])),
    "not-as-long": vectors((0, [1.0]), (1, [1.0, 2.0])),
    "no-finite-numbers": vectors((0, [float("nan")]), (1, [10**400])),
    "no-numbers": vectors((0, ["a"]), (1, ["b"])),
    "empty": vectors((0, []), (1, [])),
    "no-list": json_reply({"data": 1}),
    "no-object": json_reply([1]),
}


@pytest.mark.parametrize("reply", UNREADABLE.values(), ids=UNREADABLE)
async def test_what_is_no_vector_for_each_text_is_unreadable(upstream: ScriptedUpstream, reply: Reply) -> None:
    upstream.reply(reply)
    async with asking(upstream.base_url) as own:
        assert await own.asking.embed(["one", "two"], ROLE, CALLER) == Failure("unreadable")


@pytest.mark.parametrize(
    ("reply", "failure"),
    [
        (error(429), "rate-limited"),
        (error(404), "http-error"),
        (error(501), "http-error"),
        (error(500), "server-error"),
        (error(503), "server-error"),
        (hang_up(), "unreachable"),
    ],
    ids=["429", "404", "501", "500", "503", "gone"],
)
async def test_what_goes_wrong_is_a_failure(upstream: ScriptedUpstream, reply: Reply, failure: str) -> None:
    upstream.reply(reply)
    async with asking(upstream.base_url) as own:
        assert await own.asking.embed(["one"], ROLE, CALLER) == Failure(failure)
        assert own.failures == [failure]


async def test_a_server_that_is_silent_is_waited_for_as_long_as_the_role_says(upstream: ScriptedUpstream) -> None:
    upstream.reply(hang(Signal("the end")))
    async with asking(upstream.base_url) as own:
        role = ModelRole(model="embed-1", timeout=0.05)
        assert await own.asking.embed(["one"], role, CALLER) == Failure("timeout")


async def test_in_the_background_a_credential_is_used_for_its_time_only(upstream: ScriptedUpstream) -> None:
    clock = Clock()
    async with asking(upstream.base_url, clock=clock) as own:
        assert isinstance(await own.asking.embed(["one"], ROLE, LATER), Embedded)
        clock.now = CREDENTIAL_LIFE + 1
        assert await own.asking.embed(["one"], ROLE, LATER) == Failure("expired")
    assert len(upstream.journal.to(PATH)) == 1


async def test_without_background_calls_there_are_none(upstream: ScriptedUpstream) -> None:
    async with asking(upstream.base_url, mode="off") as own:
        assert await own.asking.embed(["one"], ROLE, LATER) == Failure("paused")
    assert len(upstream.journal) == 0


async def test_a_refusal_for_its_rate_holds_back_the_next_call_in_the_background(upstream: ScriptedUpstream) -> None:
    upstream.reply(error(429, headers=[("retry-after", "3000")]))
    async with asking(upstream.base_url) as own:
        assert await own.asking.embed(["one"], ROLE, LATER) == Failure("rate-limited")
        assert await own.asking.embed(["one"], ROLE, LATER) == Failure("paused")
    assert len(upstream.journal.to(PATH)) == 1
