"""What the totals of requests say, in words, for pages and commands.

Standard library only, because commands must start quickly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

MILLION = 1_000_000
"""Money is counted in whole millionths of the prices' currency, so that sums of it are exact."""

NONE = dict.fromkeys(
    ("requests", "failed", "rescued", "saved_tokens", "own_tokens", "own_calls", "reread_tokens", "cost", "saved_cost"),
    0,
)
"""Totals where nothing was counted: whoever reads them as data finds each that the sentences tell."""


def money(amount: float, currency: str) -> str:
    """An amount with its currency: `USD 1.20`, `USD 0.0012`."""
    return f"{currency} {amount:,.2f}" if abs(amount) >= 1 else f"{currency} {amount:,.4f}"


def balance(net: float, rescuing: float, currency: str) -> str:
    """What was saved on requests that would have fitted anyway, less what was paid on those; and what rescuing cost."""
    amount = money(abs(net), currency)
    told = f"condensing saved {amount} net" if net > 0 else f"condensing cost {amount} more than it saved"
    told = told if net else "condensing saved nothing and cost nothing"
    return f"{told}; rescuing cost {money(rescuing, currency)}" if rescuing else told


def net_and_rescuing(sums: Mapping[str, int]) -> tuple[float, float]:
    """What was saved less what was paid on the same requests, and what rescuing cost; own calls by their tokens."""
    get = Counter(sums)
    own = get["own_cost"] * min(get["rescue_own_tokens"] / max(get["own_tokens"], 1), 1)
    rescuing = get["rescue_reread_cost"] + round(own)
    net = get["saved_cost"] - (get["own_cost"] + get["reread_cost"] - rescuing)
    return net / MILLION, rescuing / MILLION


def spent_and_saved(sums: Mapping[str, int], currency: str) -> str:
    """What requests have cost, and the balance of condensing."""
    about = "about " if sums.get("unreported") else ""
    told = balance(*net_and_rescuing(sums), currency)
    return f"{about}{money(sums.get('cost', 0) / MILLION, currency)} spent; {told}"


def figures(sums: Mapping[str, int], currency: str) -> Iterator[tuple[str, str]]:
    """What was rescued, saved and paid, in rows of a name and a text; money only where it is known."""
    get = Counter(sums)
    yield "rescued", f"{get['rescued']:,} requests that did not fit without it" if get["rescued"] else "0"
    yield "saved", f"{get['saved_tokens']:,} tokens on requests that would have fitted anyway"
    failed = f", {get['own_failed']:,} failed" if get["own_failed"] else ""
    calls = f"{get['own_calls']:,} calls of its own, " if get["own_calls"] else ""
    own = f"{calls}{get['own_tokens']:,} tokens{failed}" if get["own_tokens"] or calls else "no calls of its own"
    reread = f"; {get['reread_tokens']:,} cached tokens read again at full price" if get["reread_tokens"] else ""
    yield "paid", own + reread
    if get["cost"]:
        yield "money", spent_and_saved(get, currency)


def sentence(total: Mapping[str, int], currency: str) -> str:
    """What happened to the requests, in one or two sentences."""
    get = Counter(total)
    if not get["requests"]:
        return "No request came in this period."
    fitted = f"{get['rescued']:,} of {get['requests']:,} requests fitted only because they were condensed"
    told = f"{fitted}; {get['failed']:,} failed."
    if get["cost"]:
        told += f" Money: {spent_and_saved(get, currency)}."
    return told


class Notice(NamedTuple):
    """Something that needs attention, and where to see it: an address below the pages, "" for none."""

    name: str
    text: str
    link: str = ""


def notices(total: Counter[str], ready: Mapping[str, Any]) -> list[Notice]:
    """What needs attention, in the order of its weight."""
    found = []
    if ready["store"]["state"] != "ok":
        text = f"The store does not work: {ready['store']['state']}. Requests are served without what is stored."
        found.append(Notice("store", text))
    if standing := ready["standing_still"]:
        found.append(Notice("loops", f"Work in the background stands still: {', '.join(standing)}. Restart the proxy."))
    if total["failed"]:
        text = f"{total['failed']:,} request{'s' if total['failed'] != 1 else ''} failed."
        found.append(Notice("failed", text, "requests?show=failed"))
    if total["action_degraded"]:
        count = total["action_degraded"]
        found.append(
            Notice("degraded", f"{count:,} requests lacked something, such as the store.", "requests?show=degraded")
        )
    if total["own_failed"]:
        text = f"{total['own_failed']:,} of {total['own_calls']:,} of Condenser's own model calls failed."
        found.append(Notice("own-calls", text))
    if total["unreported"]:
        text = f"Replies without a usage: {total['unreported']:,}; what they cost is estimated from our own count."
        found.append(Notice("unreported", text))
    return found
