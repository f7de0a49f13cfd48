"""Covered messages: what a replacement stands for, read once for all that rules make of it.

The ledger and the record by rules are functions of these messages alone, so each replica makes the same of them. They
are read from the transcript, which holds every message that the client has sent: what an earlier replacement stood for
is covered again, and competes again.

At most `MOST` bytes are read, of the newest messages and, for a tenth of it, of the oldest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, takewhile
from typing import NamedTuple

from strategies.core.actions import Action, Subject, action, changes
from strategies.core.findings import (
    MOST_OF_ONE,
    failures_in,
    other_names_in,
    result_names_in,
    said_in,
    schema_words_in,
    sizes_in,
    subjects_in,
    terms_in,
    used_names_in,
    users_names_in,
)
from strategies.core.ledger import Ledger, LedgerCaps, fitting_names, said_heading_tokens
from strategies.core.messages import Message, Role, TokenCounter, ToolCall
from strategies.core.names import ranked_names
from strategies.core.quotes import Quote, chosen, lines, quotes
from strategies.core.rarity import Rarity
from strategies.core.rounds import answered_calls
from strategies.core.transcript import is_chinese
from strategies.core.view import Item, View

MOST, OLDEST_SHARE = 2_000_000, 0.1
NAMES_READ = 120_000  # bytes of the newest messages in which names of others are looked for
LARGE = 4  # a unit above 1 / `LARGE` of the room is not quoted


class Result(NamedTuple):
    place: int  # the chain index of its message
    message: Message
    calls: Sequence[ToolCall | None]
    failures: Sequence[str]


@dataclass(frozen=True)
class Covered:
    """Messages that a replacement stands for, with their chain indices, and the rarity of terms among all before.

    What the user said has a rarity of its own, among the user's messages: that assistants and tools repeat it does not
    make it less worth.
    """

    view: View
    messages: Sequence[tuple[int, Message]]
    rarity: Rarity
    users_rarity: Rarity

    @cached_property
    def said(self) -> list[Quote]:
        """What the user said, best first."""
        return quotes(((index, said_in(message)) for index, message in self.messages), self.users_rarity)

    @cached_property
    def _subjects(self) -> dict[ToolCall, Subject]:
        pairs = (zip(message.calls, subjects_in(message), strict=True) for _, message in self.messages)
        return dict(chain.from_iterable(pairs))

    @cached_property
    def results(self) -> list[Result]:
        messages = [message for _, message in self.messages]
        files = {call for call, on in self._subjects.items() if on.path is not None}
        return [
            Result(index, message, calls, failures_in(message, is_file=not files.isdisjoint(calls)))
            for (index, message), calls in zip(self.messages, answered_calls(messages), strict=True)
            if message.role is Role.TOOL
        ]

    @cached_property
    def actions(self) -> list[tuple[int, Action]]:
        """What each answered call did, at the chain index of its result."""
        if not self.results:
            return []
        later = frozenset(name for _, message in self.messages for name in used_names_in(message))
        found = []
        for index, message, calls, failed in self.results:
            for place, (call, size) in enumerate(zip(calls, sizes_in(message), strict=False)):
                if call is not None:
                    on, is_change = self._subjects[call], changes(call, size)
                    names = result_names_in(message, place) if is_change else ()
                    found.append((index, action(call, on, names, later, changes=is_change, has_failed=bool(failed))))
        return found

    @property
    def names(self) -> list[str]:
        """The user's names, then all others, each in the order in which they should be listed."""
        messages = [message for _, message in self.messages]
        schema = frozenset[str]().union(*map(schema_words_in, messages))
        by_user = ranked_names(map(users_names_in, messages), schema)
        sizes = [min(len(message.data), MOST_OF_ONE) for message in messages]
        recent = messages[len(sizes) - _within(reversed(sizes), NAMES_READ) :]
        return [*by_user, *ranked_names(map(other_names_in, recent), schema | set(by_user))]


def covered(view: View, gone: Sequence[Item], end: int, task_cap: int) -> Covered:
    """The messages that a replacement stands for which takes the place of the items in `gone`, all before item `end`.

    What an earlier replacement stood for is among them, and a first user message that will be cut. What stays in the
    view as it is, such as a pinned message, is not.
    """
    transcript, messages = view.transcript, view.transcript.chain
    before, task = view.messages_before(end), transcript.task
    leaving = {item.source for item in gone}
    stays = {item.source for item in view.items[:end]} - leaving | set(transcript.stays)
    if task is not None:
        is_whole = transcript.keeps_task_whole or messages[task].tokens <= task_cap
        stays = stays | {task} if is_whole else stays - {task}
    sizes = [min(len(message.data), MOST_OF_ONE) for message in messages[:before]]
    newest = _within(reversed(sizes), int(MOST * (1 - OLDEST_SHARE)))
    oldest = min(_within(sizes, int(MOST * OLDEST_SHARE)), before - newest)
    read = [*range(oldest), *range(before - newest, before)]
    rarity = Rarity(terms_in(messages[index]) for index in read)
    users_rarity = Rarity(terms_in(messages[index]) for index in read if messages[index].role is Role.USER)
    return Covered(view, [(index, messages[index]) for index in read if index not in stays], rarity, users_rarity)


def _within(sizes: Iterable[int], room: int) -> int:
    """How many of the first sizes fit into `room`."""
    return sum(1 for _ in takewhile(room.__ge__, accumulate(sizes)))


def ledger_of(source: Covered, caps: LedgerCaps, counter: TokenCounter) -> Ledger:
    """The ledger of covered messages. What names leave of the room is for the user's words."""
    names = tuple(fitting_names(source.names, min(caps.names, caps.together), counter))
    left = caps.together - (counter.text(f"{Ledger(names=names)}\n\n") if names else 0)
    room = min(caps.said, left) - said_heading_tokens(counter)
    said = tuple(lines(chosen(source.said, room, room // LARGE, counter)[0])) if room > 0 else ()
    told = "\n".join(said)
    return Ledger(said, tuple(name for name in names if name not in told), is_chinese(source.view.transcript))
