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

from proxy.cli import OK, USAGE
from proxy.commands.options import positive, strategy, use_config, window
from proxy.condensing.policy import RATIOS, Window
from proxy.settings import CONFIG_VARIABLE, Settings, load_settings
from strategies import DEFAULT, Pipeline, parse

if TYPE_CHECKING:
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
    command.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Prints one row for each strategy; exits 2 when the file cannot be read."""
    from proxy.replaying.recorded import Unreadable, load
    from proxy.replaying.report import document, each_conversation, table

    try:
        conversations = load(arguments.file, arguments.limit)
    except Unreadable as error:
        print(f"condenser: {error}", file=sys.stderr)
        return USAGE
    replayed = asyncio.run(_replay(conversations, arguments))
    if arguments.json:
        print(json.dumps(document(replayed), indent=1))
        return OK
    print(table(replayed))
    if arguments.each:
        print("\n" + each_conversation(replayed))
    return OK


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
        played = {
            pipeline: [await player.play(each, pipeline, f"{i}/{pipeline}") for i, each in enumerate(conversations)]
            for pipeline in arguments.strategy
        }
        by_rule = [baseline.play_by_rule(player, each) for each in conversations] if arguments.cliff else []
        economies = [player.economy(each) for each in conversations]
        policy = built.services.policies.policy(Controls(), {}, Scope(arguments.model))
    rows = {str(pipeline): results for pipeline, results in played.items()}
    rows |= {baseline.CLIFF: by_rule} if by_rule else {}
    direct = rows[_OFF]
    summaries = [summarize(name, results, policy.costs, direct) for name, results in rows.items()]
    prices = "usual ratios" if policy.costs == RATIOS else f"the prices of {arguments.model} for a million tokens"
    window = known if assumed is None else Window(assumed, "--window" if arguments.window else "default, none is known")
    return ReplayResults(str(arguments.file), len(conversations), arguments.model, window, summaries, prices, economies)


def _settings(arguments: argparse.Namespace) -> Settings:
    """The proxy's settings, with a store in memory and no bound on its time that matters."""
    use_config(arguments.config)
    return load_settings(store={"url": "memory://", "timeout": 600.0})


def _pipelines(text: str) -> list[Pipeline]:
    """The pipelines in a list of names, `off` before all others."""
    names = dict.fromkeys((_OFF, *(name.strip() for name in text.split(","))))
    return [pipeline for name in names if (pipeline := parse(strategy(name)))]
