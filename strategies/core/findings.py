"""Findings: what rules read of one message. Found once, and kept with the message for later condensations.

Of a message at most `MOST_OF_ONE` characters are read, half at its beginning and half at its end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from strategies.core.actions import Subject, keys_of, subject
from strategies.core.client_context import clients_words
from strategies.core.failures import failures
from strategies.core.messages import Message, Role
from strategies.core.names import find_names, has_name
from strategies.core.rarity import Terms, terms_of
from strategies.core.rounds import answered_calls
from strategies.core.units import Unit, units

MOST_OF_ONE = 64_000
_HEAD = 4_000  # characters of a message, and of a call, in which its terms are looked for

_CALLED = 500  # characters of a call in which names are looked for that results have given


class Said(NamedTuple):
    unit: Unit
    terms: Terms[int]
    has_name: bool


def terms_in(message: Message) -> Terms[int]:
    """The terms by which a message counts in the rarity of others."""
    return message.once("terms", lambda: terms_of("\n".join((message.text[:_HEAD], *_arguments(message)))))


def said_in(message: Message) -> Sequence[Said]:
    """The units of what the user says in a message."""
    return message.once("said", lambda: _said(_ends(message.words)))


def closing_in(message: Message) -> Sequence[Said]:
    """The units of the last paragraph of what an assistant says."""
    return message.once("closing", lambda: _said(_ends(message.text).rstrip().rpartition("\n\n")[2]))


def users_names_in(message: Message) -> Sequence[str]:
    return message.once("own names", lambda: _names(_ends(message.words)))


def other_names_in(message: Message) -> Sequence[str]:
    """The names in a message that are not the user's: those of results, calls, and blocks of the client."""
    others: Callable[[Message], str] = _clients if message.role is Role.USER else _printed
    return message.once("names", lambda: _names("\n".join((others(message), *_arguments(message)))))


def sizes_in(message: Message) -> Sequence[int]:
    """The characters of each result that a message has."""
    return message.once("sizes", lambda: tuple(map(len, message.dialect.texts(message.body))))


def result_names_in(message: Message, place: int) -> Sequence[str]:
    """The names in one of the results that a message has."""
    return message.once(f"names of {place}", lambda: _names(message.dialect.texts(message.body)[place][:_HEAD]))


def used_names_in(message: Message) -> Sequence[str]:
    """The names that an assistant uses: in its calls, and in what it says."""
    if message.role is not Role.ASSISTANT:
        return ()
    called = (call.arguments[:_CALLED] for call in message.calls)
    return message.once("used", lambda: _names("\n".join((*called, message.text))))


def schema_words_in(message: Message) -> frozenset[str]:
    """The names of the tools that a message calls, and of their parameters: words of a schema, which name nothing."""
    return message.once("schema", lambda: keys_of(message.calls))


def subjects_in(message: Message) -> Sequence[Subject]:
    """What each call of a message is about."""
    return message.once("subjects", lambda: tuple(map(subject, message.calls)))


def newest_of_files(messages: Sequence[Message]) -> int:
    """The tokens of the newest result about each file that an agent has come back to.

    A file that was looked at once, and then left, is not worked on: an agent that reads through a tree would keep all.
    """
    on = {call: each.path for one in messages for call, each in zip(one.calls, subjects_in(one), strict=True)}
    paths = Counter(path for path in on.values() if path is not None)
    newest: dict[str, int] = {}
    for place, calls in enumerate(answered_calls(messages)):
        answered = [on[call] for call in calls if call is not None]
        newest.update((path, place) for path in answered if path is not None and paths[path] > 1)
    return sum(messages[place].tokens for place in set(newest.values()))


def failures_in(message: Message, *, is_file: bool) -> Sequence[str]:
    """The lines in which a result says that its call failed; `is_file` says whether that call named a file."""
    return message.once(f"failures {is_file}", lambda: tuple(failures(message, _printed(message), is_file=is_file)))


def _said(text: str) -> Sequence[Said]:
    return [Said(unit, terms_of(unit.text), has_name(unit.text)) for unit in units(text)]


def _names(text: str) -> Sequence[str]:
    return tuple(dict.fromkeys(find_names(text)))


def _arguments(message: Message) -> list[str]:
    return [call.arguments[:_HEAD] for call in message.calls]


def _printed(message: Message) -> str:
    return _ends(message.printed)


def _clients(message: Message) -> str:
    return clients_words(_ends(message.text))


def _ends(text: str) -> str:
    half = MOST_OF_ONE // 2
    return text if len(text) <= MOST_OF_ONE else f"{text[:half]}\n\n{text[-half:]}"
