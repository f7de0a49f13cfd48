"""Plays conversations through the real driver: one request for every recorded reply.

The driver is the proxy's own, with a store in memory and scripts in the place of its models, or real ones. Forwarded
messages are counted one by one with the model's tokenizer, even where the proxy itself made do with an estimate.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from math import inf
from time import perf_counter
from typing import NamedTuple

from proxy import controls
from proxy.endpoints.endpoint import Endpoint
from proxy.errors import ContextLengthExceeded
from proxy.http.headers import Headers
from proxy.knowledge.proof import Scope
from proxy.replaying.measures import (
    Economy,
    ForwardedMessage,
    ReplayedConversation,
    ReplayedRequest,
    common_prefix,
    size,
)
from proxy.replaying.models import RealModels, ScriptedSummarizer
from proxy.replaying.recorded import Conversation, Message, Question
from proxy.request import wire
from proxy.request.client_request import ClientRequest
from proxy.request.message_cache import Element
from proxy.services import Services, open_services
from proxy.settings import Settings
from proxy.tokens.counter import Counter, Tokenizers
from strategies import Pipeline
from strategies.core.budget import Budget
from strategies.core.economics import Prices, advise, break_even, condensing_of
from strategies.core.ledger import find_facts
from strategies.core.messages import Role
from strategies.core.rules import find_rules, merge_rules

TENANT = "replay"


class ReplayProxy(NamedTuple):
    """A proxy, and what is in the place of its models."""

    services: Services
    summarizer: ScriptedSummarizer


class RecordedClient:
    """Sends the requests of a recorded conversation, in a session of its own; `controls` are condenser headers."""

    def __init__(self, conversation: Conversation, model: str, **controls: object) -> None:
        self._raws = [json.dumps(message) for message in conversation.messages]
        members = {**conversation.members, **({"tools": conversation.tools} if conversation.tools else {})}
        self._members = "".join(f",{json.dumps(name)}:{json.dumps(value)}" for name, value in members.items())
        self._endpoint = conversation.endpoint
        self._model = model
        self._headers: Headers = [
            (f"x-condenser-{key}".encode(), str(value).encode()) for key, value in controls.items() if value is not None
        ]

    def request(self, end: int, *more: Message) -> ClientRequest:
        """The request whose history are the first `end` messages, followed by `more` messages."""
        raws = ",".join((*self._raws[:end], *map(json.dumps, more)))
        listed = f'"{self._endpoint.list_member}":[{raws}]'
        data = f'{{"model":{json.dumps(self._model)},{listed}{self._members}}}'.encode()
        return ClientRequest(
            tenant=TENANT,
            headers=[],
            body=wire.read(data, self._endpoint),
            model=self._model,
            has_suffix=False,
            controls=controls.read(self._headers, None, None),
        )


class Player:
    """Plays conversations for one model; `window` overrides the model's own."""

    def __init__(self, proxy: ReplayProxy, model: str, window: int | None) -> None:
        self._services, self._summarizer = proxy
        self._model = model
        self._window = window
        self._counts: dict[str, int] = {}

    async def play(
        self, conversation: Conversation, pipeline: Pipeline, session: str, memory: str | None = None
    ) -> ReplayedConversation:
        """Plays one conversation under one strategy, in a session of its own."""
        played = self.start(conversation, pipeline, session, memory)
        for end in request_ends(conversation):
            await played.send(end)
        return played.result()

    def start(self, conversation: Conversation, pipeline: Pipeline, session: str, memory: str | None = None) -> Playing:
        """A conversation none of whose requests has been sent yet, with a mode of `memory` if one is given."""
        client = RecordedClient(
            conversation, self._model, session=session, strategy=pipeline, window=self._window, memory=memory
        )
        return Playing(self, conversation, client, self.overhead(conversation))

    def size(self, conversation: Conversation) -> int:
        counter = self._counter(conversation.endpoint)
        return self.overhead(conversation) + sum(map(counter.message, conversation.messages))

    def overhead(self, conversation: Conversation) -> int:
        """Tokens of tools and framing."""
        read = conversation.endpoint.dialect.read
        has_system = any(read(message).role is Role.SYSTEM for message in conversation.messages)
        return self._counter(conversation.endpoint).overhead(conversation.counted, has_system=has_system)

    def _counter(self, endpoint: Endpoint) -> Counter:
        return self._services.tokenizers.for_model(self._model, endpoint.counter)

    async def decide(
        self, request: ClientRequest, overhead: int, before: Sequence[ForwardedMessage]
    ) -> tuple[ReplayedRequest, list[ForwardedMessage] | None]:
        """Decides a request; returns its figures and the forwarded messages, None if it was refused.

        `before` are the forwarded messages of the previous request.
        """
        original = overhead + size(self._sent(request.body.elements))
        usable = self._usable(request.body.envelope.reply_limit)
        made, started = self._summarizer, perf_counter()
        own, calls, written, votes, yes = made.tokens, made.calls, made.written, made.votes, made.yes_votes
        try:
            exchange = await self._services.condenser.exchange(request)
        except ContextLengthExceeded:
            return ReplayedRequest(original, None, 0, overhead, usable, (perf_counter() - started) * 1000), None
        spent = (perf_counter() - started) * 1000
        await exchange.store()
        exchange.follow_up()
        await self._services.background.idle()
        sent = self._sent(wire.read(exchange.decision.body, request.body.endpoint).elements)
        decided = ReplayedRequest(
            sent_tokens=original,
            message_tokens=size(sent),
            shared_tokens=common_prefix(before, sent),
            overhead_tokens=overhead,
            usable_tokens=usable,
            milliseconds=spent,
            own_tokens=made.tokens - own,
            own_calls=made.calls - calls,
            own_replies=made.written - written,
            votes=made.votes - votes,
            yes_votes=made.yes_votes - yes,
            action=exchange.decision.action,
        )
        return decided, sent

    def budget(self, reply_limit: int | None = None) -> Budget | None:
        """The budget of a request, also of one that the proxy refuses itself."""
        chosen = controls.Controls(window=self._window)
        return self._services.policies.policy(chosen, {}, Scope(self._model), reply_limit).budget

    def economy(self, conversation: Conversation) -> Economy:
        """Where a conversation is cheapest under the default pipeline, which asks no model first."""
        chosen = controls.Controls(window=self._window)
        policy = self._services.policies.policy(chosen, {}, Scope(self._model))
        requests = sum(1 for _ in request_ends(conversation))
        read = conversation.endpoint.dialect.read
        systems = [message for message in conversation.messages if read(message).role is Role.SYSTEM]
        fixed = size(self.forwarded(conversation, systems))
        head, budget = self.overhead(conversation) + fixed, policy.budget
        growth = (size(self.forwarded(conversation, conversation.messages)) - fixed) / max(requests, 1)
        if budget is None:
            return Economy(conversation.id, requests, head, growth, 0, 0, 0.0, inf)
        condensing = condensing_of(budget, policy.costs, head, growth, asks=policy.asks_first)
        advice = advise(budget, policy.costs, condensing, growth)
        paid = break_even(condensing, budget.trigger, policy.costs)
        return Economy(conversation.id, requests, head, growth, *advice, paid)

    def _usable(self, reply_limit: int | None) -> int:
        budget = self.budget(reply_limit)
        return budget.usable if budget else 0

    def forwarded(self, conversation: Conversation, messages: Sequence[Message]) -> list[ForwardedMessage]:
        """Messages as they would be forwarded as they are."""
        counter = self._counter(conversation.endpoint)
        raws = [(json.dumps(message), message) for message in messages]
        for raw, message in raws:
            if raw not in self._counts:
                self._counts[raw] = counter.message(message)
        return [ForwardedMessage(raw, self._counts[raw]) for raw, _ in raws]

    def _sent(self, elements: Sequence[Element]) -> list[ForwardedMessage]:
        return [ForwardedMessage(element.raw, self._tokens(element)) for element in elements]

    def _tokens(self, element: Element) -> int:
        if element.raw not in self._counts:
            self._counts[element.raw] = self._counter(element.endpoint).message(element.value)
        return self._counts[element.raw]


