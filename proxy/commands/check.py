"""Check settings, store, tokenizers and upstream, and print the effective numbers for a model."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator

from proxy.cli import FAILED, OK, add_settings_arguments, settings_from
from proxy.errors import UpstreamUnavailable
from proxy.policy import Policies, Window
from proxy.resources import config_directory
from proxy.routes.health import store_state
from proxy.services import Services, services
from proxy.settings import Settings
from proxy.store import redacted
from proxy.store.base import StoreError
from proxy.tokens.windows import ModelTable
from strategies.core.budget import Budget, Marks


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Options of `check`."""
    add_settings_arguments(command)
    command.add_argument("--model", metavar="NAME", help="print the budget for this model")
    command.add_argument("--offline", action="store_true", help="do not ask the upstream")


def run(arguments: argparse.Namespace) -> int:
    """Prints one line for each thing that was looked at; exits 1 when one of them is wrong."""
    settings = settings_from(arguments)
    good = asyncio.run(_check(settings, ask_upstream=not arguments.offline))
    if arguments.model:
        print("\n".join(budget_lines(settings, arguments.model)))
    return OK if good else FAILED


async def _check(settings: Settings, *, ask_upstream: bool) -> bool:
    print("settings    ok")
    try:
        async with services(settings) as built:
            return await _parts(built, ask_upstream=ask_upstream)
    except StoreError as error:
        print(f"store       {redacted(settings.store.url)}: {error}")
        return False


async def _parts(built: Services, *, ask_upstream: bool) -> bool:
    store = await store_state(built)
    print(f"store       {redacted(built.settings.store.url)}: {store}")
    for row in built.tokenizers.status():
        print(f"tokenizer   {row.name}: {row.problem or row.state}")
    reached = await _upstream(built) if ask_upstream else True
    return store == "ok" and reached


async def _upstream(built: Services) -> bool:
    url = built.settings.upstream.base_url
    try:
        status = await built.upstream.reachable()
    except UpstreamUnavailable as error:
        print(f"upstream    {url}: {error.message}")
        return False
    note = " (it wants a credential, which callers bring)" if status in (401, 403) else ""
    print(f"upstream    {url}: answers {status}{note}")
    return True


def budget_lines(settings: Settings, model: str) -> Iterator[str]:
    """The effective numbers in tokens, each with where it comes from."""
    policies = Policies(settings, ModelTable.load(config_directory() / "models.toml"))
    window = policies.window(None, model)
    entry = settings.for_model(model)
    budget = policies.budget(window, entry, None)
    yield f"model       {model}"
    yield f"  window    {window} ({window.source})"
    if budget is None:
        yield "  nothing is condensed until the window is known: set `window` in [[models]]"
        return
    yield from _numbers(budget, window, settings, model)


def _numbers(budget: Budget, window: Window, settings: Settings, model: str) -> Iterator[str]:
    entry = settings.for_model(model)
    where = "settings for the model" if entry and entry.marks else "settings"
    given = (entry.marks if entry and entry.marks else settings.marks).to_marks()
    if window.max_input is not None:
        yield f"  max input {window.max_input:,} ({window.source})"
    yield f"  reserve   {budget.reserve:,} (unless a request sets its own length)"
    yield f"  usable    {budget.usable:,}"
    for name in ("prepare", "trigger", "target", "step"):
        share, used = getattr(given, name), getattr(budget.marks, name)
        clamped = "" if share == used else f", clamped from {share:g}"
        default = "default" if share == getattr(Marks(), name) else where
        yield f"  {name:<9} {getattr(budget, name):,} ({used:g} of usable, {default}{clamped})"
    yield f"  hard      headroom under {budget.floor:,}"
    yield f"  strategy  {entry.strategy if entry and entry.strategy else settings.strategy}"
