"""Plays conversations through the real driver: one request for every recorded reply.

The driver is the proxy's own, with a store in memory and scripts in the place of its models, or real ones. Forwarded
messages are counted one by one with the model's tokenizer, even where the proxy itself made do with an estimate.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from math import inf
from time import perf_counter
from typing import Any, NamedTuple

from proxy import controls
from proxy.condensing.policy import Policy
from proxy.errors import ContextLengthExceeded
from proxy.http.headers import Headers
from proxy.knowledge.profiles import Scope
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
from proxy.request.wire import ClientRequest
from proxy.services import Services, open_services
from proxy.settings import Settings
from proxy.tokens.counter import Tokenizers
from strategies import Pipeline
from strategies.core.economics import advise, break_even, condensing_of
from strategies.core.ledger import find_facts
from strategies.core.messages import Role
from strategies.core.rules import find_rules, merge_rules

TENANT = "replay"


class ReplayProxy(NamedTuple):
    """A proxy, and what is in the place of its models."""

    services: Services
    summarizer: ScriptedSummarizer


@asynccontextmanager
async def open_replay_proxy(settings: Settings, models: ScriptedSummarizer | None = None) -> AsyncIterator[ReplayProxy]:
    """Opens a proxy that needs no model but those in `models`; `settings` must name the store in memory."""
    summarizer = models or ScriptedSummarizer(Tokenizers(settings.tokenizer.ranks_dir))
    async with open_services(settings, summarizer=summarizer) as built:
        if isinstance(summarizer, RealModels):
            summarizer.services = built
        yield ReplayProxy(built, summarizer)


def request_ends(conversation: Conversation) -> Iterator[int]:
    """Yields the number of messages before each recorded reply: the lengths of the requests."""
    dialect, before = conversation.endpoint.dialect, None
    for i, message in enumerate(conversation.messages):
        role = dialect.read(message).role
        goes_on = dialect.has_steps and before is Role.ASSISTANT
        if i and role is Role.ASSISTANT and not goes_on:
            yield i
        before = role


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
        self.services, self.summarizer = proxy
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
        return Playing(self, conversation, client)

    def overhead(self, conversation: Conversation) -> int:
        """Tokens of tools and framing."""
        read = conversation.endpoint.dialect.read
        has_system = any(read(message).role is Role.SYSTEM for message in conversation.messages)
        counter = self.services.tokenizers.for_model(self._model, conversation.endpoint.counter)
        return counter.overhead(conversation.counted, has_system=has_system)

    def size(self, conversation: Conversation) -> int:
        """Tokens of the whole conversation."""
        return self.overhead(conversation) + size(self.forwarded(conversation, conversation.messages))

    def policy(self, reply_limit: int | None = None) -> Policy:
        """By what a request is decided, also one that the proxy refuses itself."""
        chosen = controls.Controls(window=self._window)
        return self.services.policies.policy(chosen, {}, Scope(self._model), reply_limit)

    def usable(self, reply_limit: int | None = None) -> int:
        """Tokens that a prompt may have."""
        budget = self.policy(reply_limit).budget
        return budget.usable if budget else 0

    def room(self, conversation: Conversation) -> int:
        """Tokens that messages may have below the trigger."""
        budget = self.policy().budget
        return (budget.trigger if budget else 0) - self.overhead(conversation)

    def economy(self, conversation: Conversation) -> Economy:
        """Where a conversation is cheapest under the default pipeline, which asks no model first."""
        policy, read = self.policy(), conversation.endpoint.dialect.read
        requests = sum(1 for _ in request_ends(conversation))
        systems = [message for message in conversation.messages if read(message).role is Role.SYSTEM]
        head = self.overhead(conversation) + size(self.forwarded(conversation, systems))
        growth = (self.size(conversation) - head) / max(requests, 1)
        if policy.budget is None:
            return Economy(conversation.id, requests, head, growth, 0, 0, 0.0, inf)
        condensing = condensing_of(policy.budget, policy.costs, head, growth, asks=policy.asks_first)
        advice = advise(policy.budget, policy.costs, condensing, growth)
        paid = break_even(condensing, policy.budget.trigger, policy.costs)
        return Economy(conversation.id, requests, head, growth, *advice, paid)

    def forwarded(self, conversation: Conversation, messages: Sequence[Message]) -> list[ForwardedMessage]:
        """Messages as they would be forwarded as they are."""
        return [self.counted(conversation, json.dumps(message), message) for message in messages]

    def counted(self, conversation: Conversation, raw: str, message: Mapping[str, Any]) -> ForwardedMessage:
        if raw not in self._counts:
            counter = self.services.tokenizers.for_model(self._model, conversation.endpoint.counter)
            self._counts[raw] = counter.message(message)
        return ForwardedMessage(raw, self._counts[raw])


class Playing:
    """A conversation under one strategy, request by request; `view` is what was forwarded last."""

    def __init__(self, player: Player, conversation: Conversation, client: RecordedClient) -> None:
        self._player = player
        self._conversation = conversation
        self._client = client
        self._overhead = player.overhead(conversation)
        self._end = 0
        self.view: list[ForwardedMessage] = []
        self.requests: list[ReplayedRequest] = []

    async def send(self, end: int) -> ReplayedRequest:
        """Sends the request whose history are the first `end` messages."""
        decided, sent = await self._decided(self._client.request(end))
        self.requests.append(decided)
        self.view, self._end = self.view if sent is None else sent, end
        return decided

    async def ask(self, question: Question) -> tuple[ReplayedRequest, bool]:
        """Asks a question after the whole history; returns whether its evidence was forwarded. Nothing is kept."""
        asked = self._conversation.endpoint.dialect.user(question.text)
        decided, sent = await self._decided(self._client.request(len(self._conversation.messages), asked))
        return decided, question.reaches(text_of(self._conversation, (sent or [])[:-1]))

    def result(self) -> ReplayedConversation:
        """The requests so far, and what the last view has kept."""
        return kept_in(self._conversation, self._end, self.view, self.requests)

    async def _decided(self, request: ClientRequest) -> tuple[ReplayedRequest, list[ForwardedMessage] | None]:
        """The figures of a request and the forwarded messages, None if it was refused."""
        services, made = self._player.services, self._player.summarizer
        original = self._overhead + size(self._counted(request.body))
        usable = self._player.usable(request.body.envelope.reply_limit)
        before, started = made.tally.copy(), perf_counter()
        try:
            exchange = await services.condenser.exchange(request)
        except ContextLengthExceeded:
            spent = (perf_counter() - started) * 1000
            return ReplayedRequest(original, None, 0, self._overhead, usable, spent), None
        spent = (perf_counter() - started) * 1000
        await exchange.store()
        exchange.follow_up()
        await services.background.idle()
        sent = self._counted(wire.read(exchange.decision.body, request.body.endpoint))
        decided = ReplayedRequest(
            sent_tokens=original,
            message_tokens=size(sent),
            shared_tokens=common_prefix(self.view, sent),
            overhead_tokens=self._overhead,
            usable_tokens=usable,
            milliseconds=spent,
            action=exchange.decision.action,
            **made.tally - before,
        )
        return decided, sent

    def _counted(self, body: wire.Body) -> list[ForwardedMessage]:
        return [self._player.counted(self._conversation, each.raw, each.value) for each in body.elements]


def kept_in(
    conversation: Conversation, end: int, view: Sequence[ForwardedMessage], requests: Sequence[ReplayedRequest]
) -> ReplayedConversation:
    """What a view of the first `end` messages has kept; only questions about messages in them count."""
    text = "" if requests and requests[-1].refused else text_of(conversation, view)
    questions = [asked for asked in conversation.questions if max(asked.places) < end]
    dialect = conversation.endpoint.dialect
    said = [dialect.text(each) for each in conversation.messages[:end] if dialect.read(each).role is Role.USER]
    names = {name for each in said for name in find_facts(each)}
    rules = merge_rules((), (rule for each in said for rule in find_rules(each)))
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
