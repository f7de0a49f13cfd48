"""Measures what a strategy sent, saved, kept and cost on recorded conversations. Pure; all sizes are in tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random
from statistics import median
from typing import NamedTuple

from proxy.condensing.policy import RATIOS
from proxy.reasons import Action
from strategies.core.economics import Prices, Sent, cost_by_prefixes


class ForwardedMessage(NamedTuple):
    """A forwarded message as JSON text, and its tokens."""

    raw: str
    tokens: int


@dataclass(frozen=True, slots=True)
class ReplayedRequest:
    """One request: what the client sent, what was forwarded in its place, and how it was decided."""

    sent_tokens: int
    """Tokens of the request that the client sent."""
    message_tokens: int | None
    """Tokens of the forwarded messages; None if the request was refused."""
    shared_tokens: int
    """Tokens of the messages with which the previous forwarded request began too."""
    overhead_tokens: int
    """Tokens of tools and framing."""
    usable_tokens: int
    """Tokens that the upstream has room for."""
    milliseconds: float
    """Time that the decision took."""
    own_tokens: int = 0
    """Tokens of our own model calls."""
    own_calls: int = 0
    """How many of them there were."""
    own_replies: int = 0
    """Tokens of what they answered, part of `own_tokens`."""
    action: Action = Action.PASSED

    @property
    def condensed(self) -> bool:
        """Whether this request applied a new condensation."""
        return self.action in (Action.CONDENSED, Action.WOULD_CONDENSE)

    @property
    def degraded(self) -> bool:
        """Whether something in the proxy failed."""
        return self.action is Action.DEGRADED

    @property
    def refused(self) -> bool:
        """Whether nothing was forwarded."""
        return self.message_tokens is None

    @property
    def forwarded_tokens(self) -> int:
        """Tokens that were forwarded; 0 if the request was refused."""
        return 0 if self.message_tokens is None else self.overhead_tokens + self.message_tokens

    @property
    def repeated_tokens(self) -> int:
        """Tokens with which the previous forwarded prompt began too, tools and framing among them."""
        return self.overhead_tokens + self.shared_tokens if self.shared_tokens else 0

    @property
    def overflows(self) -> bool:
        """Whether the upstream has no room for the request and its reply, or the proxy refused it for that."""
        return self.refused or self.forwarded_tokens > self.usable_tokens


@dataclass(frozen=True, slots=True)
class ReplayedConversation:
    requests: Sequence[ReplayedRequest]
    questions: int = 0
    """How many questions there are about the conversation."""
    answerable: int = 0
    """How many of them have their evidence in the last view."""
    names: int = 0
    """How many different names and numbers the user has given."""
    kept_names: int = 0
    """How many of them are in the last view."""

    def cost(self, prices: Prices) -> float:
        """What all prompts and our own calls cost; the upstream's cache is taken to keep what it has read."""
        sent = [Sent(one.forwarded_tokens, one.repeated_tokens) for one in self.requests if not one.refused]
        own = [prices.of_call(prompt=one.own_tokens - one.own_replies, reply=one.own_replies) for one in self.requests]
        return cost_by_prefixes(sent, prices, own_calls=sum(own))


@dataclass(frozen=True, slots=True)
class Summary:
    """All conversations under one strategy; the field names are the keys of the JSON report.

    Figures are sums over all requests, sizes are in tokens, and a share is None if there is nothing to measure.
    """

    strategy: str
    requests: int
    forwarded: int
    largest: int
    original: int
    own: int
    own_calls: int
    condensations: int
    overflows: int
    refused: int
    degraded: int
    saved_share: float | None
    read_anew: int
    cached_share: float | None
    evidence_share: float | None
    questions: int
    names_share: float | None
    cost: float
    """At the model's prices, or at usual ratios where they are not known."""
    cost_share: Share | None
    """Of what the client's own lists would have cost."""
    dear_share: Share | None
    """The same where reading from the cache costs a tenth and writing to it a quarter more."""
    median_ms: float
    max_ms: float


