"""Durations."""

from __future__ import annotations

from time import perf_counter


def milliseconds_since(started: float) -> float:
    """Milliseconds since `started`, a reading of `perf_counter`."""
    return (perf_counter() - started) * 1000
