"""The policy for one request: strategy, options, window and budget. No I/O; policies are cached by what they rest on.

The window comes from the request, the settings, what the upstream's server states, or the bundled table, in this order.
A smaller window that was learned from the upstream's replies replaces it. Without any of these the window is unknown,
and nothing is condensed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from proxy.controls import MEMORY, Memory
from proxy.knowledge.learned_windows import LearnedWindow, Origin
from proxy.knowledge.profiles import ANY, Profile
from proxy.settings.tables import JudgeRole, Mode, ModelRole, SummarizerRole
from strategies import Pipeline, stages
from strategies.core.budget import Budget, Scale
from strategies.core.economics import Prices, is_cheaper_continued
from strategies.core.effects import JUDGE, SUMMARIZER
from strategies.core.ledger import LEDGER, LedgerCaps
from strategies.core.protocol import Injection, Judging, Strategy

_UNASKED = Injection()
OFF = Pipeline(("off",))
RATIOS = Prices(input=1.0, cached_input=0.1, cache_write=1.0, output=5.0)
"""What most vendors' prices have in common, where a model's are not known."""
UNKNOWN = "unknown"
REQUEST = "request"
SETTINGS = "settings"


class Window(NamedTuple):
    """A window, and where it comes from."""

    tokens: int | None
    """The context length in tokens; None if it is unknown."""
    source: str
    """Where it comes from, in words."""
    max_input: int | None = None
    """The limit in tokens for the prompt alone, if there is one."""
    learned_by: Origin | None = None
    """How a refusal or a truncation has taught the window, if one has."""
    before: int | None = None
    """The window that a learned one has replaced, if that was known."""

    @property
    def is_set(self) -> bool:
        """Whether the request or the settings give the window, so the server need not be asked."""
        return self.source == REQUEST or self.source.startswith(SETTINGS)

    def lowered(self, learned: LearnedWindow | None) -> Window:
        """This window, or the learned one if that is smaller; nothing learned lowers a window of the settings."""
        return self if self.source.startswith(SETTINGS) else self.refused(learned)

    def refused(self, learned: LearnedWindow | None) -> Window:
        """This window, or the learned one if that is smaller, for a request that was refused."""
        if learned is None or (self.tokens is not None and self.tokens <= learned.tokens):
            return self
        return Window(learned.tokens, learned.source, self.max_input, learned.origin, self.tokens)

    def __str__(self) -> str:
        return UNKNOWN if self.tokens is None else str(self.tokens)


class Policy(NamedTuple):
    """The strategy, budget, models and limits that apply to one request."""

    pipeline: Pipeline
    """The names of the strategies, as the headers show them."""
    stages: list[Strategy]
    """The strategies of the pipeline, in order."""
    ladder: list[Strategy]
    """The strategies that HARD, FORCED and OVERFLOW run after the pipeline; they ask no model."""
    window: Window
    budget: Budget | None
    """None if the window is unknown."""
    summarizer: SummarizerRole
    judge: JudgeRole
    session_settings: Mapping[str, Any]
    """The settings that the session keeps."""
    memory: Memory
    judging: Judging | None = None
    """The stage that asks judges, if there is one."""
    injection: Injection = _UNASKED
    """The bounds of a memory block."""
    background: Mode = "on"
    """When models may be asked for work that no request waits for."""
    scope: str = ""
    """The scope in which memory cards are shared; "" if they are not."""
    prices: Prices | None = None
    """With prices, a condensation that is not needed yet waits until it pays back."""
    economy: str = "off"
    """`off`, `advise` or `auto`: whether the trigger is where condensing is cheapest."""
    costs: Prices = RATIOS
    """What tokens are taken to cost for that: the settings' prices, else the published ones, else usual ratios."""
    strict: bool = False
    """Refuse what stays over the budget."""
    payback_turns: float = 0.0
    """The number of turns in which it must pay back."""
    profile: Profile = ANY
    """The form of requests that the upstream accepts."""
    ledger: LedgerCaps = LEDGER

    @property
    def roles(self) -> Mapping[str, ModelRole]:
        """The models that effects may name by their role."""
        return {SUMMARIZER: self.summarizer, JUDGE: self.judge}

    @property
    def prepares(self) -> bool:
        """Whether models may be asked in the background."""
        return self.background != "off"

    @property
    def asks_models(self) -> bool:
        """Whether a stage may ask a model."""
        return any(stage.asks for stage in self.stages)

    @property
    def asks_first(self) -> bool:
        """Whether the first stage asks a model, so that every condensation costs a call."""
        return bool(self.stages) and self.stages[0].asks

    @property
    def continues(self) -> bool:
        """Whether summarizers continue from the view itself."""
        if self.summarizer.form != "auto":
            return self.summarizer.form == "continue"
        is_cheaper = self.budget is not None and is_cheaper_continued(self.budget.unscaled, self.costs)
        return is_cheaper and not self.summarizer.own_model

    def scaled(self, scale: Scale) -> Policy:
        """The policy with its budget in tokens of our own count."""
        budget = self.budget and self.budget.scaled(scale)
        return self if budget is self.budget else self._replace(budget=budget)

    def off(self) -> Policy:
        """The policy for a request that is forwarded as it came."""
        return self._replace(pipeline=OFF, stages=[], ladder=[], judging=None, memory=MEMORY["off"])

    def with_dropping(self) -> Policy:
        """The policy for a view with messages put back: if these do not fit, they may be dropped without a model."""
        return self._replace(stages=[*self.stages, *stages(("recent",), {}, {})])
