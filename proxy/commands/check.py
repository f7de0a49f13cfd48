"""Check settings, store, tokenizers and upstream, and print the effective numbers for a model.

The store is opened as `serve` opens it, so a missing file is made; with --offline none is.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from typing import Any

from pydantic import SecretStr

from proxy.callers.tenants import key_file
from proxy.commands.checks import Setup, findings, report
from proxy.commands.numbers import CheckedModel, numbers
from proxy.commands.options import add_settings_arguments, command_line_settings, model, settings_from
from proxy.commands.proxy_client import proxy_at
from proxy.commands.running import find_proxy
from proxy.quoting import in_words, label, redacted
from proxy.servers.upstream.choice import Destination, destination_of
from proxy.services import Services, open_services
from proxy.settings import Settings, trees_by_source
from proxy.settings.token import token_file
from proxy.store import file_of, try_store
from proxy.store.base import StoreError

_STAND_IN = SecretStr("nobody is told")


def add_arguments(command: argparse.ArgumentParser) -> None:
    add_settings_arguments(command)
    command.add_argument(
        "--model", metavar="NAME", type=model, help="print the budget for this model, with a suffix for that strategy"
    )
    command.add_argument("--offline", action="store_true", help="ask no upstream, and make no file")
    command.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Prints what the checks find, and the numbers of a model; returns 1 if something is wrong."""
    model = None
    settings = settings_from(arguments)
    if arguments.model:
        name, suffix = arguments.model
        model = CheckedModel(settings, name, suffix, trees_by_source(**command_line_settings(arguments)))
    with _opened(settings, model, offline=arguments.offline) as setup:
        found = findings("check", setup)
        in_effect = list(numbers(setup.model)) if setup.model else []
    named = {"model": model and model.model, "numbers": [each._asdict() for each in in_effect]}
    code = report("check", found, is_json=arguments.json, **named)
    if model and not arguments.json:
        print("\n".join((f"model       {model.model}", *(each.line for each in in_effect))))
    return code


@contextmanager
def _opened(settings: Settings, model: CheckedModel | None, *, offline: bool) -> Iterator[Setup]:
    """The services of the settings; if their store does not open, with one in memory, which all other checks can do."""
    used, stack, services, problem = _without_files(settings) if offline else settings, AsyncExitStack(), None, ""
    in_memory = used.model_copy(update={"store": used.store.model_copy(update={"url": "memory://"})})
    with asyncio.Runner() as runner:
        try:
            for each in (used, in_memory):
                try:
                    services = runner.run(stack.enter_async_context(open_services(each)))
                    break
                except (StoreError, OSError, ValueError) as error:
                    problem = problem or in_words(error)
            weaknesses: set[str] = set()
            if services is not None and not problem:
                problem, weaknesses = runner.run(_problem_of_store(services))
            running = None if offline else find_proxy()
            proxy = proxy_at(running.url) if running else None
            setup = Setup(settings, services, runner.run, problem, offline, proxy, model, weaknesses)
            yield setup if services is None else _narrowed(setup, services)
        finally:
            runner.run(stack.aclose())


async def _problem_of_store(services: Services) -> tuple[str, set[str]]:
    """Why the store does not answer as it should, or "", and its weaknesses."""
    settings = services.settings.store
    try:
        async with asyncio.timeout(settings.timeout):
            await try_store(services.store, settings.encryption_keys)
            return "", await services.store.weaknesses()
    except StoreError as error:
        return str(error).replace(f"{redacted(settings.url)} ", ""), set()  # the finding already has the address
    except TimeoutError:
        return f"store-timeout: no answer within {settings.timeout:g} s", set()


def _narrowed(setup: Setup, services: Services) -> Setup:
    """The setup with what is known of its upstreams, or of the model where a request for it goes, and of no others.

    A proxy that has none of them is left out.
    """
    upstreams: Sequence[Destination] = services.destinations
    proxy, model, rows = setup.running, setup.model, []
    if model is not None:
        # Most likely that is chat's upstream, except for Claude's own protocol.
        protocol = "messages" if model.model.startswith("claude") else ""
        takes = (each for each in upstreams if protocol in each.protocols and each.serves(model.model))
        upstreams = [next(takes, None) or destination_of(upstreams, "", (), model.model)]
    places, named = {redacted(each.base_url) for each in upstreams}, label(model.model) if model else ""
    of_proxy = {each.get("url") for each in proxy.ready.get("upstreams", {}).values()} if proxy is not None else set()
    if of_proxy - {None} and places.isdisjoint(of_proxy):
        proxy = None  # it is about other servers
    if proxy is not None and proxy.known is not None:
        rows = [row for row in proxy.known["data"] if row["upstream"] in places and named in ("", row["model"])]
        proxy = proxy._replace(known={"data": rows})
    if model is not None:
        url = upstreams[0].base_url
        model = model._replace(upstream=url, server=services.discovered[url], known=rows)
    return setup._replace(running=proxy, model=model)


def _without_files(settings: Settings) -> Settings:
    """Settings under which no file is made: secrets that would be made are a constant, a missing store is in memory."""
    changes: dict[str, Any] = {}
    if key_file(settings):
        changes["tenant"] = settings.tenant.model_copy(update={"pepper": _STAND_IN})
    if token_file(settings):
        changes["admin"] = settings.admin.model_copy(update={"token": _STAND_IN})
    file = file_of(settings.store.url)
    if file is not None and not (file.exists() and file.stat().st_size):
        changes["store"] = settings.store.model_copy(update={"url": "memory://"})
    return settings.model_copy(update=changes)
