"""Money beside what is kept: recorded conversations under each strategy and under what others do, at one trigger.

Every way is played by the engine of `condenser replay`, request by request. *Newest only* is LangChain's
`trim_messages`, which drops the oldest messages of each request; CliffCompaction's rule is in
`proxy/replaying/baseline.py`. LiteLLM's `trim_messages` (1.109.1) has no row: where a call has no text it fails and
returns the whole history, and for one conversation of 234 requests it took over four minutes. Summaries are scripted,
so they are an upper bound of what a model would keep. Our own calls are paid for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from langchain_core.messages import BaseMessage, convert_to_messages, trim_messages

from proxy.replaying import baseline
from proxy.replaying.measures import ReplayedConversation, Summary, summarize
from proxy.replaying.play import Player, open_replay_proxy
from proxy.replaying.recorded import Conversation, Message, load
from proxy.replaying.report import markdown, share_text
from proxy.settings import Settings
from strategies import DEFAULT, parse
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


def page(path: Path, each: int = EACH) -> str:
    """A table for each kind of conversations."""
    known = load(path)
    return "\n\n".join(
        f"**{title}**, {len(chosen)} conversations:\n\n{_table(asyncio.run(measured(chosen)))}"
        for kind, title in KINDS.items()
        if (chosen := [one for one in known if kind in one.id][:each])
    )


async def measured(conversations: Sequence[Conversation], ours: Sequence[str] = OURS) -> list[Summary]:
    """The figures of each way to serve these conversations."""
    settings = {"upstream": {"base_url": "http://localhost/v1"}, "store": {"url": "memory://"}}
    prices = {"input": PRICES.input, "cached_input": PRICES.cached_input, "output": PRICES.output}
    steered = {**settings, "economy": "auto", "models": [{"match": "*", "prices": prices}]}
    async with (
        open_replay_proxy(Settings.model_validate({**settings, "economy": "off"})) as proxy,
        open_replay_proxy(Settings.model_validate(steered)) as auto,
    ):
        player = Player(proxy, "gpt-4o", WINDOW)
        direct = [baseline.play(player, one, partial(_history, one)) for one in conversations]
        rows: dict[str, list[ReplayedConversation]] = {
            "direct": direct,
            "newest only (LangChain)": [baseline.play(player, one, _Newest(player, one).show) for one in conversations],
            "CliffCompaction's rule": [baseline.play_by_rule(player, one) for one in conversations],
        }
        for name in (*ours, AUTO):
            pipeline = parse(name.partition(",")[0])
            memory = "off" if "memory off" in name or name == "recent" else None
            assert pipeline is not None
            own = Player(auto, "gpt-4o", WINDOW) if name == AUTO else player
            rows[f"`{name}`"] = [
                await own.play(one, pipeline, f"{place}/{name}", memory) for place, one in enumerate(conversations)
            ]
    return [summarize(name, played, PRICES, direct) for name, played in rows.items()]


def _history(conversation: Conversation, end: int) -> Sequence[Message]:
    return conversation.messages[:end]


class _Newest:
    """What LangChain's function leaves of a history, in as many tokens as our trigger."""

    def __init__(self, player: Player, conversation: Conversation) -> None:
        self._messages = conversation.messages
        self._most = player.room(conversation)
        self._tokens = [message.tokens for message in player.forwarded(conversation, conversation.messages)]
        self._converted = convert_to_messages([dict(message) for message in conversation.messages])
        for place, message in enumerate(self._converted):
            message.id = str(place)

    def show(self, end: int) -> Sequence[Message]:
        history = self._converted[:end]
        kept = trim_messages(history, max_tokens=self._most, token_counter=self._sum, include_system=True)
        return [self._messages[int(message.id or 0)] for message in kept]

    def _sum(self, messages: list[BaseMessage]) -> int:
        return sum(self._tokens[int(message.id or 0)] for message in messages)


def _table(summaries: Sequence[Summary]) -> str:
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
