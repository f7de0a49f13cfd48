"""History as text: what a summarizer is shown.

The text is data for a model that must not obey it, so each message stands in a fence of its own with its place
and role, and fences inside of it are broken. It is made to fit a number of tokens: tool output gives way
first, then every message, and what still does not fit is left out in the middle, with a note.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from strategies.core.excerpt import cut_text
from strategies.core.transcript import Counter, Message, Role
from strategies.core.view import Item, View

_CAPS = ((4_000, 1_000), (1_500, 400), (600, 150), (250, 60))


def originals(view: View, items: Sequence[Item]) -> list[tuple[int, Message]]:
    """(chain index, message) behind items: for what was masked or cut, the message as the client sent it."""
    chain = view.transcript.chain
    return [(item.source, chain[item.source]) for item in items if item.source is not None]


def as_text(messages: Sequence[tuple[int, Message]], cap: int, counter: Counter) -> str:
    """Fenced text of messages in at most `cap` tokens."""
    text = ""
    for for_words, for_results in _CAPS:
        text = "\n".join(_entries(messages, for_words * 4, for_results * 4))
        if counter.text(text) <= cap:
            return text
    return cut_text(text, cap, counter)


def _entries(messages: Iterable[tuple[int, Message]], for_words: int, for_results: int) -> Iterable[str]:
    for index, message in messages:
        yield f'<message index="{index}" role="{_label(message)}">'
        yield unfenced(_abridged(message.text, for_results if message.role is Role.TOOL else for_words))
        for call in message.calls:
            yield unfenced(f"calls {call.name}({_abridged(call.arguments, for_results)})")
        yield "</message>"


def _label(message: Message) -> str:
    return message.role.value


def _abridged(text: str, characters: int) -> str:
    if len(text) <= characters:
        return text
    half = characters // 2
    return f"{text[:half]} […] {text[-half:]}"


def unfenced(text: str) -> str:
    """Text that cannot close the fence it stands in."""
    return text.replace("</message", "<\\/message").replace("<message ", "<\\message ")
