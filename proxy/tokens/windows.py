"""The bundled table of model windows and prices: data from a file, exact look-ups, no guessing.

A name is looked up in one spelling of all that it may have (`proxy/tokens/names.py`), then without the date of a
snapshot (`gpt-4o-2024-08-06`). A four-digit suffix is no date: `kimi-k2-0905` has another window than `kimi-k2`. The
window of a model with published weights is the largest that its vendor or two hosts give, and a ceiling on other
servers: what a server states goes before it, and no request is refused because of the table.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

from proxy.tokens.names import canonical_name, without_date
from strategies.core.economics import Prices


@dataclass(frozen=True, slots=True)
class ModelWindow:
    """Limits of one model, in tokens; None if there is no limit besides the window."""

    window: int
    """Input and output together."""
    max_input: int | None = None
    long: int | None = None
    """The window of a request that asks for a million tokens."""


@dataclass(frozen=True, slots=True, eq=False)
class ModelTable:
    """Models by their canonical names. Immutable."""

    _models: Mapping[str, ModelWindow]
    _prices: Mapping[str, Prices] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> ModelTable:
        """Reads `config/models.toml`; raises `OSError`, or `ValueError` if the file is not of its form."""
        document = tomllib.loads(path.read_text(encoding="utf-8"))
        try:
            # `max_output` is in the file for people: the upstream decides how long a reply may be.
            windows = {
                canonical_name(name): ModelWindow(**{key: entry[key] for key in entry.keys() - {"max_output"}})
                for name, entry in document.get("models", {}).items()
            }
            # A family is known by its only snapshot; of several, the one with the smallest window speaks for it.
            for name, known in sorted(windows.items(), key=lambda item: item[1].window):
                windows.setdefault(without_date(name), known)
            return cls(
                windows, {canonical_name(name): Prices(*row) for name, row in document.get("prices", {}).items()}
            )
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


def _forms(model: str) -> tuple[str, ...]:
    name = canonical_name(model)
    undated = without_date(name)
    return name, undated, undated.removesuffix("-latest")


class StatedWindow(NamedTuple):
    window: int
    """In tokens, input and output together."""
    max_input: int | None
    """The limit in tokens for the input alone, if the server has one below the window."""
    source: str
    """Who states it, in words."""
    is_ceiling: bool = False
    """Whether it may be larger than what the server has loaded."""


WindowLookup = Callable[[str], StatedWindow | None]


def no_stated_window(_model: str) -> None:
    """The `WindowLookup` of a server that is not asked."""
