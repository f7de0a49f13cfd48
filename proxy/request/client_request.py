"""A client's request in the form that the driver takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from proxy.controls import Controls
from proxy.http.headers import Headers
from proxy.knowledge.profiles import Scope
from proxy.request.callers import ALWAYS, Trust
from proxy.request.wire import Body


class GoesOn(NamedTuple):
    """What a request goes on from whose reply is to be stored, so that a later request may name it."""

    name: str = ""
    """The name of the block with the reply that the request names; "" where it names none."""
    session: str = ""
    """The session that has the block."""
    supplied: int = 0
    """How many elements of the list the store has supplied."""


class ClientRequest(NamedTuple):
    """A request in the form that the driver takes."""

    tenant: str
    headers: Headers
    """The client's headers to forward, without those that describe a content encoding of the body."""
    body: Body
    model: str
    """The model's id without a strategy suffix."""
    has_suffix: bool
    """Whether a suffix was removed from the model's id."""
    controls: Controls
    path: bytes = b""
    """The path that it is forwarded to, where that is not the endpoint's own."""
    query: bytes = b""
    received_at: float = 0.0
    """When the request came in, in seconds since the epoch."""
    encoded_body: bytes = b""
    """The body as it came in if it had a content encoding, else empty."""
    encoding_headers: Sequence[tuple[bytes, bytes]] = ()
    """The headers that describe that encoding."""
    trust: Trust = ALWAYS
    """Whether the upstream has accepted the caller's credential."""
    goes_on: GoesOn | None = None
    """What it goes on from; None if its reply is not to be stored for others to name."""

    @property
    def target(self) -> bytes:
        """The path that it is forwarded to."""
        return self.path or self.body.endpoint.path.encode()

    @property
    def scope(self) -> Scope:
        """The scope of what an answer to this request teaches."""
        return Scope(self.model, self.tenant)
