"""Making a condensation: a record of another's is taken only where it shows what this request must show."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from proxy import controls, wire
from proxy.decision import Action, Decision
from proxy.identity import session_key
from proxy.intake import ChatRequest
from proxy.services import services
from proxy.settings import Settings
from proxy.store import open_store
from proxy.store.base import SessionKey, SessionStore
from proxy.store.codec import encode_condensation, record_name
from strategies.core.condensation import Keep

pytestmark = pytest.mark.anyio
ASKED = {"role": "user", "content": "the question that is being worked on"}


def step(number: int) -> list[dict[str, Any]]:
    call = {"id": f"c{number}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"c{number}", "content": f"{number} " + "word " * 200},
    ]


WORK = [message for number in range(12) for message in step(number)]
MESSAGES = [{"role": "user", "content": "task"}, {"role": "assistant", "content": "ready"}, ASKED, *WORK]


def request() -> ChatRequest:
    headers = [(b"x-condenser-session", b"s"), (b"x-condenser-force", b"true")]
    body = wire.read(json.dumps({"model": "gpt-4o", "messages": MESSAGES}).encode())
    return ChatRequest("t", headers, body, "gpt-4o", False, controls.read(headers, None, None))


async def decided(store: SessionStore) -> Decision:
    settings = Settings(strategy="extract", window=4_096)
    async with services(settings, store=store) as built:
        return await built.condenser.decide(request())


async def test_a_record_made_for_a_longer_history_does_not_hide_the_question_at_hand() -> None:
    store = await open_store("memory://")
    first = (await decided(store)).applied
    await store.close()
    assert first is not None
    longer = replace(first, pieces=(Keep(0), *(piece for piece in first.pieces if piece not in (Keep(0), Keep(2)))))

    store = await open_store("memory://")
    name = record_name(first.digest, first.depth)
    await store.put_record(SessionKey("t", session_key("s")), name, encode_condensation(longer), 60)
    decision = await decided(store)
    await store.close()
    assert decision.action is Action.CONDENSED
    assert ASKED in json.loads(decision.body)["messages"]
    assert decision.applied is not None
    assert decision.applied.depth == first.depth + 1
