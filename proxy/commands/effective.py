"""The effective numbers for a model, as `condenser check --model` prints them: in tokens, each with its origin."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, NamedTuple

from proxy.condensing.decision import OPTION_BOUNDS
from proxy.condensing.policies import Policies, option_tables
from proxy.condensing.policy import SETTINGS, Policy, Window
from proxy.learning.proof import Scope
from proxy.learning.stated_windows import WindowLookup, no_stated_window
from proxy.request.controls import Controls
from proxy.resources import config_directory
from proxy.settings import Settings
from proxy.tokens.windows import bundled_table
from strategies import DEFAULT, TABLE, Pipeline
from strategies.core.budget import RESERVE_AT_MOST, Budget, Marks
from strategies.core.protocol import Marking

_OWN = "settings for the model"
_MARKS = ("prepare", "trigger", "target", "step")
_SHARES = ("paths",)
"""Options that are shares of usable."""


class CheckedModel(NamedTuple):
    """Which numbers to show: those of a model, under the pipeline that a suffix of its name asks for."""

    settings: Settings
    model: str
    suffix: Pipeline | None = None
    sources: Mapping[str, Mapping[str, Any]] = {}
    """What each source sets, by the source's name; the first one wins. Without them every origin is "settings"."""

    def origin(self, *path: str) -> str:
        """The source that sets the key at a path."""
        return next((name for name, tree in self.sources.items() if _has(tree, path)), SETTINGS)


def _has(tree: Any, path: tuple[str, ...]) -> bool:
    for key in path:
        if not isinstance(tree, Mapping) or key not in tree:
            return False
        tree = tree[key]
    return True


def budget_lines(question: CheckedModel, discovered: WindowLookup = no_stated_window) -> Iterator[str]:
    """The lines to print for a model; `discovered` looks up the windows that the server states."""
    policies = Policies(question.settings, bundled_table(config_directory() / "models.toml"), discovered)
    policy = policies.policy(Controls(strategy=question.suffix), {}, Scope(question.model), {})
    yield f"model       {question.model}"
    yield f"  window    {_window(policy.window, question)}"
    if policy.budget is None:
        yield "  nothing is condensed until the window is known: set `window` in [[models]], or, where"
        yield "  the server loads models when they are asked for, send it a request and check again"
    else:
        yield from _numbers(policy, policy.budget, question)
    yield f"  strategy  {policy.pipeline} ({_strategy_origin(question)})"
    yield from _options(policy, question)


def _numbers(policy: Policy, budget: Budget, question: CheckedModel) -> Iterator[str]:
    if policy.window.max_input is not None:
        yield f"  max input {policy.window.max_input:,} ({_window_origin(policy.window, question)})"
    origin = _reserve_origin(budget, question)
    yield f"  reserve   {budget.reserve:,} ({origin}; a request's own length comes first)"
    yield f"  usable    {budget.usable:,} (what is left of the window)"
    yield from _marks(policy, budget, question)
    yield f"  hard      headroom under {budget.least_headroom:,} (a sixteenth of the window, at most 512)"
    yield f"  record    {budget.replacement_cap:,} at most (a tenth of the window)"
    yield f"  task      {budget.task_cap:,} of the first user message, more if there is room (an eighth of the window)"
    yield f"  rules     {budget.ledger.rules:,} at most ({_ledger_origin(question, 'rules_max_tokens')})"
    yield f"  facts     {budget.ledger.facts:,} at most ({_ledger_origin(question, 'facts_max_tokens')})"
    if budget.prompt_window is not None:
        yield f"  asks in   {budget.prompt_window:,} (the summarizer's window)"


def _marks(policy: Policy, budget: Budget, question: CheckedModel) -> Iterator[str]:
    """The marks as they are used; those of a strategy that has its own take the place of the settings'."""
    entry = question.settings.for_model(question.model)
    own = entry.marks if entry else None
    configured = (own or question.settings.marks).to_marks()
    stage = next((each for each in policy.stages if isinstance(each, Marking)), None)
    requested = stage.marks(budget.with_marks(configured)) if stage else configured
    for name in _MARKS:
        share, used = getattr(requested, name), getattr(budget.marks, name)
        clamped = "" if share == used else f", clamped from {share:g}"
        origin = "default" if share == getattr(Marks(), name) else _OWN if own else question.origin("marks", name)
        if share != getattr(configured.clamped(), name) and stage is not None:
            origin = f"of {policy.pipeline}"
        unused = ", condenses nothing under a strategy that judges" if name == "trigger" and policy.judging else ""
        yield f"  {name:<9} {getattr(budget, name):,} ({used:.4g} of usable, {origin}{clamped}{unused})"


def _options(policy: Policy, question: CheckedModel) -> Iterator[str]:
    """Every option of every stage with its effective value."""
    for stage in policy.stages:
        options = getattr(stage, "options", None)
        for each in fields(options) if options is not None else ():
            value = getattr(options, each.name)
            origin = _option_origin(question, stage.name, each.name, value)
            yield f"    {stage.name}.{each.name} = {_effective(each.name, value, origin, policy.budget)}"


def _effective(name: str, value: Any, origin: str, budget: Budget | None) -> str:
    """The value of an option with its origin; in tokens, and bounded, where the budget says so."""
    if budget is not None and name in _SHARES:
        return f"{int(value * budget.usable):,} ({value:g} of usable, {origin})"
    if budget is not None and name in OPTION_BOUNDS:
        bound, most = OPTION_BOUNDS[name][0], OPTION_BOUNDS[name][1](budget)
        if most < value:
            return f"{most:,} ({bound}, clamped from {value:,}, {origin})"
    shown = str(value).lower() if isinstance(value, bool) else f"{value:,}" if isinstance(value, int) else repr(value)
    return f"{shown} ({origin})"


def _window(window: Window, question: CheckedModel) -> str:
    """The window and where it is known from; `unknown` alone where it is not known."""
    return str(window) if window.tokens is None else f"{window.tokens:,} ({_window_origin(window, question)})"


def _window_origin(window: Window, question: CheckedModel) -> str:
    return question.origin("window") if window.source == SETTINGS else window.source


def _reserve_origin(budget: Budget, question: CheckedModel) -> str:
    entry = question.settings.for_model(question.model)
    own = entry.held_back if entry else None
    configured = question.settings.marks.reserve if own is None else own
    if configured is None:
        return f"an eighth of the window, at most {RESERVE_AT_MOST:,}"
    clamped = "" if configured == budget.reserve else f", clamped from {configured:,}"
    return (question.origin("marks", "reserve") if own is None else _OWN) + clamped


def _strategy_origin(question: CheckedModel) -> str:
    if question.suffix is not None:
        return "suffix of the name"
    entry = question.settings.for_model(question.model)
    if entry and entry.strategy:
        return _OWN
    return "default" if question.settings.strategy == DEFAULT else question.origin("strategy")


def _option_origin(question: CheckedModel, stage: str, name: str, value: object) -> str:
    default = next(each.default for each in fields(TABLE[stage].options) if each.name == name)
    if name in question.settings.options.get(stage, {}):
        return question.origin("options", stage, name)
    if value == default:
        return "default"
    return SETTINGS if name in option_tables(question.settings)[stage] else "by its mode"


def _ledger_origin(question: CheckedModel, name: str) -> str:
    ledger = question.settings.ledger
    default = getattr(ledger, name) == type(ledger).model_fields[name].default
    return "default" if default else question.origin("ledger", name)
