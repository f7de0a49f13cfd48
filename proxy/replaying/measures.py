"""Measures what a strategy sent, saved, kept and cost on recorded conversations. Pure; all sizes are in tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
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
    votes: int = 0
    """How many valid votes judges have cast."""
    yes_votes: int = 0
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
    rules: int = 0
    """How many different rules and open tasks the user has given."""
    kept_rules: int = 0
    """How many of them are in the last view word for word."""
    id: str = ""

    def cost(self, prices: Prices) -> float:
        """What all prompts and our own calls cost; the upstream's cache is taken to keep what it has read."""
        return sum(self.costs(prices))

    def costs(self, prices: Prices) -> list[float]:
        """What each request costs, our own calls for it included."""
        return [
            cost_by_prefixes(
                [] if one.refused else [Sent(one.forwarded_tokens, one.repeated_tokens)],
                prices,
                own_calls=prices.of_call(prompt=one.own_tokens - one.own_replies, reply=one.own_replies),
            )
            for one in self.requests
        ]


def cheaper_from(costs: Sequence[float], direct: Sequence[float]) -> int | None:
    """The request (from 1) from which on a way has cost less than the other in all, to the end; None for never."""
    cheaper = [ours < theirs for ours, theirs in zip(accumulate(costs), accumulate(direct), strict=True)]
    since = next((i for i, less in enumerate(reversed(cheaper)) if not less), len(cheaper))
    return len(cheaper) - since + 1 if since else None


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
    rules_share: float | None
    votes: int
    yes_share: float | None
    intervals: Mapping[str, Share | None]
    """For each of the shares above its interval over conversations, by the name before `_share`."""
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
    target: int
    """To how many."""
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
    if len(parts) == 1:
        return Share(*[parts[0] / wholes[0]] * 3)
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
    spent = [request.milliseconds for request in requests]
    shares = _shares(conversations)
    return Summary(
        strategy=strategy,
        requests=len(requests),
        forwarded=forwarded,
        largest=max((request.forwarded_tokens for request in requests), default=0),
        original=sum(_saved(played.requests)[1] for played in conversations),
        own=own,
        own_calls=sum(request.own_calls for request in requests),
        condensations=sum(request.condensed for request in requests),
        overflows=sum(request.overflows for request in requests),
        refused=sum(request.refused for request in requests),
        degraded=sum(request.degraded for request in requests),
        # Negative if our own calls cost more than was saved.
        saved_share=_of(shares["saved"]),
        intervals=shares,
        read_anew=sum(request.message_tokens - request.shared_tokens for request in requests if request.message_tokens),
        cached_share=cached_share(requests),
        evidence_share=_of(shares["evidence"]),
        questions=sum(played.questions for played in conversations),
        names_share=_of(shares["names"]),
        rules_share=_of(shares["rules"]),
        votes=sum(request.votes for request in requests),
        yes_share=_of(shares["yes"]),
        cost=sum(played.cost(prices) for played in conversations),
        cost_share=_cost_share(conversations, direct, prices),
        dear_share=_cost_share(conversations, direct, DEAR_WRITES),
        median_ms=median(spent) if spent else 0.0,
        max_ms=max(spent, default=0.0),
    )


def _of(share: Share | None) -> float | None:
    return None if share is None else share.share


def _shares(conversations: Sequence[ReplayedConversation]) -> dict[str, Share | None]:
    """Shares of sums over conversations: what was saved, cached, kept, and voted YES."""
    return {
        name: share_of([part for part, _ in pairs], [whole for _, whole in pairs], Random(1))  # noqa: S311
        for name, pairs in {
            "saved": [_saved(played.requests) for played in conversations],
            "cached": [_cached(played.requests) for played in conversations],
            "evidence": [(played.answerable, played.questions) for played in conversations],
            "names": [(played.kept_names, played.names) for played in conversations],
            "rules": [(played.kept_rules, played.rules) for played in conversations],
            "yes": [
                (sum(one.yes_votes for one in played.requests), sum(one.votes for one in played.requests))
                for played in conversations
            ],
        }.items()
    }


def _saved(requests: Sequence[ReplayedRequest]) -> tuple[int, int]:
    """The tokens that were saved, less our own calls, and those of the requests that were answered."""
    # A refused request counts as no saving: nothing was sent, but nothing was answered either.
    original = sum(one.sent_tokens for one in requests if not one.refused)
    return original - sum(one.forwarded_tokens + one.own_tokens for one in requests), original


def _cached(requests: Iterable[ReplayedRequest]) -> tuple[int, int]:
    forwarded = [(one.shared_tokens, one.message_tokens) for one in requests if one.message_tokens is not None]
    return sum(shared for shared, _ in forwarded), sum(messages for _, messages in forwarded)


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
    shared, total = _cached(requests)
    return shared / total if total else None
