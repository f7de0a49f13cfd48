"""Check settings, store, tokenizers and upstream, and print the effective numbers for a model."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator

from proxy.cli import FAILED, OK, add_settings_arguments, settings_from
from proxy.commands.effective import budget_lines
from proxy.discovery import Stated, nothing_stated
from proxy.errors import UpstreamUnavailable
from proxy.measure import BY_LENGTH
from proxy.routes.health import store_state
from proxy.services import Services, services
from proxy.settings import Settings
from proxy.store import redacted
from proxy.store.base import StoreError


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Options of `check`."""
    add_settings_arguments(command)
    command.add_argument("--model", metavar="NAME", help="print the budget for this model")
    command.add_argument("--offline", action="store_true", help="do not ask the upstream")


def run(arguments: argparse.Namespace) -> int:
    """Prints one line for each thing that was looked at; exits 1 when one of them is wrong."""
    settings = settings_from(arguments)
    return OK if asyncio.run(_check(settings, arguments.model, ask_upstream=not arguments.offline)) else FAILED


async def _check(settings: Settings, model: str | None, *, ask_upstream: bool) -> bool:
    print("settings    ok")
    discovered: Stated = nothing_stated
    try:
        async with services(settings) as built:
            good = await _parts(built, ask_upstream=ask_upstream)
            if model and good and ask_upstream and settings.upstream.discover:
                await _ask_server(built)
                discovered = built.discovered.window
            if model and good:
                print("\n".join([each async for each in calibration_lines(built, model)]))
    except (StoreError, ValueError) as error:
        print(f"store       {redacted(settings.store.url)}: {error}")
        good = False
    if model:
        print("\n".join(budget_lines(settings, model, discovered)))
    return good


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
