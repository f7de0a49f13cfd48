"""Compare strategies on recorded conversations; offline, unless a model is named that summarizes or votes.

FILE is a session file of Claude Code (~/.claude/projects/*/*.jsonl), a rollout file of Codex
(~/.codex/sessions/*/*/*/*.jsonl), what `condenser sessions export` wrote, or conversations as JSON or JSON lines, gzip
or not: lists of messages, or objects with `messages` and optionally `tools` and `qa` (questions with the indices of
their evidence). Each reply is requested again with the history before it, under each strategy.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from proxy.cli import FAILED, OK, USAGE
from proxy.commands.options import add_economy, amount, pipeline, positive, use_config, window
from proxy.commands.progress import Progress
from proxy.condensing.policy import RATIOS
from proxy.errors import SettingsError
from proxy.quoting import redacted
from proxy.servers.windows import Window
from proxy.settings import CONFIG_VARIABLE, Settings, load_settings
from proxy.settings.tables import http_address
from strategies import DEFAULT, Pipeline

if TYPE_CHECKING:
    from proxy.commands.replaying.agreement import LiveResults
    from proxy.commands.replaying.measures import ReplayedConversation
    from proxy.commands.replaying.play import Playing
    from proxy.commands.replaying.recorded import Conversation
    from proxy.commands.replaying.report import ReplayResults
    from proxy.services import Services
    from strategies.core.economics import Prices

_OFF = "off"
_ONE_AND_OFF = 2
_ROLES = ("summarizer", "judge")
_RESULTS = "condenser-live.ndjson"
T = TypeVar("T")


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("files", metavar="FILE", type=Path, nargs="+", help="recorded conversations")
    command.add_argument(
        "--strategy", metavar="A,B", type=_pipelines, default=_pipelines(DEFAULT), help=f"compared with off ({DEFAULT})"
    )
    add_economy(command)
    command.add_argument(
        "--window", metavar="TOKENS", type=window, help="the context length (the recorded one, else the model's)"
    )
    command.add_argument(
        "--model", metavar="NAME", default="", help="whose tokenizer, window and prices count (the recorded one)"
    )
    command.add_argument("--limit", metavar="N", type=positive, help="the first N conversations only")
    command.add_argument("--config", metavar="FILE", help=f"a TOML file ({CONFIG_VARIABLE})")
    for role in _ROLES:
        command.add_argument(
            f"--{role}-url",
            metavar="URL",
            help=f"ask the {role} that answers there; --model, unless {role}.model is set",
        )
    command.add_argument(
        "--max-cost", metavar="AMOUNT", type=amount, help="make no call that could cost more in all, and stop there"
    )
    _add_live(command)
    command.add_argument("--html", metavar="REPORT", type=Path, help="write a page with plots to this file too")
    command.add_argument("--json", action="store_true", help="print JSON")


def _add_live(command: argparse.ArgumentParser) -> None:
    live = command.add_argument_group("asking a real model what it does next, with and without the view")
    live.add_argument(
        "--live", metavar="URL", type=_address, help="the upstream's base URL, with its /v1; nothing is sent without it"
    )
    live.add_argument("--sample", metavar="N", type=positive, default=80, help="requests of each strategy (80)")
    live.add_argument("--budget", metavar="AMOUNT", type=amount, help="in money; in tokens for a model without prices")
    live.add_argument("--key-env", metavar="VARIABLE", default="", help="the environment variable that has the key")
    live.add_argument(
        "--tools", metavar="FILE", type=_tools, default=(), help="tools, as JSON, for conversations without"
    )
    live.add_argument("--reply-tokens", metavar="N", type=positive, default=1024, help="most tokens of a reply (1024)")
    live.add_argument("--results", metavar="FILE", type=Path, default=Path(_RESULTS), help=f"figures ({_RESULTS})")


def run(arguments: argparse.Namespace) -> int:
    """Prints a row for each strategy; returns 1 if asking a model ended early, 2 if the file cannot be read."""
    from proxy.commands.replaying.recorded import Unreadable
    from proxy.commands.replaying.report import document, page, table

    try:
        loaded = _loaded(arguments.files)[: arguments.limit]
    except Unreadable as error:
        print(f"condenser: {error}", file=sys.stderr)
        return USAGE
    conversations = [each if each.tools else replace(each, tools=arguments.tools) for each in loaded]
    recorded = None if arguments.model else _usual(each.window for each in conversations if each.window)
    arguments.model = (
        arguments.model or _usual(each.model for each in conversations for _ in each.messages if each.model) or ""
    )
    if arguments.live and not arguments.model:
        raise SettingsError("--live needs the name of a model: --model")
    if arguments.key_env and not os.environ.get(arguments.key_env):
        raise SettingsError(f"--key-env: {arguments.key_env} is not set")
    replayed = asyncio.run(_replay(conversations, arguments, recorded))
    if arguments.html:
        arguments.html.write_text(page(replayed), "utf-8")
    print(json.dumps(document(replayed), indent=1) if arguments.json else table(replayed))
    return FAILED if replayed.live and replayed.live.stopped else OK


def _tools(path: str) -> list[Any]:
    try:
        found = json.loads(Path(path).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"cannot be read: {error}") from None
    tools = found.get("tools") if isinstance(found, dict) else found
    return tools if isinstance(tools, list) else []


def _address(url: str) -> str:
    try:
        return http_address(url)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _loaded(paths: Sequence[Path]) -> Sequence[Conversation]:
    """The conversations of all files; a file without one among others is named and left out."""
    from proxy.commands.replaying.recorded import Empty, load

    found: list[Conversation] = []
    empty: list[Empty] = []
    for path in paths:
        try:
            found += load(path)
        except Empty as error:
            empty.append(error)
    if not found:
        raise empty[0]
    for each in empty:
        print(f"condenser: {each}", file=sys.stderr)
    return found


def _usual(values: Iterable[T]) -> T | None:
    """The most frequent of some values; None if there are none."""
    return next((value for value, _ in Counter(values).most_common(1)), None)


def _window(arguments: argparse.Namespace, settings: Settings, own: Window, recorded: int | None) -> Window:
    """The window to play with: one that was chosen, else the one that the client took the model to have.

    A model whose window nobody knows is played with `marks.most` alone, as it would be served. Raises `SettingsError`
    if that is off, too.
    """
    if arguments.window or own.is_set:
        return Window(arguments.window, "--window") if arguments.window else own
    if recorded or own.tokens is not None:
        return Window(recorded, "recorded by the client") if recorded else own
    if most := settings.own("marks", arguments.model).most:
        return Window(None, f"unknown; condensed at marks.most, {most:,}")
    raise SettingsError("no window is known, and marks.most is 0: give --window")


async def _replay(
    conversations: Sequence[Conversation], arguments: argparse.Namespace, recorded: int | None
) -> ReplayResults:
    from proxy.commands.replaying.live import Sampled
    from proxy.commands.replaying.measures import summarize
    from proxy.commands.replaying.models import RealModels, prices_of
    from proxy.commands.replaying.play import Player, Playing, open_replay_proxy
    from proxy.commands.replaying.report import ReplayResults
    from proxy.servers import LessonScope
    from proxy.tokens.counter import Tokenizers

    settings, roles = _settings(arguments), _asked(arguments)
    ways = _ways(arguments, settings)
    models = RealModels(Tokenizers(settings.tokenizer.ranks_dir), roles, arguments.max_cost) if roles else None
    async with open_replay_proxy(settings, models) as built:
        _check_asked(roles, built.services, arguments)
        own = built.services.servers.window(LessonScope(arguments.model))
        window = _window(arguments, settings, own, recorded)
        player = Player(built, arguments.model, None if window is own else window.tokens)
        progress = Progress(len(ways) * len(conversations))
        rows: dict[str, list[ReplayedConversation]] = {name: [] for name in ways}
        sampled: dict[str, list[Playing]] = {}
        kind = Sampled if arguments.live else Playing
        for i, conversation in enumerate(conversations):
            played = []
            for name, (strategy, economy) in ways.items():
                playing = kind(player, conversation, strategy, f"{i}/{name}", economy=economy)
                played.append(await playing.play())
                sampled.setdefault(name, []).append(playing)
                progress.step(name)
            if models is not None and models.stopped:
                break
            for results, one in zip(rows.values(), played, strict=True):
                results.append(one)
        conversations = conversations[: len(rows[_OFF])]
        costs, priced, currency = prices_of(built.services, arguments.model), arguments.model, settings.currency
        relative = built.services.policies.table.relative(priced) if costs == RATIOS else None
        if relative is not None and built.services.policies.prices(relative):
            costs, priced = prices_of(built.services, relative), f"{relative}, another version"
            currency = f"about {currency}"  # shown, and nothing acts by it
        prices = None if costs == RATIOS or priced != arguments.model else costs
        live = await _asked_live(sampled, arguments, settings, prices) if arguments.live else None
    failures = models.failures.items() if models else ()
    warnings = [f"{number:,} calls to a model failed: {reason}" for reason, number in failures]
    if models is not None and models.stopped:
        warnings.append("stopped by --max-cost: the conversations after that are left out")
    return ReplayResults(
        " ".join(map(str, arguments.files)) if len(arguments.files) < 4 else f"{len(arguments.files):,} files",
        len(conversations),
        arguments.model,
        window,
        [summarize(name, results, costs, rows[_OFF]) for name, results in rows.items()],
        "usual ratios" if costs == RATIOS else f"the prices of {priced}",
        played=rows,
        costs=costs,
        asked=roles,
        warnings=warnings,
        currency=currency,
        live=live,
    )


async def _asked_live(
    sampled: Mapping[str, Sequence[Playing]], arguments: argparse.Namespace, settings: Settings, prices: Prices | None
) -> LiveResults:
    """What the model at `--live` does next at a sample of the requests."""
    from proxy.commands.replaying.agreement import LiveResults
    from proxy.commands.replaying.live import Asker, Purse, Sampled, is_measurable, spread
    from proxy.servers.upstream import Upstream

    found = LiveResults(redacted(arguments.live), str(arguments.results))
    sample = []
    for playings in sampled.values():
        fit = [each for each in playings if isinstance(each, Sampled) and is_measurable(each.conversation)]
        found.unmeasurable = [each.conversation.id for each in playings if each not in fit]
        found.too_long += sum(each.too_long for each in fit)
        sample += spread([each.found for each in fit], arguments.sample)
    upstream, purse = Upstream(settings.upstream), Purse(arguments.budget, prices)
    key = os.environ.get(arguments.key_env, "").strip()  # of a file, it may end with a line
    asker = Asker(upstream, arguments.live, key, arguments.reply_tokens, purse, arguments.results)
    try:
        await asker.measure(found, sample)
    finally:
        await upstream.close()
    return found


def _ways(arguments: argparse.Namespace, settings: Settings) -> dict[str, tuple[str, str | None]]:
    """How to play: a strategy and an economy by name.

    One strategy is played with `auto` too, unless an economy is chosen or models are asked, which costs money.
    """
    ways = {each.text: (each.text, arguments.economy) for each in arguments.strategy}
    *_, last = arguments.strategy
    is_chosen = arguments.economy is not None or settings.economy == "auto" or _asked(arguments) or arguments.live
    if len(ways) == _ONE_AND_OFF and not is_chosen and not last.observe:
        ways[f"{last.text} economy=auto"] = (last.text, "auto")
    return ways


def _settings(arguments: argparse.Namespace) -> Settings:
    """The proxy's settings with a store in memory, practically no bound on its time, and the models to ask."""
    use_config(arguments.config)
    asked = {role: {"base_url": getattr(arguments, f"{role}_url")} for role in _asked(arguments)}
    settings = load_settings(store={"url": "memory://", "timeout": 600.0}, **asked)
    # A model's own summarizer or judge would override the one that is named here.
    models = tuple(each.model_copy(update=dict.fromkeys(asked)) for each in settings.models)
    return settings.model_copy(update={"models": models})


def _asked(arguments: argparse.Namespace) -> dict[str, str]:
    return {role: redacted(url) for role in _ROLES if (url := getattr(arguments, f"{role}_url"))}


def _check_asked(roles: Mapping[str, str], services: Services, arguments: argparse.Namespace) -> None:
    """Raises `SettingsError` for a model without a name, and for one without prices if the cost is bounded."""
    from proxy.commands.replaying.models import prices_of

    for role in roles:
        model = getattr(services.settings, role).model or arguments.model
        if not model:
            raise SettingsError(f"--{role}-url needs the name of a model: --model, or {role}.model in the settings")
        if arguments.max_cost is not None and prices_of(services, model) == RATIOS:
            raise SettingsError(f"--max-cost needs the prices of {model}: set them under [[models]]")


def _pipelines(text: str) -> list[Pipeline]:
    """The pipelines in a list of names, preceded by `off`."""
    names = dict.fromkeys((_OFF, *(name.strip() for name in text.split(","))))
    return [pipeline(name) for name in names]
