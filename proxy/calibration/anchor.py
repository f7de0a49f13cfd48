"""Anchors: what the upstream has counted for the beginning of a view. Pure but for the memory that keeps them.

An anchor names a forwarded view by what made it: the condensation in it, and the chain digest of its last message. So
finding it again costs a look at the newest digests of a transcript, and what is new behind it is counted by itself.
What stands outside of the chain, tools and system messages, may change from turn to turn; then the anchor holds still,
and the difference is estimated like new messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from proxy.calibration.features import Features, of_messages
from proxy.runtime.lru import Lru
from strategies.core.transcript import Message, Transcript

MOST = 4_096
DEEPEST = 64  # chain messages behind an anchor; a turn adds fewer
CLOCK = 16  # tokens by which what tells the time may vary


class About(NamedTuple):
    """Whose request it is, and for which model; `by` is a digest of the conversation."""

    tenant: str
    model: str
    by: str = ""


NOBODY = About("", "")


@dataclass(frozen=True)
class CountedPrompt:
    """What is counted of one request. `counter` names what counts; `frame` and `offering` are digests of all that
    stands outside of the chain, and of the tools; `overhead` are tokens of our own; `offers` tells whether there are
    tools. `most` are the tokens that no tokenizer exceeds, where that is known; `hidden` are messages of hidden rounds,
    each with the chain messages before it. `summed` are the features of the chain, where they are at hand. `about` says
    whose it is."""

    transcript: Transcript
    overhead: int
    counter: str
    frame: str
    offering: str = ""
    offers: bool = False
    most: int | None = None
    hidden: tuple[tuple[int, Message], ...] = ()
    summed: Features | None = None
    about: About = NOBODY

    @property
    def chain(self) -> Features:
        """What the tokens of the chain are made of."""
        return of_messages(self.transcript.chain) if self.summed is None else self.summed

    @cached_property
    def fixed(self) -> Features:
        """What no condensation touches: tools, framing and system messages."""
        systems = of_messages([message for _, message in self.transcript.systems])
        made_of = systems.messages, systems.words, systems.code, systems.wide
        return Features(1.0, float(self.offers), *made_of, float(self.overhead))

    @cached_property
    def whole(self) -> Features:
        """What all of its tokens are made of."""
        return self.fixed.plus(self.chain)

    @property
    def own(self) -> int:
        """Tokens of the whole transcript by our own count."""
        return self.transcript.tokens + self.overhead

    def since(self, length: int) -> list[Message]:
        """What stands behind the first chain messages."""
        return [*(each for at, each in self.hidden if at >= length), *self.transcript.chain[length:]]


class Anchor(NamedTuple):
    """`counted` is the upstream's figure for the view that ended after `length` chain messages, with the chain digest
    `node`, and applied the condensation `applied`, "" for none. `own` and `fixed` are of that view, by `counter`."""

    node: str
    length: int
    applied: str
    counted: int
    own: int
    counter: str
    frame: str
    fixed: Features


NO_PROMPT = CountedPrompt(Transcript(()), 0, "", "")
"""Nothing of which anything was counted."""


class Growth(NamedTuple):
    """What a request has that its anchor had not; `own` are all tokens of the grown view by our own count.

    It `begins` with what the anchor counted where the same stands outside of the chain, or as much but for the time of
    day, by the same counter.
    """

    features: Features
    own: int
    begins: bool = False


def growth(anchor: Anchor, prompt: CountedPrompt) -> Growth | None:
    """What came since an anchor whose node stands in the transcript; None where the two cannot be compared.

    They cannot where another counter counted what has changed since, or what stands in the place of history.
    """
    new = prompt.since(anchor.length)
    features, tokens = of_messages(new), sum([message.tokens for message in new])
    if anchor.counter == prompt.counter:
        outside = prompt.fixed.minus(anchor.fixed)
        begins = anchor.frame == prompt.frame or abs(outside.own) <= CLOCK
        return Growth(features.plus(outside), anchor.own + tokens + round(outside.own), begins)
    if anchor.applied or anchor.frame != prompt.frame:
        return None
    return Growth(features, prompt.own)


def stands(anchor: Anchor, digests: Sequence[bytes]) -> bool:
    """Whether a transcript with these chain digests begins with what the anchor was made of."""
    return 0 < anchor.length <= len(digests) and digests[anchor.length - 1].hex() == anchor.node


def row(anchor: Anchor) -> list[Any]:
    """An anchor as JSON."""
    return [*anchor[:-1], list(anchor.fixed)]


def from_row(value: Sequence[Any]) -> Anchor:
    """The anchor in JSON; raises `ValueError`, `LookupError` or `TypeError`."""
    node, length, applied, counted, own, counter, frame, fixed = value
    return Anchor(node, length, applied, counted, own, counter, frame, Features(*map(float, fixed)))


class Anchors:
    """The anchors of late, of all conversations of a process; at most `most` of them."""

    def __init__(self, most: int = MOST) -> None:
        self._kept: Lru[tuple[str, str, bytes], Anchor] = Lru(most)

    def keep(self, tenant: str, model: str, anchor: Anchor) -> None:
        """Keeps an anchor; of one node, only the newest."""
        self._kept.put((tenant, model, bytes.fromhex(anchor.node)), anchor)

    def newest(self, tenant: str, model: str, digests: Sequence[bytes], least: int = 0) -> Anchor | None:
        """The anchor of the longest beginning of a transcript with these chain digests, one of more than `least`."""
        if not self._kept:
            return None
        newest = reversed(digests[max(len(digests) - DEEPEST, least) :])
        return self._kept.first((tenant, model, digest) for digest in newest)