class Playing:
    """A conversation under one strategy, request by request; `view` is what was forwarded last."""

    def __init__(self, player: Player, conversation: Conversation, client: RecordedClient, overhead: int) -> None:
        self._player = player
        self._conversation = conversation
        self._client = client
        self._overhead = overhead
        self.view: list[ForwardedMessage] = []
        self._end = 0
        self.requests: list[ReplayedRequest] = []

    async def send(self, end: int) -> ReplayedRequest:
        """Sends the request whose history are the first `end` messages."""
        decided, sent = await self._player.decide(self._client.request(end), self._overhead, self.view)
        self.requests.append(decided)
        self.view, self._end = self.view if sent is None else sent, end
        return decided

    async def ask(self, question: Question) -> tuple[ReplayedRequest, bool]:
        """Asks a question after the whole history; returns whether its evidence was forwarded. Nothing is kept."""
        asked = self._conversation.endpoint.dialect.user(question.text)
        request = self._client.request(len(self._conversation.messages), asked)
        decided, sent = await self._player.decide(request, self._overhead, self.view)
        return decided, question.reaches(text_of(self._conversation, (sent or [])[:-1]))

    def result(self) -> ReplayedConversation:
        """The requests so far, and what the last view has kept."""
        return kept_in(self._conversation, self._end, self.view, self.requests)


