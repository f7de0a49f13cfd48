"""The table of strategies, and how pipelines are parsed.

A new strategy is one file and one row in `TABLE`; `CONTRIBUTING.md` lists its tests and documents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any, NamedTuple

from strategies.core.errors import OptionError
from strategies.core.protocol import Options, Strategy, expand_mode, fill_options, unknown_option
from strategies.dynacontext import DynaContext, DynaContextOptions
from strategies.extract import Extract, ExtractOptions
from strategies.half_window import HalfWindow, HalfWindowOptions
from strategies.mask import Mask, MaskOptions
from strategies.native import Native, NativeOptions
from strategies.off import Off
from strategies.recent import Recent
from strategies.rolling import Rolling, RollingOptions
from strategies.semantic import Semantic, SemanticOptions
from strategies.shorten import Shorten, ShortenOptions
from strategies.summary import Summary, SummaryOptions


class StrategyRow(NamedTuple):
    make: Any
    options: Options


TABLE: Mapping[str, StrategyRow] = {
    "off": StrategyRow(Off, Options()),
    "recent": StrategyRow(Recent, Options()),
    "mask": StrategyRow(Mask, MaskOptions()),
    "summary": StrategyRow(Summary, SummaryOptions()),
    "half-window": StrategyRow(HalfWindow, HalfWindowOptions()),
    "semantic": StrategyRow(Semantic, SemanticOptions()),
    "rolling": StrategyRow(Rolling, RollingOptions()),
    "native": StrategyRow(Native, NativeOptions()),
    "dynacontext": StrategyRow(DynaContext, DynaContextOptions()),
    "extract": StrategyRow(Extract, ExtractOptions()),
    "shorten": StrategyRow(Shorten, ShortenOptions()),
}
DEFAULT = "mask+extract"
LADDER = ("extract", "recent", "shorten")
LADDER_OPTIONS: Mapping[str, Mapping[str, object]] = {"extract": {"depth": 1.0}, "shorten": {"newest": True}}
OBSERVE = "observe:"


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The stages that a pipeline's text names. With `observe`, the proxy only reports what it would do."""

    names: tuple[str, ...]
    observe: bool = False
    is_off: bool = field(init=False, compare=False, repr=False)
    text: str = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_off", self.names == ("off",))
        object.__setattr__(self, "text", (OBSERVE if self.observe else "") + "+".join(self.names))

    def __str__(self) -> str:
        return self.text


LONGEST = 256  # the maximum number of characters of a text that names a pipeline


def parse(text: str) -> Pipeline | None:
    """The pipeline that `text` names; None if a name is unknown or stands twice, or if `off` is not alone.

    Also None if the text is too long.
    """
    return _parse(text) if len(text) <= LONGEST else None


@lru_cache(maxsize=256)
def _parse(text: str) -> Pipeline | None:
    observe = text.startswith(OBSERVE)
    names = tuple(name.strip() for name in text.removeprefix(OBSERVE).split("+"))
    known = all(name in TABLE for name in names)
    fit = len({*names}) == len(names) and ("off" not in names or len(names) == 1)
    return Pipeline(names, observe) if known and fit else None


def options_by_stage(pipeline: Pipeline, options: Mapping[str, object]) -> dict[str, dict[str, object]]:
    """Options by stage. `mask.keep` names its stage; a bare key must belong to only one stage. Raises `OptionError`."""
    by_stage: dict[str, dict[str, object]] = {}
    for key, value in options.items():
        stage, _, name = key.rpartition(".")
        if stage and stage not in pipeline.names:
            raise OptionError(f"'{key}' names a stage that is not in '{pipeline}'")
        by_stage.setdefault(stage or _owner(pipeline, name), {})[name] = value
    return by_stage


def _owner(pipeline: Pipeline, name: str) -> str:
    by_key = {(stage, option.name): option for stage in pipeline.names for option in fields(TABLE[stage].options)}
    owners = [stage for stage, option in by_key if option == name]
    elsewhere = [stage for stage, row in TABLE.items() if any(name == each.name for each in fields(row.options))]
    if not owners and elsewhere:
        raise OptionError(f"'{name}' is an option of {' and '.join(elsewhere)}, not of a stage of '{pipeline}'")
    if not owners:
        raise unknown_option(name, {".".join(key): declared for key, declared in by_key.items()})
    if len(owners) > 1:
        raise OptionError(f"'{name}' belongs to {' and '.join(owners)}; write '{owners[0]}.{name}'")
    return owners[0]


def stages(
    names: Sequence[str],
    options: Mapping[str, Mapping[str, object]],
    defaults: Mapping[str, Mapping[str, object]],
) -> list[Strategy]:
    """Strategies ready to run. For each stage, `options` win over `defaults`, and these over the strategy's own.

    An option `mode` stands for the values of its preset, on the level on which it is set.
    """
    strategies: list[Strategy] = []
    for name in names:
        make, bare = TABLE[name]
        values = expand_mode(bare, defaults.get(name, {})) | expand_mode(bare, options.get(name, {}))
        strategies.append(make(fill_options(bare, values)))
    return strategies
