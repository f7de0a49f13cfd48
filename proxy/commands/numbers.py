"""The effective numbers for a model, each with its origin, as `check` prints them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from functools import reduce
from typing import Any, NamedTuple

from proxy.commands.proxy_client import moment
from proxy.condensing.account import OPTION_BOUNDS
from proxy.condensing.policy import Policies, Policy, option_tables
from proxy.controls import Controls
from proxy.protocols.chat import ChatCounter
from proxy.servers import LessonScope
from proxy.servers.discovery import Discovered
from proxy.servers.figures import OWN, Figures
from proxy.servers.known import ModelWindows, Server
from proxy.servers.upstream.choice import destinations
from proxy.servers.windows import SETTINGS, SOURCE, UNKNOWN, LearnedWindow
from proxy.services import Services
from proxy.settings import Settings
from proxy.settings.loading import model_table, sets
from proxy.settings.tables import MarkShares
from proxy.tokens.counter import Tokenizers
from proxy.tokens.models import StatedWindow
from strategies import TABLE, Pipeline
from strategies.core.budget import MAX_RESERVE, UNLIMITED, Budget, Cause, Marks
from strategies.core.protocol import Marking
from strategies.core.summary import usual_words

_DEFAULT, _OWN = "default", "settings for the model"
_SHARES = ("paths", "depth")
_USABLE = {
    Cause.SHARE: "what is left of the window",
    Cause.MOST: "what marks are shares of: marks.most / 0.85",
    Cause.STEP: "what marks are shares of: the price step / 0.85",
}
USEFUL_WORDS = 60  # a sentence each of goal, rules, what is done, how it stands and what is open; fewer leave one out


class Number(NamedTuple):
    """A number, or a word, that is in effect for a model."""

    name: str  # that of an option begins with its stage: `mask.keep`
    value: object  # sizes in tokens, prices of a million tokens
    text: str  # the value with its origin

    @property
    def line(self) -> str:
        return f"    {self.name} = {self.text}" if "." in self.name else f"  {self.name:<9} {self.text}"


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
        found = await services.servers.calibrator.figures(LessonScope(self.model, upstream=self.upstream), counted)
        return None if found == OWN else found

    @property
    def policy(self) -> Policy:
        table = model_table()
        window = ModelWindows.of(self.settings, table, self.model).window(None, self.stated, self.learned)
        summarizer = self.settings.role("summarizer", self.model)
        prompt_window = summarizer.window
        if prompt_window is None and summarizer.model is not None:
            prompt_window = ModelWindows.of(self.settings, table, summarizer.model).window(None).tokens
        counter = Tokenizers(self.settings.tokenizer.ranks_dir).for_model(self.model, ChatCounter)
        at = next((each for each in destinations(self.settings) if each.base_url == self.upstream), None)
        pays = at is not None and at.has_list_prices
        server = Server(LessonScope(self.model), counter, window, prompt_window, pays_list_prices=pays)
        return Policies(self.settings, table, time.time).policy(Controls(strategy=self.suffix), {}, server)

    def source(self, *path: str) -> str:
        return next((name for name, tree in self.sources.items() if sets(tree, path)), SETTINGS)

    def origin(self, *path: str) -> str:
        """Where the value of the key at a path comes from; it may be the model's own entry."""
        if getattr(self.settings.for_model(self.model), path[-1], None) is not None:
            return _OWN
        used, default = (reduce(getattr, path, settings) for settings in (self.settings, Settings.model_construct()))
        return _DEFAULT if used == default else self.source(*path)


def numbers(checked: CheckedModel) -> Iterator[Number]:
    """The numbers in effect for a model."""
    policy = checked.policy
    window, budget, stated = policy.window, policy.budget, checked.stated
    known_by = checked.source("window") if window.source == SETTINGS else window.source
    if window.source == SOURCE and checked.learned is not None:
        known_by += f", until {moment(checked.learned.until)}"
        known_by += f"; {stated.window:,} is {stated.source}" if stated else ""
    unknown = f"{UNKNOWN} to these settings" if any(row["window"] for row in checked.known) else UNKNOWN
    yield Number("window", window.tokens, unknown if window.tokens is None else f"{window.tokens:,} ({known_by})")
    if budget is not None:
        if window.max_input is not None:
            yield Number("max input", window.max_input, f"{window.max_input:,} ({known_by})")
        yield from _of_budget(policy, budget, checked)
    by = "suffix of the name" if checked.suffix else checked.origin("strategy")
    yield Number("strategy", policy.pipeline.text, f"{policy.pipeline} ({by})")
    for stage in policy.stages:
        options = getattr(stage, "options", None)
        if budget is not None and (most := getattr(options, "summary_max_tokens", 0)):
            counter = Tokenizers(checked.settings.tokenizer.ranks_dir).for_model(checked.model, ChatCounter)
            words, most = usual_words(counter, budget, most), _record(policy, budget)
            told = f"about {words:,} are asked of a model; with the ledger a record has at most {most:,} tokens"
            few = "; too few to be useful, and mask+extract and recent ask no model" if words < USEFUL_WORDS else ""
            yield Number(f"{stage.name}.words", words, told + few)
        for option in fields(options) if options is not None else ():
            value = getattr(options, option.name)
            text = _option(checked, stage.name, option.name, value, budget)
            yield Number(f"{stage.name}.{option.name}", value, text)
    if not policy.pipeline.is_off:
        yield Number("economy", policy.economy, f"{policy.economy} ({checked.origin('economy')})")
        yield Number("prices", asdict(policy.costs), _prices(checked, policy))


