"""What a server tells its app while it stops."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Drain:
    """Set by the server, read by the app."""

    has_begun: bool = False
    """The server has been told to stop: `/readyz` answers 503."""
    is_over: bool = False
    """Replies that still run are cancelled, and are to end with an error."""
