"""Compare strategies on recorded conversations, offline and without a model.

FILE holds conversations as JSON or JSON lines, gzip or not: a list of messages, or an object with `messages` and, where
there are any, `tools` and `qa` (questions with the indices of their evidence). Each reply is asked for again with the
history before it, under each strategy.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from proxy.cli import FAILED, OK, USAGE
from proxy.commands.options import positive, strategy, use_config, window
from proxy.condensing.policy import RATIOS, Window
from proxy.settings import CONFIG_VARIABLE, Settings, load_settings
from strategies import DEFAULT, Pipeline, parse

if TYPE_CHECKING:
    from proxy.replaying.measures import ReplayedConversation
    from proxy.replaying.recorded import Conversation
    from proxy.replaying.report import ReplayResults

WINDOW = 8_192
_OFF = "off"


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Options of `replay`."""
    command.add_argument("file", metavar="FILE", type=Path, help="recorded conversations")
    command.add_argument(
        "--strategy", metavar="A,B", type=_pipelines, default=_pipelines(DEFAULT), help=f"compared with off ({DEFAULT})"
    )
    command.add_argument(
        "--window", metavar="TOKENS", type=window, help=f"the context length (the model's, else {WINDOW:,})"
    )
    command.add_argument("--model", metavar="NAME", default="", help="whose tokenizer, window and settings to use")
    command.add_argument("--limit", metavar="N", type=positive, help="the first N conversations only")
    command.add_argument("--config", metavar="FILE", help=f"a TOML file ({CONFIG_VARIABLE})")
    command.add_argument(
        "--cliff", action="store_true", help="compare with CliffCompaction's rule too, which is not ours"
    )
    command.add_argument("--each", action="store_true", help="a line for each conversation: where it is cheapest")
    command.add_argument("--html", metavar="REPORT", type=Path, help="write a page with plots to this file too")
    command.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Prints one row for each strategy; exits 2 when the file cannot be read."""
    from proxy.replaying.page import page
    from proxy.replaying.recorded import Unreadable, load
    from proxy.replaying.report import document, each_conversation, table

    try:
        conversations = load(arguments.file, arguments.limit)
    except Unreadable as error:
        print(f"condenser: {error}", file=sys.stderr)
        return USAGE
    replayed = asyncio.run(_replay(conversations, arguments))
    if arguments.html and not _written(arguments.html, page(replayed)):
        return FAILED
    if arguments.json:
        print(json.dumps(document(replayed), indent=1))
        return OK
    print(table(replayed))
    if arguments.each:
        print("\n" + each_conversation(replayed))
    return OK


def _written(file: Path, text: str) -> bool:
    try:
        file.write_text(text, "utf-8")
    except OSError as error:
        print(f"condenser: {file}: {error.strerror}", file=sys.stderr)
        return False
    return True


class _Progress:
    """A bar on standard error, where that is a terminal."""

    def __init__(self, steps: int) -> None:
        self._steps, self._done, self._shown = steps, 0, sys.stderr.isatty()

    def step(self, told: str) -> None:
        """Shows that one more step is done; the last one wipes the bar."""
        self._done += 1
        bar = "#" * (24 * self._done // self._steps)
        line = f"[{bar:<24}] {self._done:,}/{self._steps:,} {told}" if self._done < self._steps else ""
        if self._shown:
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)


async def _replay(conversations: Sequence[Conversation], arguments: argparse.Namespace) -> ReplayResults:
    from proxy.controls import Controls
    from proxy.knowledge.proof import Scope
    from proxy.replaying import baseline
    from proxy.replaying.measures import summarize
    from proxy.replaying.play import Player, open_replay_proxy
    from proxy.replaying.report import ReplayResults

    async with open_replay_proxy(_settings(arguments)) as built:
        known = built.services.policies.window(None, Scope(arguments.model))
        assumed = arguments.window or (WINDOW if known.tokens is None else None)
        player = Player(built, arguments.model, assumed)
        progress = _Progress(len(arguments.strategy) * len(conversations))
        rows: dict[str, list[ReplayedConversation]] = {}
        for pipeline in arguments.strategy:
            rows[str(pipeline)] = played = []
            for i, each in enumerate(conversations):
                played.append(await player.play(each, pipeline, f"{i}/{pipeline}"))
                progress.step(str(pipeline))
        if arguments.cliff:
            rows[baseline.CLIFF] = [baseline.play_by_rule(player, each) for each in conversations]
        economies = [player.economy(each) for each in conversations]
        policy = built.services.policies.policy(Controls(), {}, Scope(arguments.model))
    summaries = [summarize(name, results, policy.costs, rows[_OFF]) for name, results in rows.items()]
    prices = "usual ratios" if policy.costs == RATIOS else f"the prices of {arguments.model} for a million tokens"
    window = known if assumed is None else Window(assumed, "--window" if arguments.window else "default, none is known")
    return ReplayResults(
        str(arguments.file),
        len(conversations),
        arguments.model,
        window,
        summaries,
        prices,
        economies,
        played=rows,
        costs=policy.costs,
    )


def _settings(arguments: argparse.Namespace) -> Settings:
    """The proxy's settings, with a store in memory and no bound on its time that matters."""
    use_config(arguments.config)
    return load_settings(store={"url": "memory://", "timeout": 600.0})


def _pipelines(text: str) -> list[Pipeline]:
    """The pipelines in a list of names, `off` before all others."""
    names = dict.fromkeys((_OFF, *(name.strip() for name in text.split(","))))
    return [pipeline for name in names if (pipeline := parse(strategy(name)))]
