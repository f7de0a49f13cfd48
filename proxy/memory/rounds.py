"""The hidden rounds of one request: the model's searches and what they found, which its client never sees.

A round is the assistant's message with its calls, and a result for each. The rounds go behind the view when the model
is asked again, and are kept with the session as a patch: later views put them back at the same place, byte for byte.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from proxy.memory.heard import Heard, hidden_round
from proxy.memory.tool import BadArguments, Offering, is_object, wanted
from proxy.reply.usage import Usage, usage_in
from proxy.runtime.offload import loaded, offloaded
from strategies.core.budget import Budget
from strategies.core.condensation import Kind, Literal, Overlay
from strategies.core.form import fitting
from strategies.core.transcript import dump
from strategies.core.view import View
from strategies.memory.block import search_result, standing
from strategies.memory.ranking import Hit

MOST_TOKENS = 4_096
WINDOW_SHARE = 4
LEAST_TOKENS = 64
_log = logging.getLogger(__name__)

NO_ROOM = "The context has no room for what was found. Answer with what you have."
FAILED = "The search failed. Answer with what you have."
ALL_SHOWN = "All that matches the query stands in this conversation as you see it."

Search = Callable[[str], Awaitable[Sequence[Hit]]]
Body = Callable[[Sequence[str], Offering], bytes]


class _Hidden(NamedTuple):
    """A hidden message, its JSON text, and its tokens."""

    body: Mapping[str, Any]
    raw: str
    tokens: int


class _Result(NamedTuple):
    """The answer of the call `id`: its text, and the passages that it was written from, at most `top_k`."""

    id: str
    text: str
    hits: Sequence[Hit] = ()
    top_k: int = 0


class Rounds:
    """The rounds that follow one view. `search` finds what a query is about, best first.

    `body` makes the request with messages behind the view. `most` bounds the rounds, `top_k` the passages of a search
    that does not say. `runs` says whether calls are run at all.
    """

    def __init__(
        self, view: View, budget: Budget | None, search: Search, body: Body, *, most: int, top_k: int, runs: bool
    ) -> None:
        self._view = view
        self._budget = budget
        self._search = search
        self._body = body
        self._left = most if runs else 0
        self._top_k = top_k
        self._messages: list[_Hidden] = []
        self._last: list[_Result] = []
        self._asked = view.tokens
        self.spent = 0
        self.usages: list[Usage | None] = []
        self.is_given_up = False

    @property
    def runs(self) -> bool:
        """Whether the calls of the next reply are run."""
        return self._left > 0

    @property
    def tokens(self) -> int:
        """Tokens of the view and all that follows it."""
        return self._view.tokens + sum([each.tokens for each in self._messages])

    @property
    def patch(self) -> Overlay | None:
        """What later views put back; None for nothing."""
        digests = self._view.transcript.digests
        if not (self._messages and digests):
            return None
        return Overlay(digests[-1], len(digests), 0, tuple(Literal(each.raw, Kind.PATCH) for each in self._messages))

    def body(self) -> bytes:
        """The request that goes on after the rounds so far."""
        self._asked = self.tokens
        return self._body([each.raw for each in self._messages], Offering.MADE if self.runs else Offering.LAST)

    def plain_body(self) -> bytes:
        """The request without the tool, for an upstream that takes none."""
        return self._body((), Offering.NONE)

    async def run(self, heard: Heard) -> None:
        """Runs the hidden calls of a reply."""
        self._left -= 1
        message = hidden_round(heard)
        calls = [_sendable(call, f"memory_{len(self._messages)}_{place}") for place, call in enumerate(heard.hidden)]
        self._add({**message, "tool_calls": calls})
        self._last = []
        for call, sent in zip(heard.hidden, calls, strict=True):
            self._answer(await self._found(sent["id"], call["function"].get("arguments")))

    async def shorten(self, most: int | None) -> bool:
        """Cuts what the last searches have found, so that the request has at most `most` tokens, where that is known.

        What has no room is answered with a note that says so, and the model is not to search again. Whether anything
        was cut: False for what holds no passages any more.
        """
        results, found = self._last, sum(bool(each.hits) for each in self._last)
        if not found:
            return False
        self._left, self._last = 0, []
        del self._messages[-len(results) :]
        bare = sum(self._view.counter.message(_message(each.id, "" if each.hits else each.text)) for each in results)
        room = 0 if most is None else (most - self.tokens - bare) // found
        for each in results:
            self._answer(await _guarded(each.id, self._written(each, room)) if each.hits else each)
        self._last = [each._replace(hits=()) for each in self._last]
        return True

    def give_up(self) -> None:
        """Forgets the rounds: the request is sent without them, and nothing is searched any more."""
        self._messages, self._last, self._left, self.is_given_up = [], [], 0, True

    def count(self, heard: Heard) -> None:
        """Adds up what a reply has cost that only led to a search, as it says itself, else as we count it."""
        usage = heard.usage if isinstance(heard.usage, Mapping) else {}
        self.usages.append(usage_in(usage))
        said = [usage.get(key) for key in ("prompt_tokens", "completion_tokens")]
        known = [each for each in said if isinstance(each, int)]
        self.spent += sum(known) or self._asked

    def _add(self, message: Mapping[str, Any]) -> None:
        form = self._view.transcript.form
        message = message if form is None else fitting(message, form) or message
        self._messages.append(_Hidden(message, dump(message), self._view.counter.message(message)))

    def _answer(self, result: _Result) -> None:
        self._last.append(result)
        self._add(_message(result.id, result.text))

    async def _found(self, id: str, arguments: object) -> _Result:
        """The result of one call, for the model."""
        try:
            query, top_k = wanted(arguments, self._top_k)
        except BadArguments as error:
            return _Result(id, str(error))
        room = self._room()
        if room < LEAST_TOKENS:
            return _Result(id, NO_ROOM)
        return await _guarded(id, self._searched(id, query, top_k, room))

    async def _searched(self, id: str, query: str, top_k: int, room: int) -> _Result:
        return await self._written(_Result(id, "", await self._search(query), top_k), room)

    async def _written(self, result: _Result, room: int) -> _Result:
        """A result with the text of its passages, of at most `room` tokens."""
        if room < LEAST_TOKENS:
            return result._replace(text=NO_ROOM)
        load = loaded(self._view.size, self.tokens)
        text = await offloaded(load, self._text_of, result, room)
        return result._replace(text=text, hits=() if text == ALL_SHOWN else result.hits)

    def _text_of(self, result: _Result, room: int) -> str:
        """Passages that neither the view nor an earlier result shows. May run in a thread: it changes nothing."""
        before = (_text(each.body) for each in self._messages)
        shown = standing([*(message.text for message in self._view.shown), *before])
        if result.hits and all(shown(hit.entry) for hit in result.hits):
            return ALL_SHOWN
        return search_result(result.hits, self._view.counter, room, result.top_k, shown)

    def _room(self) -> int:
        """Tokens for one result: half of the headroom at most, so that another one and the reply find room."""
        if self._budget is None:
            return MOST_TOKENS
        free = self._budget.usable - self.tokens
        return min(MOST_TOKENS, self._budget.window // WINDOW_SHARE, free // 2)


async def _guarded(id: str, work: Awaitable[_Result]) -> _Result:
    try:
        return await work
    except Exception:  # noqa: BLE001
        # A defect of ours costs the model this search, not the client its reply.
        _log.exception("a search failed")
        return _Result(id, FAILED)


def _message(id: str, text: str) -> dict[str, str]:
    return {"role": "tool", "tool_call_id": id, "content": text}


def _sendable(call: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A call as an upstream takes it back: with an id, a type, and arguments that it can read."""
    function = call["function"]
    if not is_object(function.get("arguments")):
        function = {**function, "arguments": "{}"}
    return {**call, "id": call.get("id") or name, "type": "function", "function": function}


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else ""
