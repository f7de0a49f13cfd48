"""The observations of replies of one upstream and model, for one counter. Immutable, no I/O.

There are two reservoirs of observations: whole requests, which show what the upstream adds to each, and growths from
one request of a conversation to the next, which show prices without that addition. A conversation has only a few places
in each, so a long one does not push out all others. What two replicas have learned is merged: the result is the same in
any order, however often.
"""

from __future__ import annotations

import json
from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean, median
from typing import Any, NamedTuple

from proxy.calibration.features import Features
from proxy.calibration.fit import EVEN, Observation, fit_prices

VERSION = 2
MOST = 48  # observations in each reservoir
MAX_BY_ONE = 8  # of them from one conversation
MAX_ERRORS = 64
MIN_ERRORS = 8
"""The number of errors from which on their mean is used."""
MIN_GROWTH = 32  # tokens; less teaches nothing
MIN_BARE = 3  # requests without tools
MAX_TIMES, MAX_HIDDEN, MIN_SHARE = 6, 100_000, 0.2


@dataclass(frozen=True)
class FittedPrices:
    """Prices, and what they leave unexplained."""

    prices: Features = EVEN
    surplus: Mapping[str, float] = field(default_factory=dict)
    """By set of tools, the tokens by which estimates of whole requests are too low."""

    @property
    def is_even(self) -> bool:
        """Whether nothing has been learned."""
        return self.prices == EVEN and not self.surplus

    @cached_property
    def hidden(self) -> int:
        """The most tokens that the upstream may add to what stands in a request."""
        surplus = max(self.surplus.values(), default=0.0)
        return max(round(self.prices.requests + max(self.prices.offers, 0) + max(surplus, 0)), 0)

    def tokens(self, features: Features, offering: str = "") -> float:
        """Tokens as the upstream would count them."""
        known = self.surplus.get(offering, 0.0) if features.requests else 0.0
        return features.at(self.prices) + known


NOTHING = FittedPrices()


class Samples(NamedTuple):
    """The two reservoirs, and the errors of recent estimates."""

    wholes: tuple[Observation, ...] = ()
    """Observations of whole requests, oldest first."""
    growths: tuple[Observation, ...] = ()
    """Observations of what a request added to the one before, oldest first."""
    firsts: tuple[float, ...] = ()
    """The newest relative errors of estimates without an anchor, oldest first."""
    anchored: tuple[float, ...] = ()
    """The newest relative errors of estimates with an anchor, oldest first."""

    def fit(self, hints: Sequence[Observation] = ()) -> FittedPrices:
        """Fits prices to the samples; this takes about 2 ms if the reservoirs are full.

        `hints` are what samples of other counters say about the same upstream and model.
        """
        if not self.wholes and not self.growths:
            return NOTHING
        prices = fit_prices((*hints, *self.wholes, *self.growths))
        return FittedPrices(prices, _surplus(self.wholes, prices))

    def hint(self, fit: FittedPrices) -> tuple[Observation, ...]:
        """An observation for samples of another counter, made from these samples and their `fit`.

        It says how much is hidden in a request without tools, which does not depend on how we count.
        """
        bare = sum(not each.features.offers for each in self.wholes)
        if bare < MIN_BARE:
            return ()
        return (Observation(Features(requests=1.0), round(fit.prices.requests)),)

    def with_observation(self, observation: Observation) -> Samples:
        """The samples with one more observation; the same object if it teaches nothing."""
        if not is_plausible(observation):
            return self
        if observation.features.requests:
            wholes = _with(self.wholes, observation)
            return self if wholes is self.wholes else self._replace(wholes=wholes)
        growths = _with(self.growths, observation)
        return self if growths is self.growths else self._replace(growths=growths)

    def with_error(self, error: float, *, anchored: bool) -> Samples:
        """The samples with the relative error of one more estimate."""
        if anchored:
            return self._replace(anchored=(*self.anchored, error)[-MAX_ERRORS:])
        return self._replace(firsts=(*self.firsts, error)[-MAX_ERRORS:])

    def without(self, counted: int) -> Samples:
        """The samples without whole requests that were counted so."""
        kept = tuple(each for each in self.wholes if each.counted != counted)
        return self if len(kept) == len(self.wholes) else self._replace(wholes=kept)

    def error(self, *, anchored: bool) -> float | None:
        """The mean relative error of recent estimates, at least 0; None if there are too few."""
        errors = self.anchored if anchored else self.firsts
        return fmean(errors) if len(errors) >= MIN_ERRORS else None

    def merged(self, other: Samples) -> Samples:
        """The samples of both; the errors are those of the one that has more."""
        return Samples(
            _newest((*self.wholes, *other.wholes)),
            _newest((*self.growths, *other.growths)),
            max(self.firsts, other.firsts, key=lambda errors: (len(errors), errors)),
            max(self.anchored, other.anchored, key=lambda errors: (len(errors), errors)),
        )


