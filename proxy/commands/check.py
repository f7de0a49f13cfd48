"""Check settings, store, tokenizers and upstream, and print the effective numbers for a model.

The store is opened as `serve` opens it, so a missing file is made; with --offline none is.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, fields
from functools import reduce
from http import HTTPStatus
from typing import Any, NamedTuple

from pydantic import SecretStr

from proxy import config_directory
from proxy.cli import FAILED, OK
from proxy.commands.options import add_settings_arguments, command_line_settings, model, settings_from
from proxy.commands.probe import known_at, known_lines
from proxy.commands.proxy_client import moment, token_of
from proxy.commands.running import find_proxy
from proxy.condensing.account import OPTION_BOUNDS
from proxy.condensing.policy import SETTINGS, Policies, Policy, option_tables
from proxy.controls import Controls
from proxy.discovery import Discovered
from proxy.endpoints.chat import ChatCounter
from proxy.errors import UpstreamUnavailable
from proxy.knowledge.figures import OWN
from proxy.knowledge.learned_windows import SOURCE, LearnedWindow
from proxy.knowledge.profiles import LessonScope
from proxy.quoting import in_words, label, redacted
from proxy.request.callers import key_file
from proxy.services import Services, open_services
from proxy.settings import Settings, trees_by_source
from proxy.settings.loading import sets
from proxy.settings.token import token_file
from proxy.store import file_of, try_store
from proxy.store.base import StoreError
from proxy.tokens.counter import Tokenizers
from proxy.tokens.models import StatedWindow, bundled_table
from proxy.tokens.ranks import SPECS
from proxy.upstream.choice import Destination, destination_of, shown
from strategies import TABLE, Pipeline
from strategies.core.budget import MAX_RESERVE, Budget, Marks
from strategies.core.protocol import Marking
from strategies.core.summary import usual_lengths

_STAND_IN = SecretStr("nobody is told")


def add_arguments(command: argparse.ArgumentParser) -> None:
    add_settings_arguments(command)
    command.add_argument(
        "--model", metavar="NAME", type=model, help="print the budget for this model, with a suffix for that strategy"
    )
    command.add_argument("--offline", action="store_true", help="ask no upstream, and make no file")
    command.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Prints a line for each part that was checked; returns 1 if one of them is wrong."""
    settings = settings_from(arguments)
    checked = None
    if arguments.model:
        name, suffix = arguments.model
        checked = CheckedModel(settings, name, suffix, trees_by_source(**command_line_settings(arguments)))
    report = Report(is_json=arguments.json)
    asyncio.run(_check(settings, checked, report, offline=arguments.offline))
    if arguments.json:
        print(json.dumps(report.document, ensure_ascii=False, indent=2))
    return OK if report.document["ok"] else FAILED


class Report:
    """What a check finds: each finding is printed at once, or kept for one JSON document."""

    def __init__(self, *, is_json: bool = False) -> None:
        self.document: dict[str, Any] = {"ok": True, "checks": [], "known": None, "model": None}
        self._is_json = is_json

    def add(self, part: str, text: str, *, ok: bool = True) -> None:
        self.document["ok"] = self.document["ok"] and ok
        self.document["checks"].append({"part": part, "ok": ok, "text": text})
        self.say(f"{part:<11} {text}")

    def say(self, *lines: str) -> None:
        """Prints what a person reads, unless JSON is asked for."""
        if not self._is_json:
            print("\n".join(lines))


async def _check(settings: Settings, checked: CheckedModel | None, report: Report, *, offline: bool) -> None:
    report.add("settings", "ok")
    scope, server = LessonScope(checked.model if checked else ""), None
    async with AsyncExitStack() as stack:
        used = _without_files(settings) if offline else settings
        if (built := await _opened(used, stack, report)) is not None:
            await _check_store(settings, built, report)
        else:
            # What else is checked needs nothing that is stored.
            in_memory = used.store.model_copy(update={"url": "memory://"})
            built = await _opened(used.model_copy(update={"store": in_memory}), stack, report)
        if built is not None:
            _check_tokenizers(built, report)
            for each in () if offline else built.destinations:
                await _check_upstream(built, each, report)
            if checked:
                scope = LessonScope(checked.model, upstream=_upstream_of(built, checked.model).base_url)
                server = built.discovered[scope.upstream]
                if report.document["ok"]:
                    await _add_calibration(built, scope, report)
    running = None if offline else find_proxy()
    if running is not None:
        report.add("running", running.url)
        report.document["known"] = known = known_at(running.url, token_of(running))
        report.say(*known_lines(known))
    if checked:
        checked = _with_what_is_known(checked, scope, server, report.document["known"])
        report.document["model"] = numbers(checked)
        report.say(*budget_lines(checked))


