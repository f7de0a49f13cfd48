"""Two forms of asking for a summary: what each has the model read, and how much of that an upstream's cache has.

In the isolated form a prompt is new. In the continued form it is a view that was sent before, which the upstream has
cached, and an instruction. Recorded conversations are played with a scripted summarizer; prompts are counted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.waiting import present
from proxy.asking import Caller, Roles
from proxy.replaying.play import Player, ReplayProxy, ScriptedSummarizer
from proxy.replaying.recorded import Conversation, load
from proxy.services import open_services
from proxy.settings import load_settings
from proxy.tokens.counter import Tokenizers
from strategies import Pipeline
from strategies.core.effects import Ask, Effect, Result
from tests.support.data import LONG

WINDOW, MODEL = 32_768, "gpt-4o"
STRATEGIES = ("half-window", "mask+half-window")


@dataclass
class Row:
    """Calls of one strategy in one form; tokens of prompts that are `new` to the upstream, and of a view that it has
    `seen` before."""

    strategy: str
    form: str
    calls: int = 0
    new: int = 0
    seen: int = 0


class _Counting(ScriptedSummarizer):
    """Notes what it is asked."""

    def __init__(self, row: Row) -> None:
        super().__init__(Tokenizers())
        self.row = row

    async def resolve(self, effects: Sequence[Effect], roles: Roles, caller: Caller) -> tuple[Result, ...]:
        counter = self._tokenizers.for_model(caller.model)
        for ask in (each for each in effects if isinstance(each, Ask)):
            self.row.calls += 1
            self.row.new += counter.text(ask.user) + (0 if ask.view else counter.text(ask.system))
            self.row.seen += sum(counter.message(each) for each in json.loads(ask.view or "[]"))
        return await super().resolve(effects, roles, caller)


def add_options(parser: argparse.ArgumentParser) -> None:
    """How many conversations are played."""
    parser.add_argument("--conversations", type=int, default=3, help="of each kind of agent; by default 3")


def measure(conversations: int) -> list[Row]:
    """A row for each strategy and form."""
    found = list(_agents(load(present(LONG)), conversations))
    return [asyncio.run(_played(name, form, found)) for name in STRATEGIES for form in ("isolated", "continue")]


def _agents(recorded: Iterable[Conversation], each: int) -> Iterable[Conversation]:
    taken: dict[str, int] = {}
    for conversation in recorded:
        kind = conversation.id.split("/")[1]
        if conversation.tools and taken.setdefault(kind, 0) < each:
            taken[kind] += 1
            yield conversation


async def _played(strategy: str, form: str, conversations: Sequence[Conversation]) -> Row:
    row = Row(strategy, form)
    settings = load_settings(store={"url": "memory://", "timeout": 600.0}, summarizer={"form": form}, window=WINDOW)
    summarizer = _Counting(row)
    async with open_services(settings, summarizer=summarizer) as built:
        player = Player(ReplayProxy(built, summarizer), MODEL, WINDOW)
        for number, conversation in enumerate(conversations):
            await player.play(conversation, Pipeline(tuple(strategy.split("+"))), str(number))
    return row


def markdown(rows: Sequence[Row]) -> str:
    """A table."""
    lines = [
        "| strategy | form | calls | prompt tokens new to the upstream | of a view sent before |",
        "|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *(f"| {r.strategy} | {r.form} | {r.calls} | {r.new:,} | {r.seen:,} |" for r in rows)])


def document(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows as JSON."""
    return [asdict(row) for row in rows]
