"""Plays conversations through the real driver: one request for every recorded reply.

The driver is the proxy's own, with a store in memory and scripts in the place of its models, or real ones. Forwarded
messages are counted one by one with the model's tokenizer, even where the proxy itself made do with an estimate.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import asynccontextmanager
from time import perf_counter

from proxy import controls
from proxy.bodies import wire
from proxy.bodies.message_cache import MessageCache
from proxy.bodies.scanning import DEFAULT_BOUNDS
from proxy.bodies.wire import ClientRequest
from proxy.commands.replaying.measures import (
    ForwardedMessage,
    ReplayedConversation,
    ReplayedRequest,
    common_prefix,
    size,
)
from proxy.commands.replaying.models import ScriptedSummarizer
from proxy.commands.replaying.recorded import Conversation, Message, Question
from proxy.condensing.policy import Policy
from proxy.errors import ContextLengthExceeded
from proxy.http.headers import Headers
from proxy.protocols.chat import ChatCounter
from proxy.servers import LessonScope
from proxy.servers.upstream.choice import DEFAULTS
from proxy.services import open_services
from proxy.settings import Settings
from proxy.tokens.counter import Tokenizers
from proxy.turn.drive import decide, follow_up, store
from strategies.core.budget import Budget
from strategies.core.client_context import users_words
from strategies.core.messages import Role
from strategies.core.names import find_names
from strategies.core.units import units

TENANT = "replay"


@asynccontextmanager
async def open_replay_proxy(
    settings: Settings, models: ScriptedSummarizer | None = None
) -> AsyncIterator[ScriptedSummarizer]:
    """A proxy's models, by default scripts, with its `services`; `settings` must name the store in memory."""
    summarizer = models or ScriptedSummarizer(Tokenizers(settings.tokenizer.ranks_dir))
    async with open_services(settings, summarizer=summarizer) as built:
        summarizer.services = built
        yield summarizer


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
        self.raws = [json.dumps(message) for message in conversation.messages]
        members = {**conversation.members, **({"tools": conversation.tools} if conversation.tools else {})}
        self._members = "".join(f",{json.dumps(name)}:{json.dumps(value)}" for name, value in members.items())
        self.endpoint = conversation.endpoint
        self._model = model
        self._headers: Headers = [
            (f"x-condenser-{key}".encode(), str(value).encode()) for key, value in controls.items() if value is not None
        ]

    async def request(self, cache: MessageCache, end: int, *more: Message) -> ClientRequest:
        """The request whose history are the first `end` messages, followed by `more` messages.

        What came before is in the cache, as it is in a proxy that serves.
        """
        data = self.body([*self.raws[:end], *map(json.dumps, more)])
        return ClientRequest(
            tenant=TENANT,
            upstream=DEFAULTS[0],  # a replay sends no request
            headers=[],
            body=await wire.read_through_cache(data, self.endpoint, cache, DEFAULT_BOUNDS),
            model=self._model,
            has_suffix=False,
            controls=controls.read(self._headers, None, None),
        )

    def body(self, raws: Sequence[str], **more: object) -> bytes:
        """The body of a request with these messages, and with `more` members."""
        added = "".join(f",{json.dumps(name)}:{json.dumps(value)}" for name, value in more.items())
        listed = f'"{self.endpoint.list_member}":[{",".join(raws)}]'
        return f'{{"model":{json.dumps(self._model)},{listed}{self._members}{added}}}'.encode()


class Player:
    """Plays conversations for one model; `window` overrides the model's own."""

    def __init__(self, proxy: ScriptedSummarizer, model: str, window: int | None) -> None:
        self.proxy, self.services = proxy, proxy.services
        self.model, self.window = model, window
        self._counts: dict[str, int] = {}

    def overhead(self, conversation: Conversation) -> int:
        """Tokens of tools and framing."""
        read = conversation.endpoint.dialect.read
        has_system = any(read(message).role is Role.SYSTEM for message in conversation.messages)
        counter = self.services.tokenizers.for_model(self.model, conversation.endpoint.counter)
        return counter.overhead({**conversation.members, "tools": conversation.tools}, has_system=has_system)

    def size(self, conversation: Conversation) -> int:
        return self.overhead(conversation) + size(self.forwarded(conversation, conversation.messages))

    def policy(self, reply_limit: int | None = None) -> Policy:
        chosen = controls.Controls(window=self.window)
        counter = self.services.tokenizers.for_model(self.model, ChatCounter)
        server = self.services.servers.at_hand(LessonScope(self.model), counter, self.window)
        return self.services.policies.policy(chosen, {}, server, reply_limit)

    def budget(self, reply_limit: int | None = None) -> Budget:
        budget = self.policy(reply_limit).budget
        assert budget is not None, "a player has a window, or knows the model's"
        return budget

    def forwarded(self, conversation: Conversation, messages: Sequence[Message]) -> list[ForwardedMessage]:
        """Messages as they would be forwarded as they are."""
        return [self.counted(conversation, json.dumps(message)) for message in messages]

    def counted(self, conversation: Conversation, raw: str) -> ForwardedMessage:
        if raw not in self._counts:
            counter = self.services.tokenizers.for_model(self.model, conversation.endpoint.counter)
            self._counts[raw] = counter.message(json.loads(raw))
        return ForwardedMessage(raw, self._counts[raw])


