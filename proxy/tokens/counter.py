"""Counters by model, and a small pool that counts off the event loop.

Theory of operation. A `Counter` joins the formula of one protocol with one encoding and one price list for pictures. It
is immutable, so any thread may use it. `Tokenizers` chooses the encoding by the model's name, checks each rank file
once, and falls back to the estimator, with one warning, if a file is missing or wrong; counting itself never fails. An
encoding takes 45 MB and most requests are too short to be counted, so it is loaded when something is first counted.
`CountingPool` keeps long counts away from the event loop: tiktoken releases the interpreter lock, so two workers of its
own help. Below 16k characters (half a millisecond) the hop would cost more than it saves. Very long texts share a third
worker, so that no other request waits for their count.

Contents that are not text are priced, never tokenized: a picture's base64 as text would be a thousand times too much.
Members of wrong types are counted in some sensible way: nothing here raises. How a protocol frames messages and tools
is in its folder (`proxy/protocols`). A formula's error is constant for a conversation, and calibration from
the upstream's `usage` corrects it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import threading
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path
from typing import ClassVar, NamedTuple

from proxy.tokens import media, ranks
from proxy.tokens.models import plain_name
from proxy.tokens.ranks import SAMPLE_CHARS, count_in_chunks, estimate
from strategies.core.messages import Dialect

ESTIMATE = "estimate"
DEFAULT_ENCODING = "o200k_base"
INLINE_CHARS = 16_384
LONG_CHARS = 524_288  # counting more takes a tenth of a second, and hostile text takes longer
MOST_CHARS = SAMPLE_CHARS  # of all new messages of a request; with the one that goes beyond them, the worst take 4 s
WORKERS = 2
SEALED = ("encrypted_content", "encrypted_stdout", "signature")  # members whose text only the vendor can read
REMEMBERED_CHARS = 256
REMEMBERED_TEXTS = 4_096
MAX_COUNTERS = 256

# Everything newer, and other vendors' models, take the default: it is the nearest we have.
_CL100K_PREFIXES = ("gpt-3.5", "gpt-35", "gpt-4-", "ft:gpt-3.5", "ft:gpt-4-")

CountFor = Callable[[str], Callable[[str], int]]  # given a tenant, counts the tokens of a text

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Opaque:
    """What a count has met besides the text that every server reads."""

    tokens: int = 0
    """The tokens of pictures, sounds and files by their published prices, and of reasoning, which servers may drop."""
    unpriced: bool = False  # whether there was a part without a published price; it counts 0

    def priced(self, tokens: int | None) -> int:
        """The tokens to count for a part, by its price; None if it has none."""
        self.tokens += tokens or 0
        self.unpriced |= tokens is None
        return tokens or 0


class Counted(NamedTuple):
    tokens: int
    unpriced: bool = False  # whether something was left out that has no published price


class Encoder:
    """One encoding of an app. Its rank file is checked now, and loaded at the first count; without it we estimate."""

    def __init__(self, encoding: str, directory: Path | None) -> None:
        self._encoding, self._directory, self._lock = encoding, directory, threading.Lock()
        self.problem = ""
        self.tokens: Callable[[str], int] | None = None
        """Counts a chunk of text; None before it is loaded."""
        self.count_for = cached_count(lambda text: count_in_chunks(text, self.tokens or self.load()))
        try:
            ranks.contents(encoding, directory)
        except ranks.RanksUnavailable as error:
            self._estimate(error)
        self.name = ESTIMATE if self.problem else encoding

    def load(self) -> Callable[[str], int]:
        """`tokens`, loaded once: that blocks for half a second.

        For half of that no other thread runs: tiktoken builds its table with the interpreter's lock.
        """
        with self._lock:
            if self.tokens is None:
                try:
                    encode = ranks.load(self._encoding, self._directory).encode_ordinary
                except ranks.RanksUnavailable as error:  # the file has changed since it was checked
                    return self._estimate(error)
                self.tokens = lambda text: len(encode(text))
            return self.tokens

    def _estimate(self, error: Exception) -> Callable[[str], int]:
        _log.warning("tokens are estimated, not counted: %s", error)
        self.problem, self.tokens = str(error), estimate
        return estimate


class Counter(ABC):
    """Tokens of texts, messages and requests of one tenant, under one protocol. Thread-safe; never raises."""

    protocol: ClassVar[str] = ""  # the prefix that sets the cache keys of a protocol apart from those of others
    dialect: ClassVar[Dialect]
    name: str  # `o200k_base`, `cl100k_base` or `estimate`
    exact: bool  # whether texts are tokenized rather than estimated
    cache_key: str  # counters with the same key count every message alike: protocol, encoding and price list of media
    owner: str

    def __init__(
        self,
        name: str,
        text: Callable[[str], int],
        prices: media.MediaPrices,
        owner: str = "",
        factor: float = 1.0,
        encoder: Encoder | None = None,
    ) -> None:
        self.encoder = encoder
        self.text = text if factor == 1 else lambda value: round(text(value) * factor)
        self.factor = factor
        self.prices = prices
        self.name = name
        self.owner = owner
        self.exact = name != ESTIMATE
        listed = blake2b(repr(prices).encode(), digest_size=4).hexdigest()
        self.cache_key = f"{self.protocol}{name}/{listed}" + (f"/{factor:g}" if factor != 1 else "")

    @classmethod
    def factor_of(cls, plain: str) -> float:  # noqa: ARG003
        """Tokens of a model, by its plain name, for each token of its encoding: a first guess, before calibration."""
        return 1.0

    def message(self, body: Mapping[str, object]) -> int:
        """Tokens of one message, its framing included."""
        return self.count(body, Opaque())

    def counted(self, body: Mapping[str, object]) -> Counted:
        return _counted(partial(self.count, body))

    @abstractmethod
    def count(self, body: Mapping[str, object], opaque: Opaque) -> int:
        """Tokens of one message; adds to `opaque` what it has besides text."""

    def overhead(self, values: Mapping[str, object], *, has_system: bool = False) -> int:
        """Tokens of a request besides its messages, by its other members: tools and the like, and the priming."""
        return self.count_outside(values, Opaque(), has_system=has_system)

    @abstractmethod
    def count_outside(
        self, values: Mapping[str, object], opaque: Opaque, *, has_system: bool = False, loaded: Collection[str] = ()
    ) -> int:
        """As `overhead`; a tool whose loading is deferred costs nothing unless its name is one of those `loaded`."""

    @abstractmethod
    def chars(self, body: Mapping[str, object]) -> int:
        """About how much work it is to count a message, in characters of text."""

    def string(self, value: object) -> int:
        if isinstance(value, str):
            return self.text(value) if value else 0
        return 0 if value is None else self.json(value)

    def json(self, value: object) -> int:
        try:
            return self.text(json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str))
        except (RecursionError, ValueError):
            return self.loose(value, Opaque())

    def loose(self, value: object, opaque: Opaque) -> int:
        """About the tokens of `value` written as JSON. Data in it, such as base64, is taken for pictures."""
        total = 0
        for key, leaf in _leaves(value):
            if isinstance(leaf, str) and (key in SEALED or media.is_base64(leaf)):
                total += self.image(leaf, opaque)
            elif leaf is not None:
                total += 1 + self.text(str(leaf))
        return total

    def image(self, data: object, opaque: Opaque, detail: object = None) -> int:
        """Tokens of a picture, given in base64, also in a `data:` URI; of one elsewhere the size is unknown."""
        size = media.size_of(data) if isinstance(data, str) else None
        return opaque.priced(self.prices.picture.tokens(size, detail if isinstance(detail, str) else "auto"))

    def audio(self, data: object, form: object, opaque: Opaque) -> int:
        seconds = media.seconds_of(media.ends_of(data), str(form)) if isinstance(data, str) else None
        return opaque.priced(None if seconds is None else math.ceil(seconds * self.prices.second))

    def file(self, data: object, opaque: Opaque) -> int:
        """Tokens of a PDF or a picture, given as `image` takes it; of any other file they are unknown."""
        if not isinstance(data, str):
            return opaque.priced(None)
        ends = media.ends_of(data)
        if b"%PDF-" not in ends.head[:1_024]:
            return self.image(data, opaque)
        pages = media.pages_of(ends)
        return opaque.priced(pages and pages * self.prices.page)


@dataclass(slots=True, eq=False)
class Tokenizers:
    """The counters of one app. Thread-safe."""

    _directory: Path | None = None  # where the rank files are; None for the bundled ones
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _encoders: dict[str, Encoder] = field(default_factory=dict, init=False)
    _counters: dict[tuple[str, type[Counter], str], Counter] = field(default_factory=dict, init=False)

    def for_model(self, model: str, kind: type[Counter], owner: str = "") -> Counter:
        """A tenant's counter for a model as a client names it; unknown models get the nearest encoding."""
        key = model, kind, owner
        counter = self._counters.get(key)
        if counter is None:
            # Clients choose the names, so the cache is bounded.
            if len(self._counters) >= MAX_COUNTERS:
                self._counters.clear()
            plain = plain_name(model)
            encoder = self.encoder(encoding_name(plain))
            prices, factor = media.media_prices(plain), kind.factor_of(plain)
            text = encoder.count_for(owner)
            counter = self._counters[key] = kind(encoder.name, text, prices, owner, factor, encoder)
        return counter

    def encoder(self, encoding: str = DEFAULT_ENCODING) -> Encoder:
        """An encoding whose rank file was checked, now if it was not before."""
        encoder = self._encoders.get(encoding)
        if encoder is None:
            with self._lock:
                encoder = self._encoders.get(encoding) or Encoder(encoding, self._directory)
                self._encoders[encoding] = encoder
        return encoder

    def states(self) -> dict[str, str]:
        """The state of each encoding: `loaded`, `not loaded` or `unavailable`; loads nothing."""
        return {name: self._state(self._encoders.get(name)) for name in sorted(ranks.SPECS)}

    def _state(self, encoder: Encoder | None) -> str:
        if encoder is None or encoder.tokens is None:
            return "not loaded"
        return "unavailable" if encoder.problem else "loaded"