def _with_what_is_known(
    checked: CheckedModel, scope: LessonScope, server: Discovered | None, known: Mapping[str, Any] | None
) -> CheckedModel:
    """The model with what its server states, now or to a proxy that runs, and the smallest window that this learned."""
    place = label(scope.model), redacted(scope.upstream)
    rows = [row for row in (known or {}).get("data", ()) if (row["model"], row["upstream"]) == place and row["window"]]
    told = (StatedWindow(row["window"], None, row["source"]) for row in rows if row["source"].startswith("stated by"))
    taught = (LearnedWindow(row["window"], row["until"], None) for row in rows if row["source"] == SOURCE)
    stated = server.window(scope.model) if server else None
    return checked._replace(stated=stated or next(told, None), learned=min(taught, default=None))


async def _opened(settings: Settings, stack: AsyncExitStack, report: Report) -> Services | None:
    try:
        return await stack.enter_async_context(open_services(settings))
    except (StoreError, OSError, ValueError) as error:
        report.add("store", f"{redacted(settings.store.url)}: {in_words(error)}", ok=False)
        return None


async def _add_calibration(built: Services, scope: LessonScope, report: Report) -> None:
    """Adds how well the tokenizer's count and the length predict the upstream's count of a model."""
    counted = built.tokenizers.for_model(scope.model, ChatCounter).cache_key
    figures = await built.knowledge.calibrator.figures(scope, counted)
    picture = "as published" if figures.picture is None else f"{figures.picture:,.0f} tokens"
    first, later = ("unknown" if each is None else f"{each:.1%}" for each in (figures.first_error, figures.later_error))
    said = (
        f"each prompt {figures.offset:,.0f} tokens more than we count, text × {figures.slope:.2f}, a picture {picture};"
        f" error of the count {first} at first requests, {later} later"
    )
    report.add("calibration", "nothing learned yet" if figures == OWN else said)


def _upstream_of(built: Services, model: str) -> Destination:
    """The upstream that a request for a model most likely goes to: chat's, except for Claude's own protocol."""
    protocol = "messages" if model.startswith("claude") else ""
    takes = (each for each in built.destinations if protocol in each.protocols and each.serves(model))
    return next(takes, None) or destination_of(built.destinations, "", (), model)


def _check_tokenizers(built: Services, report: Report) -> None:
    for name in sorted(SPECS):
        problem = built.tokenizers.encoder(name).problem
        report.add("tokenizer", f"{name}: {problem or 'ready, loaded when it is first needed'}", ok=not problem)


async def _check_store(settings: Settings, built: Services, report: Report) -> None:
    url, problem = redacted(settings.store.url), ""
    if built.settings.store.url != settings.store.url:
        report.add("store", f"{url}: does not exist yet; `serve` makes it")
        return
    try:
        async with asyncio.timeout(settings.store.timeout):
            await try_store(built.store, settings.store.encryption_keys)
    except StoreError as error:
        problem = str(error).replace(f"{url} ", "")  # the line already has the address
    except TimeoutError:
        problem = f"store-timeout: no answer within {settings.store.timeout:g} s"
    fine = "ok, encrypted" if settings.store.encryption_key else "ok"
    report.add("store", f"{url}: {problem or fine}", ok=not problem)


async def _check_upstream(built: Services, upstream: Destination, report: Report) -> None:
    named = f"{upstream.name}: " if len(built.destinations) > 1 else ""
    url, has_key = named + shown([upstream]), upstream.api_key is not None
    try:
        status = await built.upstream.probe(upstream)
    except UpstreamUnavailable as error:
        report.add("upstream", f"{url}: {error.message}", ok=False)
        return
    note = ""
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        note = f" (it refuses the api_key of '{upstream.name}')" if has_key else " (it needs a key, which callers send)"
    is_well = status < HTTPStatus.INTERNAL_SERVER_ERROR and not (note and has_key)
    report.add("upstream", f"{url}: answers {status}{note}", ok=is_well)
    if is_well and built.settings.upstream.discover:
        server = built.discovered[upstream.base_url]
        await server.ask()
        for said in (server.kind or "reports no context length, or only with a credential", *server.advice):
            report.add("server", named + said)


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


