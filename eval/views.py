"""Recorded and written conversations, sent turn by turn in a small window, and what is forwarded of them.

The measures on people (`needs`, `quoted`, `languages`, `rules`, `created`, `hermes`) read only this: the messages that
the client has sent, and the messages that went on in their place. So they hold for any record, however it is made.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from multiprocessing import get_context
from typing import Any, TypeVar

from proxy.commands.replaying.measures import ForwardedMessage
from proxy.commands.replaying.models import ScriptedSummarizer
from proxy.commands.replaying.play import Player, Playing, open_replay_proxy, request_ends
from proxy.commands.replaying.recorded import Conversation, Message
from proxy.settings import Settings
from proxy.values import json_or_none
from strategies import DEFAULT
from strategies.dialects.chat import call_fields, content_text

MODEL = "gpt-4o"
SHARE = 4
"""The window has one part in so many of the session's tokens."""
APART = 400
"""Where turns are short, requests come at least so many characters apart."""
_OURS = "[Condensed history]"
_UNKNOWN = 1_000_000
T = TypeVar("T")
R = TypeVar("R")


@asynccontextmanager
async def proxy_for(memory: str = "off", **more: object) -> AsyncIterator[ScriptedSummarizer]:
    """The proxy with its defaults, except for memory: what the record keeps is measured without it."""
    own = {"economy": "off", "store": {"url": "memory://"}, "memory": {"default": memory}, **more}
    async with open_replay_proxy(Settings.model_validate(own)) as proxy:
        yield proxy


def in_processes(measure: Callable[[T], Awaitable[R]], each: Iterable[T]) -> list[R]:
    """What an asynchronous function at the top of a module finds, in two processes."""
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        return list(pool.map(_run, [(measure, one) for one in each]))


def _run(task: tuple[Callable[[T], Awaitable[R]], T]) -> R:
    async def found() -> R:
        return await task[0](task[1])

    return asyncio.run(found())


def window_of(proxy: ScriptedSummarizer, conversation: Conversation, share: float = SHARE) -> int:
    """One part in `share` of the tokens of all messages, and those of tools and framing, which nothing can condense."""
    player = Player(proxy, MODEL, _UNKNOWN)
    overhead = player.overhead(conversation)
    return overhead + int((player.size(conversation) - overhead) / share)


async def grown(
    proxy: ScriptedSummarizer,
    conversation: Conversation,
    window: int,
    strategy: str = DEFAULT,
    ends: Iterable[int] | None = None,
) -> AsyncIterator[Playing]:
    """Yields the play after each request, by default one for each reply, in a session of its own."""
    name = f"{conversation.id}/{strategy}/{window}"
    playing = Playing(Player(proxy, MODEL, window), conversation, strategy, name)
    for end in request_ends(conversation) if ends is None else ends:
        await playing.send(end)
        yield playing


async def last_view(
    proxy: ScriptedSummarizer, conversation: Conversation, window: int, ends: Iterable[int]
) -> Sequence[Message]:
    """The messages that are forwarded with the last request."""
    view: Sequence[ForwardedMessage] = []
    async for playing in grown(proxy, conversation, window, ends=ends):
        view = playing.view
    return values_of(view)


def sparse_ends(messages: Sequence[Message], apart: int = APART) -> Iterator[int]:
    """Where requests end so that at least `apart` characters come with each, and after the last message."""
    since = 0
    for at, message in enumerate(messages):
        if message["role"] == "assistant" and at and since >= apart:
            yield at
            since = 0
        since += len(said(message))
    yield len(messages)


# -- what messages say -------------------------------------------------------------------------------------


def values_of(view: Sequence[ForwardedMessage]) -> list[Message]:
    return [json.loads(message.raw) for message in view]


def said(message: Message) -> str:
    """The text of a message, and what its calls give, without the names of arguments."""
    calls = [line for _, _, arguments in call_fields(message) for line in strings(json_or_none(arguments) or arguments)]
    return "\n".join([content_text(message.get("content")), *calls])


def strings(value: Any) -> Iterator[str]:
    """Every text and number in a JSON value, without keys."""
    if isinstance(value, Mapping):
        for member in value.values():
            yield from strings(member)
    elif isinstance(value, list):
        for member in value:
            yield from strings(member)
    elif value is not None and not isinstance(value, bool):
        yield str(value)


def record_in(view: Iterable[Message]) -> str:
    """The text of the message that stands for the condensed history; "" where nothing is condensed."""
    texts = (content_text(message.get("content")) for message in view if message["role"] == "user")
    return next((text for text in texts if text.startswith(_OURS)), "")


def stands(name: str, text: str) -> bool:
    """Whether a name stands in a text, not as a part of a longer word."""
    at = text.find(name)
    while at >= 0:
        end = at + len(name)
        inside = (at and name[0].isalnum() and _is_word(text[at - 1])) or (
            end < len(text) and name[-1].isalnum() and _is_word(text[end])
        )
        if not inside:
            return True
        at = text.find(name, at + 1)
    return False


def _is_word(character: str) -> bool:
    return character == "_" or (character.isascii() and character.isalnum())


def flat(text: str) -> str:
    """The text with each run of white space as one space."""
    return re.sub(r"\s+", " ", text).strip()
