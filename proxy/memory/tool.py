"""The tool `search_memory`: how it is offered to a model, and how the model's arguments are read. Pure.

It is added to the request's tools. A client's own tool of that name wins. Where a reply has several choices, or the
client says which tool is to be called, it is offered all the same, so that the beginning of the prompt stays as it is
for the upstream's cache; but a call is not run, since no answer could follow it, and is taken out of the reply.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum, auto
from functools import lru_cache
from typing import Any, NamedTuple

from proxy.reasons import Reason
from proxy.request.loose_json import json_or_none
from proxy.request.wire import Body
from proxy.tokens.counter import Counter
from strategies.core.transcript import dump

NAME = "search_memory"
MOST_PASSAGES = 20
_QUOTED = 200
DEFINITION = dump(
    {
        "type": "function",
        "function": {
            "name": NAME,
            "description": (
                "Search the earlier part of this conversation, which may no longer be shown to you. Returns passages"
                " word for word, each with its role and its place. Use it before saying that something is not known."
            ),
            "parameters": {
                "type": "object",
                "properties": {
                    "query": {"type": "string", "description": "What to look for: names, terms, a short question."},
                    "top_k": {"type": "integer", "description": "The most passages to return.", "minimum": 1},
                },
                "required": ["query"],
            },
        },
    }
)
"""The tool as JSON text. Always the same bytes: it stands at the beginning of every prompt."""

_HINT = f'Call {NAME} again with a JSON object such as {{"query": "the name of the deploy script"}}.'


class Offer(NamedTuple):
    """What becomes of the tool in one request: whether it `is_made`, whether calls of it are run, why not.

    `tokens` are what its definition adds to the prompt. Where the client has tools of `its_own`, they are left to the
    model when ours is taken away.
    """

    is_made: bool = False
    runs: bool = False
    reason: str = ""
    tokens: int = 0
    its_own: bool = False


NO_OFFER = Offer()


class Offering(Enum):
    """How the tool stands in one call of the upstream: offered, shown but not to be called any more, or absent."""

    MADE = auto()
    LAST = auto()
    NONE = auto()


def offer(values: Mapping[str, Any], counter: Counter, *, has_system: bool, refused: bool) -> Offer:
    """The offer for a request with these members besides its messages, of which one is a system message or not.

    `refused` says that the upstream takes no tools for this model.
    """
    tools = values.get("tools")
    if not (tools is None or isinstance(tools, list)):
        return NO_OFFER
    if NAME in _names(tools or ()):
        return Offer(reason=Reason.MEMORY_TOOL_TAKEN)
    if refused:
        return Offer(reason=Reason.MEMORY_TOOL_REFUSED)
    # No upstream takes tools beside the old form of them.
    if values.get("functions"):
        return Offer(reason=Reason.MEMORY_TOOL_NOT_RUN)
    runs = values.get("n") in (None, 1) and values.get("tool_choice") in (None, "auto")
    reason = "" if runs else Reason.MEMORY_TOOL_NOT_RUN
    return Offer(True, runs, reason, _tokens(counter, its_own=bool(tools), has_system=has_system), bool(tools))


def offered_in(body: Body, offer: Offer, offering: Offering = Offering.MADE) -> dict[str, str]:
    """The members that a body gets, with their text.

    The last time the tool stays, for the upstream's cache, with the choice of none; beside tools of the client's, which
    the model may still call, it is left out instead.
    """
    is_last = offering is Offering.LAST
    if not offer.is_made or offering is Offering.NONE or (is_last and offer.its_own):
        return {}
    choice = {"tool_choice": '"none"'} if is_last else {}
    return {"tools": body.tools_with(DEFINITION), **choice}


def _names(tools: Iterable[Any]) -> Iterator[str]:
    for tool in tools:
        kind = tool.get("type", "function") if isinstance(tool, Mapping) else None
        inner = tool.get(kind) if isinstance(kind, str) else None
        if isinstance(inner, Mapping):
            yield str(inner.get("name"))


@lru_cache(maxsize=64)
def _tokens(counter: Counter, *, its_own: bool, has_system: bool) -> int:
    """What the definition adds to a prompt: that never changes, and every request asks for it."""
    ours = json.loads(DEFINITION)
    before = [ours] if its_own else []
    messages = [{"role": "system"}] if has_system else []
    with_it, without = ({"messages": messages, "tools": tools} for tools in ([*before, ours], before))
    return counter.overhead(with_it) - counter.overhead(without)


def is_object(arguments: object) -> bool:
    """Whether a call's arguments are what they must be: the text of a JSON object."""
    return isinstance(arguments, str) and _members(arguments) is not None


def _members(arguments: object) -> dict[str, Any] | None:
    given = json_or_none(arguments) if isinstance(arguments, str) else arguments
    return given if isinstance(given, dict) else None


class Wanted(NamedTuple):
    """What a call asks for."""

    query: str
    top_k: int


class BadArguments(ValueError):
    """Arguments that nothing can be searched with; the text tells the model."""


def wanted(arguments: object, top_k: int) -> Wanted:
    """The search in a call's arguments, `top_k` passages where they do not say; raises `BadArguments`."""
    members = _members(arguments)
    if members is None:
        raise BadArguments(f"The arguments are no JSON object: {str(arguments)[:_QUOTED]!r}. {_HINT}")
    query, asked = members.get("query"), members.get("top_k")
    if not isinstance(query, str) or not query.strip():
        raise BadArguments(f"The arguments have no query. {_HINT}")
    if isinstance(asked, int) and not isinstance(asked, bool):
        top_k = min(max(asked, 1), MOST_PASSAGES)
    return Wanted(query, top_k)
