"""Check settings, store, tokenizers and upstream, and print the effective numbers for a model.

The store is opened as `serve` opens it, which makes what is missing. With --offline no file is made, and none is
brought up to date.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

from proxy.cli import FAILED, OK, add_settings_arguments, given_in, settings_from
from proxy.commands.effective import Question, budget_lines
from proxy.commands.untouched import left_alone, unmade, untouched
from proxy.commands.values import Named, model
from proxy.discovery import Stated, nothing_stated
from proxy.errors import UpstreamUnavailable
from proxy.request.measure import BY_LENGTH
from proxy.routes.health import store_state
from proxy.services import Services, services
from proxy.settings import Settings, sources
from proxy.store import redacted
from proxy.store.base import StoreError


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Options of `check`."""
    add_settings_arguments(command)
    command.add_argument(
        "--model", metavar="NAME", type=model, help="print the budget for this model, with a suffix for that strategy"
    )
    command.add_argument("--offline", action="store_true", help="ask no upstream, and make no file")


def run(arguments: argparse.Namespace) -> int:
    """Prints one line for each thing that was looked at; exits 1 when one of them is wrong."""
    settings = settings_from(arguments)
    asked: Named | None = arguments.model
    question = Question(settings, *asked, sources(**given_in(arguments))) if asked else None
    return OK if asyncio.run(_check(settings, question, offline=arguments.offline)) else FAILED


async def _check(settings: Settings, question: Question | None, *, offline: bool) -> bool:
    print("settings    ok")
    good = False
    discovered: Stated = nothing_stated
    async with AsyncExitStack() as stack:
        try:
            built = await stack.enter_async_context(untouched(settings) if offline else services(settings))
        except (StoreError, OSError, ValueError) as error:
            print(f"store       {redacted(settings.store.url)}: {error}")
        else:
            good = await _parts(settings, built, offline=offline)
            if question and good:
                discovered = await _model(built, question, offline=offline)
    if question:
        print("\n".join(budget_lines(question, discovered)))
    return good


async def _model(built: Services, question: Question, *, offline: bool) -> Stated:
    """Prints what is known of a model besides its numbers; the windows that its server states."""
    asks = built.settings.upstream.discover and not offline
    if asks:
        await _ask_server(built)
    print("\n".join([each async for each in calibration_lines(built, question.model)]))
    return built.discovered.window if asks else nothing_stated


async def calibration_lines(built: Services, model: str) -> AsyncIterator[str]:
    """How well the upstream's own count of a model is known: by the tokenizer's count, and by length."""
    counted = built.tokenizers.for_model(model).cache_key
    for name, counter in (("counted", counted), ("by length", BY_LENGTH)):
        progress = await built.calibrator.progress(model, counter)
        first, anchored, line = progress
        if line.is_even and first is None and anchored is None:
            yield f"calibration {name}: nothing learned yet"
            continue
        yield (
            f"calibration {name}: error {_share(first)} of first requests, {_share(anchored)} later;"
            f" hidden {line.prices.requests:,.0f} tokens, text × {line.prices.words:.2f}"
        )


def _share(error: float | None) -> str:
    return "unknown" if error is None else f"{error:.1%}"


async def _ask_server(built: Services) -> None:
    await built.discovered.ask()
    kind = built.discovered.kind
    print(f"server      {kind or 'states no windows, or wants a credential for that'}")


async def _parts(settings: Settings, built: Services, *, offline: bool) -> bool:
    good = await _store(settings, built, offline=offline)
    for row in built.tokenizers.status():
        print(f"tokenizer   {row.name}: {row.problem or row.state}")
    return good if offline else await _upstream(built) and good


async def _store(settings: Settings, built: Services, *, offline: bool) -> bool:
    left = left_alone(settings) if offline else None
    state = await store_state(built) if left is None else left.why
    good = state == "ok" if left is None else left.good
    print(f"store       {redacted(settings.store.url)}: {state}")
    for file in unmade(settings) if offline and good else ():
        print(f"not yet     {file}: serve makes it")
    return good


async def _upstream(built: Services) -> bool:
    url = redacted(built.settings.upstream.base_url)
    try:
        status = await built.upstream.reachable()
    except UpstreamUnavailable as error:
        print(f"upstream    {url}: {error.message}")
        return False
    note = " (it wants a credential, which callers bring)" if status in (401, 403) else ""
    print(f"upstream    {url}: answers {status}{note}")
    return True
