"""Durations."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter


def milliseconds_since(started: float) -> float:
    """Milliseconds since `started`, a reading of `perf_counter`."""
    return (perf_counter() - started) * 1000


@dataclass(slots=True)
class Timing:
    """Milliseconds of each part of the work, as `Server-Timing` gives them."""

    session: float = 0.0
    count: float = 0.0
    condense: float = 0.0
    upstream: float = 0.0

    def header(self) -> str:
        """The value of `Server-Timing`."""
        ours = f"session;dur={self.session:.2f}, count;dur={self.count:.2f}, condense;dur={self.condense:.2f}"
        return f"{ours}, upstream;dur={self.upstream:.2f}"

    @property
    def ours(self) -> float:
        """Milliseconds that we added before forwarding."""
        return self.session + self.count + self.condense
