"""The transcript: the message list that a client sent, as the strategies see it.

A message keeps the exact bytes that it came in, so that an unchanged message is never serialized again. System and
developer messages stand outside the chain: agents put the time of day into them, so no digest may depend on them and
no strategy may touch them. A transcript is therefore two sequences: the *chain* of all other messages, and the
*systems*, each with the number of chain messages before it.

Some agents send the output of their tools as user messages. `Reader` recognises these by patterns and gives them the
role `TOOL`, because they answer the assistant and open no turn.

A *pin* marks a message that a person wants to see word for word in every later view. It names the message by the chain
digest after it. All messages that cannot be separated from it stay too: the results of its calls, the call that it
answers, and the rest of a reply that it is part of. Together, pinned messages may take an eighth of the window; earlier
pins come first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, TypedDict, Unpack

from strategies.core.messages import ROOT, Message, Role, chain
from strategies.core.rounds import structure

if TYPE_CHECKING:
    from strategies.core.messages import Form
    from strategies.core.pieces import Overlay


class TranscriptFields(TypedDict, total=False):
    """The fields that change nothing about the messages themselves."""

    patches: tuple[Overlay, ...]
    form: Form | None
    bound_until: int | None
    newest_turn: int
    leading: int
    pinned: frozenset[int]


_UNPRICED, _IS_SIGNED = attrgetter("unpriced"), attrgetter("is_signed")
Systems = tuple[tuple[int, Message], ...]


class Sums(NamedTuple):
    """What follows from the messages of a transcript alone, so that all transcripts of the same messages share it."""

    digests: list[bytes]  # the chain digest after each message of the chain
    chain_tokens: int
    system_tokens: int
    unpriced: bool
    is_signed: bool
    staying: list[int]

    @classmethod
    def of(cls, messages: Sequence[Message], systems: Systems, root: bytes = ROOT) -> Sums:
        """Of a chain, or of the part of one that follows `root`."""
        return cls(
            chain([message.digest for message in messages], root),
            sum([message.tokens for message in messages]),
            sum([message.tokens for _, message in systems]),
            any(map(_UNPRICED, messages)) or any(message.unpriced for _, message in systems),
            any(map(_IS_SIGNED, messages)),
            [i for i, message in enumerate(messages) if message.stays],
        )

    def and_after(self, rest: Sums) -> Sums:
        """Of a chain followed by another one."""
        return Sums(
            [*self.digests, *rest.digests],
            self.chain_tokens + rest.chain_tokens,
            self.system_tokens + rest.system_tokens,
            self.unpriced or rest.unpriced,
            self.is_signed or rest.is_signed,
            [*self.staying, *(len(self.digests) + i for i in rest.staying)],
        )


@dataclass(frozen=True)
class Transcript:
    chain: tuple[Message, ...]
    systems: Systems = ()
    """The system and developer messages in order, each with the number of chain messages before it."""
    patches: tuple[Overlay, ...] = ()  # hidden memory rounds, in order. A view shows those that no head covers.
    form: Form | None = None  # the form in which the upstream accepts views; None if it accepts any
    bound_until: int | None = 0
    """A view has no signed reasoning in messages before this chain index, nor in rewritten ones (`core.reasoning`).

    None if the server wants all reasoning back.
    """
    newest_turn: int = 0
    """How many of the last chain messages are the newest turn; 0 if the messages of the last request are unknown."""
    leading: int = 0
    """How many first messages end with a vendor's compaction, which must stay where it is; they are pinned, too."""
    pinned: frozenset[int] = frozenset()
    """The chain indices of messages that every view shows unchanged, because a person pinned them."""
    known_sums: Sums | None = field(default=None, compare=False, repr=False)
    """`sums`, if the transcript was made from one that has them."""

    @classmethod
    def of(cls, messages: Iterable[Message]) -> Transcript:
        """Divides messages into chain and systems. Text like a tool's output that answers no call is the user's."""
        chained: list[Message] = []
        systems: list[tuple[int, Message]] = []
        _sort(messages, chained, systems)
        return cls(tuple(chained), tuple(systems))

    def extended_by(self, messages: Iterable[Message]) -> Transcript:
        """This transcript with more messages at its end, for which alone the sums are made."""
        chained, systems = list(self.chain), list(self.systems)
        _sort(messages, chained, systems)
        root = self.digests[-1] if self.chain else ROOT
        rest = Sums.of(chained[len(self.chain) :], tuple(systems[len(self.systems) :]), root)
        return replace(self, chain=tuple(chained), systems=tuple(systems), known_sums=self.sums.and_after(rest))

    def without_last(self) -> Transcript:
        """This transcript without the last message of its chain, and what the client has put behind that."""
        chained = self.chain[:-1]
        systems = tuple([each for each in self.systems if each[0] <= len(chained)])
        sums = Sums.of(chained, systems)._replace(digests=self.digests[:-1])
        return replace(self, chain=chained, systems=systems, known_sums=sums)

    def with_leading_systems(self, systems: Sequence[Message]) -> Transcript:
        """This transcript with system messages before all others."""
        if not systems:
            return self
        leading = tuple([(0, system) for system in systems])
        sums = Sums.of((), leading).and_after(self.sums)
        return replace(self, systems=(*leading, *self.systems), known_sums=sums)

    def with_bodies(self, messages: Iterable[Message]) -> Transcript:
        """The chain in other bodies. The digests stay, because they name what the client has sent."""
        chained = tuple(messages)
        sums = Sums.of(chained, self.systems)._replace(digests=self.digests)
        return replace(self, chain=chained, known_sums=sums)

    def having(self, **fields: Unpack[TranscriptFields]) -> Transcript:
        """The same messages with other fields."""
        return replace(self, **fields, known_sums=self.sums)

    @cached_property
    def sums(self) -> Sums:
        return Sums.of(self.chain, self.systems) if self.known_sums is None else self.known_sums

    @cached_property
    def digests(self) -> list[bytes]:
        return self.sums.digests

    @property
    def staying(self) -> list[int]:
        """The chain indices of messages that loaded tools or were put in by the client."""
        return self.sums.staying

    @cached_property
    def is_signed(self) -> bool:
        """Whether any message has signed reasoning."""
        return self.sums.is_signed

    @cached_property
    def system_tokens(self) -> int:
        return self.sums.system_tokens

    @cached_property
    def tokens(self) -> int:
        """Tokens of all messages, without the tools and framing of the request."""
        return self.sums.chain_tokens + self.sums.system_tokens

    @property
    def unpriced(self) -> bool:
        """Whether a message has a part whose tokens nobody can know, so that `tokens` leaves something out."""
        return self.sums.unpriced

    @cached_property
    def task(self) -> int | None:
        """The chain index of the first user message that the user wrote: it states what the conversation is about."""
        # One at a time: nearly always the first message is the one.
        users = (i for i, message in enumerate(self.chain) if message.role is Role.USER)
        first = next(users, None)
        if first is None or not self.chain[first].stays:
            return first
        return next((i for i in users if not self.chain[i].stays), first)

    @cached_property
    def lasting(self) -> list[int]:
        """The chain indices of messages that stay while there is room: with loaded tools, or before the task."""
        return [i for i in self.staying if self.chain[i].role is not Role.USER or i < (self.task or 0)]

    @property
    def keeps_task_whole(self) -> bool:
        """Whether the first user message must not be cut, because it is also the last one or is pinned."""
        return self.task == self.last_user or self.task in self.pinned

    @cached_property
    def last_user(self) -> int | None:
        return next(iter(self.last_users(1)), None)

    def last_users(self, most: int) -> list[int]:
        """The chain indices of the last user messages, at most `most`, in order."""
        places = (i for i in range(len(self.chain) - 1, -1, -1) if self.chain[i].role is Role.USER)
        return list(islice(places, most))[::-1]

    @property
    def opening(self) -> int | None:
        """The chain index where the newest turn begins: at its question, or at what the client put before that."""
        return len(self.chain) - self.newest_turn if self.newest_turn else None

    @cached_property
    def question(self) -> range:
        """The chain indices of the last user message and of what the client has put before it."""
        last, opening = self.last_user, self.opening
        return range(0) if last is None else range(last if opening is None else min(opening, last), last + 1)

    @cached_property
    def stays(self) -> tuple[int, ...]:
        """The chain indices of the messages that every condensation keeps whole: the question and all pinned ones."""
        return tuple(sorted({*self.question, *self.pinned}))


