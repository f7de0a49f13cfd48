"""The readings of a server's pages: its kind, and the windows of its models. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from proxy.learning.stated_windows import StatedWindow

LEAST, MOST = 256, 100_000_000
"""A number of tokens outside these bounds is not taken for a window."""


class ServerKind(StrEnum):
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
    """A host whose model list states windows in a form that several hosts share."""

    @property
    def is_local(self) -> bool:
        """Whether such a server mostly stands on one person's machine, loads a model when it is first asked for, and
        answers one or a few requests at a time."""
        return self in (ServerKind.OLLAMA, ServerKind.LM_STUDIO, ServerKind.LLAMA_CPP)


@dataclass(frozen=True, slots=True)
class Reading:
    """The windows that a server stated, by the names of models in requests."""

    kind: ServerKind
    windows: Mapping[str, StatedWindow] = field(default_factory=dict)
    only: StatedWindow | None = None
    """The window of its one model, which it serves under any name."""

    @property
    def is_silent(self) -> bool:
        """Whether it has no window at all: the server has loaded no model, or does not state windows."""
        return not self.windows and self.only is None

    def of(self, model: str) -> StatedWindow | None:
        """The window of a model; None if the server did not state one."""
        return self.windows.get(model) or self.only

    def after(self, earlier: Reading | None) -> Reading:
        """This reading, with the windows of models that are not loaded now: they will be loaded the same way again."""
        if earlier is None or earlier.kind is not self.kind or not self.kind.is_local:
            return self
        return Reading(self.kind, {**earlier.windows, **self.windows}, self.only)


def stated_window(kind: ServerKind, window: object, max_input: object = None) -> StatedWindow | None:
    """A window as a server stated it; None if the value cannot be a window."""
    tokens, most = as_window(window), as_window(max_input)
    if tokens is None:
        return None
    return StatedWindow(tokens, most if most is not None and most < tokens else None, f"stated by {kind}")


def as_window(value: object) -> int | None:
    """A number of tokens, if it can be a window; else None."""
    is_one = isinstance(value, int) and not isinstance(value, bool) and LEAST <= value <= MOST
    return int(value) if is_one and isinstance(value, int) else None


def smallest(values: Iterable[object]) -> int | None:
    """The smallest window among values, ignoring those that cannot be windows."""
    return min(filter(None, map(as_window, values)), default=None)


def members(data: object, key: str) -> list[Mapping[str, Any]]:
    """The objects in the list at a key of an object; empty if the data has another form."""
    rows = data.get(key) if isinstance(data, Mapping) else None
    return [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []


def by_name(pairs: Iterable[tuple[object, StatedWindow | None]]) -> dict[str, StatedWindow]:
    """Windows by model; of several for one name the smallest, because a request may meet any of them."""
    windows: dict[str, StatedWindow] = {}
    for name, each in _named_windows(pairs):
        if name not in windows or each.window < windows[name].window:
            windows[name] = each
    return windows


def _named_windows(pairs: Iterable[tuple[object, StatedWindow | None]]) -> Iterator[tuple[str, StatedWindow]]:
    for name, each in pairs:
        if isinstance(name, str) and each is not None:
            yield name, each
