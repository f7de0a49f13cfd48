"""The strategies by name, and pipelines of them.

A new strategy is one file, one row in `TABLE`, one heading in `docs/strategies.md` and one golden case.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, NamedTuple

from strategies.core.errors import OptionError
from strategies.core.options import Options, filled, spelled_out, unknown_option
from strategies.core.protocol import Strategy
from strategies.dynacontext import DynaContext, DynaContextOptions
from strategies.extract import Extract, ExtractOptions
from strategies.half_window import HalfWindow, HalfWindowOptions
from strategies.mask import Mask, MaskOptions
from strategies.off import Off
from strategies.recent import Recent
from strategies.rolling import Rolling, RollingOptions
from strategies.semantic import Semantic, SemanticOptions
from strategies.shorten import Shorten, ShortenOptions
from strategies.summary import Summary, SummaryOptions


class Row(NamedTuple):
    """A strategy's class and the default of its options."""

    make: Any
    options: Options


TABLE: Mapping[str, Row] = {
    "off": Row(Off, Options()),
    "recent": Row(Recent, Options()),
    "mask": Row(Mask, MaskOptions()),
    "summary": Row(Summary, SummaryOptions()),
    "half-window": Row(HalfWindow, HalfWindowOptions()),
    "semantic": Row(Semantic, SemanticOptions()),
    "rolling": Row(Rolling, RollingOptions()),
    "dynacontext": Row(DynaContext, DynaContextOptions()),
    "extract": Row(Extract, ExtractOptions()),
    "shorten": Row(Shorten, ShortenOptions()),
}
DEFAULT = "mask+half-window"
LADDER = ("extract", "recent", "shorten")
LADDER_OPTIONS: Mapping[str, Mapping[str, object]] = {"shorten": {"newest": True}}
OBSERVE = "observe:"


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The stages that a name stands for; `observe` only says what would be done."""

    names: tuple[str, ...]
    observe: bool = False

    def __str__(self) -> str:
        return (OBSERVE if self.observe else "") + "+".join(self.names)

    @property
    def is_off(self) -> bool:
        """Whether it can never change anything."""
        return self.names == ("off",)


LONGEST = 256
"""Characters of a text that may name a pipeline."""


def parse(text: str) -> Pipeline | None:
    """The pipeline that `text` names, or None where a name is unknown or `off` is not alone, or it is too long."""
    return _parsed(text) if len(text) <= LONGEST else None


@lru_cache(maxsize=256)
def _parsed(text: str) -> Pipeline | None:
    observe = text.startswith(OBSERVE)
    names = tuple(name.strip() for name in text.removeprefix(OBSERVE).split("+"))
    known = all(name in TABLE for name in names)
    return Pipeline(names, observe) if known and ("off" not in names or len(names) == 1) else None


def addressed(pipeline: Pipeline, options: Mapping[str, object]) -> dict[str, dict[str, object]]:
    """Options by stage: `mask.keep=3` names its stage, a bare key must belong to one stage only."""
    by_stage: dict[str, dict[str, object]] = {}
    for key, value in options.items():
        stage, _, name = key.rpartition(".")
        owner = _named(pipeline, stage, key) if stage else _owner(pipeline, name)
        by_stage.setdefault(owner, {})[name] = value
    return by_stage


def _named(pipeline: Pipeline, stage: str, key: str) -> str:
    if stage not in pipeline.names:
        raise OptionError(f"'{key}' names a stage that is not in '{pipeline}'")
    return stage


def _owner(pipeline: Pipeline, name: str) -> str:
    owners = [stage for stage in dict.fromkeys(pipeline.names) if _has(stage, name)]
    if len(owners) == 1:
        return owners[0]
    if owners:
        raise OptionError(f"'{name}' belongs to {' and '.join(owners)}; write '{owners[0]}.{name}'")
    known = [f"{stage}.{each.name}" for stage in pipeline.names for each in fields(TABLE[stage].options)]
    raise unknown_option(name, known)


def _has(stage: str, name: str) -> bool:
    return any(each.name == name for each in fields(TABLE[stage].options))


def stages(
    names: Sequence[str],
    options: Mapping[str, Mapping[str, object]],
    defaults: Mapping[str, Mapping[str, object]],
) -> list[Strategy]:
    """Strategies ready to run: `options` by stage over `defaults` by stage over their own defaults.

    A mode in one of them stands for the values of its preset there.
    """
    made: list[Strategy] = []
    for name in names:
        row = TABLE[name]
        given = (defaults.get(name, {}), options.get(name, {}))
        values = {key: value for each in given for key, value in spelled_out(row.options, each).items()}
        made.append(row.make(filled(row.options, values)))
    return made
