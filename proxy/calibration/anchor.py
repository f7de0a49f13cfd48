"""Anchors: the upstream's own counts for the beginnings of views. No I/O; `Anchors` keeps them in memory.

An anchor names a forwarded view by what made it: the condensation in it, and the chain digest of its last message. So
an anchor is found by a look at the newest digests of a transcript, and only what is new after it is counted. Tools and
system messages stand outside the chain and may change from turn to turn; the anchor stays valid then, and the
difference is estimated like new messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from proxy.calibration.features import Features, of_messages
from proxy.runtime.lru import Lru
from strategies.core.messages import Message
from strategies.core.transcript import Transcript

MOST = 4_096  # anchors in memory
DEEPEST = 64  # chain messages after an anchor; a turn adds fewer


class About(NamedTuple):
    """Whose request it is, and for which model."""

    tenant: str
    model: str
    by: str = ""
    """A digest of the conversation."""


NOBODY = About("", "")


@dataclass(frozen=True)
class CountedPrompt:
    """One request as we counted it."""

    transcript: Transcript
    overhead: int
    """Tokens of tools and framing, by our own count."""
    counter: str
    """The name of the tokenizer that counted."""
    frame: str
    """A digest of all that stands outside the chain."""
    offering: str = ""
    """A digest of the tools."""
    has_tools: bool = False
    """Whether there are tools."""
    upper_bound: int | None = None
    """Tokens that no tokenizer exceeds for this request, if that is known."""
    hidden: tuple[tuple[int, Message], ...] = ()
    """Messages of hidden rounds, each with the number of chain messages before it."""
    chain_features: Features | None = None
    """The features of the chain, if they have been computed already."""
    about: About = NOBODY
    """Whose request it is."""

    @property
    def chain(self) -> Features:
        """The features of the chain."""
        return of_messages(self.transcript.chain) if self.chain_features is None else self.chain_features

    @cached_property
    def fixed(self) -> Features:
        """The features of what no condensation touches: tools, framing and system messages."""
        systems = of_messages([message for _, message in self.transcript.systems])
        made_of = systems.messages, systems.words, systems.code, systems.non_latin
        return Features(1.0, float(self.has_tools), *made_of, float(self.overhead))

    @cached_property
    def whole(self) -> Features:
        """The features of the whole request."""
        return self.fixed.plus(self.chain)

    @property
    def own(self) -> int:
        """Tokens of the whole transcript by our own count."""
        return self.transcript.tokens + self.overhead

    def since(self, length: int) -> list[Message]:
        """The messages after the first `length` chain messages."""
        return [*(each for at, each in self.hidden if at >= length), *self.transcript.chain[length:]]


class Anchor(NamedTuple):
    """The upstream's count for one forwarded view."""

    node: str
    """The chain digest of the view's last message, in hex."""
    length: int
    """Chain messages that the view ended after."""
    applied: str
    """The id of the condensation in the view; "" for none."""
    counted: int
    """The upstream's count of the view, in tokens."""
    own: int
    """Our count of the view, by `counter`, in tokens."""
    counter: str
    """The name of the tokenizer that counted for us."""
    frame: str
    """A digest of all that stood outside the chain."""
    fixed: Features
    """The features of what stood outside the chain."""


NO_PROMPT = CountedPrompt(Transcript(()), 0, "", "")
"""A prompt of which nothing was counted."""


class Growth(NamedTuple):
    """The part of a request that came after its anchor."""

    features: Features
    """The features of what is new."""
    own: int
    """Our count of the whole grown view, in tokens."""


def growth(anchor: Anchor, prompt: CountedPrompt) -> Growth | None:
    """The part of a request that came after an anchor whose node stands in its transcript; None if they cannot be
    compared.

    They cannot if another counter has counted, and something outside the chain has changed or a condensation stands for
    history.
    """
    new = prompt.since(anchor.length)
    features, tokens = of_messages(new), sum([message.tokens for message in new])
    if anchor.counter == prompt.counter:
        outside = prompt.fixed.minus(anchor.fixed)
        return Growth(features.plus(outside), anchor.own + tokens + round(outside.own))
    if anchor.applied or anchor.frame != prompt.frame:
        return None
    return Growth(features, prompt.own)


def stands_in(anchor: Anchor, digests: Sequence[bytes]) -> bool:
    """Whether a transcript with these chain digests begins with the messages that the anchor was made of."""
    return 0 < anchor.length <= len(digests) and digests[anchor.length - 1].hex() == anchor.node


def row(anchor: Anchor) -> list[Any]:
    """An anchor as a JSON array."""
    return [*anchor[:-1], list(anchor.fixed)]


def from_row(value: Sequence[Any]) -> Anchor:
    """The anchor in a JSON array; raises `ValueError`, `LookupError` or `TypeError`."""
    node, length, applied, counted, own, counter, frame, fixed = value
    return Anchor(node, length, applied, counted, own, counter, frame, Features(*map(float, fixed)))


class Anchors:
    """The latest anchors of all conversations in a process; at most `most` of them."""

    def __init__(self, most: int = MOST) -> None:
        self._kept: Lru[tuple[str, str, bytes], Anchor] = Lru(most)

    def keep(self, tenant: str, model: str, anchor: Anchor) -> None:
        """Keeps an anchor; it replaces an earlier one of the same node."""
        self._kept.put((tenant, model, bytes.fromhex(anchor.node)), anchor)

    def newest(self, tenant: str, model: str, digests: Sequence[bytes], least: int = 0) -> Anchor | None:
        """The anchor of the longest beginning of a transcript with these chain digests that is longer than `least`."""
        if not self._kept:
            return None
        newest = reversed(digests[max(len(digests) - DEEPEST, least) :])
        return self._kept.first((tenant, model, digest) for digest in newest)
