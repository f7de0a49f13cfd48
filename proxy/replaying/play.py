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
from typing import NamedTuple

from proxy.asking import Caller, Roles
from proxy.condensing.decision import Action, Decision
from proxy.errors import ContextLengthExceeded
from proxy.http.headers import Headers
from proxy.replaying.measures import Decided, Played, Sent, common_prefix, evidence_kept, size
from proxy.replaying.recorded import Conversation
from proxy.replaying.scripted import scripted_answer, scripted_votes
from proxy.request import controls, wire
from proxy.request.intake import ChatRequest, milliseconds
from proxy.request.message_cache import Element
from proxy.services import Services, services
from proxy.settings import Settings
from proxy.tokens.counter import Counter, Tokenizers
from strategies import Pipeline
from strategies.core.effects import Ask, Effect, Result
from strategies.core.transcript import content_text

TENANT = "replay"
_CONDENSED = (Action.CONDENSED, Action.WOULD_CONDENSE)


class ScriptedSummarizer:
    """Answers without a model: see `proxy.replaying.scripted`. `tokens` are those of all that was asked for."""

    def __init__(self, tokenizers: Tokenizers) -> None:
        self._tokenizers = tokenizers
        self.tokens = 0

    async def resolve(self, effects: Sequence[Effect], roles: Roles, caller: Caller) -> tuple[Result, ...]:
        """One result for each effect."""
        counter = self._tokenizers.for_model(caller.model)
        results = tuple(
            scripted_answer(each, counter) if isinstance(each, Ask) else scripted_votes(each, counter)
            for each in effects
        )
        self.tokens += sum(each.tokens for each in results)
        return results


class Playing(NamedTuple):
    """A proxy, and what takes the place of its models."""

    services: Services
    summarizer: ScriptedSummarizer


class Player:
    """Plays conversations for one model; `window` is asked for where the model's own is not meant."""

    def __init__(self, stage: Playing, model: str, window: int | None) -> None:
        self._built, self._summarizer = stage
        built = stage.services
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
        own, started = self._summarizer.tokens, perf_counter()
        try:
            decision = await self._built.condenser.decide(request)
        except ContextLengthExceeded:
            return Decided(original, None, 0, overhead, usable, milliseconds(started)), None
        spent = milliseconds(started)
        if decision.settle is not None:
            await decision.settle(None)
        if decision.follow is not None:
            decision.follow()
            await self._built.tasks.idle()
        sent = self._sent(wire.read(decision.body).elements)
        shared = common_prefix(before, sent)
        decided = Decided(original, size(sent), shared, overhead, usable, spent, self._summarizer.tokens - own)
        return _outcome(decision, decided), sent

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

    def _sent(self, elements: Sequence[Element]) -> list[Sent]:
        return [Sent(element.raw, self._tokens(element)) for element in elements]

    def _tokens(self, element: Element) -> int:
        if element.raw not in self._counts:
            self._counts[element.raw] = self._counter.message(element.value)
        return self._counts[element.raw]


@asynccontextmanager
async def playing(settings: Settings) -> AsyncIterator[Playing]:
    """The parts of a proxy that needs no model; `settings` name the store in memory."""
    summarizer = ScriptedSummarizer(Tokenizers(settings.tokenizer.ranks_dir))
    async with services(settings, summarizer=summarizer) as built:
        yield Playing(built, summarizer)


def requests(conversation: Conversation) -> Iterator[int]:
    """The lengths of the histories that replies were given to."""
    return (i for i, message in enumerate(conversation.messages) if i and message["role"] == "assistant")


def _body(model: str, raws: Sequence[str], tools: Sequence[object]) -> bytes:
    offered = f',"tools":{json.dumps(tools)}' if tools else ""
    return f'{{"model":{json.dumps(model)},"messages":[{",".join(raws)}]{offered}}}'.encode()


def _outcome(decision: Decision, decided: Decided) -> Decided:
    return replace(
        decided,
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
