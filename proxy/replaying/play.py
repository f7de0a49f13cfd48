"""Conversations played through the real driver: a request for every reply that was recorded.

The driver is the one of the proxy, with a store in memory and a script in the summarizer's place. What it forwards is
counted message by message with the model's tokenizer, also where the proxy was content with an estimate.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from time import perf_counter

from proxy import controls, wire
from proxy.decision import Action, Decision
from proxy.errors import ContextLengthExceeded
from proxy.headers import Headers
from proxy.intake import ChatRequest
from proxy.replaying.measures import Decided, Played, Sent, common_prefix, evidence_kept, size
from proxy.replaying.recorded import Conversation
from proxy.scripted import scripted_answer
from proxy.services import Services, services
from proxy.settings import ModelRole, Settings
from proxy.summarizer import Caller, Summarizer
from proxy.tokens.counter import Counter, Tokenizers
from strategies import Pipeline
from strategies.core.effects import Ask, Effect, Failure, Result
from strategies.core.transcript import content_text

TENANT = "replay"
_CONDENSED = (Action.CONDENSED, Action.WOULD_CONDENSE)


class ScriptedSummarizer(Summarizer):
    """Answers without a model: see `proxy.scripted`."""

    def __init__(self, tokenizers: Tokenizers) -> None:
        self._tokenizers = tokenizers

    async def resolve(self, effects: Sequence[Effect], role: ModelRole, caller: Caller) -> tuple[Result, ...]:
        """One answer for each effect; what is no question for a text fails."""
        counter = self._tokenizers.for_model(caller.model)
        return tuple(
            scripted_answer(effect, counter) if isinstance(effect, Ask) else Failure("not-scripted")
            for effect in effects
        )


class Player:
    """Plays conversations for one model; `window` is asked for where the model's own is not meant."""

    def __init__(self, built: Services, model: str, window: int | None) -> None:
        self._built = built
        self._model = model
        self._asked = window
        self._counter: Counter = built.tokenizers.for_model(model)
        self._counts: dict[str, int] = {}

    async def play(self, conversation: Conversation, pipeline: Pipeline, session: str) -> Played:
        """One conversation under one strategy, as a session of its own."""
        raws = [json.dumps(message) for message in conversation.messages]
        overhead = self._counter.overhead({"tools": conversation.tools, "messages": conversation.messages})
        headers = self._headers(session, pipeline)
        decided: list[Decided] = []
        view: list[Sent] = []
        for end in requests(conversation):
            request = self._request(_body(self._model, raws[:end], conversation.tools), headers)
            each, sent = await self._decided(request, overhead, view)
            decided.append(each)
            view = view if sent is None else sent
        refused = bool(decided) and decided[-1].refused
        return _with_evidence(conversation, decided, [] if refused else view)

    def _request(self, data: bytes, headers: Headers) -> ChatRequest:
        return ChatRequest(
            tenant=TENANT,
            headers=[],
            body=wire.read(data),
            model=self._model,
            renamed=False,
            controls=controls.read(headers, None, None),
        )

    async def _decided(
        self, request: ChatRequest, overhead: int, before: Sequence[Sent]
    ) -> tuple[Decided, list[Sent] | None]:
        """What came of a request, and the messages that were forwarded; `before` are those of the request before."""
        original = overhead + size(self._sent(request.body.elements))
        usable = self._usable(request.body)
        started = perf_counter()
        try:
            decision = await self._built.condenser.decide(request)
        except ContextLengthExceeded:
            return Decided(original, None, 0, overhead, usable, _milliseconds(started)), None
        spent = _milliseconds(started)
        if decision.settle is not None:
            await decision.settle(None)
        sent = self._sent(wire.read(decision.body).elements)
        shared = common_prefix(before, sent)
        return _outcome(decision, Decided(original, size(sent), shared, overhead, usable, spent)), sent

    def _headers(self, session: str, pipeline: Pipeline) -> Headers:
        given = {"session": session, "strategy": str(pipeline)}
        if self._asked is not None:
            given["window"] = str(self._asked)
        return [(f"x-condenser-{key}".encode(), value.encode()) for key, value in given.items()]

    def _usable(self, body: wire.Body) -> int:
        """Tokens that the upstream has room for, also for what is refused before it gets there."""
        chosen = controls.Controls(window=self._asked)
        budget = self._built.policies.policy(chosen, {}, self._model, body.values).budget
        return budget.usable if budget else 0

    def _sent(self, elements: Sequence[wire.Element]) -> list[Sent]:
        return [Sent(element.raw, self._tokens(element)) for element in elements]

    def _tokens(self, element: wire.Element) -> int:
        if element.raw not in self._counts:
            self._counts[element.raw] = self._counter.message(element.value)
        return self._counts[element.raw]


@asynccontextmanager
async def playing(settings: Settings) -> AsyncIterator[Services]:
    """The parts of a proxy that needs no model; `settings` name the store in memory."""
    summarizer = ScriptedSummarizer(Tokenizers(settings.tokenizer.ranks_dir))
    async with services(settings, summarizer=summarizer) as built:
        yield built


def requests(conversation: Conversation) -> Iterator[int]:
    """The lengths of the histories that replies were given to."""
    return (i for i, message in enumerate(conversation.messages) if i and message["role"] == "assistant")


def _body(model: str, raws: Sequence[str], tools: Sequence[object]) -> bytes:
    offered = f',"tools":{json.dumps(tools)}' if tools else ""
    return f'{{"model":{json.dumps(model)},"messages":[{",".join(raws)}]{offered}}}'.encode()


def _outcome(decision: Decision, decided: Decided) -> Decided:
    return replace(
        decided,
        own=decision.own_tokens,
        condensed=decision.action in _CONDENSED,
        degraded=decision.action is Action.DEGRADED,
    )


def _with_evidence(conversation: Conversation, decided: Sequence[Decided], last: Sequence[Sent]) -> Played:
    """Only questions on what the last request held count: no view could show the rest."""
    end = max(requests(conversation), default=0)
    evidence = [
        [content_text(conversation.messages[i].get("content")) for i in places]
        for places in conversation.evidence
        if max(places) < end
    ]
    view = "\n".join(content_text(json.loads(each.raw).get("content")) for each in last)
    return Played(decided, len(evidence), evidence_kept(evidence, view))


def _milliseconds(started: float) -> float:
    return (perf_counter() - started) * 1_000
