"""Measures what a strategy sent, saved, kept and cost on recorded conversations. Pure; all sizes are in tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from random import Random
from statistics import median
from typing import NamedTuple

from proxy.condensing.policy import RATIOS
from proxy.reasons import Action
from strategies.core.economics import Prices


class ForwardedMessage(NamedTuple):
    """A forwarded message as JSON text, and its tokens."""

    raw: str
    tokens: int


@dataclass(frozen=True, slots=True)
class ReplayedRequest:
    """One request: what the client sent, what was forwarded in its place, and how it was decided."""

    sent_tokens: int
    message_tokens: int | None  # tokens of the forwarded messages; None if the request was refused
    shared_tokens: int  # tokens of the messages with which the previous forwarded request began too
    overhead_tokens: int  # tokens of tools and framing
    usable_tokens: int  # tokens that the upstream has room for
    milliseconds: float
    own_tokens: int = 0  # tokens of our own model calls
    own_calls: int = 0
    own_replies: int = 0  # tokens of what they answered, part of `own_tokens`
    own_cached: int = 0  # tokens of views that they continued and that the upstream has read, part of `own_tokens`
    votes: int = 0  # valid votes of judges
    yes_votes: int = 0
    action: Action = Action.PASSED
    window_tokens: int = 0  # of the upstream, with room for a reply that was asked for; 0: as `usable_tokens`

    @property
    def fits(self) -> bool:
        """Whether the upstream takes it as the client sent it."""
        return self.sent_tokens <= (self.window_tokens or self.usable_tokens)

    @property
    def answered(self) -> bool:
        return not self.refused and self.forwarded_tokens <= (self.window_tokens or self.usable_tokens)

    @property
    def rescued(self) -> bool:
        return self.answered and not self.fits

    @property
    def saved_tokens(self) -> int:
        """What was saved where it could have been spent; negative if memory added more than was left out."""
        return self.sent_tokens - self.forwarded_tokens if self.answered and self.fits else 0

    @property
    def condensed(self) -> bool:
        return self.action in (Action.CONDENSED, Action.WOULD_CONDENSE)

    @property
    def refused(self) -> bool:
        return self.message_tokens is None

    @property
    def forwarded_tokens(self) -> int:
        return 0 if self.message_tokens is None else self.overhead_tokens + self.message_tokens

    @property
    def overflows(self) -> bool:
        """Whether the upstream has no room for the request and its reply, or the proxy refused it for that."""
        return self.refused or self.forwarded_tokens > self.usable_tokens


class ReplayedConversation(NamedTuple):
    """The requests of a conversation, and what the last view has kept of it word for word."""

    requests: Sequence[ReplayedRequest]
    kept: Mapping[str, tuple[int, int]] = {}
    """How many the view has, and of how many: `evidence` of questions, units of the user (`said`), `names` in it."""
    id: str = ""

    def cost(self, prices: Prices) -> float:
        """What all prompts and our own calls cost; the upstream's cache is taken to keep what it has read."""
        return sum(self.costs(prices))

    def costs(self, prices: Prices) -> list[float]:
        """What each request costs, our own calls for it included."""
        return [_own_cost(one, prices) + _prompt_cost(one, prices) for one in self.requests]

    def reread(self) -> list[int]:
        """For each request the tokens read anew because its prompt no longer begins with the one before.

        The new messages of the request are none of them.
        """
        before, sent, found = 0, 0, []
        for one in self.requests:
            new = max(one.sent_tokens - sent, 0)
            found.append(max(min(before, (one.message_tokens or 0) - new) - one.shared_tokens, 0))
            before, sent = before if one.message_tokens is None else one.message_tokens, one.sent_tokens
        return found


def _own_cost(one: ReplayedRequest, prices: Prices) -> float:
    return prices.of_call(prompt=one.own_tokens - one.own_replies, cached=one.own_cached, reply=one.own_replies)


def _prompt_cost(one: ReplayedRequest, prices: Prices, lost: int = 0) -> float:
    """The price of its prompt, if so many tokens more than it shares with the one before came from the cache."""
    # What a cache has begins with tools and framing.
    common = one.overhead_tokens + one.shared_tokens if one.shared_tokens else 0
    return prices.of_prompt(one.forwarded_tokens, common + lost)


class Balance(NamedTuple):
    """What was saved and paid in a conversation, in money, where the client's own list would have fitted."""

    saved: float = 0.0  # less for prompts, before lost cache hits
    paid: float = 0.0  # own calls and lost cache hits
    rescuing: float = 0.0  # the same, of the requests that did not fit
    net: float = 0.0  # saved, less paid
    direct: float = 0.0  # what the client's own lists would have cost, where they fit

    @classmethod
    def of(cls, played: ReplayedConversation, direct: ReplayedConversation, prices: Prices) -> Balance:
        """`direct` is the same conversation as the client sent it."""
        saved = paid = rescuing = whole = 0.0
        rereads = zip(played.reread(), direct.reread(), strict=True)
        for ours, theirs, (anew, anyway) in zip(played.requests, direct.requests, rereads, strict=True):
            lost = max(anew - anyway, 0)
            unbroken = _prompt_cost(ours, prices, lost)
            spent = _own_cost(ours, prices) + _prompt_cost(ours, prices) - unbroken
            if ours.fits and ours.answered:
                whole += (client := _prompt_cost(theirs, prices))
                saved, paid = saved + client - unbroken, paid + spent
            else:
                rescuing += spent
        return cls(saved, paid, rescuing, saved - paid, whole)


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
    unanswered: int  # refused by us, or too long for the upstream
    rescued: int  # answered, though the client's own list did not fit
    fitting: int  # the client's own list fits
    saved_tokens: int  # on requests that fit
    reread: int  # tokens read anew because the start of a prompt had changed, as far as the client did not change it
    saved_cost: float
    paid_cost: float  # on the same requests
    rescue_cost: float  # the same on requests that did not fit
    net_cost: float  # saved, less paid
    net_share: Share | None  # of what the client's own lists would have cost where they fit
    degraded: int
    saved_share: float | None
    read_anew: int
    cached_share: float | None
    evidence_share: float | None
    questions: int
    names_share: float | None
    said_share: float | None
    votes: int
    yes_share: float | None
    intervals: Mapping[str, Share | None]
    """For each of the shares above its interval over conversations, by the name before `_share`."""
    cost: float  # at the model's prices, or at usual ratios where they are not known
    cost_share: Share | None  # of what the client's own lists would have cost
    dear_share: Share | None  # the same where reading from the cache costs a tenth and writing to it a quarter more
    median_ms: float
    max_ms: float


