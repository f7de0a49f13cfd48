"""Servers: what is known of the ones that models are asked of, and what their refusals say.

    known       one `Server` for each request, filled once; and the one place that learns
    windows     where a window comes from, and what refusals for length have taught of it
    discovery   what a server says of itself: its kind, and the windows that it has loaded
    counting    how it counts a request: calibration, by `figures` of each model and anchors of each conversation
    shared_cache  who waits for room in a cache that slots may share
    refusals    the one reader of errors: what is too large, and what is named; `error_bodies` opens them

What an error teaches holds for the tenant that met it (`LessonScope`), because an error may quote the request, and one
tenant must not teach another. Numbers of tokens tell nothing of a request, so figures belong to all tenants.

Calibration turns our token count into the server's. For each request it uses the first of these that is known:

    anchor    the server's own count for the beginning of this very view; only what is new is estimated
    figures   of this server and model: its hidden tokens, its tokens per token of ours, a picture's price
    nothing   our own count, as it is

Both together give the scale of one request. Marks, headroom and refusals follow from that, while headers and records
keep our own count.
"""

from __future__ import annotations

from typing import NamedTuple

from proxy.quoting import label, printable

MAX_SCOPES = 4_000  # of which lessons are remembered
SHOWN = 12  # characters of a tenant that logs and reports show


class LessonScope(NamedTuple):
    """A model, the tenant for whom a lesson about it holds, and the address of the upstream that taught it."""

    model: str
    tenant: str = ""
    upstream: str = ""

    @property
    def named(self) -> str:
        """For a line of the log: the model, and the tenant, whose digest is shortened."""
        return f"{label(self.model)} (tenant {printable(self.tenant, SHOWN) or 'none'})"