class Playing:
    """A conversation under one strategy, in a session of its own; `view` is what was forwarded last."""

    def __init__(
        self,
        player: Player,
        conversation: Conversation,
        strategy: str,
        session: str,
        memory: str | None = None,
        economy: str | None = None,
    ) -> None:
        """`memory` and `economy` are modes; None for those of the settings."""
        given = {"session": session, "strategy": strategy, "memory": memory, "economy": economy}
        self.client = RecordedClient(conversation, player.model, window=player.window, **given)
        self._player, self._cache = player, player.services.message_cache
        self.conversation = conversation
        self._overhead = player.overhead(conversation)
        self.name, self.strategy, self.end = session, strategy, 0
        self.view: Sequence[ForwardedMessage] = []
        self.requests: list[ReplayedRequest] = []

    async def play(self) -> ReplayedConversation:
        """Sends all requests; returns them, and what the last view has kept."""
        for end in request_ends(self.conversation):
            await self.send(end)
        return kept_in(self.conversation, self.end, self.view, self.requests)

    async def send(self, end: int) -> ReplayedRequest:
        """Sends the request whose history are the first `end` messages."""
        decided, sent = await self._decided(await self.client.request(self._cache, end))
        self.requests.append(decided)
        self.view, self.end = sent or self.view, end
        return decided

    async def ask(self, question: Question) -> tuple[ReplayedRequest, bool]:
        """Asks a question after the whole history; returns whether its evidence was forwarded. Nothing is kept."""
        asked = self.conversation.endpoint.dialect.user(question.text)
        request = await self.client.request(self._cache, len(self.conversation.messages), asked)
        decided, sent = await self._decided(request)
        return decided, question.reaches(text_of(self.conversation, sent[:-1]))

    async def _decided(self, request: ClientRequest) -> tuple[ReplayedRequest, Sequence[ForwardedMessage]]:
        """The figures of a request and the forwarded messages, none if it was refused."""
        services, made = self._player.services, self._player.proxy
        original = self._overhead + size(self._counted(request.body))
        budget, reply = self._player.budget(request.body.envelope.reply_limit), request.body.envelope.reply_limit or 0
        made.read = [message.raw for message in self.view]
        before, started = made.tally.copy(), perf_counter()
        try:
            turn = await decide(services, request)
        except ContextLengthExceeded:
            spent = (perf_counter() - started) * 1000
            room = budget.full_window - reply
            refused = ReplayedRequest(original, None, 0, self._overhead, budget.fits, spent, window_tokens=room)
            return refused, ()
        spent = (perf_counter() - started) * 1000
        sent = self._counted(wire.read(turn.sent.decision.body, request.body.endpoint))
        made.read = [message.raw for message in sent]
        await store(services, turn)
        follow_up(services, turn)
        await services.background.idle()
        decided = ReplayedRequest(
            sent_tokens=original,
            message_tokens=size(sent),
            shared_tokens=common_prefix(self.view, sent),
            overhead_tokens=self._overhead,
            usable_tokens=budget.fits,
            window_tokens=budget.full_window - reply,
            milliseconds=spent,
            action=turn.sent.decision.action,
            **made.tally - before,
        )
        return decided, sent

    def _counted(self, body: wire.Body) -> Sequence[ForwardedMessage]:
        return [self._player.counted(self.conversation, each.raw) for each in body.elements]


def kept_in(
    conversation: Conversation, end: int, view: Sequence[ForwardedMessage], requests: Sequence[ReplayedRequest]
) -> ReplayedConversation:
    """What a view of the first `end` messages has kept; only questions about messages in them count."""
    text = "" if requests and requests[-1].refused else text_of(conversation, view)
    questions = [asked for asked in conversation.questions if max(asked.places) < end]
    kept = {"evidence": (sum(asked.reaches(text) for asked in questions), len(questions))}
    for kind, said in said_in(conversation, conversation.messages[:end]).items():
        kept[kind] = sum(one in text for one in said), len(said)
    return ReplayedConversation(requests, kept, conversation.id)


def said_in(conversation: Conversation, messages: Sequence[Message]) -> dict[str, Collection[str]]:
    """What the user says in messages, by units, and the names and numbers in it."""
    dialect = conversation.endpoint.dialect
    texts = [users_words(dialect.text(each)) for each in messages if dialect.read(each).role is Role.USER]
    said = {unit.text for text in texts for unit in units(text) if unit.may_be_quoted}
    return {"names": {name for text in texts for name in find_names(text)}, "said": said}


def text_of(conversation: Conversation, view: Sequence[ForwardedMessage]) -> str:
    text = conversation.endpoint.dialect.text
    return "\n".join(text(json.loads(message.raw)) for message in view)
