"""What applies to one request: strategy, options, window, budget. Pure.

For each key the request itself comes first, then the session, then the settings for the model, then the
settings. The window comes from the request, the settings, what the upstream's server states, or the bundled table, and
is lowered by what was learned from the upstream's replies; else it is unknown, and nothing is condensed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

from proxy.condensing.cost import Prices
from proxy.discovery import Stated, nothing_stated
from proxy.errors import BadRequest
from proxy.learning.learned_windows import LearnedWindow, Origin
from proxy.learning.profiles import ANY, Profile
from proxy.request.controls import MEMORY, Controls, Memory, memory_of
from proxy.request.loose_json import count_at
from proxy.runtime.lru import Lru
from proxy.settings import Settings
from proxy.settings.tables import JudgeRole, MarkSettings, Mode, ModelRole, ModelSettings, SummarizerRole
from proxy.tokens.windows import ModelTable
from strategies import LADDER, LADDER_OPTIONS, TABLE, Pipeline, addressed, parse, stages
from strategies.core.budget import LEAST_TRIGGER, Budget, Scale
from strategies.core.effects import JUDGE, SUMMARIZER
from strategies.core.errors import OptionError
from strategies.core.protocol import Injecting, Injection, Judging, Strategy
from strategies.pipeline import marked

_MOST_MADE = 256
_UNASKED = Injection()
UNKNOWN = "unknown"
REQUEST = "request"
SETTINGS = "settings"


class Window(NamedTuple):
    """A window in tokens and where it is known from; `tokens` None where it is not known.

    `learned` is how, where a refusal or a truncation has taught it.
    """

    tokens: int | None
    source: str
    max_input: int | None = None
    learned: Origin | None = None

    @property
    def is_set(self) -> bool:
        """Whether someone has set it, so that nobody need be asked."""
        return self.source == REQUEST or self.source.startswith(SETTINGS)

    def lowered(self, learned: LearnedWindow | None) -> Window:
        """This window, or the one that was learned where that is smaller."""
        if learned is None or (self.tokens is not None and self.tokens <= learned.tokens):
            return self
        return Window(learned.tokens, learned.source, self.max_input, learned.origin)

    def __str__(self) -> str:
        return UNKNOWN if self.tokens is None else str(self.tokens)


class Policy(NamedTuple):
    """The choice for one request; `sticks` are the settings that the session keeps.

    `background`: when models may be asked that nobody waits for. With `prices` a condensation that is not needed yet
    waits until it pays back in `payback_turns`. `injection` bounds a block of memory. `scope` names what memory cards
    are shared in, "" for nothing. `profile` says what the upstream takes.
    """

    pipeline: Pipeline
    stages: list[Strategy]
    ladder: list[Strategy]
    window: Window
    budget: Budget | None
    summarizer: SummarizerRole
    judge: JudgeRole
    sticks: Mapping[str, Any]
    memory: Memory
    injection: Injection = _UNASKED
    background: Mode = "on"
    scope: str = ""
    prices: Prices | None = None
    payback_turns: float = 0.0
    profile: Profile = ANY

    @property
    def roles(self) -> Mapping[str, ModelRole]:
        """The models that effects may name by their role."""
        return {SUMMARIZER: self.summarizer, JUDGE: self.judge}

    @property
    def judging(self) -> Judging | None:
        """The stage that asks a judge, if there is one."""
        return next((stage for stage in self.stages if isinstance(stage, Judging)), None)

    @property
    def prepares(self) -> bool:
        """Whether models may be asked in the background."""
        return self.background != "off"

    @property
    def asks(self) -> bool:
        """Whether a stage may ask a model."""
        return any(stage.asks for stage in self.stages)

    @property
    def continues(self) -> bool:
        """Whether summarizers are asked to go on from the view itself."""
        return self.summarizer.form == "continue"

    def scaled(self, scale: Scale) -> Policy:
        """The policy with its budget in tokens of our own count."""
        budget = self.budget and self.budget.scaled(scale)
        return self if budget is self.budget else self._replace(budget=budget)

    def able_to_drop(self) -> Policy:
        """The policy for a view with messages put back: what does not fit of them may be dropped without a model."""
        return self._replace(stages=[*self.stages, *stages(("recent",), {}, {})])


class _Model(NamedTuple):
    """What settings and the bundled table say of one model: that stays as it is for as long as the process runs.

    `window` is what is set, and `listed` what the table has, where nothing is set and nothing stated.
    """

    entry: ModelSettings | None
    summarizer: SummarizerRole
    window: Window | None
    listed: Window
    max_input: int | None


class _Windows(NamedTuple):
    """What a policy rests on that may change meanwhile."""

    window: Window
    prompt_window: int | None
    profile: Profile


class Policies:
    """Makes policies from settings, what is `discovered` and `learned` of a model's window, and the bundled table.

    `profile` gives what is known of what a model's server takes.
    """

    def __init__(
        self,
        settings: Settings,
        table: ModelTable,
        discovered: Stated = nothing_stated,
        learned: Callable[[str], LearnedWindow | None] = lambda _: None,
        profile: Callable[[str], Profile] = lambda _: ANY,
    ) -> None:
        self._profile = profile
        self._settings = settings
        self._table = table
        self._discovered = discovered
        self._learned = learned
        self._tables = tables(settings)
        self._models: Lru[str, _Model] = Lru(_MOST_MADE)
        self._made: Lru[Hashable, tuple[_Windows, Policy]] = Lru(_MOST_MADE)
        self._marks: Lru[Hashable, int | None] = Lru(_MOST_MADE)

    def policy(self, controls: Controls, session: Mapping[str, Any], model: str, body: Mapping[str, Any]) -> Policy:
        """The policy for a request; raises `BadRequest` where an option does not fit its pipeline.

        Requests that say the same, under the same windows, have the same one.
        """
        known = self._windows(controls.window, model)
        # What stands in a mapping may be of any type of JSON: as text it can be a key.
        key = (model, asked_length(body), controls.treatment, repr(session))
        made_for, policy = self._made.use(key, lambda: (known, self._policy(controls, session, model, body)))
        if made_for != known:
            policy = self._policy(controls, session, model, body)
            self._made.put(key, (known, policy))
        return policy

    def _windows(self, asked: int | None, model: str) -> _Windows:
        prompt_window = self._prompt_window(self._of(model).summarizer)
        return _Windows(self.window(asked, model), prompt_window, self._profile(model))

    def _policy(self, controls: Controls, session: Mapping[str, Any], model: str, body: Mapping[str, Any]) -> Policy:
        entry, summarizer = self._of(model)[:2]
        pipeline, options, sticks = self._choice(controls, session, entry)
        window = self.window(controls.window, model)
        made = self._stages(pipeline, options, controls.param("options"))
        injection = self._injection(made)
        return Policy(
            pipeline=pipeline,
            stages=made,
            ladder=[] if pipeline.is_off else stages(LADDER, LADDER_OPTIONS, self._settings.options),
            window=window,
            budget=self._budget_for(made, summarizer, window, model, body),
            summarizer=summarizer,
            judge=(entry.judge if entry else None) or self._settings.judge,
            sticks={**sticks, **_asked_of_memory(controls)},
            memory=self._memory(controls, session, pipeline, injection),
            injection=injection,
            background=(entry.background if entry else None) or self._settings.background.mode,
            prices=entry.prices.to_prices() if entry and entry.prices else None,
            payback_turns=self._settings.cost.payback_turns,
            scope=self._scope(controls, session),
            profile=self._profile(model),
        )

    def is_off(self, controls: Controls, model: str) -> bool:
        """Whether a request is `off`, unless its session says otherwise."""
        return (controls.strategy or self._default(self._of(model).entry)).is_off

    def _scope(self, controls: Controls, session: Mapping[str, Any]) -> str:
        """The scope that a request or its session names; raises `BadRequest` where there are none."""
        if self._settings.memory.scopes:
            return controls.memory_scope or str(session.get("memory_scope", ""))
        if controls.memory_scope is not None:
            param = controls.param("memory-scope")
            raise BadRequest(f"{param} needs memory.scopes = true in the settings of the proxy.", param=param)
        return ""

    def _memory(
        self, controls: Controls, session: Mapping[str, Any], pipeline: Pipeline, injection: Injection
    ) -> Memory:
        """What memory may do: nothing without text in the store, for a block must stand for a whole turn."""
        if self._settings.store.content == "digests" or controls.no_store or pipeline.is_off or pipeline.observe:
            return MEMORY["off"]
        default = "inject" if injection.unasked else self._settings.memory.default
        return controls.memory or memory_of(session.get("memory")) or MEMORY[default]

    def _injection(self, made: Sequence[Strategy]) -> Injection:
        """What the first stage says that goes with memory, else the settings."""
        memory = Injection(False, self._settings.memory.top_k, self._settings.memory.max_tokens)
        return next((stage.injection for stage in made if isinstance(stage, Injecting)), memory)

    def _prompt_window(self, summarizer: SummarizerRole) -> int | None:
        """Tokens that the summarizer's model has room for; None for that of the request's."""
        if summarizer.window is not None or summarizer.model is None:
            return summarizer.window
        return self.window(None, summarizer.model).tokens

    def _choice(
        self, controls: Controls, session: Mapping[str, Any], entry: ModelSettings | None
    ) -> tuple[Pipeline, Mapping[str, object], Mapping[str, Any]]:
        """Pipeline, options, and what the session remembers of them; `off` holds for one request only."""
        stored = parse(str(session.get("strategy", "")))
        if controls.strategy is not None:
            chosen, options = controls.strategy, controls.options
        elif stored is not None:
            chosen, options = stored, controls.options or session.get("options", {})
        else:
            chosen, options = self._default(entry), controls.options
        if chosen.is_off or (controls.strategy is None and not controls.options):
            return chosen, options, session
        return chosen, options, {**session, "strategy": str(chosen), "options": dict(options)}

    def _default(self, entry: ModelSettings | None) -> Pipeline:
        text = entry.strategy if entry and entry.strategy else self._settings.strategy
        pipeline = parse(text)
        if pipeline is None:
            raise ValueError(f"settings were not checked: {text}")
        return pipeline

    def _stages(self, pipeline: Pipeline, options: Mapping[str, object], param: str) -> list[Strategy]:
        try:
            return stages(pipeline.names, addressed(pipeline, options), self._tables)
        except OptionError as error:
            raise BadRequest(f"{param}: {error.detail}.", param=param) from None

    def lowered(self, policy: Policy, learned: LearnedWindow, model: str, body: Mapping[str, Any]) -> Policy:
        """A policy for a window that was learned from the request that it was made for."""
        window = policy.window.lowered(learned)
        budget = self._budget_for(policy.stages, policy.summarizer, window, model, body)
        return policy._replace(window=window, budget=budget)

    def _budget_for(
        self,
        pipeline: Sequence[Strategy],
        summarizer: SummarizerRole,
        window: Window,
        model: str,
        body: Mapping[str, Any],
    ) -> Budget | None:
        """The budget for a window as these stages have it: with their own marks, and room for their summarizer."""
        budget = self.budget(window, self._of(model).entry, asked_length(body))
        return budget and replace(marked(budget, pipeline), prompt_window=self._prompt_window(summarizer))

    def window(self, asked: int | None, model: str) -> Window:
        """The window of a model, and its source: the smaller one of what is known and what was learned."""
        return self._known_window(asked, model).lowered(self._learned(model))

    def _known_window(self, asked: int | None, model: str) -> Window:
        if asked is not None:
            return Window(asked, REQUEST)
        known = self._of(model)
        if known.window is not None:
            return known.window
        stated = self._discovered(model)
        return Window(stated.window, stated.source, known.max_input or stated.max_input) if stated else known.listed

    def _of(self, model: str) -> _Model:
        return self._models.use(model, lambda: self._model(model))

    def _model(self, model: str) -> _Model:
        settings = self._settings
        entry = settings.for_model(model)
        limit, window = entry.max_input if entry else None, None
        if entry is not None and entry.window is not None:
            window = Window(entry.window, f"{SETTINGS} for '{entry.match}'", limit)
        elif settings.window is not None:
            window = Window(settings.window, SETTINGS, limit)
        found = self._table.find(model)
        listed = Window(found.window, "bundled table", limit or found.max_input) if found else Window(None, UNKNOWN)
        summarizer = (entry.summarizer if entry else None) or settings.summarizer
        return _Model(entry, summarizer, window, listed, limit)

    def lowest_mark(self, asked_window: int | None, model: str, body: Mapping[str, Any]) -> int | None:
        """Tokens under which nothing ever happens to a request; None where the window is unknown."""
        key = model, self.window(asked_window, model), asked_length(body)
        return self._marks.use(key, lambda: self._lowest_mark(*key))

    def _lowest_mark(self, model: str, window: Window, asked: int | None) -> int | None:
        budget = self.budget(window, self._of(model).entry, asked)
        own = int(budget.usable * LEAST_TRIGGER) if budget else 0
        return min(budget.prepare, budget.usable - budget.least_headroom, own) if budget else None

    def budget(self, window: Window, entry: ModelSettings | None, asked: int | None) -> Budget | None:
        """The budget for a window; None where it is unknown."""
        if window.tokens is None:
            return None
        marks: MarkSettings = entry.marks if entry and entry.marks else self._settings.marks
        reserve = entry.held_back if entry and entry.held_back is not None else self._settings.marks.reserve
        budget = Budget.of(
            window.tokens, asked=asked, reserve=reserve, marks=marks.to_marks(), max_input=window.max_input
        )
        return replace(budget, ledger=self._settings.ledger.to_caps())


def tables(settings: Settings) -> dict[str, dict[str, object]]:
    """The strategies' tables. What they leave out of memory is as the settings of memory have it, and where no text is
    kept no cards are asked for."""
    memory: dict[str, object] = {
        "memory_top_k": settings.memory.top_k,
        "memory_max_tokens": settings.memory.max_tokens,
        **({"memory_cards": False} if settings.store.content == "digests" else {}),
    }
    known = {name: {each.name for each in fields(row.options)} for name, row in TABLE.items()}
    return {
        name: {key: value for key, value in memory.items() if key in options} | settings.options.get(name, {})
        for name, options in known.items()
    }


def _asked_of_memory(controls: Controls) -> dict[str, str]:
    """What a request says of memory, as its session keeps it."""
    asked = {"memory": controls.memory and str(controls.memory), "memory_scope": controls.memory_scope}
    return {key: value for key, value in asked.items() if value}


def asked_length(body: Mapping[str, Any]) -> int | None:
    """The reply length that a request asks for."""
    return count_at(body, "max_completion_tokens") or count_at(body, "max_tokens") or None
