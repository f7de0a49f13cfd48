"""Check settings, store, tokenizers and upstream, and print the effective numbers for a model.

The store is opened as `serve` opens it: a file that is missing is made. With --offline no file is made, and none is
brought up to date.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from http import HTTPStatus
from pathlib import Path

from proxy.cli import FAILED, OK
from proxy.commands.effective import CheckedModel, budget_lines
from proxy.commands.offline import missing_files, missing_paths, open_services_without_files, why_unopened
from proxy.commands.options import add_settings_arguments, command_line_settings, settings_from
from proxy.commands.values import NamedModel, model
from proxy.errors import UpstreamUnavailable
from proxy.learning.stated_windows import WindowLookup, no_stated_window
from proxy.quoting import in_words, redacted
from proxy.request.measure import BY_LENGTH
from proxy.services import Services, open_services
from proxy.settings import Settings, sources
from proxy.store.base import StoreError
from proxy.tokens.counter import EncodingStatus
from proxy.tokens.ranks import RanksUnavailable, vocabulary


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Options of `check`."""
    add_settings_arguments(command)
    command.add_argument(
        "--model", metavar="NAME", type=model, help="print the budget for this model, with a suffix for that strategy"
    )
    command.add_argument("--offline", action="store_true", help="ask no upstream, and make no file")


def run(arguments: argparse.Namespace) -> int:
    """Prints one line for each part that was checked; exits 1 when one of them is wrong."""
    settings = settings_from(arguments)
    named: NamedModel | None = arguments.model
    question = CheckedModel(settings, *named, sources(**command_line_settings(arguments))) if named else None
    return OK if asyncio.run(_check(settings, question, offline=arguments.offline)) else FAILED


async def _check(settings: Settings, question: CheckedModel | None, *, offline: bool) -> bool:
    print("settings    ok")
    good = False
    discovered: WindowLookup = no_stated_window
    async with AsyncExitStack() as stack:
        try:
            missing = [] if offline else missing_paths(settings)
            built = await stack.enter_async_context(
                open_services_without_files(settings) if offline else open_services(settings)
            )
        except (StoreError, OSError, ValueError) as error:
            print(f"store       {redacted(settings.store.url)}: {in_words(error)}")
        else:
            good = await _check_parts(settings, built, offline=offline)
            print_created(missing)
            if question and good:
                discovered = await _print_calibration(built, question, offline=offline)
    if question:
        print("\n".join(budget_lines(question, discovered)))
    return good


async def _print_calibration(built: Services, question: CheckedModel, *, offline: bool) -> WindowLookup:
    """Prints the model's server and calibration; returns how to look up the windows that the server states."""
    asks = built.settings.upstream.discover and not offline
    if asks:
        await _ask_server(built)
    print("\n".join([each async for each in calibration_lines(built, question.model)]))
    return built.discovered.window if asks else no_stated_window


async def calibration_lines(built: Services, model: str) -> AsyncIterator[str]:
    """How well the upstream's token count is predicted for a model: from the tokenizer's count, and from lengths."""
    counted = built.tokenizers.for_model(model).cache_key
    for name, counter in (("counted", counted), ("by length", BY_LENGTH)):
        progress = await built.calibrator.progress(model, counter)
        first, anchored, fitted = progress
        if fitted.is_even and first is None and anchored is None:
            yield f"calibration {name}: nothing learned yet"
            continue
        yield (
            f"calibration {name}: error {_share(first)} of first requests, {_share(anchored)} later;"
            f" hidden {fitted.prices.requests:,.0f} tokens, text × {fitted.prices.words:.2f}"
        )


def _share(error: float | None) -> str:
    return "unknown" if error is None else f"{error:.1%}"


async def _ask_server(built: Services) -> None:
    await built.discovered.ask()
    kind = built.discovered.kind
    print(f"server      {kind or 'states no windows, or wants a credential for that'}")


async def _check_parts(settings: Settings, built: Services, *, offline: bool) -> bool:
    good = await _check_store(settings, built, offline=offline)
    for row in built.tokenizers.status():
        problem = _tokenizer_problem(row, settings.tokenizer.ranks_dir)
        ready = row.state if row.state == "loaded" else "ready, loaded when it is first needed"
        print(f"tokenizer   {row.name}: {problem or ready}")
        good = good and not problem
    return good if offline else await _check_upstream(built) and good


def _tokenizer_problem(row: EncodingStatus, ranks_dir: Path | None) -> str:
    """Why a tokenizer cannot count, also one that was not needed yet; "" where it can."""
    try:
        if row.state == "not loaded":
            vocabulary(row.name, ranks_dir)
    except RanksUnavailable as error:
        return str(error)
    return row.problem


async def _check_store(settings: Settings, built: Services, *, offline: bool) -> bool:
    unopened = why_unopened(settings) if offline else None
    problem = await _store_problem(built) if unopened is None else unopened.reason
    good = not problem if unopened is None else unopened.is_usable
    print(f"store       {redacted(settings.store.url)}: {problem or 'ok'}")
    for file in missing_files(settings) if offline and good else ():
        print(f"not yet     {file}: serve makes it")
    return good


async def _store_problem(built: Services) -> str:
    """Why the store does not answer, in its own words; "" where it does."""
    timeout = built.settings.store.timeout
    try:
        async with asyncio.timeout(timeout):
            await built.store.ping()
    except StoreError as error:
        # The line has the address already.
        return str(error).replace(f"{redacted(built.settings.store.url)} ", "")
    except TimeoutError:
        return f"store-timeout: no answer within {timeout:g} s"
    return ""


def print_created(missing: Sequence[Path]) -> None:
    """Prints which of the files and folders that were missing exist now."""
    for path in missing:
        if path.exists():
            print(f"created     {path}")


async def _check_upstream(built: Services) -> bool:
    url = redacted(built.settings.upstream.base_url)
    try:
        status = await built.upstream.probe()
    except UpstreamUnavailable as error:
        print(f"upstream    {url}: {error.message}")
        return False
    has_key = built.settings.upstream.api_key is not None
    note = ""
    if status in (401, 403):
        note = " (it refuses upstream.api_key)" if has_key else " (it wants a credential, which callers bring)"
    print(f"upstream    {url}: answers {status}{note}")
    return status < HTTPStatus.INTERNAL_SERVER_ERROR and not (note and has_key)
