"""Prices: how many tokens an upstream counts for each kind of content in a request. No I/O.

Prices are fitted to the replies of one upstream and model, for one counter. Features are the amounts of each kind of
text. With another vocabulary one kind costs more and another less, so our own count is split by kind. The first two
kilobytes of a message are enough to tell its alphabet. Media, such as pictures, are counted apart: servers price them
in ways that have nothing to do with text, many by the piece.

Observations of replies are kept in two reservoirs: whole requests, which show what the upstream adds to each, and
growths from one request of a conversation to the next, which show prices without that addition. A conversation has only
a few places in each, so a long one does not push out all others. What two replicas have learned can be merged in any
order, and repeatedly, with the same result.

The fit is a ridge regression towards what holds without any knowledge: our own count, and nothing added. So a few
replies move the prices little, prices that no reply bears on stay as they are, and replies that agree with our own
tokenizer change none. An outlier, such as a reply whose template has dropped old reasoning, weighs by its distance, not
by the square of it (Huber). Every price stays within its bounds, whatever was counted.
"""

from __future__ import annotations

import json
from bisect import bisect
from collections.abc import Iterable, Sequence
from functools import reduce
from operator import add, mul, sub
from statistics import fmean
from typing import Any, NamedTuple

from strategies.core.messages import Message, Role

SAMPLE = 2_048  # bytes of a message that are looked at
_PER_CONTINUATION = 1.5  # bytes of a character of three bytes, for each of its bytes after the first
_PER_ESCAPE = 6  # bytes of a character that is written as \uXXXX
# In each message that has a part of media, in any dialect.
_MEDIA = (b'"image', b'"input_', b'"audio', b'"video', b'"file', b'"document')
_FRAME, _CHARS_PER_TOKEN = 4, 4  # of the text next to media, whose tokens are estimated

VERSION = 3
MAX_OBSERVATIONS = 48  # in each reservoir
MAX_BY_ONE = 8  # of them from one conversation
MAX_ERRORS = 64
MIN_ERRORS = 8
"""Fewer errors than this have no mean."""
MIN_GROWTH = 32  # tokens; less teaches nothing
MIN_BARE = 3  # requests without tools
MAX_TIMES, MAX_HIDDEN, MIN_SHARE = 6, 100_000, 0.2


class Features(NamedTuple):
    """How much of each thing that costs tokens a request, or a part of one, has; or the price of each."""

    requests: float = 0.0
    """1 for a whole request, 0 for a part of one."""
    offers: float = 0.0
    """1 if it offers tools."""
    messages: float = 0.0
    words: float = 0.0
    """Tokens of text in Latin letters, by our own count, as are all that follow."""
    code: float = 0.0
    """Tokens of calls and results in Latin letters."""
    non_latin: float = 0.0
    """Tokens of text that is not in Latin letters."""
    outside: float = 0.0
    """Tokens outside of messages: tools and framing."""
    media: float = 0.0
    media_tokens: float = 0.0
    """The tokens that we count for them."""

    @property
    def own_text(self) -> float:
        return self.words + self.code + self.non_latin + self.outside

    @property
    def own(self) -> float:
        return self.words + self.code + self.non_latin + self.outside + self.media_tokens

    def plus(self, other: Features) -> Features:
        return Features(*map(add, self, other))

    def minus(self, other: Features) -> Features:
        return Features(*map(sub, self, other))

    def at(self, prices: Features) -> float:
        """The cost of these amounts, in tokens of the upstream."""
        cost: float = sum(map(mul, self, prices))
        return cost

    def may_be(self, counted: int) -> bool:
        """Whether an upstream can count this much for a whole request; media may be far cheaper than text."""
        return MIN_SHARE * self.own_text <= counted <= MAX_TIMES * self.own + MAX_HIDDEN

    @property
    def hidden(self) -> int:
        """Of prices: the maximum number of tokens that the upstream adds to a request."""
        return max(round(self.requests + max(self.offers, 0)), 0)


EVEN = Features(words=1.0, code=1.0, non_latin=1.0, outside=1.0, media_tokens=1.0)
"""The prices when nothing has been learned: a token is a token."""


class _Kinds(NamedTuple):
    wide: float
    """The share of its text that is not in Latin letters."""
    media: int = 0
    """The number of its parts that are no text."""
    text_tokens: int = 0
    """About the tokens of its other parts, if it has such parts."""


