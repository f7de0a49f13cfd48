"""Making a condensation: once for all that want it, from records that show what must be shown; judges with a defect."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from proxy.asking import Caller, Roles
from proxy.commands.replaying.models import ScriptedSummarizer
from proxy.condensing.account import Timing
from proxy.condensing.preparing import VoteRound
from proxy.condensing.turn import Decision
from proxy.conversations.codec import encode_condensation, record_name
from proxy.conversations.session import session_key
from proxy.reasons import Action
from proxy.services import open_services
from proxy.settings import Settings
from proxy.store import open_store
from proxy.store.base import Store, StoreError, StoreKey
from proxy.store.sqlite import SqliteStore
from proxy.tokens.counter import Tokenizers
from proxy.turn import drive
from strategies.core.effects import Effect, Result
from strategies.core.pieces import Keep
from strategies.core.protocol import Judging
from tests.support.driver import WINDOW, conversation, request

ASKED = {"role": "user", "content": "the question that is being worked on"}


def step(number: int) -> list[dict[str, Any]]:
    call = {"id": f"c{number}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"c{number}", "content": f"{number} " + "word " * 200},
    ]


WORK = [message for number in range(12) for message in step(number)]
MESSAGES = [{"role": "user", "content": "task"}, {"role": "assistant", "content": "ready"}, ASKED, *WORK]


async def decision_of(store: Store) -> Decision:
    settings = Settings(strategy="extract", window=4_096)
    async with open_services(settings, store=store) as built:
        return (await drive.decide(built, request(MESSAGES, force="true"))).sent.decision


async def test_a_record_of_a_longer_history_hides_no_question() -> None:
    store = await open_store("memory://")
    first = (await decision_of(store)).applied
    await store.close()
    assert first is not None
    longer = replace(first, pieces=(Keep(0), *(piece for piece in first.pieces if piece not in (Keep(0), Keep(2)))))
    store = await open_store("memory://")
    name = record_name(first.digest, first.depth)
    await store.put_record(StoreKey("t", session_key("s")), name, encode_condensation(longer), 60)
    decision = await decision_of(store)
    await store.close()
    assert decision.action is Action.CONDENSED
    assert ASKED in json.loads(decision.body)["messages"]
    assert decision.applied is not None
    assert decision.applied.depth == first.depth + 1


class WithoutClaims(SqliteStore):
    """A store that fails where work is claimed."""

    async def claim(self, tenant: str, name: str, holder: str, ttl: float) -> bool:
        raise StoreError("store-unavailable")


class Summarizer(ScriptedSummarizer):
    """Counts how often it is asked."""

    def __init__(self) -> None:
        super().__init__(Tokenizers(None))
        self.calls = 0

    async def resolve(self, effects: Sequence[Effect], roles: Roles, caller: Caller) -> tuple[Result, ...]:
        self.calls += 1
        return await super().resolve(effects, roles, caller)


async def test_what_must_be_condensed_now_needs_no_claim() -> None:
    store, summarizer = await WithoutClaims.open(None), Summarizer()
    settings = Settings(strategy="half-window", window=2_048)
    async with open_services(settings, store=store, summarizer=summarizer) as built:
        decision = (await drive.decide(built, request(MESSAGES, force="true"))).sent.decision
    assert decision.action is Action.CONDENSED
    assert summarizer.calls > 0
    await store.close()


async def test_the_record_of_the_replica_that_was_first_counts_for_all() -> None:
    store, views = await open_store("memory://"), []
    settings = Settings(strategy="half-window", window=2_048)
    for _ in range(2):
        async with open_services(settings, store=store, summarizer=Summarizer()) as built:
            # Without a settled session the other replica finds nothing, as if both had begun at the same time.
            views.append((await drive.decide(built, request(MESSAGES, force="true"))).sent.decision)
    assert views[0].body == views[1].body
    await store.close()


class Defective(ScriptedSummarizer):
    """Judges with a defect."""

    async def resolve(self, effects: Sequence[Effect], roles: Roles, caller: Caller) -> tuple[Result, ...]:
        raise ZeroDivisionError


async def test_a_judge_with_a_defect_costs_its_verdict_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    settings = Settings(strategy="dynacontext", window=WINDOW, store={"url": "memory://"})  # type: ignore[arg-type]
    async with open_services(settings, summarizer=Defective(Tokenizers())) as services:
        turn = await drive.decide(services, request(conversation(12)))
        context = await drive.take_in(services, request(conversation(12)), Timing())
        assert isinstance(context.policy.judging, Judging)
        vote_round = await services.decider.preparer.vote(
            context.policy.judging, turn.sent.decision.in_context(context), background=True
        )
    assert vote_round == VoteRound(None, "internal-error")
    assert "a judge failed" in caplog.text