def is_plausible(observation: Observation) -> bool:
    """Whether a count can be one of the text it is said to be of; a growth must be large enough to teach anything."""
    features, counted = observation.features, observation.counted
    if features.requests:
        return could_be(counted, features)
    least = MIN_SHARE * features.own_text
    return features.own >= MIN_GROWTH and least <= counted <= MAX_TIMES * features.own


def could_be(counted: int, features: Features) -> bool:
    """Whether an upstream can have counted so many tokens for a whole request; media may be much cheaper than text."""
    return MIN_SHARE * features.own_text <= counted <= MAX_TIMES * features.own + MAX_HIDDEN


def _with(kept: tuple[Observation, ...], new: Observation) -> tuple[Observation, ...]:
    """The same as `_newest` of `kept` and one more observation, without sorting: this runs for every reply."""
    place = bisect(kept, _age(new), key=_age)
    if place and kept[place - 1] == new:
        return kept
    more = [*kept[:place], new, *kept[place:]]
    of_one = [i for i, each in enumerate(more) if each.by == new.by]
    if len(of_one) > MAX_BY_ONE:
        del more[of_one[0]]
    return tuple(more[-MOST:])


def _age(each: Observation) -> tuple[int, Observation]:
    return each.at, each


def _newest(observations: Iterable[Observation]) -> tuple[Observation, ...]:
    """The newest observations, a few of each conversation, oldest first."""
    of_one: Counter[str] = Counter()
    kept: list[Observation] = []
    for each in sorted(set(observations), key=_age, reverse=True):
        of_one[each.by] += 1
        if of_one[each.by] <= MAX_BY_ONE and len(kept) < MOST:
            kept.append(each)
    return tuple(reversed(kept))


def _surplus(wholes: Sequence[Observation], prices: Features) -> dict[str, float]:
    """By set of tools, the median of what the prices leave unexplained of requests, drawn a little towards 0."""
    left: dict[str, list[float]] = {}
    for each in wholes:
        left.setdefault(each.offering, []).append(each.counted - each.features.at(prices))
    found = {offering: round(median(rest) * len(rest) / (len(rest) + 0.5), 3) for offering, rest in left.items()}
    return {offering: surplus for offering, surplus in found.items() if surplus}


def encoded(ledger: Samples) -> bytes:
    """The samples as bytes."""
    document = {
        "v": VERSION,
        "wholes": [_row(each) for each in ledger.wholes],
        "growths": [_row(each) for each in ledger.growths],
        "firsts": [round(error, 5) for error in ledger.firsts],
        "anchored": [round(error, 5) for error in ledger.anchored],
    }
    return json.dumps(document, separators=(",", ":")).encode()


def decoded(data: bytes) -> Samples:
    """The samples in bytes, empty if a newer version wrote them; raises `ValueError`, `LookupError` or `TypeError`."""
    document = json.loads(data)
    if document["v"] > VERSION:
        return Samples()
    return Samples(
        tuple(_observation(row) for row in document["wholes"]),
        tuple(_observation(row) for row in document["growths"]),
        tuple(map(float, document["firsts"])),
        tuple(map(float, document["anchored"])),
    )


def _row(each: Observation) -> list[Any]:
    return [each.counted, each.by, each.offering, each.at, *each.features]


def _observation(row: Sequence[Any]) -> Observation:
    counted, by, offering, at, *features = row
    return Observation(Features(*[float(each) for each in features]), int(counted), str(by), str(offering), int(at))
