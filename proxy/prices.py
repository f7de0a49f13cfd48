"""The prices of one model, in money per million tokens."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of a million tokens, in any one currency."""

    input: float
    """Of a prompt."""
    cached_input: float
    """Of the part of a prompt that came from a cache."""
    output: float
    """Of a reply."""
