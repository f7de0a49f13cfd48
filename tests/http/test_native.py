"""The vendor's own compaction as a strategy: what was thought before it stays valid, and nothing promised is lost."""

import json
from typing import Any

import pytest

from tests.http.test_messages import RULE, Agent, Json, reader
from tests.support.messages_upstream import MESSAGES, SUMMARY, StrictMessages
from tests.support.prefixes import canonical
from tests.support.proxy import proxy_before
from tests.support.strict_compaction import BETA, blocks_of
from tests.support.strict_messages import blocks

WINDOW = 32_000
ROUNDS = 40
ACTION = "x-condenser-action"


def sent_to(upstream: StrictMessages) -> list[Json]:
    """The client's requests as the upstream got them, without those for a compaction."""
    return [body for each in upstream.journal.to(MESSAGES) if "compaction" not in (body := each.json())]


def thoughts(messages: list[Json]) -> list[str]:
    found = (block for message in messages for block in blocks(message["content"]))
    return [block["thinking"] for block in found if block["type"] == "thinking"]


def assert_grows(before: list[Json], after: list[Json]) -> None:
    """A list begins with the one before it, markers of the cache apart."""
    shared = list(zip(map(canonical, before), map(canonical, after), strict=False))
    assert all(one == other for one, other in shared)
    assert len(after) >= len(before)


def test_forty_rounds_keep_all_thinking_behind_each_compaction() -> None:
    with proxy_before(StrictMessages(reader, window=WINDOW, compacts=True), strategy="native", window=WINDOW) as (
        upstream,
        proxy,
    ):
        agent = Agent(proxy.url, more={"thinking": {"type": "adaptive"}})
        for _ in range(ROUNDS):
            agent.turn()
        lists = [body["messages"] for body in sent_to(upstream)]
        assert upstream.refusals == []
        assert len(upstream.compactions) >= 2
        heads = [next((block["signature"] for _, _, block in blocks_of(each)), "") for each in lists]
        for before, after, old, new in zip(lists, lists[1:], heads, heads[1:], strict=False):
            if old == new:
                assert_grows(before, after)
            kept = thoughts(after)
            own = thoughts(agent.messages[: len(agent.messages)])
            assert kept == own[own.index(kept[0]) : own.index(kept[0]) + len(kept)]
        assert RULE in json.dumps(lists[-1])