class Share(NamedTuple):
    """A share of sums over conversations, and its interval of 95 % over conversations."""

    share: float
    low: float
    high: float


DEAR_WRITES = Prices(input=1.0, cached_input=0.1, cache_write=1.25, output=5.0)
_RESAMPLES = 1_000
_SHARES = ("saved", "cached", "evidence", "names", "said", "yes")


def summarize(
    strategy: str,
    conversations: Sequence[ReplayedConversation],
    prices: Prices = RATIOS,
    direct: Sequence[ReplayedConversation] = (),
) -> Summary:
    """The figures of all conversations under one strategy; `direct` are the same ones as the client sent them."""
    requests = [request for played in conversations for request in played.requests]
    spent = [request.milliseconds for request in requests] or [0.0]
    parts = [_parts(played) for played in conversations]
    shares = {name: _share(part.get(name, (0, 0)) for part in parts) for name in _SHARES}

    def total(name: str) -> int:
        return sum(getattr(request, name) for request in requests)

    pairs = list(zip(conversations, direct, strict=True)) if direct else []
    balances = [Balance.of(played, sent, prices) for played, sent in pairs]
    rereads = [zip(played.reread(), sent.reread(), strict=True) for played, sent in pairs]

    def of_direct(prices: Prices) -> Share | None:
        return _share((played.cost(prices), sent.cost(prices)) for played, sent in pairs)

    return Summary(
        strategy=strategy,
        requests=len(requests),
        forwarded=total("forwarded_tokens"),
        largest=max((request.forwarded_tokens for request in requests), default=0),
        original=sum(one.sent_tokens for one in requests if not one.refused),
        own=total("own_tokens"),
        own_calls=total("own_calls"),
        condensations=total("condensed"),
        overflows=total("overflows"),
        refused=total("refused"),
        unanswered=sum(not request.answered for request in requests),
        rescued=total("rescued"),
        fitting=total("fits"),
        saved_tokens=total("saved_tokens"),
        reread=sum(max(anew - anyway, 0) for each in rereads for anew, anyway in each),
        saved_cost=sum(balance.saved for balance in balances),
        paid_cost=sum(balance.paid for balance in balances),
        rescue_cost=sum(balance.rescuing for balance in balances),
        net_cost=sum(balance.net for balance in balances),
        net_share=_share((balance.net, balance.direct) for balance in balances),
        degraded=sum(request.action is Action.DEGRADED for request in requests),
        read_anew=sum(request.message_tokens - request.shared_tokens for request in requests if request.message_tokens),
        questions=sum(part["evidence"][1] for part in parts if "evidence" in part),
        votes=total("votes"),
        intervals=shares,
        cost=sum(played.cost(prices) for played in conversations),
        cost_share=of_direct(prices),
        dear_share=of_direct(DEAR_WRITES),
        median_ms=median(spent),
        max_ms=max(spent),
        **{f"{name}_share": share and share.share for name, share in shares.items()},
    )


def _parts(played: ReplayedConversation) -> dict[str, tuple[int, int]]:
    """What a conversation adds to each share: the part, and the whole."""
    requests = played.requests
    answered = [one for one in requests if not one.refused]
    fitting = [one for one in requests if one.fits and one.answered]
    return {
        # Nobody could have spent more than fits. Own calls are what was paid.
        "saved": (sum(one.saved_tokens for one in fitting), sum(one.sent_tokens for one in fitting)),
        "cached": (sum(one.shared_tokens for one in answered), sum(one.message_tokens or 0 for one in answered)),
        "yes": (sum(one.yes_votes for one in requests), sum(one.votes for one in requests)),
        **played.kept,
    }


def _share(pairs: Iterable[tuple[float, float]]) -> Share | None:
    """The share that all parts have of all wholes, one of each for every conversation; None if there is no whole.

    The interval is that of a bootstrap over conversations.
    """
    known = list(pairs)
    part, whole = sum(part for part, _ in known), sum(whole for _, whole in known)
    if not whole:
        return None
    if len(known) == 1:
        return Share(*[part / whole] * 3)
    random = Random(1)  # noqa: S311
    drawn = [random.choices(known, k=len(known)) for _ in range(_RESAMPLES)]
    shares = sorted(sum(part for part, _ in some) / (sum(whole for _, whole in some) or 1.0) for some in drawn)
    return Share(part / whole, shares[_RESAMPLES // 40], shares[-_RESAMPLES // 40])


def size(messages: Iterable[ForwardedMessage]) -> int:
    return sum(message.tokens for message in messages)


def common_prefix(before: Sequence[ForwardedMessage], after: Sequence[ForwardedMessage]) -> int:
    """Tokens of the messages with which both lists begin."""
    pairs = takewhile(lambda pair: pair[0].raw == pair[1].raw, zip(before, after, strict=False))
    return size(later for _, later in pairs)
