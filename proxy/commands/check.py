"""Check settings, store, tokenizers and upstream, and print the effective numbers for a model.

The store is opened as `serve` opens it: a file that is missing is made. With --offline no file is made, and none is
brought up to date.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from proxy.cli import FAILED, OK
from proxy.commands.effective import CheckedModel, budget_lines
from proxy.commands.options import add_settings_arguments, command_line_settings, model, settings_from
from proxy.endpoints.chat.counter import ChatCounter
from proxy.errors import UpstreamUnavailable
from proxy.knowledge.prices import EVEN
from proxy.quoting import in_words, redacted
from proxy.request.callers import key_file
from proxy.request.measure import LENGTH_ESTIMATE
from proxy.services import Services, open_services
from proxy.settings import Settings, trees_by_source
from proxy.settings.token import token_file
from proxy.store import file_of, open_store
from proxy.store.base import StoreError
from proxy.store.sqlite_file import SCHEMA_VERSION, version_on_disk
from proxy.tokens.ranks import RanksUnavailable, vocabulary
from proxy.tokens.windows import WindowLookup, no_stated_window

_STAND_IN = SecretStr("nobody is told")


def add_arguments(command: argparse.ArgumentParser) -> None:
    add_settings_arguments(command)
    command.add_argument(
        "--model", metavar="NAME", type=model, help="print the budget for this model, with a suffix for that strategy"
    )
    command.add_argument("--offline", action="store_true", help="ask no upstream, and make no file")


def run(arguments: argparse.Namespace) -> int:
    """Prints one line for each part that was checked; exits 1 when one of them is wrong."""
    settings = settings_from(arguments)
    checked = None
    if arguments.model:
        name, suffix = arguments.model
        checked = CheckedModel(settings, name, suffix, trees_by_source(**command_line_settings(arguments)))
    return OK if asyncio.run(_check(settings, checked, offline=arguments.offline)) else FAILED


async def _check(settings: Settings, checked: CheckedModel | None, *, offline: bool) -> bool:
    print("settings    ok")
    good = False
    discovered: WindowLookup = no_stated_window
    async with AsyncExitStack() as stack:
        try:
            missing = [] if offline else _missing_files(settings)
            folders = dict.fromkeys(file.parent for file in missing if not file.parent.exists())
            opened = _open_services_without_files(settings) if offline else open_services(settings)
            built = await stack.enter_async_context(opened)
        except (StoreError, OSError, ValueError) as error:
            print(f"store       {redacted(settings.store.url)}: {in_words(error)}")
        else:
            # All of them, also where one is wrong.
            good = all(
                [
                    await _check_store(settings, built, offline=offline),
                    _check_tokenizers(built),
                    offline or await _check_upstream(built),
                ]
            )
            for path in filter(Path.exists, (*folders, *missing)):
                print(f"created     {path}")
            if checked and good:
                discovered = await _print_calibration(built, checked.model, offline=offline)
    if checked:
        print("\n".join(budget_lines(checked, discovered)))
    return good


async def _print_calibration(built: Services, model: str, *, offline: bool) -> WindowLookup:
    """Prints the model's server, and how well the upstream's token count is predicted for the model.

    It is predicted from the tokenizer's count, and from lengths. Returns how to look up the windows that the server
    states.
    """
    asks = built.settings.upstream.discover and not offline
    if asks:
        await built.discovered.ask()
        print(f"server      {built.discovered.kind or 'states no windows, or wants a credential for that'}")
    counted = built.tokenizers.for_model(model, ChatCounter).cache_key
    for name, counter in (("counted", counted), ("by length", LENGTH_ESTIMATE)):
        first, anchored, prices = await built.calibrator.progress(model, counter)
        said = "nothing learned yet"
        if prices != EVEN or first is not None or anchored is not None:
            errors = ["unknown" if error is None else f"{error:.1%}" for error in (first, anchored)]
            said = (
                f"error {errors[0]} of first requests, {errors[1]} later;"
                f" hidden {prices.requests:,.0f} tokens, text × {prices.words:.2f}"
            )
        print(f"calibration {name}: {said}")
    return built.discovered.window if asks else no_stated_window


def _check_tokenizers(built: Services) -> bool:
    """Looks also at the vocabularies that were not needed yet."""
    good = True
    for row in built.tokenizers.status():
        problem = row.problem
        if row.state == "not loaded":
            try:
                vocabulary(row.name, built.settings.tokenizer.ranks_dir)
            except RanksUnavailable as error:
                problem = str(error)
        ready = row.state if row.state == "loaded" else "ready, loaded when it is first needed"
        print(f"tokenizer   {row.name}: {problem or ready}")
        good = good and not problem
    return good


async def _check_store(settings: Settings, built: Services, *, offline: bool) -> bool:
    url, unopened = redacted(settings.store.url), _why_unopened(settings) if offline else None
    if unopened:
        problem, good = unopened
    else:
        problem, good = "", True
        try:
            async with asyncio.timeout(settings.store.timeout):
                await built.store.ping()
        except StoreError as error:
            problem, good = str(error).replace(f"{url} ", ""), False  # the line has the address already
        except TimeoutError:
            problem, good = f"store-timeout: no answer within {settings.store.timeout:g} s", False
    print(f"store       {url}: {problem or 'ok'}")
    for file in _missing_files(settings) if offline and good else ():
        print(f"not yet     {file}: serve makes it")
    return good


async def _check_upstream(built: Services) -> bool:
    url, has_key = redacted(built.settings.upstream.base_url), built.own_key is not None
    try:
        status = await built.upstream.probe()
    except UpstreamUnavailable as error:
        print(f"upstream    {url}: {error.message}")
        return False
    note = ""
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        note = " (it refuses upstream.api_key)" if has_key else " (it wants a credential, which callers bring)"
    print(f"upstream    {url}: answers {status}{note}")
    return status < HTTPStatus.INTERNAL_SERVER_ERROR and not (note and has_key)


# Offline
#
# Files that a proxy would make are listed instead. A store that could not be opened without a change to its file is
# replaced by one in memory, and secrets that would be made by a constant.


def _why_unopened(settings: Settings) -> tuple[str, bool] | None:
    """Why the store cannot be opened without a change to the disk, and whether `serve` could open it; None if it can.

    Raises `OSError`.
    """
    file = file_of(settings.store.url)
    if file is None:
        return None
    if not file.exists():
        nearest = next(folder for folder in Path(os.path.abspath(file)).parents if folder.exists())
        if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
            return "not there yet", True
        return f"not there, and nothing can be made in {nearest}", False
    version = version_on_disk(file)
    if version and version < SCHEMA_VERSION:
        return f"of version {version}, which serve brings up to {SCHEMA_VERSION}", True
    return None if file.stat().st_size else ("an empty file, which serve fills", True)


def _missing_files(settings: Settings) -> list[Path]:
    """The files that a proxy with these settings makes when it starts, absolute."""
    files = file_of(settings.store.url), key_file(settings), token_file(settings)
    return [Path(os.path.abspath(file)) for file in files if file is not None and not file.exists()]


@asynccontextmanager
async def _open_services_without_files(settings: Settings) -> AsyncIterator[Services]:
    """The services of a proxy, without making a file."""
    files = key_file(settings), token_file(settings)
    needs_key, needs_token = (file is not None and not file.exists() for file in files)
    changes: dict[str, Any] = {}
    if needs_key:
        changes["tenant"] = settings.tenant.model_copy(update={"pepper": _STAND_IN})
    if needs_token:
        changes["admin"] = settings.admin.model_copy(update={"token": _STAND_IN})
    async with AsyncExitStack() as stack:
        store = None
        if _why_unopened(settings):
            store = await open_store("memory://")
            stack.push_async_callback(store.close)
        yield await stack.enter_async_context(open_services(settings.model_copy(update=changes), store=store))
