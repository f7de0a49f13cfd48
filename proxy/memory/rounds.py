"""The hidden rounds of one request: the model's searches and what they found, which its client never sees.

A round is the assistant's message with its calls, and a result for each. The rounds go behind the view when the model
is asked again, and are kept with the session as a patch: later views put them back at the same place, byte for byte.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from proxy.memory.heard import Heard, hidden_round
from proxy.memory.tool import BadArguments, Offering, is_object, wanted
from proxy.usage import Usage, usage_in
from strategies.core.budget import Budget
from strategies.core.condensation import Kind, Literal, Overlay
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
        self._messages: list[Mapping[str, Any]] = []
        self._raws: list[str] = []
        self.tokens = self._asked = view.tokens
        self.spent = 0
        self.usages: list[Usage | None] = []

    @property
    def runs(self) -> bool:
        """Whether the calls of the next reply are run."""
        return self._left > 0

    @property
    def patch(self) -> Overlay | None:
        """What later views put back; None for nothing."""
        digests = self._view.transcript.digests
        if not (self._raws and digests):
            return None
        return Overlay(digests[-1], len(digests), 0, tuple(Literal(raw, Kind.PATCH) for raw in self._raws))

    def body(self) -> bytes:
        """The request that goes on after the rounds so far."""
        self._asked = self.tokens
        return self._body(self._raws, Offering.MADE if self.runs else Offering.LAST)

    def plain_body(self) -> bytes:
        """The request without the tool, for an upstream that takes none."""
        return self._body((), Offering.NONE)

    async def run(self, heard: Heard) -> None:
        """Runs the hidden calls of a reply."""
        self._left -= 1
        message = hidden_round(heard)
        calls = [_sendable(call, f"memory_{len(self._raws)}_{place}") for place, call in enumerate(heard.hidden)]
        self._add({**message, "tool_calls": calls})
        for call, sent in zip(heard.hidden, calls, strict=True):
            found = await self._found(call["function"].get("arguments"))
            self._add({"role": "tool", "tool_call_id": sent["id"], "content": found})

    def count(self, heard: Heard) -> None:
        """Adds up what a reply has cost that only led to a search, as it says itself, else as we count it."""
        usage = heard.usage if isinstance(heard.usage, Mapping) else {}
        self.usages.append(usage_in(usage))
        said = [usage.get(key) for key in ("prompt_tokens", "completion_tokens")]
        known = [each for each in said if isinstance(each, int)]
        self.spent += sum(known) or self._asked

    def _add(self, message: Mapping[str, Any]) -> None:
        self._messages.append(message)
        self._raws.append(dump(message))
        self.tokens += self._view.counter.message(message)

    async def _found(self, arguments: object) -> str:
        """The result of one call, for the model."""
        try:
            query, top_k = wanted(arguments, self._top_k)
        except BadArguments as error:
            return str(error)
        room = self._room()
        if room < LEAST_TOKENS:
            return NO_ROOM
        try:
            hits = await self._search(query)
        except Exception:  # noqa: BLE001
            # A defect of ours costs the model this search, not the client its reply.
            _log.exception("a search failed")
            return FAILED
        shown = standing([*(message.text for message in self._view.shown), *map(_text, self._messages)])
        if hits and all(shown(hit.entry) for hit in hits):
            return ALL_SHOWN
        return search_result(hits, self._view.counter, room, top_k, shown)

    def _room(self) -> int:
        """Tokens for one result: half of the headroom at most, so that another one and the reply find room."""
        if self._budget is None:
            return MOST_TOKENS
        free = self._budget.usable - self.tokens
        return min(MOST_TOKENS, self._budget.window // WINDOW_SHARE, free // 2)


def _sendable(call: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A call as an upstream takes it back: with an id, a type, and arguments that it can read."""
    function = call["function"]
    if not is_object(function.get("arguments")):
        function = {**function, "arguments": "{}"}
    return {**call, "id": call.get("id") or name, "type": "function", "function": function}


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else ""
