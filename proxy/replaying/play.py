"""Plays conversations through the real driver: one request for every recorded reply.

The driver is the proxy's own, with a store in memory and a script in the summarizer's place. Forwarded messages are
counted one by one with the model's tokenizer, even where the proxy itself made do with an estimate.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from time import perf_counter
from typing import NamedTuple

from proxy.asking import Caller, Roles
from proxy.condensing.decision import Decision
from proxy.errors import ContextLengthExceeded
from proxy.http.headers import Headers
from proxy.learning.proof import Scope
from proxy.reasons import Action
from proxy.replaying.measures import (
    ForwardedMessage,
    ReplayedConversation,
    ReplayedRequest,
    common_prefix,
    evidence_kept,
    size,
)
from proxy.replaying.recorded import Conversation
from proxy.replaying.scripted import scripted_answer, scripted_votes
from proxy.request import controls, wire
from proxy.request.chat import ChatRequest
from proxy.request.elements import Element
from proxy.runtime.clock import milliseconds_since
from proxy.services import Services, open_services
from proxy.settings import Settings
from proxy.tokens.counter import Counter, Tokenizers
from strategies import Pipeline
from strategies.core.effects import Ask, Effect, Result
from strategies.core.messages import content_text

TENANT = "replay"
_CONDENSED = (Action.CONDENSED, Action.WOULD_CONDENSE)


class ScriptedSummarizer:
    """Answers effects without a model, by `proxy.replaying.scripted`. `tokens` sums what the answers would cost."""

    def __init__(self, tokenizers: Tokenizers) -> None:
        self._tokenizers = tokenizers
        self.tokens = 0

    async def resolve(self, effects: Sequence[Effect], roles: Roles, caller: Caller) -> tuple[Result, ...]:
        """Returns one result for each effect."""
        counter = self._tokenizers.for_model(caller.model)
        results = tuple(
            scripted_answer(each, counter) if isinstance(each, Ask) else scripted_votes(each, counter)
            for each in effects
        )
        self.tokens += sum(each.tokens for each in results)
        return results


class ReplayProxy(NamedTuple):
    """A proxy that needs no model, and the summarizer in the place of its models."""

    services: Services
    summarizer: ScriptedSummarizer


class Player:
    """Plays conversations for one model; `window` overrides the model's own."""

    def __init__(self, proxy: ReplayProxy, model: str, window: int | None) -> None:
        self._services, self._summarizer = proxy
        self._model = model
        self._window = window
        self._counter: Counter = proxy.services.tokenizers.for_model(model)
        self._counts: dict[str, int] = {}

    async def play(self, conversation: Conversation, pipeline: Pipeline, session: str) -> ReplayedConversation:
        """Plays one conversation under one strategy, in a session of its own."""
        raws = [json.dumps(message) for message in conversation.messages]
        overhead = self._counter.overhead({"tools": conversation.tools, "messages": conversation.messages})
        headers = self._headers(session, pipeline)
        replayed: list[ReplayedRequest] = []
        view: list[ForwardedMessage] = []
        for end in request_ends(conversation):
            request = self._request(_body(self._model, raws[:end], conversation.tools), headers)
            each, forwarded = await self._decide(request, overhead, view)
            replayed.append(each)
            view = view if forwarded is None else forwarded
        refused = bool(replayed) and replayed[-1].refused
        return _with_evidence(conversation, replayed, [] if refused else view)

    def _request(self, data: bytes, headers: Headers) -> ChatRequest:
        return ChatRequest(
            tenant=TENANT,
            headers=[],
            body=wire.read(data),
            model=self._model,
            has_suffix=False,
            controls=controls.read(headers, None, None),
        )

    async def _decide(
        self, request: ChatRequest, overhead: int, before: Sequence[ForwardedMessage]
    ) -> tuple[ReplayedRequest, list[ForwardedMessage] | None]:
        """Decides a request; returns its figures and the forwarded messages, None if it was refused.

        `before` are the forwarded messages of the previous request.
        """
        original = overhead + size(self._sent(request.body.elements))
        usable = self._usable(request.body)
        own, started = self._summarizer.tokens, perf_counter()
        try:
            exchange = await self._services.condenser.exchange(request)
        except ContextLengthExceeded:
            return ReplayedRequest(original, None, 0, overhead, usable, milliseconds_since(started)), None
        spent = milliseconds_since(started)
        decision = exchange.decision
        await exchange.store()
        exchange.follow_up()
        await self._services.background.idle()
        sent = self._sent(wire.read(decision.body).elements)
        shared = common_prefix(before, sent)
        decided = ReplayedRequest(original, size(sent), shared, overhead, usable, spent, self._summarizer.tokens - own)
        return _outcome(decision, decided), sent

    def _headers(self, session: str, pipeline: Pipeline) -> Headers:
        given = {"session": session, "strategy": str(pipeline)}
        if self._window is not None:
            given["window"] = str(self._window)
        return [(f"x-condenser-{key}".encode(), value.encode()) for key, value in given.items()]

    def _usable(self, body: wire.Body) -> int:
        """The tokens that the upstream has room for, also for a request that the proxy refuses itself."""
        chosen = controls.Controls(window=self._window)
        budget = self._services.policies.policy(chosen, {}, Scope(self._model), body.values).budget
        return budget.usable if budget else 0

    def _sent(self, elements: Sequence[Element]) -> list[ForwardedMessage]:
        return [ForwardedMessage(element.raw, self._tokens(element)) for element in elements]

    def _tokens(self, element: Element) -> int:
        if element.raw not in self._counts:
            self._counts[element.raw] = self._counter.message(element.value)
        return self._counts[element.raw]


@asynccontextmanager
async def open_replay_proxy(settings: Settings) -> AsyncIterator[ReplayProxy]:
    """Opens a proxy that needs no model; `settings` must name the store in memory."""
    summarizer = ScriptedSummarizer(Tokenizers(settings.tokenizer.ranks_dir))
    async with open_services(settings, summarizer=summarizer) as built:
        yield ReplayProxy(built, summarizer)


def request_ends(conversation: Conversation) -> Iterator[int]:
    """Yields the number of messages before each recorded reply: the lengths of the requests."""
    return (i for i, message in enumerate(conversation.messages) if i and message["role"] == "assistant")


def _body(model: str, raws: Sequence[str], tools: Sequence[object]) -> bytes:
    offered = f',"tools":{json.dumps(tools)}' if tools else ""
    return f'{{"model":{json.dumps(model)},"messages":[{",".join(raws)}]{offered}}}'.encode()


def _outcome(decision: Decision, decided: ReplayedRequest) -> ReplayedRequest:
    return replace(
        decided,
        condensed=decision.action in _CONDENSED,
        degraded=decision.action is Action.DEGRADED,
    )


def _with_evidence(
    conversation: Conversation, decided: Sequence[ReplayedRequest], last: Sequence[ForwardedMessage]
) -> ReplayedConversation:
    """The replayed conversation with its evidence. Only questions about messages of the last request count."""
    end = max(request_ends(conversation), default=0)
    evidence = [
        [content_text(conversation.messages[i].get("content")) for i in places]
        for places in conversation.evidence
        if max(places) < end
    ]
    view = "\n".join(content_text(json.loads(each.raw).get("content")) for each in last)
    return ReplayedConversation(decided, len(evidence), evidence_kept(evidence, view))