# The numbers for a model

_DEFAULT, _OWN = "default", "settings for the model"
_SHARES = ("paths", "depth")
_NUMBERS = (
    *("max_input", "reserve", "usable", "prepare", "trigger", "target", "step", "least_headroom", "replacement_cap"),
    *("task_cap", "prompt_window"),
)


class CheckedModel(NamedTuple):
    """The model whose numbers are shown, under the pipeline in the suffix of its name."""

    settings: Settings
    model: str
    suffix: Pipeline | None = None
    sources: Mapping[str, Mapping[str, Any]] = {}
    """The settings of each source by its name; the first source wins. Without sources every origin is "settings"."""
    stated: StatedWindow | None = None  # the window that the server states
    learned: LearnedWindow | None = None  # the one that a refusal has taught a proxy that runs

    @property
    def policy(self) -> Policy:
        table = bundled_table(config_directory() / "models.toml")
        policies = Policies(self.settings, table, lambda _: self.stated, lambda _: self.learned)
        return policies.policy(Controls(strategy=self.suffix), {}, LessonScope(self.model))

    def source(self, *path: str) -> str:
        return next((name for name, tree in self.sources.items() if sets(tree, path)), SETTINGS)

    def origin(self, *path: str) -> str:
        """Where the value of the key at a path comes from; it may be the model's own entry."""
        if getattr(self.settings.for_model(self.model), path[-1], None) is not None:
            return _OWN
        used, default = (reduce(getattr, path, settings) for settings in (self.settings, Settings.model_construct()))
        return _DEFAULT if used == default else self.source(*path)


def numbers(checked: CheckedModel) -> dict[str, Any]:
    """The numbers of `budget_lines` as JSON: sizes in tokens, prices of a million tokens."""
    policy = checked.policy
    budget, stages = policy.budget, [stage for stage in policy.stages if hasattr(stage, "options")]
    return {
        "name": checked.model,
        "window": {"tokens": policy.window.tokens, "source": policy.window.source},
        "budget": None if budget is None else {name: getattr(budget, name) for name in _NUMBERS},
        "strategy": policy.pipeline.text,
        "options": {stage.name: asdict(stage.options) for stage in stages},
        "economy": policy.economy,
        "prices": asdict(policy.costs),
    }


USEFUL_WORDS = 60  # a sentence each of goal, rules, what is done, how it stands and what is open; fewer leave one out


def budget_lines(checked: CheckedModel) -> Iterator[str]:
    """The lines to print for a model."""
    policy, table = checked.policy, bundled_table(config_directory() / "models.toml")
    window, budget, stated = policy.window, policy.budget, checked.stated
    known_by = checked.source("window") if window.source == SETTINGS else window.source
    if window.source == SOURCE and checked.learned is not None:
        known_by += f", until {moment(checked.learned.until)}"
        known_by += f"; {stated.window:,} is {stated.source}" if stated else ""
    yield f"model       {checked.model}"
    yield f"  window    {window}" if window.tokens is None else f"  window    {window.tokens:,} ({known_by})"
    if budget is None:
        yield "  nothing is condensed until the window is known: set `window` in [[models]], or, where"
        yield "  the server loads models when they are asked for, send it a request and check again"
    else:
        if window.max_input is not None:
            yield f"  max input {window.max_input:,} ({known_by})"
        yield from (f"  {label:<9} {text}" for label, text in _rows(policy, budget, checked))
    yield f"  strategy  {policy.pipeline} ({'suffix of the name' if checked.suffix else checked.origin('strategy')})"
    for stage in policy.stages:
        options = getattr(stage, "options", None)
        if budget is not None and (most := getattr(options, "summary_max_tokens", 0)):
            counter = Tokenizers(checked.settings.tokenizer.ranks_dir).for_model(checked.model, ChatCounter)
            most, words = usual_lengths(counter, budget, most)
            told = f"a model is asked for about {words:,} words; with the ledger a record has at most {most:,} tokens"
            yield f"    {stage.name}: {told}"
            if words < USEFUL_WORDS:
                yield "      which is too few to be useful; mask+extract and recent ask no model"
        for option in fields(options) if options is not None else ():
            text = _option(checked, stage.name, option.name, getattr(options, option.name), budget)
            yield f"    {stage.name}.{option.name} = {text}"
    if not policy.pipeline.is_off:
        yield f"  economy   {policy.economy} ({checked.origin('economy')})"
        costs, entry = policy.costs, checked.settings.for_model(checked.model)
        published = "bundled table, US dollars per million tokens" if table.prices(checked.model) else ""
        origin = f"settings for '{entry.match}'" if entry and entry.prices else published
        shown = f"input {costs.input:g}, cached {costs.cached_input:g}, cache write {costs.cache_write:g}"
        yield f"  prices    {shown}, output {costs.output:g} ({origin or 'ratios that most vendors share'})"