def _prices(checked: CheckedModel, policy: Policy) -> str:
    """The prices in effect with their origin; where there are none, about what a relative of the model costs."""
    costs, entry, table = policy.costs, checked.settings.for_model(checked.model), model_table()
    origin = f"{table.source}, US dollars per million tokens" if policy.prices else "ratios that most vendors share"
    if entry and entry.prices:
        origin = f"settings for '{entry.match}'"
    elif policy.prices is None and (relative := table.relative(checked.model)):
        known = table.prices(relative, time.time())
        origin += f"; about {known.input:g} and {known.output:g} US dollars, as {relative}" if known else ""
    shown = f"input {costs.input:g}, cached {costs.cached_input:g}, cache write {costs.cache_write:g}"
    return f"{shown}, output {costs.output:g} ({origin})"


def _of_budget(policy: Policy, budget: Budget, checked: CheckedModel) -> Iterator[Number]:
    reserve, is_known = checked.settings.own("reserve", checked.model), budget.fits < UNLIMITED
    reserved_by = f"an eighth of the window, at most {MAX_RESERVE:,}"
    if reserve is not None:
        clamped = "" if reserve == budget.reserve else f", clamped from {reserve:,}"
        reserved_by = checked.origin("marks", "reserve") + clamped
    by_rules, by_model = "a tenth of the window, or a quarter up to 2,000", OPTION_BOUNDS["summary_max_tokens"][0]
    record = _record(policy, budget)
    said, names = (f"{{:,}} at most ({checked.origin('ledger', f'{name}_max_tokens')})" for name in ("said", "names"))
    for name, value, text in (
        (
            "reserve",
            budget.reserve if is_known else None,
            f"{{:,}} ({reserved_by}; unless the request sets its reply's length)",
        ),
        ("usable", budget.usable, f"{{:,}} ({_USABLE[budget.cause]})"),
        ("fits", budget.limit if is_known else None, "{:,} (what is left of the window itself)"),
        *_marks(policy, budget, checked),
        (
            "hard",
            budget.least_headroom if is_known else None,
            "less than {:,} of the window left (a sixteenth of it, at most 512)",
        ),
        ("record", record, f"{{:,}} at most ({by_rules if record == budget.replacement_cap else by_model})"),
        ("task", budget.task_cap, "{:,} of the first user message, more if there is room (an eighth of the window)"),
        ("said", budget.ledger.said, said),
        ("names", budget.ledger.names, names),
        ("own calls", budget.prompt_window, "{:,} at most (the summarizer's window)"),
    ):
        if value is not None:
            yield Number(name, value, text.format(value))


def _record(policy: Policy, budget: Budget) -> int:
    """The tokens that a record may have with frame and ledger: one that a model writes, or one by rules."""
    most = max(getattr(getattr(stage, "options", None), "summary_max_tokens", 0) for stage in policy.stages)
    return min(budget.summary_cap, most + budget.ledger.all) if most else budget.replacement_cap


def _marks(policy: Policy, budget: Budget, checked: CheckedModel) -> Iterator[tuple[str, int, str]]:
    """The marks that are used; a strategy may replace those of the settings."""
    entry = checked.settings.for_model(checked.model)
    own = entry.marks if entry else None
    configured = (own or checked.settings.marks).to_marks()
    stage = next((stage for stage in policy.stages if isinstance(stage, Marking)), None)
    requested = stage.marks(budget.with_marks(configured)) if stage else configured
    most = (
        _DEFAULT
        if (own or checked.settings.marks).most == MarkShares().most
        else _OWN
        if own
        else checked.source("marks", "most")
    )
    for name in ("prepare", "trigger", "target", "step"):
        share, used = getattr(requested, name), getattr(budget.marks, name)
        clamped = "" if share == used else f", clamped from {share:g}"
        origin = _DEFAULT if share == getattr(Marks(), name) else _OWN if own else checked.source("marks", name)
        if share != getattr(configured.clamped(), name) and stage is not None:
            origin = f"of {policy.pipeline}"
        unused = ", condenses nothing under a strategy that judges" if name == "trigger" and policy.judging else ""
        if budget.cause is Cause.SHARE:
            told = f"{used:.4g} of usable, {origin}{clamped}"
        elif name == "trigger":
            told = f"marks.most, {most}" if budget.cause is Cause.MOST else "the price step"
        else:
            told = f"{used:.4g} of usable"
        yield name, getattr(budget, name), f"{{:,}} ({told}{unused})"


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
