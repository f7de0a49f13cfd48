"""The bundled table of model windows and prices: data from a file, exact look-ups, no guessing.

A wrong window is believed until a request fails; an unknown one is learned from the upstream. So the table omits models
with published weights, which servers often load with smaller windows (deploy/update_models.py). The look-up knows three
forms of a name: as written, without a vendor prefix (`openrouter/openai/gpt-4o`), and without the date of a snapshot
(`gpt-4o-2024-08-06`, `claude-sonnet-4-5@20250929`). A four-digit suffix is no date: `kimi-k2-0905` has another window
than `kimi-k2`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

from strategies.core.economics import Prices

_DATE = re.compile(r"[-@]20\d\d-?[01]\d-?[0-3]\d$")


@dataclass(frozen=True, slots=True)
class ModelWindow:
    """Limits of one model, in tokens; None if there is no limit besides the window."""

    window: int
    """Input and output together."""
    max_input: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ModelTable:
    """Models by lower-case name without vendor prefix. Immutable."""

    _models: Mapping[str, ModelWindow]
    _prices: Mapping[str, Prices] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> ModelTable:
        """Reads `config/models.toml`; raises `OSError`, or `ValueError` if the file is not of its form."""
        document = tomllib.loads(path.read_text(encoding="utf-8"))
        try:
            # `max_output` is in the file for people: the upstream decides how long a reply may be.
            windows = {
                name.lower(): ModelWindow(**{key: entry[key] for key in entry.keys() - {"max_output"}})
                for name, entry in document.get("models", {}).items()
            }
            return cls(windows, {name.lower(): Prices(*row) for name, row in document.get("prices", {}).items()})
        except (AttributeError, TypeError) as error:
            raise ValueError(f"{path}: {error}") from error

    def find(self, model: str) -> ModelWindow | None:
        """The limits of a model as a client names it, or None: never the limits of a similar name."""
        return next(filter(None, map(self._models.get, _forms(model))), None)

    def prices(self, model: str) -> Prices | None:
        """The published prices of a model at its vendor's own API, or None."""
        return next(filter(None, map(self._prices.get, _forms(model))), None)


@cache
def bundled_table(path: Path) -> ModelTable:
    """The table that comes with the program; as `ModelTable.load`, but each file is read once."""
    return ModelTable.load(path)


def without_date(model: str) -> str:
    """The name without the date of its snapshot, if it ends in one."""
    return _DATE.sub("", model)


def _forms(model: str) -> tuple[str, ...]:
    name = model.strip().lower()
    plain = name.rsplit("/", 1)[-1]
    return name, plain, without_date(plain)


class StatedWindow(NamedTuple):
    window: int
    """In tokens, input and output together."""
    max_input: int | None
    """The limit in tokens for the input alone, if the server has one below the window."""
    source: str
    """Who states it, in words."""


WindowLookup = Callable[[str], StatedWindow | None]


def no_stated_window(_model: str) -> None:
    """The `WindowLookup` of a server that is not asked."""
