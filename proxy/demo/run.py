"""Runs the demo: replays every request under all three strategies, prints a table as it goes, then the results."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from proxy.demo import report
from proxy.demo.conversation import Way, first, turn_of
from proxy.reasons import Action
from proxy.replaying.measures import ReplayedRequest
from proxy.replaying.play import Player, open_replay_proxy, request_ends
from proxy.replaying.recorded import Conversation
from proxy.settings import Settings
from proxy.settings.tables import StoreSettings
from strategies import parse

Say = Callable[[str], None]
_ROWS = 12
_NEWS = (Action.CONDENSED, Action.WOULD_CONDENSE, Action.DEGRADED)


class Options(NamedTuple):
    """The strategy of the third way, the window in tokens, and how many requests to replay (None for all)."""

    strategy: str
    window: int
    requests: int | None = None


def demo(options: Options, conversation: Conversation, say: Say) -> bool:
    """Runs the demo, and passes its output to `say`, one or more lines at a time; returns whether all went well."""
    return asyncio.run(_demo(options, first(conversation, options.requests), say))


async def _demo(options: Options, conversation: Conversation, say: Say) -> bool:
    # These settings are not loaded: environment and files do not count, so that the demo always shows the defaults.
    settings = Settings.model_construct(store=StoreSettings(url="memory://", timeout=600.0))
    # Where the oldest messages are only dropped, nothing brings them back.
    ways = {"direct": ("off", None), "trimmed": ("recent", "off"), "condensed": (options.strategy, None)}
    async with open_replay_proxy(settings) as proxy:
        player = Player(proxy, "", options.window)
        opened = [
            Way(name, strategy, options.window, player.start(conversation, pipeline, name, memory), name == "direct")
            for name, (strategy, memory) in ways.items()
            if (pipeline := parse(strategy)) is not None
        ]
        return await _run(options, conversation, opened, player.size(conversation), say)


async def _run(options: Options, conversation: Conversation, ways: Sequence[Way], size: int, say: Say) -> bool:
    ends = list(request_ends(conversation))
    every = max(1, len(ends) // _ROWS)
    say(report.opening(conversation, options.window, size, ways, every))
    for number, end in enumerate(ends, 1):
        fresh = [await way.send(end) for way in ways]
        turn = turn_of(conversation, end)
        if any(map(_is_news, ways, fresh)) or number % every == 0 or number in (1, len(ends)):
            say(report.live_row(turn, number, fresh))
        if fresh[0] is not None and fresh[0].refused:
            say(report.first_refusal(turn, number, fresh[0].sent_tokens, options.window))
    for question in conversation.questions:
        for way in ways:
            await way.ask(question)
    say(report.reach(conversation, ways))
    say(report.totals(conversation, options.window, ways))
    refused = {way.name: way.summary().refused for way in ways if not way.is_direct}
    problems = [f"{name}: {number} requests were refused" for name, number in refused.items() if number]
    say(report.closing(problems))
    return not problems


def _is_news(way: Way, fresh: ReplayedRequest | None) -> bool:
    """Whether this request must be shown: a condensation, a degraded request, or the first refusal."""
    if fresh is None:
        return False
    first_refusal = fresh.refused and (len(way.requests) == 1 or not way.requests[-2].refused)
    return first_refusal or fresh.action in _NEWS
