"""The effective numbers for a model, as `condenser check --model` prints them: in tokens, each with its origin."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import reduce
from math import ceil, inf
from typing import Any, NamedTuple

from proxy.condensing.decision import OPTION_BOUNDS
from proxy.condensing.policy import SETTINGS, Policies, Policy, option_tables
from proxy.controls import Controls
from proxy.knowledge.profiles import Scope
from proxy.package import config_directory
from proxy.settings import Settings
from proxy.settings.sources import sets
from proxy.tokens.windows import WindowLookup, bundled_table, no_stated_window
from strategies import TABLE, Pipeline
from strategies.core.budget import MAX_RESERVE, Budget, Marks
from strategies.core.economics import advise, break_even, condensing_of
from strategies.core.protocol import Marking

_DEFAULT, _OWN = "default", "settings for the model"
_SHARES = ("paths", "depth")
TYPICAL = {"an agent": (12_000, 600), "a chat": (500, 250)}
"""Tokens of tools and system message, and by how many a request grows: medians of recorded conversations, rounded."""


class CheckedModel(NamedTuple):
    """Which numbers to show: those of a model, under the pipeline that a suffix of its name asks for."""

    settings: Settings
    model: str
    suffix: Pipeline | None = None
    sources: Mapping[str, Mapping[str, Any]] = {}
    """What each source sets, by the source's name; the first one wins. Without them every origin is "settings"."""

    def source(self, *path: str) -> str:
        return next((name for name, tree in self.sources.items() if sets(tree, path)), SETTINGS)

    def origin(self, *path: str) -> str:
        """Where the value of the key at a path is from, which may be the model's own entry."""
        if getattr(self.settings.for_model(self.model), path[-1], None) is not None:
            return _OWN
        used, default = (reduce(getattr, path, settings) for settings in (self.settings, Settings.model_construct()))
        return _DEFAULT if used == default else self.source(*path)


def budget_lines(checked: CheckedModel, discovered: WindowLookup = no_stated_window) -> Iterator[str]:
    """The lines to print for a model; `discovered` looks up the windows that the server states."""
    table = bundled_table(config_directory() / "models.toml")
    policies = Policies(checked.settings, table, discovered)
    policy = policies.policy(Controls(strategy=checked.suffix), {}, Scope(checked.model))
    window, budget = policy.window, policy.budget
    known_by = checked.source("window") if window.source == SETTINGS else window.source
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
        for option in fields(options) if options is not None else ():
            shown = _option(checked, stage.name, option.name, getattr(options, option.name), budget)
            yield f"    {stage.name}.{option.name} = {shown}"
    if budget is not None and not policy.pipeline.is_off:
        entry = checked.settings.for_model(checked.model)
        published = "bundled table, US dollars a million" if table.prices(checked.model) else ""
        own = f"settings for '{entry.match}'" if entry and entry.prices else ""
        prices_by = own or published or "ratios that most vendors share"
        yield from _economy_lines(policy, budget, checked.origin("economy"), prices_by)


def _economy_lines(policy: Policy, budget: Budget, origin: str, prices_by: str) -> Iterator[str]:
    """Where condensing is cheapest for an agent and for a chat, and when a condensation pays back."""
    prices = policy.costs
    yield f"  economy   {policy.economy} ({origin})"
    yield (
        f"    prices = {prices.input:g} anew, {prices.cached_input:g} cached, {prices.cache_write:g} written to it,"
        f" {prices.output:g} a reply ({prices_by})"
    )
    for who, (head, growth) in TYPICAL.items():
        condensing = condensing_of(budget, prices, head, growth, asks=policy.asks_first)
        advice = advise(budget, prices, condensing, growth)
        requests = break_even(condensing, budget.trigger, prices)
        paid = "never pays back" if requests == inf else f"pays back after {ceil(requests):,} requests"
        marks = f"{advice.trigger:,}, cut to {advice.target:,}"
        cheapest = f"{marks}, {advice.saves:.1%} cheaper than " if advice.saves else ""
        yield f"    {who} ({head:,} constant, {growth:,} a request): cheapest at {cheapest}the trigger, which {paid}"


def _rows(policy: Policy, budget: Budget, checked: CheckedModel) -> Iterator[tuple[str, str]]:
    """The numbers of a budget: a label, and the number with what it is and its origin."""
    reserve = checked.settings.own("reserve", checked.model)
    reserved_by = f"an eighth of the window, at most {MAX_RESERVE:,}"
    if reserve is not None:
        clamped = "" if reserve == budget.reserve else f", clamped from {reserve:,}"
        reserved_by = checked.origin("marks", "reserve") + clamped
    yield "reserve", f"{budget.reserve:,} ({reserved_by}; a request's own length comes first)"
    yield "usable", f"{budget.usable:,} (what is left of the window)"
    yield from _mark_rows(policy, budget, checked)
    yield "hard", f"headroom under {budget.least_headroom:,} (a sixteenth of the window, at most 512)"
    yield "record", f"{budget.replacement_cap:,} at most (a tenth of the window)"
    yield "task", f"{budget.task_cap:,} of the first user message, more if there is room (an eighth of the window)"
    for name in ("rules", "names", "facts"):
        yield name, f"{getattr(budget.ledger, name):,} at most ({checked.origin('ledger', f'{name}_max_tokens')})"
    if budget.prompt_window is not None:
        yield "asks in", f"{budget.prompt_window:,} (the summarizer's window)"


def _mark_rows(policy: Policy, budget: Budget, checked: CheckedModel) -> Iterator[tuple[str, str]]:
    """The marks as they are used; those of a strategy that has its own take the place of the settings'."""
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
    """The value of an option with its origin; in tokens, and bounded, where the budget says so."""
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
    shown = str(value).lower() if isinstance(value, bool) else f"{value:,}" if isinstance(value, int) else repr(value)
    return f"{shown} ({origin})"
