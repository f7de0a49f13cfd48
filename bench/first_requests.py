"""How well the upstream's count of prompts is predicted: mean errors over recorded conversations, in percent.

Six times, 26 conversations of all kinds go turn by turn before upstreams with another vocabulary, a hidden prompt of
700 tokens, five tokens around each message and 100 around tools. `fitted` are the prices of the calibration; `one
slope` is one price for all text, fitted in the same way, and an offset for each set of tools. `first` are the requests
with which the conversations after the tenth begin, `later` those from the third turn of each.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from statistics import fmean, median
from typing import Any, NamedTuple

import tiktoken

from proxy.endpoints.chat.counter import ChatCounter
from proxy.knowledge.anchor import Anchor, CountedPrompt, calibration_for
from proxy.knowledge.features import EVEN, Features
from proxy.knowledge.samples import Observation, Samples, fit_prices
from proxy.replaying import table
from proxy.tokens import ranks
from proxy.tokens.counter import Counter, Tokenizers
from strategies.core.messages import Message, Reader
from strategies.core.transcript import Transcript
from strategies.dialects.chat import CHAT, SYSTEM_ROLES
from tests.http.recorded import SHORT, Conversation, conversations

HIDDEN, FRAME, TOOLS = 700, 5, 100
SEEDS, SESSIONS, TURNS, LEARNED = 6, 26, 8, 10
WINDOW = 200_000
Text = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class Row:
    """Mean relative errors in percent; `by` is how we counted."""

    upstream: str
    by: str
    prices: str
    first: float
    later: float


class _Seen(NamedTuple):
    session: int
    turn: int
    error: float


def measure(seeds: int = SEEDS, sessions: int = SESSIONS) -> list[Row]:
    """All rows; takes about a minute."""
    known = sorted(conversations(SHORT).values(), key=lambda each: each.id)
    usable = [each for each in known if len(each.requests()) > 2]
    rows: list[Row] = []
    for upstream, text in _vocabularies().items():
        true = cache(lambda at, text=text: _counts(usable[at], text))
        for by in ("tokenizer", "length"):
            prompts = cache(lambda at, by=by: list(_prompts(usable[at], by)))
            for name, fit in FITS.items():
                seen = [
                    each
                    for seed in range(1, seeds + 1)
                    for each in _talked(random.Random(seed).sample(range(len(usable)), sessions), prompts, true, fit)
                ]
                first = fmean(each.error for each in seen if each.turn == 0 and each.session >= LEARNED)
                later = fmean(each.error for each in seen if each.turn >= 2)
                rows.append(Row(upstream, by, name, 100 * first, 100 * later))
    return rows


def _vocabularies() -> Mapping[str, Text]:
    older, own = ranks.load("cl100k_base"), Tokenizers().for_model("gpt-4o", ChatCounter)
    pattern = older._pat_str  # noqa: SLF001 - it has no public name
    few = {token: rank for token, rank in ranks.vocabulary("cl100k_base").items() if rank < 12_000}
    small = tiktoken.Encoding("small", pat_str=pattern, mergeable_ranks=few, special_tokens={})
    return {
        "12,000 tokens": lambda text: len(small.encode_ordinary(text)),
        "three bytes a token": lambda text: -(-len(text.encode()) // 3),
        "cl100k": lambda text: len(older.encode_ordinary(text)),
        "two for each of ours": lambda text: 2 * own.text(text),
        "0.67 of ours": lambda text: own.text(text) * 67 // 100,
    }


def _counts(conversation: Conversation, text: Text) -> list[int]:
    fixed = HIDDEN + (TOOLS + text(json.dumps(conversation.tools)) if conversation.tools else 0)
    parts = [FRAME + text(_rendered(each)) for each in conversation.messages]
    return [fixed + sum(parts[:length]) for length in conversation.requests()[:TURNS]]


def _rendered(message: Mapping[str, Any]) -> str:
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return "".join([message["role"], message.get("content") or "", *(c["name"] + c["arguments"] for c in calls)])


def _prompts(conversation: Conversation, by: str) -> Iterator[CountedPrompt]:
    """The requests as we count them."""
    counter, reader, tools = Tokenizers().for_model("gpt-4o", ChatCounter), Reader(), conversation.tools
    messages = [_read(each, reader, counter if by == "tokenizer" else None) for each in conversation.messages]
    has_system = conversation.messages[0]["role"] in SYSTEM_ROLES
    counted = counter.overhead({"tools": tools}, has_system=has_system)
    overhead = counted if by == "tokenizer" else 3 + len(json.dumps(tools)) // 4
    frame = blake2b(json.dumps(tools).encode(), digest_size=8).hexdigest()
    for length in conversation.requests()[:TURNS]:
        yield CountedPrompt(Transcript.of(messages[:length]), overhead, by, frame, bool(tools))


def _read(body: Mapping[str, Any], reader: Reader, counter: Counter | None) -> Message:
    text = json.dumps(body)
    return reader.read(text, body, counter.message(body) if counter else len(text) // 4 + 1, CHAT)


def _talked(
    chosen: Sequence[int],
    prompts: Callable[[int], list[CountedPrompt]],
    true: Callable[[int], list[int]],
    fit: Callable[[Samples, str], Features],
) -> Iterator[_Seen]:
    """All requests of some conversations, one conversation after the other."""
    samples = Samples()
    for session, at in enumerate(chosen):
        anchor: Anchor | None = None
        for turn, (prompt, counted) in enumerate(zip(prompts(at), true(at), strict=True)):
            known = calibration_for(prompt, fit(samples, prompt.frame), anchor, WINDOW)
            yield _Seen(session, turn, abs(known.scale.upstream(prompt.own) - counted) / counted)
            features, of = prompt.whole, counted
            if anchor is not None and known.grown is not None:
                features, of = known.grown.features, counted - anchor.counted
            samples = samples.with_observation(
                Observation(features, of, f"{session} {prompt.frame}", session * TURNS + turn)
            )
            digests = prompt.transcript.digests
            node, length = digests[-1].hex(), len(digests)
            anchor = Anchor(node, length, "", counted, prompt.own, prompt.counter, prompt.frame, prompt.fixed)


def _fitted(samples: Samples, _frame: str) -> Features:
    return samples.fit()


def _one_slope(samples: Samples, frame: str) -> Features:
    """One price for all text, and the offset of a set of tools, drawn a little towards that of all requests."""
    seen = [
        each._replace(features=Features(each.features.requests, words=each.features.own_text))
        for each in (*samples.wholes, *samples.growths)
    ]
    price = fit_prices(seen) if seen else EVEN
    words = price.words
    prices = EVEN._replace(requests=price.requests, words=words, code=words, non_latin=words, outside=words)
    left = [each.counted - each.features.at(prices) for each in samples.wholes if each.by.endswith(frame)]
    offset = median(left) * len(left) / (len(left) + 0.5) if left else 0.0
    return prices._replace(requests=prices.requests + offset)


FITS = {"fitted": _fitted, "one slope": _one_slope}


def markdown(rows: Sequence[Row]) -> str:
    lines = [[row.upstream, row.by, row.prices, f"{row.first:.2f}", f"{row.later:.2f}"] for row in rows]
    return table.markdown("upstream | counted by | prices | first, % | later, %", lines, texts=(0, 1, 2))