def of_messages(messages: Iterable[Message]) -> Features:
    number = media = 0
    words = code = wide = media_tokens = 0.0
    for message in messages:
        number += 1
        kinds = _kinds.get(message.digest) or _look_at(message)
        of_media = max(message.tokens - kinds.text_tokens, 0) if kinds.media else 0
        media += kinds.media
        media_tokens += of_media
        text = message.tokens - of_media
        wide += text * kinds.wide
        if message.role is Role.TOOL or message.calls:
            code += text * (1 - kinds.wide)
        else:
            words += text * (1 - kinds.wide)
    return Features(0.0, 0.0, number, words, code, wide, 0.0, media, media_tokens)


_MAX_KINDS = 8_000
_kinds: dict[bytes, _Kinds] = {}
"""The kinds in messages by digest: a history comes again with every request, and is looked at once."""


def _look_at(message: Message) -> _Kinds:
    """Finds the kinds in a message that is not known yet, and remembers them by its digest; our own have none."""
    data = message.data
    media = message.dialect.media(message.body) if any(map(data.__contains__, _MEDIA)) else 0
    text_tokens = _FRAME + len(message.text) // _CHARS_PER_TOKEN if media else 0
    kinds = _Kinds(non_latin_share(data), media, text_tokens)
    if message.digest:
        if len(_kinds) >= _MAX_KINDS:
            _kinds.clear()
        _kinds[message.digest] = kinds
    return kinds


def non_latin_share(data: bytes) -> float:
    """The approximate share of a JSON text that is not in Latin letters, from 0 to 1."""
    sample = data[:SAMPLE]
    if not sample:
        return 0.0
    escaped = _PER_ESCAPE * sample.count(b"\\u")
    continuations = 0 if sample.isascii() else len(sample) - len(sample.decode("utf-8", "ignore"))
    return min(1.0, (_PER_CONTINUATION * continuations + escaped) / len(sample))


class Observation(NamedTuple):
    """The upstream's count for a request, or for a part of one."""

    features: Features
    counted: int
    by: str = ""
    """A digest of the conversation."""
    at: int = 0

    @property
    def noise(self) -> float:
        """Tokens by which a good estimate may be off."""
        own = self.features.own
        return 20 + 0.03 * own if self.features.requests else 8 + 0.06 * own


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

    def fit(self, hints: Sequence[Observation] = ()) -> Features:
        """Fits prices to the samples, in about 2 ms if these are full; `hints` come from those of other counters."""
        return fit_prices((*hints, *self.wholes, *self.growths)) if self.wholes or self.growths else EVEN

    def hint(self, prices: Features) -> tuple[Observation, ...]:
        """An observation for samples of another counter, made from these samples and the prices that fit them.

        It says how much is hidden in a request without tools, which does not depend on how we count.
        """
        bare = sum(not whole.features.offers for whole in self.wholes)
        return (Observation(Features(requests=1.0), round(prices.requests)),) if bare >= MIN_BARE else ()

    def with_observation(self, observation: Observation) -> Samples:
        """The samples with one more observation; the same object if it teaches nothing."""
        if not is_plausible(observation):
            return self
        kept = self.wholes if observation.features.requests else self.growths
        more = _with(kept, observation)
        if more is kept:
            return self
        return self._replace(wholes=more) if observation.features.requests else self._replace(growths=more)

    def with_error(self, error: float, *, anchored: bool) -> Samples:
        if anchored:
            return self._replace(anchored=(*self.anchored, error)[-MAX_ERRORS:])
        return self._replace(firsts=(*self.firsts, error)[-MAX_ERRORS:])

    def without(self, counted: int) -> Samples:
        """The samples without whole requests for which the upstream counted exactly `counted` tokens."""
        kept = tuple(whole for whole in self.wholes if whole.counted != counted)
        return self if len(kept) == len(self.wholes) else self._replace(wholes=kept)

    def merged(self, other: Samples) -> Samples:
        """The samples of both; the errors are those of the one that has more."""
        return Samples(
            reduce(_with, other.wholes, self.wholes),
            reduce(_with, other.growths, self.growths),
            max(self.firsts, other.firsts, key=lambda errors: (len(errors), errors)),
            max(self.anchored, other.anchored, key=lambda errors: (len(errors), errors)),
        )


def mean_error(errors: Sequence[float]) -> float | None:
    """The mean of relative errors, at least 0; None if there are too few."""
    return fmean(errors) if len(errors) >= MIN_ERRORS else None


def is_plausible(observation: Observation) -> bool:
    """Whether the count is possible for these features; a growth must also be large enough to teach anything."""
    features, counted = observation.features, observation.counted
    if features.requests:
        return features.may_be(counted)
    return features.own >= MIN_GROWTH and MIN_SHARE * features.own_text <= counted <= MAX_TIMES * features.own


