"""Making a condensation, once for all requests that want it; another's record must show what the view must show."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from proxy import controls
from proxy.asking import Caller, Roles
from proxy.condensing.decision import Decision
from proxy.condensing.making import handed_over
from proxy.reasons import Action
from proxy.replaying.models import ScriptedSummarizer
from proxy.request.wire import ClientRequest
from proxy.services import open_services
from proxy.sessions.codec import encode_condensation, record_name
from proxy.sessions.session import session_key
from proxy.settings import Settings
from proxy.store import open_store
from proxy.store.base import Lease, Store, StoreError, StoreKey
from proxy.store.sqlite import SqliteStore
from proxy.tokens.counter import Tokenizers
from strategies.core.effects import Effect, Result
from strategies.core.pieces import Keep
from tests.support import chat_bodies as wire

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


def request(**more: str) -> ClientRequest:
    asked = {"session": "s", "force": "true", **more}
    headers = [(f"x-condenser-{name}".replace("_", "-").encode(), value.encode()) for name, value in asked.items()]
    body = wire.read(json.dumps({"model": "gpt-4o", "messages": MESSAGES}).encode())
    return ClientRequest("t", headers, body, "gpt-4o", False, controls.read(headers, None, None))


async def decided(store: Store) -> Decision:
    settings = Settings(strategy="extract", window=4_096)
    async with open_services(settings, store=store) as built:
        return (await built.exchanges.open(request())).decision


async def test_a_record_made_for_a_longer_history_does_not_hide_the_question_at_hand() -> None:
    store = await open_store("memory://")
    first = (await decided(store)).applied
    await store.close()
    assert first is not None
    longer = replace(first, pieces=(Keep(0), *(piece for piece in first.pieces if piece not in (Keep(0), Keep(2)))))

    store = await open_store("memory://")
    name = record_name(first.digest, first.depth)
    await store.put_record(StoreKey("t", session_key("s")), name, encode_condensation(longer), 60)
    decision = await decided(store)
    await store.close()
    assert decision.action is Action.CONDENSED
    assert ASKED in json.loads(decision.body)["messages"]
    assert decision.applied is not None
    assert decision.applied.depth == first.depth + 1


# Leases


class Watched(SqliteStore):
    """The store in memory; it tells which leases were asked for, and what they left."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.asked: list[str] = []
        self.left: asyncio.Queue[bytes] = asyncio.Queue()

    async def lease(self, tenant: str, name: str, holder: str, ttl: float) -> Lease:
        """As it is, and told."""
        self.asked.append(name)
        return await super().lease(tenant, name, holder, ttl)

    async def release(self, tenant: str, name: str, holder: str, left: bytes, ttl: float) -> None:
        """As it is, and told."""
        await super().release(tenant, name, holder, left, ttl)
        self.left.put_nowait(left)


class WithoutLeases(SqliteStore):
    """A store that fails where it is asked for a lease."""

    async def lease(self, tenant: str, name: str, holder: str, ttl: float) -> Lease:
        """Fails."""
        raise StoreError("store-unavailable")


class Summarizer(ScriptedSummarizer):
    """Counts how often it is asked."""

    def __init__(self) -> None:
        super().__init__(Tokenizers(None))
        self.calls = 0

    async def resolve(self, effects: Sequence[Effect], roles: Roles, caller: Caller) -> tuple[Result, ...]:
        """As scripted."""
        self.calls += 1
        return await super().resolve(effects, roles, caller)


async def opened() -> Watched:
    store = await Watched.open(None)
    assert isinstance(store, Watched)
    return store


async def summarized(store: Store, summarizer: Summarizer, *, timeout: float = 10.0) -> Decision:
    """What a replica of its own decides on the request, with a strategy that asks."""
    settings = Settings(strategy="half-window", window=2_048, inline_timeout=timeout)
    async with open_services(settings, store=store, summarizer=summarizer) as built:
        return (await built.exchanges.open(request())).decision


async def work() -> tuple[str, bytes]:
    """The name of the lease for the request, and what it leaves; the same for every store."""
    store = await opened()
    await summarized(store, Summarizer())
    (name,), left = store.asked, await store.left.get()
    await store.close()
    return name, left


async def test_what_another_replica_leaves_is_forwarded_and_kept_without_asking_a_model() -> None:
    name, left = await work()
    store, summarizer = await opened(), Summarizer()
    await store.lease("t", name, "another replica", 60)
    await store.release("t", name, "another replica", left, 60)

    decision = await summarized(store, summarizer)

    assert (decision.action, decision.own_tokens, summarizer.calls) == (Action.CONDENSED, 0, 0)
    assert decision.applied is not None
    assert handed_over(decision.applied) == left
    record = record_name(decision.applied.digest, decision.applied.depth)
    assert await store.put_record(StoreKey("t", session_key("s")), record, b"", 60) == left
    await store.close()


async def test_what_cannot_be_read_of_another_replica_is_made_again() -> None:
    name, _ = await work()
    store, summarizer = await opened(), Summarizer()
    await store.lease("t", name, "another replica", 60)
    await store.release("t", name, "another replica", b"{}", 60)

    assert (await summarized(store, summarizer)).action is Action.CONDENSED
    assert summarizer.calls > 0
    await store.close()


async def test_waiting_for_another_replica_counts_against_the_time_for_models() -> None:
    name, _ = await work()
    store, summarizer = await opened(), Summarizer()
    await store.lease("t", name, "another replica", 60)

    decision = await summarized(store, summarizer, timeout=0.3)

    assert (decision.action, decision.metadata["stages"]) == (Action.CONDENSED, ["extract"])
    assert summarizer.calls == 0
    await store.close()


async def test_a_store_that_gives_no_leases_costs_no_condensation() -> None:
    store, summarizer = await WithoutLeases.open(None), Summarizer()

    assert (await summarized(store, summarizer)).action is Action.CONDENSED
    assert summarizer.calls > 0
    await store.close()


@pytest.mark.parametrize(
    "more", [{"strategy": "extract"}, {"strategy": "mask+recent"}, {"no_store": "true"}, {"dry_run": "true"}]
)
async def test_where_no_model_is_asked_or_nothing_is_kept_no_lease_is_taken(more: dict[str, str]) -> None:
    store = await opened()

    settings = Settings(strategy="half-window", window=2_048)
    async with open_services(settings, store=store, summarizer=Summarizer()) as built:
        await built.exchanges.open(request(**more))

    assert store.asked == []
    await store.close()
