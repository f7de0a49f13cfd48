"""The windows that a server states for its models."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class StatedWindow(NamedTuple):
    """The window that a server states for a model."""

    window: int
    """In tokens, input and output together."""
    max_input: int | None
    """The limit in tokens for the input alone, if the server has one below the window."""
    source: str
    """Who states it, in words."""


WindowLookup = Callable[[str], StatedWindow | None]
"""Gives the window that a server states for a model, by name."""


def no_stated_window(_model: str) -> None:
    """The `WindowLookup` of a server that is not asked."""
