"""What a server said of its models. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

LEAST, MOST = 256, 100_000_000
"""Windows in tokens outside of these are taken for no window."""


class Kind(StrEnum):
    """A kind of server, by the name that people know it by."""

    VLLM = "vLLM"
    SGLANG = "SGLang"
    LLAMA_CPP = "llama.cpp"
    OLLAMA = "Ollama"
    LM_STUDIO = "LM Studio"
    TGI = "TGI"
    LITELLM = "LiteLLM"
    OPENROUTER = "OpenRouter"
    HOST = "the upstream"
    """One that states windows in its model list in a form that several hosts share."""

    @property
    def is_local(self) -> bool:
        """Whether such a server mostly stands on one person's machine, loads a model when it is first asked for, and
        answers one or a few requests at a time."""
        return self in (Kind.OLLAMA, Kind.LM_STUDIO, Kind.LLAMA_CPP)


class Found(NamedTuple):
    """A window in tokens, input and output together, and who said so.

    `max_input` is the limit of the input alone where the server has one below the window.
    """

    window: int
    max_input: int | None
    source: str


Stated = Callable[[str], Found | None]
"""What a server states of a model by name."""


def nothing_stated(_model: str) -> None:
    """What a server states that nobody asks."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The windows of a server's models by the names that requests use; `only` is that of its one model, which it
    serves by whatever name."""

    kind: Kind
    windows: Mapping[str, Found] = field(default_factory=dict)
    only: Found | None = None

    @property
    def is_silent(self) -> bool:
        """Whether it knows of no model's window: the server has loaded none, or does not say."""
        return not self.windows and self.only is None

    def of(self, model: str) -> Found | None:
        """The window of a model, or None where the server did not say."""
        return self.windows.get(model) or self.only

    def after(self, earlier: Reading | None) -> Reading:
        """This reading with what an earlier one knew of models that are not loaded now: they are loaded again alike."""
        if earlier is None or earlier.kind is not self.kind or not self.kind.is_local:
            return self
        return Reading(self.kind, {**earlier.windows, **self.windows}, self.only)


def found(kind: Kind, window: object, max_input: object = None) -> Found | None:
    """A window as a server stated it, or None where that is no window."""
    tokens, most = whole(window), whole(max_input)
    if tokens is None:
        return None
    return Found(tokens, most if most is not None and most < tokens else None, f"stated by {kind}")


def whole(value: object) -> int | None:
    """A number of tokens that may be a window."""
    is_one = isinstance(value, int) and not isinstance(value, bool) and LEAST <= value <= MOST
    return int(value) if is_one and isinstance(value, int) else None


def smallest(values: Iterable[object]) -> int | None:
    """The smallest window among values, of which some may be none."""
    return min(filter(None, map(whole, values)), default=None)


def members(data: object, key: str) -> list[Mapping[str, Any]]:
    """The objects in the list at a key of an object; empty where it is of another form."""
    rows = data.get(key) if isinstance(data, Mapping) else None
    return [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []


def by_name(pairs: Iterable[tuple[object, Found | None]]) -> dict[str, Found]:
    """Windows by model; of several for one name the smallest counts, since a request may meet each of them."""
    windows: dict[str, Found] = {}
    for name, each in _stated(pairs):
        if name not in windows or each.window < windows[name].window:
            windows[name] = each
    return windows


def _stated(pairs: Iterable[tuple[object, Found | None]]) -> Iterator[tuple[str, Found]]:
    for name, each in pairs:
        if isinstance(name, str) and each is not None:
            yield name, each
