"""The effective numbers for a model, each with its origin, as `check` prints them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from functools import reduce
from typing import Any, NamedTuple

from proxy import config_directory
from proxy.commands.proxy_client import moment
from proxy.condensing.account import OPTION_BOUNDS
from proxy.condensing.policy import SETTINGS, Policies, Policy, option_tables
from proxy.controls import Controls
from proxy.discovery import Discovered
from proxy.endpoints.chat import ChatCounter
from proxy.knowledge.figures import OWN, Figures
from proxy.knowledge.learned_windows import SOURCE, LearnedWindow
from proxy.knowledge.profiles import LessonScope
from proxy.services import Services
from proxy.settings import Settings
from proxy.settings.loading import sets
from proxy.tokens.counter import Tokenizers
from proxy.tokens.models import StatedWindow, bundled_table
from strategies import TABLE, Pipeline
from strategies.core.budget import MAX_RESERVE, Budget, Marks
from strategies.core.protocol import Marking
from strategies.core.summary import usual_lengths

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
    upstream: str = ""
    server: Discovered | None = None  # of that upstream
    known: Sequence[Mapping[str, Any]] = ()  # what a proxy that runs knows of the model, in rows

    @property
    def stated(self) -> StatedWindow | None:
        """The window that the server states, now or to a proxy that runs."""
        rows = (row for row in self.known if row["window"] and row["source"].startswith("stated by"))
        told = next((StatedWindow(row["window"], None, row["source"]) for row in rows), None)
        return (self.server and self.server.window(self.model)) or told

    @property
    def learned(self) -> LearnedWindow | None:
        """The smallest window that refusals have taught a proxy that runs."""
        rows = (row for row in self.known if row["source"] == SOURCE)
        return min((LearnedWindow(row["window"], row["until"], None) for row in rows), default=None)

    async def figures(self, services: Services) -> Figures | None:
        """What has been learned of how the upstream counts the model's tokens."""
        counted = services.tokenizers.for_model(self.model, ChatCounter).cache_key
        found = await services.knowledge.calibrator.figures(LessonScope(self.model, upstream=self.upstream), counted)
        return None if found == OWN else found

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
    if budget is not None:
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
