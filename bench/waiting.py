"""Who waits for a model: recorded conversations of over 64k tokens, played through the real driver in virtual time.

Every reply takes `REPLY` seconds and every answer of a summarizer or judge `ANSWER`, or as chosen, on a clock that
jumps where the loop would sleep and stands still while anything is computed. A request has waited if the clock jumped
while it was decided on. Conversations are played back to back, each request the moment that the reply before has
ended, and with a pause between turns.

Requests that no preparation could have helped are told apart as `leaps`: those that one turn took from below `prepare`
to where a view must be condensed, or that brought more than there is room for above `target`, and those behind them
while the view is still too large.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import groupby, islice, product
from pathlib import Path
from typing import Any

from proxy.asking import Caller, Roles
from proxy.commands.replaying.models import ScriptedSummarizer
from proxy.commands.replaying.play import RecordedClient, open_replay_proxy, request_ends
from proxy.commands.replaying.recorded import Conversation, load
from proxy.condensing.turn import Decision
from proxy.errors import ContextLengthExceeded
from proxy.reasons import Action
from proxy.services import Services
from proxy.settings import Settings
from proxy.tokens.counter import Tokenizers
from proxy.turn.drive import decide, follow_up, store
from strategies.core.effects import Effect, Result
from tests.support.data import LONG, MISSING
from tests.support.virtual_time import PassingTime

STRATEGIES = ("mask+half-window", "half-window", "semantic", "dynacontext")
WINDOWS = (16_384, 32_768, 65_536)
REPLY = 3.0
ANSWER = 8.0
PAUSES = (0.0, 5.0)
MOMENT = 0.05
"""Seconds that are no wait: an answer may be due with the request, less the time that asking for it took to compute."""
MAX_WAITING = {0.0: 0.01, 5.0: 0.0}
"""The share of requests that may wait, by seconds between turns: it must be less, or none."""
MODEL = "gpt-4o"


def measure(
    recorded: Path = LONG,
    each: int = 2,
    strategies: Sequence[str] = STRATEGIES,
    windows: Sequence[int] = WINDOWS,
    pauses: Sequence[float] = PAUSES,
    answer: float = ANSWER,
) -> list[dict[str, Any]]:
    """All rows, as many at a time as there are cores; minutes with two conversations of each kind, an hour with all."""
    if not recorded.exists():
        raise SystemExit(f"bench: {recorded}: {MISSING}")
    cells = list(product(strategies, windows, pauses))
    with ProcessPoolExecutor(os.cpu_count()) as workers:
        return list(workers.map(partial(_cell, recorded, each, answer), *zip(*cells, strict=True)))


def chosen(conversations: Sequence[Conversation], each: int) -> Iterator[Conversation]:
    """The first conversations of each kind, by the name without its number; all for 0."""
    for _, alike in groupby(conversations, key=lambda found: found.id.rpartition("/")[0]):
        yield from islice(alike, each or None)


def _cell(recorded: Path, each: int, answer: float, strategy: str, window: int, pause: float) -> dict[str, Any]:
    with asyncio.Runner(loop_factory=PassingTime) as runner:
        return runner.run(row(list(chosen(load(recorded), each)), strategy, window, pause, answer))


async def row(
    conversations: Sequence[Conversation], strategy: str, window: int, pause: float, answer: float = ANSWER
) -> dict[str, Any]:
    """Conversations one after the other, each a session of its own; on a loop of `PassingTime`."""
    tally: Counter[str] = Counter()
    waits = [0.0]
    settings = Settings.model_validate({"window": window, "store": {"url": "memory://", "timeout": 600.0}})
    async with open_replay_proxy(settings, SlowSummarizer(answer)) as proxy:
        for number, conversation in enumerate(conversations):
            client = RecordedClient(conversation, MODEL, session=number, strategy=strategy, window=window)
            before: Decision | None = None
            async for decision, waited in _played(proxy.services, client, conversation, pause):
                tally["requests"] += 1
                if decision is None:
                    tally["refused"] += 1
                    continue
                has_waited = waited >= MOMENT
                tally["waited"] += has_waited
                tally["leaps"] += has_waited and is_leap(before, decision)
                tally["condensed"] += decision.action is Action.CONDENSED
                waits.append(waited)
                before = decision
    share = (tally["waited"] - tally["leaps"]) / max(tally["requests"], 1)
    return {
        "strategy": f"`{strategy}`",
        "window": window,
        "pause, s": pause,
        "requests": tally["requests"],
        "condensed": tally["condensed"],
        "refused": tally["refused"],
        "waited": tally["waited"],
        "of them leaps": tally["leaps"],
        "share, %": 100 * share,
        "longest, s": max(waits),
        "target": verdict(share, pause),
    }


def verdict(share: float, pause: float) -> str:
    """`met` or `missed`, by the share that waited and need not have; "-" for a pause that has no target."""
    most = MAX_WAITING.get(pause)
    return "-" if most is None else "met" if share < most or share == 0 else "missed"


async def _played(
    services: Services, client: RecordedClient, conversation: Conversation, pause: float
) -> AsyncIterator[tuple[Decision | None, float]]:
    """What was decided on every request of a conversation, None where it was refused, and how long it waited."""
    for end in request_ends(conversation):
        before = clock().passed
        try:
            with clock().passing():
                turn = await decide(services, await client.request(services.message_cache, end))
        except ContextLengthExceeded:
            yield None, 0.0
            continue
        yield turn.sent.decision, clock().passed - before
        await passing(REPLY)
        await store(services, turn)
        follow_up(services, turn)
        await passing(pause)
    await services.background.idle()


class SlowSummarizer(ScriptedSummarizer):
    def __init__(self, takes: float) -> None:
        super().__init__(Tokenizers())
        self._takes = takes

    async def resolve(self, effects: Sequence[Effect], roles: Roles, caller: Caller) -> tuple[Result, ...]:
        await passing(self._takes)
        return await super().resolve(effects, roles, caller)


async def passing(seconds: float) -> None:
    """Waits on a loop of `PassingTime`."""
    with clock().passing():
        await asyncio.sleep(seconds)


def clock() -> PassingTime:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, PassingTime)
    return loop


def is_leap(before: Decision | None, now: Decision) -> bool:
    """Whether nothing that was prepared after the request before could have spared this one its wait."""
    budget = now.context.policy.budget
    if before is None or budget is None:
        return True
    most, grown = (
        budget.usable - budget.least_headroom,
        now.context.history.sent.tokens - before.context.history.sent.tokens,
    )
    return before.tokens_after < budget.prepare or before.tokens_after > most or grown > most - budget.target