class CountingPool:
    """Counts messages and tools without holding up the event loop. Close it when the app stops."""

    def __init__(self) -> None:
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="tokens")
        self._long_worker = ThreadPoolExecutor(1, thread_name_prefix="tokens-long")

    async def messages(self, counter: Counter, bodies: Sequence[Mapping[str, object]]) -> list[Counted]:
        """The counts of the newest messages, in order: of those that have no more than `MOST_CHARS` behind them.

        Raises RuntimeError after close() for long input.
        """
        if counter.encoder is not None and counter.encoder.tokens is None:
            await self._load(counter.encoder)
        if is_short(counter, bodies, INLINE_CHARS):
            return [counter.counted(body) for body in bodies]

        def count(part: Sequence[Mapping[str, object]]) -> list[Counted]:
            return [counter.counted(body) for body in part]

        loop = asyncio.get_running_loop()
        # A list of many messages takes long to add up, too.
        newest, chars = await loop.run_in_executor(self._workers, _newest, counter, bodies)
        if chars > LONG_CHARS:
            return await loop.run_in_executor(self._long_worker, _count_long, counter, bodies[-newest:])
        halves = (bodies[: len(bodies) // 2], bodies[len(bodies) // 2 :])
        counting = (loop.run_in_executor(self._workers, count, half) for half in halves)
        return [counted for half in await asyncio.gather(*counting) for counted in half]

    async def overhead(
        self,
        counter: Counter,
        values: Mapping[str, object],
        chars: int,
        *,
        has_system: bool = False,
        loaded: Collection[str] = (),
    ) -> Counted:
        """As `Counter.count_outside` of members with `chars` characters."""
        if counter.encoder is not None and counter.encoder.tokens is None:
            await self._load(counter.encoder)
        counting = partial(_counted, partial(counter.count_outside, values, has_system=has_system, loaded=loaded))
        if chars <= INLINE_CHARS:
            return counting()
        worker = self._workers if chars <= LONG_CHARS else self._long_worker
        return await asyncio.get_running_loop().run_in_executor(worker, counting)

    async def _load(self, encoder: Encoder) -> None:
        """Loads an encoding. All who count by it wait in this one thread, however many they are."""
        await asyncio.get_running_loop().run_in_executor(self._long_worker, encoder.load)

    def close(self) -> None:
        """Drops queued counts; running ones end by themselves, within two seconds for each text at worst."""
        for workers in (self._workers, self._long_worker):
            workers.shutdown(wait=False, cancel_futures=True)


def cached_count(count: Callable[[str], int]) -> CountFor:
    """For each tenant `count` with a cache for long texts, such as the summary that is in every view of its session.

    Results are kept by a hash, without the text, in two generations: when the younger is full, it becomes the older.
    Threads that race lose at most an entry. Tenants share the space, but no results.
    """
    generations: list[dict[bytes, int]] = [{}, {}]

    def counted(text: str, owner: bytes) -> int:
        if len(text) < REMEMBERED_CHARS:
            return count(text)
        key = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16, key=owner).digest()
        young, old = generations
        tokens = young.get(key)
        if tokens is None:
            tokens = old.get(key)
            young[key] = tokens = count(text) if tokens is None else tokens
            if len(young) >= REMEMBERED_TEXTS:
                generations[:] = {}, young
        return tokens

    return lambda owner: partial(counted, owner=owner.encode())


def encoding_name(plain: str) -> str:
    """The encoding of a model by its plain name: cl100k_base for gpt-4 and gpt-3.5, else o200k_base."""
    is_old = plain in ("gpt-4", "ft:gpt-4") or plain.startswith(_CL100K_PREFIXES)
    return "cl100k_base" if is_old else DEFAULT_ENCODING


def is_short(counter: Counter, bodies: Iterable[Mapping[str, object]], chars: int) -> bool:
    """Whether messages have less than about `chars`; stops adding up as soon as they have more."""
    return all(total <= chars for total in accumulate(map(counter.chars, bodies)))


def _newest(counter: Counter, bodies: Sequence[Mapping[str, object]]) -> tuple[int, int]:
    """How many of the newest messages are counted, and about the characters of all."""
    *before, chars = accumulate(map(counter.chars, reversed(bodies)), initial=0)
    return bisect_left(before, MOST_CHARS), chars


def _count_long(counter: Counter, bodies: Sequence[Mapping[str, object]]) -> list[Counted]:
    """The counts of messages; of a text that is sampled the count is inexact."""
    counts = ((counter.counted(body), counter.chars(body) > SAMPLE_CHARS) for body in bodies)
    return [Counted(found.tokens, found.unpriced or is_sampled) for found, is_sampled in counts]


def _counted(count: Callable[[Opaque], int]) -> Counted:
    opaque = Opaque()
    return Counted(count(opaque), opaque.unpriced)


def _leaves(value: object) -> Iterator[tuple[object, object]]:
    """Keys and scalars of nested JSON, each with the key that it belongs to. Not recursive: depth is the client's."""
    pending: list[tuple[object, object]] = [(None, value)]
    while pending:
        key, current = pending.pop()
        if isinstance(current, Mapping):
            pending.extend((None, name) for name in current)
            pending.extend(current.items())
        elif isinstance(current, list | tuple):
            pending.extend((key, item) for item in current)
        else:
            yield key, current
