"""The tool `search_memory`: its hidden rounds, and the replies of one request joined into the one that the client sees.

A model that searches its memory answers in several replies. Replies in one piece are read whole before the client gets
anything; streamed replies are passed on as they come.

`Following` sends the request after a hidden round. If the passages that were found make the prompt too long, it sends
the request once more with fewer of them, or with a note that there is no room. If that is refused too, or the request
is refused for another reason, or the reply breaks off, the client must not suffer, because the upstream accepted the
client's own request. As long as the client has no text of the reply, its own request is sent again without the tool,
and the search is given up. So the client gets an error only if its own request is refused too, or if it already has
text that cannot be taken back.

A reply in one piece is checked before it is passed on. A stream is passed on at once; if it fails while the client has
nothing of it, `StreamedReply` asks `Following` for another one in its place.

The tool is added to the request's tools, unless the client has a tool with that name. If no answer could follow a call,
the tool is offered all the same, so that the beginning of the prompt stays the same for the upstream's cache; but its
calls are not run, and are removed from the reply.

A round is the assistant's message with its calls, and a result for each call. The rounds follow the view when the model
is asked again. The session keeps them as a patch: later views put them back at the same place, byte for byte.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache
from typing import Any, NamedTuple

from proxy.bodies.wire import Body
from proxy.errors import ProxyError, UpstreamUnavailable
from proxy.http.headers import encoding_of, is_event_stream, is_success
from proxy.protocols.endpoint import Endpoint, Values
from proxy.protocols.hidden_calls import NAME, Said
from proxy.protocols.opening import OpenedReply, inspected
from proxy.protocols.replies import Usage, usage_in
from proxy.reasons import Reason
from proxy.runtime.owned_tasks import message_load, offload
from proxy.servers.refusals import Size, Unit
from proxy.servers.upstream import UpstreamReply
from proxy.servers.upstream.messages import ReadReply, read_whole
from proxy.tokens.counter import Counter
from proxy.values import json_or_none, object_at, word_at
from strategies.core.budget import Budget
from strategies.core.messages import dump
from strategies.core.pieces import Literal, Overlay, PieceKind
from strategies.core.view import View
from strategies.memory.block import appears_in, notes_for, search_result
from strategies.memory.ranking import Hit

MAX_PASSAGES = 20
MAX_CALLS = 32
"""Searches that are run of one reply."""
MAX_TOKENS = 4_096
WINDOW_SHARE = 4
MIN_TOKENS = 64
_QUOTED = 200

_HINT = f'Call {NAME} again with a JSON object such as {{"query": "the name of the deploy script"}}.'
NO_ROOM = "The context has no room for what was found. Answer with what you have."
TOO_MANY = "Not searched: too many searches at once. Answer with what you have."
FAILED = "The search failed. Answer with what you have."
ALL_SHOWN = "Everything that matches is already visible in this conversation."

Search = Callable[[str], Awaitable[Sequence[Hit]]]
_log = logging.getLogger(__name__)


# -- the tool --------------------------------------------------------------------------------------------


class Offer(NamedTuple):
    """Whether one request offers the tool to its model."""

    is_made: bool = False
    """Whether the tool is offered."""
    runs_calls: bool = False
    """Whether its calls are run."""
    reason: str = ""
    """Why it is not offered, or why its calls are not run; "" otherwise."""
    tokens: int = 0
    """The tokens that its definition adds to the prompt."""
    has_client_tools: bool = False
    """Whether the client has tools of its own, which stay when the memory tool is removed."""
    definition: str = ""
    """The tool as JSON text."""

    def within(self, tokens: int) -> Offer:
        """This offer if its definition has at most so many tokens; else none."""
        return self if self.tokens <= tokens else NO_OFFER


NO_OFFER = Offer()


class ToolState(Enum):
    """How one request to the upstream has the tool: offered, shown but no longer callable, or absent."""

    OFFERED = auto()
    NOT_CALLABLE = auto()
    ABSENT = auto()


@lru_cache(maxsize=64)
def definition(endpoint: Endpoint, top_k: int) -> str:
    """The tool as JSON text; `top_k` is the number of passages for a call that asks for no number.

    It never changes while the server runs, because every prompt begins with it.
    """
    text = "The most passages to return, best match first."
    parameters = {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "What to look for: names, terms, a short question."},
            "top_k": {"type": "integer", "description": text, "minimum": 1, "default": top_k},
        },
        "required": ["query"],
    }
    description = (
        "Search the earlier part of this conversation, which may no longer be shown to you. Returns passages"
        " word for word, each with its role and its place. Use it before saying that something is not known. Where a"
        " line says that something was left out, a search for its handle alone gives that back."
    )
    return endpoint.tool(NAME, description, parameters)


def offer(
    endpoint: Endpoint, values: Values, counter: Counter, *, has_system: bool, refused: bool, top_k: int
) -> Offer:
    """The offer for a request; `values` are its members except the messages.

    `has_system` tells whether one of the messages is a system message, `refused` whether the upstream accepts no tools
    for this model.
    """
    use = endpoint.tool_use(values)
    if use is None:
        return NO_OFFER
    if NAME in use.names:
        return Offer(reason=Reason.MEMORY_TOOL_TAKEN)
    if refused:
        return Offer(reason=Reason.MEMORY_TOOL_REFUSED)
    if not use.takes_another:
        return Offer(reason=Reason.MEMORY_TOOL_NOT_RUN)
    reason = "" if use.runs_calls else Reason.MEMORY_TOOL_NOT_RUN
    tool = definition(endpoint, top_k)
    tokens = _tokens(counter, tool, has_client_tools=use.has_tools, has_system=has_system)
    return Offer(True, use.runs_calls, reason, tokens, use.has_tools, tool)


def offer_members(body: Body, offer: Offer, tool_state: ToolState = ToolState.OFFERED) -> dict[str, str]:
    """The members of a body that offer the tool, as JSON text."""
    if not offer.is_made or tool_state is ToolState.ABSENT:
        return {}
    tools, is_last = body.tools_with(offer.definition), tool_state is ToolState.NOT_CALLABLE
    return body.endpoint.tool_members(tools, has_client_tools=offer.has_client_tools, is_last=is_last)


@lru_cache(maxsize=64)
def _tokens(counter: Counter, tool: str, *, has_client_tools: bool, has_system: bool) -> int:
    """The tokens that the definition adds to a prompt; cached, because every request asks for them."""
    ours = json.loads(tool)
    before = [ours] if has_client_tools else []
    offers = [*before, ours], before
    with_it, without = (counter.overhead({"tools": tools}, has_system=has_system) for tools in offers)
    return with_it - without


class BadArguments(ValueError):
    """Arguments without a usable query; the message is shown to the model."""


def parse_arguments(arguments: object, top_k: int) -> tuple[str, int]:
    """The query and the number of passages that a call asks for, by default `top_k`. Raises `BadArguments`."""
    members = json_or_none(arguments) if isinstance(arguments, str) else arguments
    if not isinstance(members, dict):
        raise BadArguments(f"The arguments are no JSON object: {str(arguments)[:_QUOTED]!r}. {_HINT}")
    query, asked = members.get("query"), members.get("top_k")
    if not isinstance(query, str) or not query.strip():
        raise BadArguments(f"The arguments have no query. {_HINT}")
    if isinstance(asked, int) and not isinstance(asked, bool):
        top_k = min(max(asked, 1), MAX_PASSAGES)
    return query, top_k


# -- the rounds ------------------------------------------------------------------------------------------

MakeBody = Callable[[Sequence[str], ToolState], bytes]


class _HiddenMessage(NamedTuple):
    """A hidden message as JSON text, its tokens, and the text in it."""

    raw: str
    tokens: int
    text: str


class _Result(NamedTuple):
    """The result of the call `id`: its text, and the passages from which it was written; at most `top_k` are shown."""

    id: str
    text: str
    hits: Sequence[Hit] = ()
    top_k: int = 0


class HiddenRounds:
    """The rounds that follow one view.

    `search` finds the passages for a query, best first, and `body` makes the request with messages after the view.
    `max_rounds` bounds the rounds, `allowance` their tokens; `top_k` bounds the passages of a search that asks for no
    number.

    `spent_tokens` is the cost of the replies that only led to a search, and `usages` is what these replies report.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        view: View,
        budget: Budget | None,
        search: Search,
        body: MakeBody,
        *,
        max_rounds: int,
        top_k: int,
        allowance: int,
    ) -> None:
        self.endpoint = endpoint
        self._view = view
        self._budget = budget
        self._search = search
        self._body = body
        self._rounds_left = max_rounds
        self._top_k = top_k
        self._allowance = allowance
        self._messages: list[_HiddenMessage] = []
        self._last_results: list[_Result] = []
        self._results_at = 0  # the index of the first message of the last results
        self._prompt_tokens = view.tokens
        self.spent_tokens = 0
        self.usages: list[Usage | None] = []
        self.is_given_up = False

    @property
    def runs_calls(self) -> bool:
        """Whether the calls of the next reply are run."""
        return self._rounds_left > 0

    @property
    def tokens(self) -> int:
        """Tokens of the view and of all rounds after it."""
        return self._view.tokens + sum([message.tokens for message in self._messages])

    @property
    def patch(self) -> Overlay | None:
        """The hidden rounds, for later views to put back; None if there are none."""
        digests = self._view.transcript.digests
        if not (self._messages and digests):
            return None
        pieces = tuple(Literal(message.raw, PieceKind.PATCH) for message in self._messages)
        return Overlay(digests[-1], len(digests), 0, pieces)

    def body(self) -> bytes:
        """The request with the rounds so far after its view."""
        self._prompt_tokens = self.tokens
        state = ToolState.OFFERED if self.runs_calls else ToolState.NOT_CALLABLE
        return self._body([message.raw for message in self._messages], state)

    def plain_body(self) -> bytes:
        """The request without the tool, for an upstream that takes no tools."""
        return self._body((), ToolState.ABSENT)

    async def run(self, said: Said) -> None:
        """Runs the hidden calls of a reply, and adds them and their results to the rounds."""
        self._rounds_left -= 1
        items, text, calls = said.hidden_round(f"memory_{len(self._messages)}")
        for item in items:
            self._add(item, text)
            text = ""
        self._results_at, self._last_results = len(self._messages), []
        for call in calls[:MAX_CALLS]:
            self._answer(await self._run_call(call.id, call.arguments))
        if len(calls) > MAX_CALLS:
            self._answer(*(_Result(call.id, TOO_MANY) for call in calls[MAX_CALLS:]))
        if self._room() < MIN_TOKENS:
            self._rounds_left = 0

    async def shorten(self, most: int | None) -> bool:
        """Shortens the results of the last searches, so that the request has at most `most` tokens (None: unknown).

        A result without room becomes a note that says so, and the model may not search again. Returns whether anything
        was shortened: False if no result holds passages any more.
        """
        results, found = self._last_results, sum(bool(result.hits) for result in self._last_results)
        if not found:
            return False
        self._rounds_left, self._last_results = 0, []
        del self._messages[self._results_at :]
        bare = self.endpoint.results([(result.id, "" if result.hits else result.text) for result in results])
        taken = sum(map(self._view.counter.message, bare))
        room = 0 if most is None else (most - self.tokens - taken) // found
        for result in results:
            self._answer(await _guarded(result.id, self._with_text(result, room)) if result.hits else result)
        self._last_results = [result._replace(hits=()) for result in self._last_results]
        return True

    def give_up(self) -> None:
        """Drops the rounds: the request is sent without them, and no more searches are run."""
        self._messages, self._last_results, self._rounds_left, self.is_given_up = [], [], 0, True

    def add_cost(self, said: Said) -> None:
        """Adds the cost of a reply that only led to a search: what it reports, else the proxy's count of its prompt."""
        usage = usage_in(said.usage)
        self.usages.append(usage)
        self.spent_tokens += usage.prompt + usage.completion if usage else self._prompt_tokens

    def _add(self, message: Mapping[str, Any], text: str) -> None:
        form = self._view.transcript.form
        message = message if form is None else self._view.counter.dialect.fitted(message, form) or message
        self._messages.append(_HiddenMessage(dump(message), self._view.counter.message(message), text))

    def _answer(self, *results: _Result) -> None:
        """Adds results to the last ones, which some protocols put into one message; there may be thousands."""
        first = len(self._last_results)
        self._last_results += results
        messages = self.endpoint.results([(result.id, result.text) for result in self._last_results])
        first = min(first, len(messages) - 1)
        del self._messages[self._results_at + first :]
        for at, message in enumerate(messages[first:], first):
            told = self._last_results[at : at + 1] if at + 1 < len(messages) else self._last_results[at:]
            self._add(message, "\n".join(result.text for result in told))

    async def _run_call(self, id: str, arguments: object) -> _Result:
        try:
            query, top_k = parse_arguments(arguments, self._top_k)
        except BadArguments as error:
            return _Result(id, str(error))
        room = self._room()
        if room < MIN_TOKENS:
            return _Result(id, NO_ROOM)
        return await _guarded(id, self._search_result(id, query, top_k, room))

    async def _search_result(self, id: str, query: str, top_k: int, room: int) -> _Result:
        return await self._with_text(_Result(id, "", await self._search(query), top_k), room)

    async def _with_text(self, result: _Result, room: int) -> _Result:
        """The result with the text of its passages, at most `room` tokens long."""
        if room < MIN_TOKENS:
            return result._replace(text=NO_ROOM)
        load = message_load(self._view.size, self.tokens)
        text = await offload(load, self._text_of, result, room)
        return result._replace(text=text, hits=() if text == ALL_SHOWN else result.hits)

    def _text_of(self, result: _Result, room: int) -> str:
        """The text of the passages that neither the view nor an earlier result shows. May run in a thread."""
        before = (message.text for message in self._messages)
        shown = appears_in([*(message.text for message in self._view.item_messages), *before])
        if result.hits and all(shown(hit.entry) for hit in result.hits):
            return ALL_SHOWN
        notes = notes_for(self._view.transcript)
        return search_result(result.hits, self._view.counter, room, result.top_k, shown, notes)

    def _room(self) -> int:
        """The maximum tokens of one result: half of what is left, so that another result and the reply have room."""
        left = self._allowance - (self.tokens - self._view.tokens)
        if self._budget is None:
            return min(MAX_TOKENS, left // 2)
        return min(MAX_TOKENS, self._budget.window // WINDOW_SHARE, min(left, self._budget.fits - self.tokens) // 2)


async def _guarded(id: str, work: Awaitable[_Result]) -> _Result:
    try:
        return await work
    except Exception:  # noqa: BLE001
        # A defect must not fail more than this search.
        _log.exception("a search failed")
        return _Result(id, FAILED)


# -- the replies -----------------------------------------------------------------------------------------

SendBody = Callable[[bytes], Awaitable[UpstreamReply]]
Aim = Callable[[Size, int], int | None]


async def search(reply: UpstreamReply, following: Following) -> UpstreamReply:
    """The reply for the client after all searches of the replies to one request; raises `UpstreamUnavailable`."""
    if not is_success(reply.status) or encoding_of(reply.headers):
        return reply
    return StreamedReply(reply, following) if is_event_stream(reply.headers) else await join_replies(reply, following)


async def join_replies(reply: UpstreamReply, following: Following) -> UpstreamReply:
    """Reads replies in one piece and runs their searches, until a reply needs no other one after it.

    Returns that reply as the client gets it, or unchanged if it is an error or no completion.
    """
    rounds, earlier = following.rounds, list[Said]()
    endpoint = rounds.endpoint
    while True:
        current = await read_whole(reply)
        said = endpoint.said(current.data) if is_success(current.status) and current.is_whole else None
        if said is None:
            return current
        if rounds.runs_calls and said.calls_memory:
            await rounds.run(said)
            if not said.has_client_calls:
                rounds.add_cost(said)
                earlier.append(said)
                reply = await following.reply(text_sent=False)
                continue
        data = endpoint.joined(current.data, earlier, keeps_text=not rounds.is_given_up)
        return ReadReply(current.status, current.headers, data)


class StreamedReply:
    """Streamed replies joined into one; its status and headers are those of the first reply."""

    def __init__(self, reply: UpstreamReply, following: Following) -> None:
        self.status = reply.status
        self.headers = [pair for pair in reply.headers if pair[0].lower() != b"content-length"]
        self._reply = reply
        self._rounds = rounds = following.rounds
        self._following = following
        self._splicer = rounds.endpoint.splicer(runs_calls=rounds.runs_calls)
        self._failed: ReadReply | None = None

    async def chunks(self) -> AsyncIterator[bytes]:
        """The bytes of the joined body, as they arrive; raises `UpstreamUnavailable`."""
        while True:
            async for passed in self._relay():
                yield passed
            if not (self._failed or self._splicer.is_continued):
                return
            await self._reply.close()
            failed, self._failed = self._failed, None
            self._reply = await self._next(failed)
            replaceable = not self._rounds.is_given_up and self._reply is not failed
            self._splicer.begin(runs_calls=self._rounds.runs_calls, replaceable=replaceable)

    async def _relay(self) -> AsyncIterator[bytes]:
        """The bytes of one reply for the client; hidden calls are run as soon as they are complete."""
        has_run, splicer = False, self._splicer
        try:
            async for chunk in self._reply.chunks():
                passed = splicer.feed(chunk)
                if splicer.has_searches and not has_run:
                    has_run = True
                    await self._rounds.run(splicer.said)
                if passed:
                    yield passed
                if splicer.failed_event:
                    self._failed = ReadReply(self.status, self.headers, splicer.failed_event)
                    return
                if splicer.is_over and splicer.is_continued:
                    return
        except UpstreamUnavailable as error:
            if not splicer.is_unanswered:
                raise
            self._failed = error_reply(self._rounds.endpoint, error)
            return
        if splicer.is_unanswered and not (splicer.is_over or splicer.is_continued):
            silent = UpstreamUnavailable("The upstream ended its reply before it said anything.")
            self._failed = error_reply(self._rounds.endpoint, silent)
        elif rest := splicer.rest():
            yield rest

    async def _next(self, failed: ReadReply | None) -> UpstreamReply:
        """The reply after a hidden round, or in place of one that has `failed`.

        Raises `UpstreamUnavailable` if that is an error, which ends the stream.
        """
        if failed is None:
            self._rounds.add_cost(self._splicer.said)
        reply = await self._following.reply(failed, text_sent=self._splicer.has_sent_text)
        if is_success(reply.status):
            return reply
        refused = await read_whole(reply)
        await refused.close()
        error = object_at(json_or_none(refused.data), "error")
        message = f"The upstream answered {reply.status} after a search: {error.get('message', 'no message')}"
        raise UpstreamUnavailable(message, code=word_at(error, "code") or None)

    async def close(self) -> None:
        await self._reply.close()


@dataclass(slots=True)
class Following:
    """Gets the replies that follow the hidden rounds of one request.

    `send` sends a body to the upstream. `aim` learns from a refusal for the length of a request of so many tokens, and
    gives the tokens that the next one may have, None if nobody knows.
    """

    rounds: HiddenRounds
    send: SendBody
    aim: Aim

    async def reply(self, failed: ReadReply | None = None, *, text_sent: bool) -> UpstreamReply:
        """The next reply, or the error that the client gets; raises `UpstreamUnavailable`.

        `failed` is a reply that failed before the client had anything of it: another reply takes its place, or the
        failed reply itself is returned if there is none. `text_sent` tells whether the client has text of the answer.
        """
        try:
            answer = self._opened(failed) if failed else await self._request()
            size = answer.refusal.size(Unit.PROMPT)
            if size is not None:
                most = self.aim(size, self.rounds.tokens)
                answer = await self._request() if await self.rounds.shorten(most) else answer
            reply = answer.reply
            if text_sent or answer.is_accepted:
                return reply
        except UpstreamUnavailable as error:
            if text_sent:
                raise
            reply = error_reply(self.rounds.endpoint, error)
        _log.warning("memory search abandoned: the upstream answered %d to the request with the results", reply.status)
        self.rounds.give_up()
        try:
            return await self.send(self.rounds.plain_body())
        except UpstreamUnavailable:
            return reply

    async def _request(self) -> OpenedReply:
        """The reply to the request with its hidden rounds; if it is no stream, it is read to its end.

        If it breaks off before its end, the client has nothing of it, and another reply can take its place.
        """
        reply = await self.send(self.rounds.body())
        is_stream = is_success(reply.status) and is_event_stream(reply.headers)
        return OpenedReply(reply) if is_stream else self._opened(await read_whole(reply))

    def _opened(self, reply: ReadReply) -> OpenedReply:
        """A reply that was read, with what it refuses."""
        answer = inspected(self.rounds.endpoint, reply, reply.data)
        return answer._replace(refusal=answer.refusal.without_quoted(self.rounds.body()))


def error_reply(endpoint: Endpoint, error: ProxyError) -> ReadReply:
    return ReadReply(error.status, [(b"content-type", b"application/json")], endpoint.error_body(error))
