"""Runs the demo: replays every request under all three strategies, prints a table as it goes, then the results."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from proxy.demo import report
from proxy.demo.conversation import first, turn_of
from proxy.demo.ways import DIRECT, NAMES, TRIMMED, Options, Way
from proxy.reasons import Action
from proxy.replaying.measures import ReplayedRequest
from proxy.replaying.play import Player, open_replay_proxy, request_ends
from proxy.replaying.recorded import Conversation
from proxy.settings import Settings
from strategies import parse

Say = Callable[[str], None]
_ROWS = 12
_NEWS = (Action.CONDENSED, Action.WOULD_CONDENSE, Action.DEGRADED)


class _DemoSettings(Settings):
    """Settings that ignore the environment and all files, so that the demo always shows the defaults."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The arguments are the only source."""
        return (init_settings,)


def demo(options: Options, conversation: Conversation, say: Say) -> bool:
    """Runs the demo, and passes its output to `say`, one or more lines at a time; returns whether all went well."""
    return asyncio.run(_demo(options, first(conversation, options.requests), say))


async def _demo(options: Options, conversation: Conversation, say: Say) -> bool:
    settings = _DemoSettings.model_validate({"store": {"url": "memory://", "timeout": 600.0}})
    async with open_replay_proxy(settings) as proxy:
        player = Player(proxy, "", options.window)
        strategies = (DIRECT, TRIMMED, options.strategy)
        ways = [_way(player, conversation, *each, options.window) for each in zip(NAMES, strategies, strict=True)]
        size = player.size(conversation)
        return await _run(options, conversation, ways, size, say)


def _way(player: Player, conversation: Conversation, name: str, strategy: str, window: int) -> Way:
    pipeline = parse(strategy)
    if pipeline is None:
        raise ValueError(strategy)
    return Way(name, strategy, window, player.start(conversation, pipeline, name))


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
