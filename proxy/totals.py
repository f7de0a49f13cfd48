"""What the totals of requests say, in words, for pages and commands.

Standard library only, because commands must start quickly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

MILLION = 1_000_000
"""Money is counted in whole millionths of the prices' currency, so that sums of it are exact."""


def money(amount: float, currency: str) -> str:
    """An amount with its currency: `USD 1.20`, `USD 0.0012`."""
    return f"{currency} {amount:,.2f}" if abs(amount) >= 1 else f"{currency} {amount:,.4f}"


def spent_and_saved(sums: Mapping[str, int], currency: str) -> tuple[str, str]:
    """What requests cost; and a clause on what was saved on those that would have fitted anyway, less what it took."""
    net = sums.get("saved_cost", 0) - sums.get("own_cost", 0) - sums.get("reread_cost", 0)
    about = "about " if sums.get("unreported") else ""
    amount = money(abs(net) / MILLION, currency)
    balance = f"condensing saved {amount} net" if net > 0 else f"condensing cost {amount} more than it saved"
    balance = balance if net else "condensing saved nothing and cost nothing"
    return about + money(sums.get("cost", 0) / MILLION, currency), balance


def sentence(total: Mapping[str, int], currency: str) -> str:
    """What happened to the requests, in one or two sentences."""
    get = Counter(total)
    if not get["requests"]:
        return "No request came in this period."
    fitted = f"{get['rescued']:,} of {get['requests']:,} requests fitted only because they were condensed"
    told = f"{fitted}; {get['failed']:,} failed."
    if get["cost"]:
        spent, balance = spent_and_saved(get, currency)
        told += f" Spent: {spent}. On requests that would have fitted anyway, {balance}."
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
    if total["failed"]:
        found.append(Notice("failed", f"{total['failed']:,} requests failed.", "requests?show=failed"))
    if total["action_degraded"]:
        count = total["action_degraded"]
        found.append(
            Notice("degraded", f"{count:,} requests lacked something, such as the store.", "requests?show=degraded")
        )
    if total["own_failed"]:
        text = f"{total['own_failed']:,} of {total['own_calls']:,} of Condenser's own model calls failed."
        found.append(Notice("own-calls", text))
    if total["unreported"]:
        text = f"{total['unreported']:,} replies reported no usage: their cost is estimated from our own count."
        found.append(Notice("unreported", text))
    return found