def _sort(messages: Iterable[Message], chained: list[Message], systems: list[tuple[int, Message]]) -> None:
    system, tool = Role.SYSTEM, Role.TOOL
    for message in messages:
        role = message.role
        if role is system:
            systems.append((len(chained), message))
        elif role is tool and not message.is_result and (not chained or chained[-1].role is Role.USER):
            # It looks like tool output, but follows no assistant message or other output.
            chained.append(replace(message, role=Role.USER))
        else:
            chained.append(message)


# -- the language ------------------------------------------------------------------------------------------------

_MESSAGES = 60
_LOOKED_AT = 400
_MIN_LETTERS = 2
_MIN_SHARE = 0.1
_CODE = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
_CHINESE = re.compile(r"[\u4e00-\u9fff\u3400-\u4dbf]")
_KANA = re.compile(r"[\u3040-\u30ff]")
_LETTER = re.compile(r"[^\W\d_]")


def is_chinese(transcript: Transcript) -> bool:
    """Whether at least half of the user's first messages are Chinese; if the user says nothing, of the assistant's."""
    for role in (Role.USER, Role.ASSISTANT):
        said = (message.text[: 4 * _LOOKED_AT] for message in transcript.chain if message.role is role)
        prose = (_CODE.sub("", text)[:_LOOKED_AT] for text in said)
        texts = list(islice(filter(_LETTER.search, prose), _MESSAGES))
        if texts:
            return 2 * sum(map(reads_chinese, texts)) >= len(texts)
    return False