def _with(kept: tuple[Observation, ...], new: Observation) -> tuple[Observation, ...]:
    """The newest observations after one more, a few of each conversation, oldest first, in whatever order they came."""
    place = bisect(kept, _age(new), key=_age)
    if place and kept[place - 1] == new:
        return kept
    more = [*kept[:place], new, *kept[place:]]
    of_one = [i for i, other in enumerate(more) if other.by == new.by]
    if len(of_one) > MAX_BY_ONE:
        del more[of_one[0]]
    return tuple(more[-MAX_OBSERVATIONS:])


def _age(observation: Observation) -> tuple[int, Observation]:
    return observation.at, observation


MIN_PRICES = Features(0, -2_000, -4, 0.3, 0.3, 0.3, 0.3, 0, 0)
MAX_PRICES = Features(64_000, 8_000, 24, 4, 4, 4, 4, 20_000, 20)
_SPREAD = Features(3_000, 400, 3, 0.3, 0.3, 0.3, 0.6, 1_000, 1)  # how far a price is from `EVEN`, typically
_PINNED = 1e9  # the weight that holds a price at its bound
_ROUNDS = 4
_FAR = 1.5  # times its noise; an observation that is farther off weighs less


def fit_prices(observations: Sequence[Observation]) -> Features:
    prices = EVEN
    for _ in range(_ROUNDS):
        prices = _solve_within_bounds(*_normal_equations(observations, prices))
    return prices


def _solve_within_bounds(matrix: list[list[float]], right: list[float]) -> Features:
    """The solution in which a price that would leave its bounds is held at the bound, and the others make up for it."""
    held: set[int] = set()
    while True:
        prices = _solve(matrix, right)
        within = Features(*map(max, MIN_PRICES, map(min, MAX_PRICES, prices)))
        out = {i for i, price in enumerate(prices) if price != within[i]} - held
        if not out:
            return within
        held |= out
        for i in out:
            matrix[i][i] += _PINNED
            right[i] += _PINNED * within[i]


def _normal_equations(observations: Sequence[Observation], prices: Features) -> tuple[list[list[float]], list[float]]:
    """The normal equations, with weights by how far each observation is from these prices."""
    size = range(len(EVEN))
    matrix = [[1 / _SPREAD[i] ** 2 if i == j else 0.0 for j in size] for i in size]
    right = [EVEN[i] / _SPREAD[i] ** 2 for i in size]
    for observation in observations:
        noise = observation.noise
        off = abs(observation.counted - observation.features.at(prices)) / noise
        weight = _FAR / max(off, _FAR) / noise**2
        present = [i for i in size if observation.features[i]]
        for i in present:
            weighed = weight * observation.features[i]
            right[i] += weighed * observation.counted
            row = matrix[i]
            for j in present:
                row[j] += weighed * observation.features[j]
    return matrix, right


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """The solution of equations whose matrix is positive definite, by elimination."""
    size = len(right)
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for i in range(size):
        for row in rows[i + 1 :]:
            factor = row[i] / rows[i][i]
            for j in range(i, size + 1):
                row[j] -= factor * rows[i][j]
    found = [0.0] * size
    for i in reversed(range(size)):
        known = sum(rows[i][j] * found[j] for j in range(i + 1, size))
        found[i] = (rows[i][size] - known) / rows[i][i]
    return found


def encoded(samples: Samples) -> bytes:
    document = {
        "v": VERSION,
        "wholes": [[whole.counted, whole.by, whole.at, *whole.features] for whole in samples.wholes],
        "growths": [[growth.counted, growth.by, growth.at, *growth.features] for growth in samples.growths],
        "firsts": [round(error, 5) for error in samples.firsts],
        "anchored": [round(error, 5) for error in samples.anchored],
    }
    return json.dumps(document, separators=(",", ":")).encode()


def decoded(data: bytes) -> Samples:
    """The samples in bytes, empty if a newer version wrote them; raises `ValueError`, `LookupError` or `TypeError`."""
    document = json.loads(data)
    version = document["v"]
    if version > VERSION:
        return Samples()
    return Samples(
        tuple(_observation(row, version) for row in document["wholes"]),
        tuple(_observation(row, version) for row in document["growths"]),
        tuple(map(float, document["firsts"])),
        tuple(map(float, document["anchored"])),
    )


def _observation(row: Sequence[Any], version: int) -> Observation:
    # Up to version 2, a digest of the tools came before the time.
    counted, by, at, *features = row if version > 2 else (*row[:2], *row[3:])
    return Observation(Features(*[float(amount) for amount in features]), int(counted), str(by), int(at))
