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
from typing import NamedTuple

from pydantic import SecretStr

from proxy.cli import FAILED, OK
from proxy.commands.effective import CheckedModel, budget_lines
from proxy.commands.options import NamedModel, add_settings_arguments, command_line_settings, model, settings_from
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
    checked = CheckedModel(settings, *named, trees_by_source(**command_line_settings(arguments))) if named else None
    return OK if asyncio.run(_check(settings, checked, offline=arguments.offline)) else FAILED


async def _check(settings: Settings, checked: CheckedModel | None, *, offline: bool) -> bool:
    print("settings    ok")
    good = False
    discovered: WindowLookup = no_stated_window
    async with AsyncExitStack() as stack:
        try:
            files = [] if offline else _missing_files(settings)
            missing = [*dict.fromkeys(file.parent for file in files if not file.parent.exists()), *files]
            built = await stack.enter_async_context(
                _open_services_without_files(settings) if offline else open_services(settings)
            )
        except (StoreError, OSError, ValueError) as error:
            print(f"store       {redacted(settings.store.url)}: {in_words(error)}")
        else:
            good = await _check_parts(settings, built, offline=offline)
            for path in filter(Path.exists, missing):
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
        if prices == EVEN and first is None and anchored is None:
            print(f"calibration {name}: nothing learned yet")
            continue
        print(
            f"calibration {name}: error {_share(first)} of first requests, {_share(anchored)} later;"
            f" hidden {prices.requests:,.0f} tokens, text × {prices.words:.2f}"
        )
    return built.discovered.window if asks else no_stated_window


def _share(error: float | None) -> str:
    return "unknown" if error is None else f"{error:.1%}"


async def _check_parts(settings: Settings, built: Services, *, offline: bool) -> bool:
    good = await _check_store(settings, built, offline=offline)
    for name, state in built.tokenizers.states().items():
        problem, ready = built.tokenizers.problems.get(name, ""), state
        if state == "not loaded":
            problem, ready = (
                _unreadable_ranks(name, settings.tokenizer.ranks_dir),
                "ready, loaded when it is first needed",
            )
        print(f"tokenizer   {name}: {problem or ready}")
        good = good and not problem
    return good if offline else await _check_upstream(built) and good


def _unreadable_ranks(encoding: str, ranks_dir: Path | None) -> str:
    """Why an encoding that was not needed yet will not count, "" where it will."""
    try:
        vocabulary(encoding, ranks_dir)
    except RanksUnavailable as error:
        return str(error)
    return ""


async def _check_store(settings: Settings, built: Services, *, offline: bool) -> bool:
    unopened = _why_unopened(settings) if offline else None
    problem = await _store_problem(built) if unopened is None else unopened.reason
    good = not problem if unopened is None else unopened.is_usable
    print(f"store       {redacted(settings.store.url)}: {problem or 'ok'}")
    for file in _missing_files(settings) if offline and good else ():
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


# Offline
#
# Files that a proxy would make are listed instead. A store that could not be opened without a change to its file is
# replaced by one in memory, and secrets that would be made by a constant.


class _UnopenedStore(NamedTuple):
    """Why a store is not opened, and whether `serve` could open it."""

    reason: str
    is_usable: bool = True


def _why_unopened(settings: Settings) -> _UnopenedStore | None:
    """Why the store cannot be opened without a change to the disk; None if it can. Raises `OSError`."""
    file = file_of(settings.store.url)
    if file is None:
        return None
    if not file.exists():
        nearest = next(folder for folder in Path(os.path.abspath(file)).parents if folder.exists())
        if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
            return _UnopenedStore("not there yet")
        return _UnopenedStore(f"not there, and nothing can be made in {nearest}", is_usable=False)
    version = version_on_disk(file)
    if version and version < SCHEMA_VERSION:
        return _UnopenedStore(f"of version {version}, which serve brings up to {SCHEMA_VERSION}")
    return None if file.stat().st_size else _UnopenedStore("an empty file, which serve fills")


def _missing_files(settings: Settings) -> list[Path]:
    """The files that a proxy with these settings makes when it starts, absolute."""
    files = file_of(settings.store.url), key_file(settings), token_file(settings)
    return [Path(os.path.abspath(file)) for file in files if file is not None and not file.exists()]


@asynccontextmanager
async def _open_services_without_files(settings: Settings) -> AsyncIterator[Services]:
    """The services of a proxy, without making a file; a store that cannot be opened so is replaced by one in memory."""
    async with AsyncExitStack() as stack:
        store = None
        if _why_unopened(settings):
            store = await open_store("memory://")
            stack.push_async_callback(store.close)
        yield await stack.enter_async_context(open_services(_without_files(settings), store=store))


def _without_files(settings: Settings) -> Settings:
    """The settings with a constant for each secret whose file would be made."""
    files = key_file(settings), token_file(settings)
    needs_key, needs_token = (file is not None and not file.exists() for file in files)
    tenant = settings.tenant.model_copy(update={"pepper": _STAND_IN}) if needs_key else settings.tenant
    admin = settings.admin.model_copy(update={"token": _STAND_IN}) if needs_token else settings.admin
    return settings.model_copy(update={"tenant": tenant, "admin": admin})
