"""What `economy = "auto"` would have cut from the prompts of sessions, by arithmetic from their request records. Pure.

The records say how each prompt grew. The same growth is played as it was sent, and as if it were condensed where that
is cheapest (`strategies/core/economics.py`); the share between the two is that of what the upstream has billed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import ceil, inf
from typing import Any

from proxy.condensing.policy import RATIOS
from strategies.core.budget import Budget, Cause, Marks
from strategies.core.economics import Prices, PriceStep, advise, condensing_of

_WORTH_A_LINE = 0.05
_MIN_REQUESTS = 5  # fewer say nothing about how a conversation grows
Document = Mapping[str, Any]


def offer(documents: Sequence[Document], arrivals: Sequence[Document], since: float) -> tuple[float, float] | None:
    """The share of the prompts' cost that it would have cut, and in money (0 without prices); None if not worth a line.

    `documents` are sessions of the admin API and `arrivals` its rows; only requests since that time count.
    """
    kinds = {row["model"]: row for row in arrivals if row["trigger"] and row["economy"] != "auto"}
    sent = cheaper = billed = 0.0
    for document in documents:
        kind = kinds.get(document["model"])
        if kind is None or document["totals"].get("own_tokens"):  # calls of its own have another arithmetic
            continue
        prices = _prices(kind)
        for records in _branches(document, since):
            as_sent, auto = _played(records, kind, prices or RATIOS)
            sent, cheaper = sent + as_sent, cheaper + auto
            if prices is not None:
                billed += sum(prices.of_call(prompt=each["prompt"], cached=each["cached"]) for each in records)
    share = 1 - cheaper / sent if sent else 0.0
    return (share, share * billed) if share >= _WORTH_A_LINE else None


def _prices(kind: Document) -> Prices | None:
    found = kind["prices"]
    return found and Prices(**{**found, "step": found["step"] and PriceStep(*found["step"])})


def _branches(document: Document, since: float) -> Iterator[list[Document]]:
    """The answered requests of each branch that is long enough to tell."""
    answered = [each for each in document["requests"] if each["at"] >= since and 200 <= each["status"] < 300]
    for name in {each["branch"] for each in answered}:
        records = [each for each in answered if each["branch"] == name]
        if len(records) >= _MIN_REQUESTS:
            yield records


def _played(records: Sequence[Document], kind: Document, prices: Prices) -> tuple[float, float]:
    """What the prompts of this kind cost as they were sent, and under `auto` beside its configured trigger."""
    if not any(each["cached"] for each in records):  # the upstream keeps no cache, or tells of none
        prices = replace(prices, cached_input=prices.input, cache_write=prices.input)
    full = [each["before"] for each in records]
    head, more = full[0], [max(after - before, 0) for before, after in pairwise(full)]
    budget = Budget.of(ceil(kind["trigger"] / Marks().trigger), reserve=0)
    budget, growth = replace(budget, cause=Cause(kind["trigger_by"])), sum(more) / len(more)
    advice = advise(budget, prices, condensing_of(budget, prices, head, growth, asks=False), growth)
    auto = _cost(full, head, prices, advice.trigger, advice.target) if advice.saves else inf
    sent = [each["before" if each["action"] == "would-condense" else "after"] for each in records]
    as_sent = _cost(sent, head, prices)
    return as_sent, min(auto, as_sent)


def _cost(prompts: Sequence[int], head: int, prices: Prices, trigger: float = inf, target: int = 0) -> float:
    """What prompts cost that are condensed to `target` at `trigger`; of a changed start only the head is cached."""
    cost = 0.0
    before = view = 0
    for prompt in prompts:
        grown = view + prompt - before
        is_new = prompt < before or grown >= trigger
        common = min(head, view) if is_new else view
        view = min(prompt, target if grown >= trigger else prompt if prompt < before else grown)
        cost, before = cost + prices.of_prompt(view, common), prompt
    return cost