def reads_chinese(text: str) -> bool:
    """Whether at least a tenth of the letters are Chinese: Chinese writers also quote English names and errors."""
    chinese, letters = len(_CHINESE.findall(text)), len(_LETTER.findall(text))
    return chinese >= max(_MIN_LETTERS, _MIN_SHARE * letters) and len(_KANA.findall(text)) * 4 < chinese


# -- pins ------------------------------------------------------------------------------------------------------

PIN_SHARE = 8  # pinned messages together may take 1 / `PIN_SHARE` of the window


def pinned_in(
    nodes: Iterable[bytes],
    transcript: Transcript,
    window: int | None,
    tokens: Callable[[Message], int] = attrgetter("tokens"),
) -> frozenset[int]:
    """The chain indices of the messages that stay because of these pins, given as digests in the order they were made.

    A pin has no effect if its messages do not fit beside those of earlier pins into the share of the `window`, which is
    in tokens.
    """
    chain, digests = transcript.chain, transcript.digests
    places = [digests.index(node) for node in nodes if node in digests]
    cuts = structure(chain).cuts if places else []
    pinned: set[int] = set()
    spent = 0
    for place in places:
        more = set(between_cuts(place, cuts)) - pinned
        size = sum(tokens(chain[i]) for i in more)
        if window is None or spent + size <= window // PIN_SHARE:
            pinned |= more
            spent += size
    return frozenset(pinned)


def together(places: Iterable[int | None], chain: Sequence[Message]) -> frozenset[int]:
    """These chain indices, and those of all messages that cannot be separated from them."""
    cuts = structure(chain).cuts
    return frozenset(i for place in places if place is not None for i in between_cuts(place, cuts))


def between_cuts(place: int, cuts: Sequence[bool]) -> range:
    """The chain indices of the messages that cannot be separated from the one at a place, with its own."""
    start = next(i for i in range(place, -1, -1) if cuts[i])
    return range(start, next(i for i in range(place + 1, len(cuts)) if cuts[i]))


# -- patches ---------------------------------------------------------------------------------------------------


def standing_patches(patches: tuple[Overlay, ...], transcript: Transcript) -> tuple[Overlay, ...]:
    """The patches whose anchor is in the transcript with a message after it, in order, one of each `order`.

    The message after the anchor must not be the result of a call, because a round is never split. If no message
    follows, the client asks for another reply in place of the one that the patch led to, and the model searches again.
    A memory block stands only before the message that it is about. What is carried may also follow the last message.
    """
    digests = transcript.digests
    standing = {
        patch.order: patch
        for patch in patches
        if 0 < patch.at <= len(digests) and digests[patch.at - 1] == patch.anchor
        if _may_precede_next(patch, transcript)
    }
    return tuple(standing[order] for order in sorted(standing))


def _may_precede_next(patch: Overlay, transcript: Transcript) -> bool:
    """Whether a patch may stand before the message at its place."""
    if patch.at == len(transcript.chain):
        return patch.is_carried
    message = transcript.chain[patch.at]
    return not message.is_result and patch.asked in (b"", message.digest)
