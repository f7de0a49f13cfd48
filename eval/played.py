"""Money beside what is kept: conversations played by the engine of `condenser replay`.

Each strategy and what others do (`proxy/replaying/baseline.py`), at one trigger. Our own calls are paid for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from proxy.replaying import baseline
from proxy.replaying.measures import Summary, summarize
from proxy.replaying.play import Player, open_replay_proxy
from proxy.replaying.recorded import Conversation, load
from proxy.replaying.report import markdown, share_text
from proxy.settings import Settings
from strategies import DEFAULT
from strategies.core.economics import Prices

WINDOW = 22_030
"""Its trigger is at 16,362 tokens."""
PRICES = Prices(input=0.95, cached_input=0.16, cache_write=0.95, output=4.0)
"""Those of Kimi K2.6 for a million tokens."""
KINDS = {"coding-agent": "coding agents", "customer-service-tools": "customer service"}
OURS = (f"{DEFAULT}, memory off", DEFAULT, "mask+half-window", "half-window", "mask", "recent", "semantic", "rolling")
AUTO = f"{DEFAULT}, economy auto"
EACH = 4
"""Conversations of each kind."""


def money_page(path: Path) -> str:
    known = load(path)
    parts = []
    for kind, called in KINDS.items():
        of = [one for one in known if kind in one.id][:EACH]
        parts.append(f"**{called}**, {len(of)} conversations:\n\n{_money_table(asyncio.run(costs(of)))}")
    return "\n\n".join(parts)


async def costs(conversations: Sequence[Conversation], ours: Sequence[str] = OURS) -> list[Summary]:
    """The figures of each way to serve these conversations."""
    prices = {"input": PRICES.input, "cached_input": PRICES.cached_input, "output": PRICES.output}
    steered = {"economy": "auto", "models": [{"match": "*", "prices": prices}], "store": {"url": "memory://"}}
    async with (
        open_replay_proxy(Settings.model_validate({"economy": "off", "store": {"url": "memory://"}})) as proxy,
        open_replay_proxy(Settings.model_validate(steered)) as auto,
    ):
        player = Player(proxy, "gpt-4o", WINDOW)
        direct = [baseline.direct(player, one) for one in conversations]
        rows = {
            "direct": direct,
            "CliffCompaction's rule": [baseline.play_by_rule(player, one) for one in conversations],
        }
        for name in (*ours, AUTO):
            strategy = name.partition(",")[0]
            memory = "off" if "memory off" in name or name == "recent" else None
            own = Player(auto, "gpt-4o", WINDOW) if name == AUTO else player
            rows[f"`{name}`"] = [
                await own.play(one, strategy, f"{place}/{name}", memory) for place, one in enumerate(conversations)
            ]
    return [summarize(name, played, PRICES, direct) for name, played in rows.items()]


def _money_table(summaries: Sequence[Summary]) -> str:
    head = "way | cost | of direct | dear writes | condensed | own tokens | users' names kept"
    rows = [
        [
            summary.strategy,
            f"{summary.cost:.2f}",
            share_text(summary.cost_share),
            share_text(summary.dear_share),
            f"{summary.condensations:,}",
            f"{summary.own:,}",
            "-" if summary.names_share is None else f"{summary.names_share:.0%}",
        ]
        for summary in summaries
    ]
    return markdown(head, rows)
