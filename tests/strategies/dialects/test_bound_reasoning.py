"""Whole sessions of an agent that thinks in every reply, before upstreams that bind reasoning to its prefix.

The client keeps all that the model said. Each request is replayed with the records made so far and condensed where its
size calls for it. Reasoning that stood there when the record was first applied was produced behind other messages: it
is lost, and left out where the upstream would refuse it. All later reasoning is sent byte for byte, and stays valid.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Set
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from proxy.tokens.counter import Counter
from strategies.core.budget import Budget
from strategies.core.condensation import Condensation, replay
from strategies.core.errors import StrategyError
from strategies.core.messages import ACKNOWLEDGED
from strategies.core.requirement import Requirement, is_called, requirement_for
from strategies.core.transcript import Transcript
from strategies.core.view import View, fold
from strategies.dialects.chat import CHAT
from tests.strategies.dialects import test_messages_views, test_responses_views
from tests.strategies.driving import attempted
from tests.strategies.test_session_simulation import PIPELINES, recorded_as
from tests.support import messages_drafts, responses_drafts, strict_messages, strict_responses
from tests.support.messages_upstream import text, thinking, web_search
from tests.support.responses_upstream import function_call, message, reasoning, web_search_call
from tests.support.transcripts import READER, words

Body = dict[str, Any]
FIXED = 20


@dataclass
class Session(ABC):
    """A client with its history, the proxy's records, and an upstream."""

    pipeline: str
    budget: Budget
    history: list[Body] = field(default_factory=lambda: [{"role": "user", "content": "Mend the parser."}])
    records: list[Condensation] = field(default_factory=list)
    last: str = ""
    """The record that the last view applied."""
    until: int = 0
    """The length of the chain when it was first applied: what stands before that was not thought under this view."""
    sent: str = "[]"
    counter: ClassVar[Counter]

    @abstractmethod
    def judge(self, sent: list[Body], lost: Set[str]) -> None:
        """Lets the upstream take what is sent; `lost` are the reasoning items that it may have to drop."""

    @abstractmethod
    def reply(self, number: int, sent: list[Body]) -> list[Body]:
        """What the model says, and what the client adds to that for the next request."""

    def round(self, number: int) -> None:
        """One request, the reply to it, and what the tools answer."""
        self.history += self.reply(number, self._request())
        if number % 9 == 8:
            self.history.append({"role": "user", "content": f"And part {number}?"})

    def _request(self) -> list[Body]:
        dialect = self.counter.dialect
        read = [READER.read(json.dumps(each), each, self.counter.message(each), dialect) for each in self.history]
        transcript = Transcript.of(read).having(bound_until=self.until)
        found = replay(transcript, self.records, FIXED, self.counter, self.budget, self.last)
        view, applied = found.view, found.applied
        since = applied.tokens_after if applied else None
        called = is_called(view, self.budget)
        requirement = requirement_for(view.tokens, self.budget, since=since, called=called)
        made = self._made(requirement, view, applied) if requirement else None
        applied = made or applied
        if (name := applied.id if applied else "") != self.last:
            self.last, self.until = name, len(transcript.chain)
            transcript = transcript.having(bound_until=self.until)
            view = fold(transcript, (applied.overlay,) if applied else (), FIXED, self.counter)
        sent: list[Body] = json.loads(view.to_json())
        self.judge(sent, {str(each.body.get("id")) for each in transcript.chain[: self.until]})
        text = json.dumps(sent)
        assert made is not None or text.startswith(self.sent[:-1])
        self.sent = text
        return sent

    def _made(self, requirement: Requirement, view: View, applied: Condensation | None) -> Condensation | None:
        try:
            after = attempted(requirement, self.pipeline, view, self.budget).view
        except StrategyError:
            return None
        self.records.append(recorded_as(after, self.budget, view.tokens, applied))
        return self.records[-1]


class MessagesSession(Session):
    """The upstream refuses thinking behind another prefix."""

    counter = test_messages_views.COUNTER

    def judge(self, sent: list[Body], lost: Set[str]) -> None:
        assert strict_messages.refusal_of(messages_drafts.request_of(sent)) == ""

    def reply(self, number: int, sent: list[Body]) -> list[Body]:
        uses = [_use(number, place) for place in range(1 + number % 3)]
        searched = web_search(f"part {number}") if number % 5 == 0 else []
        said = [thinking(f"Step {number}."), *searched, text("I look."), *uses]
        signed = strict_messages.signed(said, messages_drafts.request_of(sent), f"r{number}")
        results = [{"type": "tool_result", "tool_use_id": use["id"], "content": _result(number)} for use in uses]
        more = [text("Also mind the tests.")] if number % 7 == 3 else []
        reminder = [{"role": "system", "content": f"Reminder {number}."}] if number % 6 == 1 else []
        answer = {"role": "user", "content": [*results, *more]}
        return [{"role": "assistant", "content": signed}, answer, *reminder]


class ResponsesSession(Session):
    """The upstream drops reasoning behind another prefix, and says so."""

    counter = test_responses_views.COUNTER

    def judge(self, sent: list[Body], lost: Set[str]) -> None:
        asked = responses_drafts.request_of(sent)
        assert strict_responses.refusal_of(asked) is None
        assert {one["id"] for one in strict_responses.mismatched(asked, {})} <= lost

    def reply(self, number: int, sent: list[Body]) -> list[Body]:
        calls = [_function_call(number, place) for place in range(1 + number % 3)]
        searched = [web_search_call(f"part {number}")] if number % 5 == 0 else []
        said = [reasoning(f"Step {number}."), *searched, message("I look."), *calls]
        named = [{"id": f"it_{number}_{place}", **item} for place, item in enumerate(said)]
        made = strict_responses.produced(named, responses_drafts.request_of(sent), {})
        outputs = [
            {"type": "function_call_output", "call_id": call["call_id"], "output": _result(number)} for call in calls
        ]
        reminder = [{"role": "developer", "content": f"Reminder {number}."}] if number % 6 == 1 else []
        return [*made, *outputs, *reminder]


def _use(number: int, place: int) -> Body:
    given = {"path": f"src/part{number}.py", "place": place, "note": "n" * 300 * (number % 3)}
    return {"type": "tool_use", "id": f"toolu_{number}_{place}", "name": "bash", "input": given}


def _function_call(number: int, place: int) -> Body:
    given = {"path": f"src/part{number}.py", "place": place, "note": "n" * 300 * (number % 3)}
    return {"call_id": f"call_{number}_{place}", **function_call("bash", given)}


def _result(number: int) -> str:
    return f"{number} {words(40 + 60 * (number % 2))}"


@pytest.mark.parametrize("session", [MessagesSession, ResponsesSession])
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_an_agent_thinks_through_many_rounds_and_several_condensations(pipeline: str, session: type[Session]) -> None:
    running = session(pipeline, Budget.of(2_000))
    for number in range(25):
        running.round(number)
    assert 2 <= len(running.records) <= 30


def test_a_chat_message_of_only_signed_thinking_gets_a_text() -> None:
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    left = CHAT.unbound({"role": "assistant", "content": None, "thinking_blocks": [thought]})
    assert left == {"role": "assistant", "content": ACKNOWLEDGED}
