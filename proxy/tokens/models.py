"""The table of model windows and prices, and the names of models: exact look-ups, no guessing.

A name is looked up in one spelling of all that it may have (`canonical_name`), then without the date of a
snapshot (`gpt-4o-2024-08-06`). A four-digit suffix is no date: `kimi-k2-0905` has another window than `kimi-k2`. The
window of a model with published weights is the largest that its vendor or two hosts give, and a ceiling on other
servers: what a server states goes before it, and no request is refused because of the table.

The table is dated. One that `condenser models update` wrote holds in place of the bundled one unless that is newer.
Prices may change on a day that is known in advance; so they are asked for at a time.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time
from functools import cache
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from strategies.core.economics import Prices, PriceStep

BUNDLED, RENEWED = "bundled table", "renewed table"
_VERSION, _DIGITS = re.compile(r"(?<=-)\d+(-\d+)*(?=-|$)"), re.compile(r"\d+")
_CLAUDE = re.compile(r"claude-(?:[a-z]+-)*(\d{1,2})(?:[-.](\d{1,2}))?(?!\d)")
_NEWEST = (99, 0)
_LONG = "[1m]"  # the suffix by which Claude Code asks for a window of a million tokens
_ROUTED = re.compile(r":(free|beta|nitro|floor|extended|thinking|online|exacto)$")  # OpenRouter's suffixes
_PREFIX = re.compile(r"^(databricks-|meta-(?=llama)|(?:[a-z-]+\.)+(?=[a-z]))")
"""Bedrock's: a region and a vendor; a version is no prefix, because it has digits (`gpt-4.1`)."""
_SUFFIX = re.compile(r"(-v1|-v\d+(:\d+)+k?|(?<=\d)-v\d|-\d+:\d+|-maas|-(fp8|fp4|nvfp4|bf16|awq|gptq|int4|int8))$")
"""Bedrock's version, Vertex's, and a precision."""
_DATE = re.compile(r"[-@]20\d\d-?[01]\d-?[0-3]\d$")
_POINT = re.compile(r"(?<=\d)p(?=\d)|[._@]")
_CLAUDE_LAST = re.compile(r"^claude-(\d+(?:-\d+)?)-([a-z]+)")
_LLAMA = re.compile(r"^llama-?v?(?=\d)")
_QWEN = re.compile(r"^qwen-(?=\d)")
_OPENAI = re.compile(r"(ft:)?(gpt|chatgpt|codex|computer-use|o\d)")


def plain_name(model: str) -> str:
    """The model's name in lower case without vendor prefixes (`openrouter/openai/gpt-4o`)."""
    return model.strip().lower().rsplit("/", 1)[-1]


def claude_version(model: str) -> tuple[int, int] | None:
    """The version of a Claude model; one whose name has none is taken for the newest. None for other models."""
    if "claude" not in model:
        return None
    match = _CLAUDE.search(model)
    return (int(match[1]), int(match[2] or 0)) if match else _NEWEST


def is_openais(plain: str) -> bool:
    """Whether a model, by its plain name, is OpenAI's, so that its tokenizer is one that we have."""
    return _OPENAI.match(plain) is not None


def asks_for_long(model: str) -> bool:
    """Whether a model's name asks for a window of a million tokens."""
    return model.rstrip().lower().endswith(_LONG)


def without_date(model: str) -> str:
    """The name without the date of its snapshot, if it ends in one."""
    return _DATE.sub("", model)


def family_of(model: str) -> str:
    """What the names of all versions of a model have in common."""
    return _VERSION.sub("#", without_date(canonical_name(model)))


def canonical_name(model: str) -> str:
    """One spelling for all that vendors, clouds and gateways have for a model; the date of a snapshot stays.

    `us.anthropic.claude-sonnet-4-5-20250929-v1:0`, `anthropic/claude-sonnet-4.5:free`, `llama-v3p1-70b-instruct`.
    A local server's tag (`qwen3:8b`) stays too: such a server loads a model with a window of its own.
    """
    name = _ROUTED.sub("", plain_name(model).removesuffix(_LONG))
    name = _SUFFIX.sub("", _PREFIX.sub("", name))
    date = _DATE.search(name)
    name, end = (name[: date.start()], "-" + date[0][1:]) if date else (name, "")
    name = _LLAMA.sub("llama-", _QWEN.sub("qwen", _POINT.sub("-", name)))
    return _CLAUDE_LAST.sub(r"claude-\2-\1", name) + end