@asynccontextmanager
async def open_replay_proxy(settings: Settings, models: ScriptedSummarizer | None = None) -> AsyncIterator[ReplayProxy]:
    """Opens a proxy that needs no model but those in `models`; `settings` must name the store in memory."""
    summarizer = models or ScriptedSummarizer(Tokenizers(settings.tokenizer.ranks_dir))
    async with open_services(settings, summarizer=summarizer) as built:
        if isinstance(summarizer, RealModels):
            summarizer.connect(built.asking, partial(prices_of, built))
        yield ReplayProxy(built, summarizer)


def prices_of(services: Services, model: str) -> Prices:
    """What a million tokens of a model cost: by the settings, as published, or by usual ratios."""
    return services.policies.policy(controls.Controls(), {}, Scope(model)).costs


def kept_in(
    conversation: Conversation, end: int, view: Sequence[ForwardedMessage], requests: Sequence[ReplayedRequest]
) -> ReplayedConversation:
    """What a view of the first `end` messages has kept; only questions about messages in them count."""
    text = "" if requests and requests[-1].refused else text_of(conversation, view)
    questions = [asked for asked in conversation.questions if max(asked.places) < end]
    names, rules = names_of(conversation, end), rules_of(conversation, end)
    return ReplayedConversation(
        requests,
        questions=len(questions),
        answerable=sum(asked.reaches(text) for asked in questions),
        names=len(names),
        kept_names=sum(name in text for name in names),
        rules=len(rules),
        kept_rules=sum(rule in text for rule in rules),
        id=conversation.id,
    )


def text_of(conversation: Conversation, view: Sequence[ForwardedMessage]) -> str:
    """The text of forwarded messages."""
    text = conversation.endpoint.dialect.text
    return "\n".join(text(json.loads(message.raw)) for message in view)


def names_of(conversation: Conversation, end: int) -> frozenset[str]:
    """The different names and numbers in the user's messages among the first `end`."""
    return frozenset(name for text in _said(conversation, end) for name in find_facts(text))


def rules_of(conversation: Conversation, end: int) -> frozenset[str]:
    """The rules and open tasks that the user has given in the first `end` messages and that still hold."""
    return frozenset(merge_rules((), (rule for text in _said(conversation, end) for rule in find_rules(text))))


def _said(conversation: Conversation, end: int) -> Iterator[str]:
    dialect = conversation.endpoint.dialect
    users = (message for message in conversation.messages[:end] if dialect.read(message).role is Role.USER)
    return map(dialect.text, users)


def request_ends(conversation: Conversation) -> Iterator[int]:
    """Yields the number of messages before each recorded reply: the lengths of the requests."""
    dialect, before = conversation.endpoint.dialect, None
    for i, message in enumerate(conversation.messages):
        role = dialect.read(message).role
        goes_on = dialect.has_steps and before is Role.ASSISTANT
        if i and role is Role.ASSISTANT and not goes_on:
            yield i
        before = role
