"""The tool `search_memory`: how it is offered to a model, and how the model's arguments are read. Pure.

It is added to the request's tools, unless the client has a tool of that name. Where no answer could follow a call of
it, it is offered all the same, so that the beginning of the prompt stays the same for the upstream's cache; but a call
of it is not run, and is taken out of the reply.
"""

from __future__ import annotations

import json
from enum import Enum, auto
from functools import lru_cache
from typing import NamedTuple

from proxy.endpoints.endpoint import Endpoint, Values
from proxy.endpoints.hidden_calls import NAME
from proxy.reasons import Reason
from proxy.request.wire import Body
from proxy.tokens.counter import Counter
from proxy.values import json_or_none

MAX_PASSAGES = 20
_QUOTED = 200

_HINT = f'Call {NAME} again with a JSON object such as {{"query": "the name of the deploy script"}}.'


class Offer(NamedTuple):
    """Whether one request offers the tool to its model."""

    is_made: bool = False
    """Whether the tool is offered."""
    runs_calls: bool = False
    """Whether calls of it are run."""
    reason: str = ""
    """Why it is not offered, or its calls are not run; "" otherwise."""
    tokens: int = 0
    """The tokens that its definition adds to the prompt."""
    has_client_tools: bool = False
    """Whether the client has tools of its own, which stay when ours is taken away."""
    definition: str = ""
    """The tool as JSON text."""


NO_OFFER = Offer()


class ToolState(Enum):
    """How the tool is sent in one request to the upstream: offered, shown but not to be called any more, or absent."""

    OFFERED = auto()
    NOT_CALLABLE = auto()
    ABSENT = auto()


@lru_cache(maxsize=64)
def definition(endpoint: Endpoint, top_k: int) -> str:
    """The tool as JSON text; `top_k` is the number of passages of a call that names none.

    It never changes while a server runs, since every prompt begins with it.
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
        " word for word, each with its role and its place. Use it before saying that something is not known."
    )
    return endpoint.tool(NAME, description, parameters)


def offer(
    endpoint: Endpoint, values: Values, counter: Counter, *, has_system: bool, refused: bool, top_k: int
) -> Offer:
    """The offer for a request; `values` are its members except the messages.

    `has_system` says whether one of the messages is a system message, `refused` that the upstream takes no tools for
    this model.
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
    """The members to set in a body, with their JSON text."""
    if not offer.is_made or tool_state is ToolState.ABSENT:
        return {}
    tools, is_last = body.tools_with(offer.definition), tool_state is ToolState.NOT_CALLABLE
    return body.endpoint.tool_members(tools, has_client_tools=offer.has_client_tools, is_last=is_last)


@lru_cache(maxsize=64)
def _tokens(counter: Counter, tool: str, *, has_client_tools: bool, has_system: bool) -> int:
    """The tokens that the definition adds to a prompt; cached, since every request asks for them."""
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