@dataclass(frozen=True, slots=True)
class ModelWindow:
    """Limits of one model, in tokens; None if there is no limit besides the window."""

    window: int  # input and output together
    max_input: int | None = None
    long: int | None = None  # the window of a request that asks for a million tokens


@dataclass(frozen=True, slots=True, eq=False)
class ModelTable:
    """Models by their canonical names. Immutable."""

    _models: Mapping[str, ModelWindow]
    _prices: Mapping[str, Prices] = field(default_factory=dict)
    _changes: Sequence[tuple[float, Mapping[str, Prices]]] = ()  # by their time in seconds since the epoch
    made: date = date.min
    path: Path = Path()
    source: str = BUNDLED

    @classmethod
    def load(cls, path: Path) -> ModelTable:
        """Reads a file like `config/models.toml`; raises `OSError`, or `ValueError` if it is not of that form."""
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
            steps = {name: PriceStep(**step) for name, step in document.get("steps", {}).items()}

            def priced(rows: Mapping[str, Any]) -> dict[str, Prices]:
                return {canonical_name(name): replace(Prices(*row), step=steps.get(name)) for name, row in rows.items()}

            dated = sorted(document.get("prices_from", {}).items())
            changes = [(_seconds(date.fromisoformat(day)), priced(rows)) for day, rows in dated]
            made = date.fromisoformat(str(document.get("made", date.min)))
            return cls(windows, priced(document.get("prices", {})), changes, made, path)
        except (AttributeError, TypeError) as error:
            raise ValueError(f"{path}: {error}") from error

    def find(self, model: str) -> ModelWindow | None:
        """The limits of a model as a client names it, or None: never the limits of a similar name."""
        return next(filter(None, map(self._models.get, _forms(model))), None)

    def prices(self, model: str, now: float) -> Prices | None:
        """The published prices of a model at its vendor's own API at a time in seconds since the epoch, or None."""
        held = [self._prices, *(prices for since, prices in self._changes if since <= now)]
        found = (prices.get(form) for prices in reversed(held) for form in _forms(model))
        return next(filter(None, found), None)

    def next_change(self, now: float) -> float:
        """When prices change next, in seconds since the epoch; infinity if no change is known."""
        return min((since for since, _ in self._changes if since > now), default=inf)

    def relative(self, model: str) -> str | None:
        """The newest model with a price whose name differs in its version only; None if there is none."""
        name, family = canonical_name(model), family_of(model)
        alike = [each for each in self._prices if each != name and family_of(each) == family != name]
        return max(alike, key=lambda each: [*map(int, _DIGITS.findall(each))], default=None)


def newest_table(bundled: Path, renewed: Path) -> ModelTable:
    """The bundled table, or the renewed one if that is there and no older; raises as `ModelTable.load`."""
    tables = [_read(bundled, 0)]
    if renewed != bundled and renewed.is_file():
        tables.append(replace(_read(renewed, renewed.stat().st_mtime_ns), source=f"{RENEWED}, {renewed}"))
    return max(reversed(tables), key=lambda table: table.made)


@cache
def _read(path: Path, _changed: int) -> ModelTable:
    return ModelTable.load(path)


def _seconds(day: date) -> float:
    return datetime.combine(day, time(), UTC).timestamp()


def _forms(model: str) -> tuple[str, ...]:
    name = canonical_name(model)
    undated = without_date(name)
    return name, undated, undated.removesuffix("-latest")


class StatedWindow(NamedTuple):
    window: int  # in tokens, input and output together
    max_input: int | None  # the limit in tokens for the input alone, if the server has one below the window
    source: str  # who states it, in words
    is_ceiling: bool = False  # whether it may be larger than what a request gets, so that the table may lower it
