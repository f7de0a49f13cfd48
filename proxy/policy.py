"""What applies to one request: strategy, options, window, budget. Pure.

For each key the request itself comes first, then the session, then the settings for the model, then the
settings. The window comes from the request, the settings, or the bundled table; else it is unknown, and nothing is
condensed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from proxy.controls import Controls
from proxy.errors import BadRequest
from proxy.settings import MarkSettings, ModelRole, ModelSettings, Settings
from proxy.tokens.windows import ModelTable
from strategies import LADDER, LADDER_OPTIONS, Pipeline, addressed, parse, stages
from strategies.core.budget import Budget
from strategies.core.errors import OptionError
from strategies.core.protocol import Strategy

UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Window:
    """A window in tokens and where it is known from; `tokens` None where it is not known."""

    tokens: int | None
    source: str
    max_input: int | None = None

    def __str__(self) -> str:
        return UNKNOWN if self.tokens is None else str(self.tokens)


@dataclass(frozen=True, slots=True)
class Policy:
    """The choice for one request; `sticks` are the settings that the session keeps."""

    pipeline: Pipeline
    stages: list[Strategy]
    ladder: list[Strategy]
    window: Window
    budget: Budget | None
    summarizer: ModelRole
    sticks: Mapping[str, Any]

    def able_to_drop(self) -> Policy:
        """The policy for a view with messages put back: what does not fit of them may be dropped without a model."""
        return replace(self, stages=[*self.stages, *stages(("recent",), {}, {})])


class Policies:
    """Makes policies from settings and the bundled table."""

    def __init__(self, settings: Settings, table: ModelTable) -> None:
        self._settings = settings
        self._table = table

    def policy(self, controls: Controls, session: Mapping[str, Any], model: str, body: Mapping[str, Any]) -> Policy:
        """The policy for a request; raises `BadRequest` where an option does not fit its pipeline."""
        entry = self._settings.for_model(model)
        pipeline, options, sticks = self._choice(controls, session, entry)
        window = self.window(controls.window, model)
        return Policy(
            pipeline=pipeline,
            stages=self._stages(pipeline, options),
            ladder=[] if pipeline.is_off else stages(LADDER, LADDER_OPTIONS, self._settings.options),
            window=window,
            budget=self.budget(window, entry, asked_length(body)),
            summarizer=(entry.summarizer if entry and entry.summarizer else None) or self._settings.summarizer,
            sticks=sticks,
        )

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

    def _stages(self, pipeline: Pipeline, options: Mapping[str, object]) -> list[Strategy]:
        try:
            return stages(pipeline.names, addressed(pipeline, options), self._settings.options)
        except OptionError as error:
            raise BadRequest(f"X-Condenser-Options: {error.detail}.", param="X-Condenser-Options") from None

    def window(self, asked: int | None, model: str) -> Window:
        """The window of a model, and its source."""
        if asked is not None:
            return Window(asked, "request")
        entry = self._settings.for_model(model)
        if entry is not None and entry.window is not None:
            return Window(entry.window, f"settings for '{entry.match}'", entry.max_input)
        if self._settings.window is not None:
            return Window(self._settings.window, "settings")
        found = self._table.find(model)
        return Window(found.window, "bundled table", found.max_input) if found else Window(None, UNKNOWN)

    def lowest_mark(self, asked_window: int | None, model: str, body: Mapping[str, Any]) -> int | None:
        """Tokens under which nothing ever happens to a request; None where the window is unknown."""
        entry = self._settings.for_model(model)
        budget = self.budget(self.window(asked_window, model), entry, asked_length(body))
        return min(budget.prepare, budget.usable - budget.floor) if budget else None

    def budget(self, window: Window, entry: ModelSettings | None, asked: int | None) -> Budget | None:
        """The budget for a window; None where it is unknown."""
        if window.tokens is None:
            return None
        marks: MarkSettings = entry.marks if entry and entry.marks else self._settings.marks
        reserve = entry.reserve if entry and entry.reserve is not None else self._settings.reserve
        return Budget.of(
            window.tokens, asked=asked, reserve=reserve, marks=marks.to_marks(), max_input=window.max_input
        )


def asked_length(body: Mapping[str, Any]) -> int | None:
    """The reply length that a request asks for."""
    for key in ("max_completion_tokens", "max_tokens"):
        value = body.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None