class Economy(NamedTuple):
    """Where one conversation is cheapest, by the rule of `strategies.core.economics`; sizes in tokens."""

    id: str
    requests: int
    head: int
    """Tools, framing and system messages."""
    growth: float
    """By how much each request grows."""
    trigger: int
    """At how many tokens it is cheapest to condense."""
    saves: float
    """The share that this saves against the mark."""
    break_even: float
    """The requests after which a condensation at the mark has paid back."""


class Share(NamedTuple):
    """A share of sums over conversations, and its interval of 95 % over conversations."""

    share: float
    low: float
    high: float


DEAR_WRITES = Prices(input=1.0, cached_input=0.1, cache_write=1.25, output=5.0)
_RESAMPLES = 1_000


def share_of(parts: Sequence[float], wholes: Sequence[float], random: Random) -> Share | None:
    """The share that parts have of wholes, one of each for every conversation; None if there is nothing to compare.

    The interval is that of a bootstrap over conversations.
    """
    if not sum(wholes) or len(parts) != len(wholes):
        return None
    places = range(len(parts))
    drawn = [random.choices(places, k=len(parts)) for _ in range(_RESAMPLES)]
    shares = sorted(sum(parts[i] for i in some) / (sum(wholes[i] for i in some) or 1.0) for some in drawn)
    return Share(sum(parts) / sum(wholes), shares[_RESAMPLES // 40], shares[-_RESAMPLES // 40])


def summarize(
    strategy: str,
    conversations: Sequence[ReplayedConversation],
    prices: Prices = RATIOS,
    direct: Sequence[ReplayedConversation] = (),
) -> Summary:
    """The figures of all conversations under one strategy; `direct` are the same ones as the client sent them."""
    requests = [request for played in conversations for request in played.requests]
    forwarded = sum(request.forwarded_tokens for request in requests)
    own = sum(request.own_tokens for request in requests)
    # A refused request counts as no saving: nothing was sent, but nothing was answered either.
    original = sum(request.sent_tokens for request in requests if not request.refused)
    spent = [request.milliseconds for request in requests]
    questions = sum(played.questions for played in conversations)
    names = sum(played.names for played in conversations)
    return Summary(
        strategy=strategy,
        requests=len(requests),
        forwarded=forwarded,
        largest=max((request.forwarded_tokens for request in requests), default=0),
        original=original,
        own=own,
        own_calls=sum(request.own_calls for request in requests),
        condensations=sum(request.condensed for request in requests),
        overflows=sum(request.overflows for request in requests),
        refused=sum(request.refused for request in requests),
        degraded=sum(request.degraded for request in requests),
        # Negative if our own calls cost more than was saved.
        saved_share=1 - (forwarded + own) / original if original else None,
        read_anew=sum(request.message_tokens - request.shared_tokens for request in requests if request.message_tokens),
        cached_share=cached_share(requests),
        evidence_share=sum(played.answerable for played in conversations) / questions if questions else None,
        questions=questions,
        names_share=sum(played.kept_names for played in conversations) / names if names else None,
        cost=sum(played.cost(prices) for played in conversations),
        cost_share=_cost_share(conversations, direct, prices),
        dear_share=_cost_share(conversations, direct, DEAR_WRITES),
        median_ms=median(spent) if spent else 0.0,
        max_ms=max(spent, default=0.0),
    )


def _cost_share(
    conversations: Sequence[ReplayedConversation], direct: Sequence[ReplayedConversation], prices: Prices
) -> Share | None:
    costs, wholes = ([played.cost(prices) for played in each] for each in (conversations, direct))
    return share_of(costs, wholes, Random(1))  # noqa: S311


def size(messages: Iterable[ForwardedMessage]) -> int:
    return sum(message.tokens for message in messages)


def common_prefix(before: Sequence[ForwardedMessage], after: Sequence[ForwardedMessage]) -> int:
    """Tokens of the messages with which both lists begin."""
    total = 0
    for earlier, later in zip(before, after, strict=False):
        if earlier.raw != later.raw:
            break
        total += later.tokens
    return total


def cached_share(requests: Iterable[ReplayedRequest]) -> float | None:
    """The share of message tokens that the upstream had already seen at the same place in the previous request."""
    forwarded = [(one.shared_tokens, one.message_tokens) for one in requests if one.message_tokens is not None]
    total = sum(messages for _, messages in forwarded)
    return sum(shared for shared, _ in forwarded) / total if total else None