def _rows(policy: Policy, budget: Budget, checked: CheckedModel) -> Iterator[tuple[str, str]]:
    """The numbers of a budget: for each a label, and the number with an explanation and its origin."""
    reserve = checked.settings.own("reserve", checked.model)
    reserved_by = f"an eighth of the window, at most {MAX_RESERVE:,}"
    if reserve is not None:
        clamped = "" if reserve == budget.reserve else f", clamped from {reserve:,}"
        reserved_by = checked.origin("marks", "reserve") + clamped
    yield "reserve", f"{budget.reserve:,} ({reserved_by}; unless the request sets its reply's length)"
    yield "usable", f"{budget.usable:,} (what is left of the window)"
    yield from _mark_rows(policy, budget, checked)
    yield "hard", f"less than {budget.least_headroom:,} of usable left (a sixteenth of the window, at most 512)"
    yield "record", f"{budget.replacement_cap:,} at most (a tenth of the window, or a quarter up to 2,000)"
    yield "task", f"{budget.task_cap:,} of the first user message, more if there is room (an eighth of the window)"
    for name in ("said", "names"):
        yield name, f"{getattr(budget.ledger, name):,} at most ({checked.origin('ledger', f'{name}_max_tokens')})"
    if budget.prompt_window is not None:
        yield "own calls", f"{budget.prompt_window:,} at most (the summarizer's window)"


def _mark_rows(policy: Policy, budget: Budget, checked: CheckedModel) -> Iterator[tuple[str, str]]:
    """The marks that are used; a strategy may replace those of the settings."""
    entry = checked.settings.for_model(checked.model)
    own = entry.marks if entry else None
    configured = (own or checked.settings.marks).to_marks()
    stage = next((stage for stage in policy.stages if isinstance(stage, Marking)), None)
    requested = stage.marks(budget.with_marks(configured)) if stage else configured
    for name in ("prepare", "trigger", "target", "step"):
        share, used = getattr(requested, name), getattr(budget.marks, name)
        clamped = "" if share == used else f", clamped from {share:g}"
        origin = _DEFAULT if share == getattr(Marks(), name) else _OWN if own else checked.source("marks", name)
        if share != getattr(configured.clamped(), name) and stage is not None:
            origin = f"of {policy.pipeline}"
        unused = ", condenses nothing under a strategy that judges" if name == "trigger" and policy.judging else ""
        yield name, f"{getattr(budget, name):,} ({used:.4g} of usable, {origin}{clamped}{unused})"


def _option(checked: CheckedModel, stage: str, name: str, value: Any, budget: Budget | None) -> str:
    """The value of an option with its origin; in tokens, or bounded, if the budget determines that."""
    origin = SETTINGS if name in option_tables(checked.settings)[stage] else "by its mode"
    if name in checked.settings.options.get(stage, {}):
        origin = checked.source("options", stage, name)
    elif value == getattr(TABLE[stage].options, name):
        origin = _DEFAULT
    if budget is not None and name in _SHARES:
        return f"{int(value * budget.usable):,} ({value:g} of usable, {origin})"
    if budget is not None and name in OPTION_BOUNDS:
        bound, most = OPTION_BOUNDS[name][0], OPTION_BOUNDS[name][1](budget)
        if most < value:
            return f"{most:,} ({bound}, clamped from {value:,}, {origin})"
    text = str(value).lower() if isinstance(value, bool) else f"{value:,}" if isinstance(value, int) else repr(value)
    return f"{text} ({origin})"
