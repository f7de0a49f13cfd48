"""Trust: what a request may do depends on whether the upstream has accepted its caller's credential.

A credential is only a text until the upstream has answered a request that carries it. Before that, nothing of its
caller is stored, and no model is asked with a key of the settings. A request whose caller is unknown is condensed by
rules. What it would store waits in its `Trust` until the head of a good reply, and is otherwise dropped with it.

Accepted credentials are remembered as digests for a while, in this process and as facts in the store, which replicas
share and a restart keeps. The upstream's next refusal makes a credential unknown again. A dry run asks the upstream
nothing, so what it may show of the store takes a credential that was accepted in the last minutes.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from hashlib import blake2b
from http import HTTPStatus

from proxy.errors import CredentialRefused, CredentialUnproven
from proxy.http.headers import Headers, is_success
from proxy.runtime.lru import Lru
from proxy.runtime.owned_tasks import OwnedTasks
from proxy.store.facts import Facts
from proxy.store.patience import Patience
from proxy.upstream import Upstream

LIFE = 3_600
"""Seconds for which an accepted credential is remembered."""
FRESH = 600.0
"""Seconds for which it proves enough to show what is stored."""
RENEWED = 60.0
"""Seconds until the store is told again that a credential was accepted."""
MAX_CREDENTIALS = 10_000
_log = logging.getLogger(__name__)
_WHAT = "whether a credential is accepted"
_TIMEOUT = 10.0  # seconds
_MAX_BYTES = 64 * 1024
_REFUSALS = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


@dataclass(slots=True, eq=False)
class Trust:
    """What is known of the caller of one request, and the writes that wait until its credential is accepted."""

    credential: str
    accepted_at: float
    _callers: Callers | None = None
    _held: list[Callable[[], Awaitable[object]]] = field(default_factory=list)

    @property
    def accepted(self) -> bool:
        """Whether the upstream has accepted the credential."""
        return self.accepted_at > -math.inf

    async def look_up(self, patience: Patience) -> None:
        """Asks the store about a credential that this process does not know."""
        if self._callers is not None and not self.accepted:
            self.accepted_at = await self._callers.stored_time(self.credential, patience)

    async def prove(self, headers: Headers) -> None:
        """Makes sure that the credential in a request's headers may be shown what is stored; raises `ProxyError`."""
        if self._callers is not None:
            await self._callers.prove(self, headers)

    def holds(self, write: Callable[[], Awaitable[object]]) -> bool:
        """Whether a write must wait; then it is kept, and made when the credential is accepted."""
        if not self.accepted:
            self._held.append(write)
        return not self.accepted

    async def accept(self, now: float) -> None:
        """Takes in that the upstream has accepted the credential, and makes the writes that waited for that."""
        self.accepted_at = max(self.accepted_at, now)
        held, self._held = self._held, []
        for write in held:
            await write()


ALWAYS = Trust("", math.inf)
"""The trust in callers who all use the operator's key: nobody asks for a credential of theirs."""


@dataclass(slots=True, eq=False)
class Callers:
    """Remembers whose credentials the upstream has accepted; one per app.

    `credentials` are the names of headers with credentials, in lower case. With `own_key` requests carry the operator's
    key, and all callers are trusted. `clock` gives seconds since the epoch.
    """

    upstream: Upstream
    base_url: str
    facts: Facts
    tasks: OwnedTasks
    clock: Callable[[], float]
    credentials: Collection[bytes]
    own_key: bool = field(kw_only=True)
    _accepted: Lru[str, float] = field(default_factory=lambda: Lru(MAX_CREDENTIALS))
    _shared: Lru[str, float] = field(default_factory=lambda: Lru(MAX_CREDENTIALS))

    def trust_in(self, credential: str) -> Trust:
        """What this process knows of a credential."""
        return ALWAYS if self.own_key else Trust(credential, self._unexpired(self._accepted.get(credential)), self)

    async def stored_time(self, credential: str, patience: Patience) -> float:
        """When the store was last told that a credential was accepted, which this process then knows too."""
        fact = await self.facts.get(self._name(credential), _WHAT, patience)
        try:
            at = self._unexpired(float(fact) if fact else None)
        except ValueError:
            _log.warning("it cannot be read whether a credential was accepted")
            return -math.inf
        if at > -math.inf:
            self._accepted.put(credential, at)
        return at

    async def note(self, trust: Trust, status: int, *, shares: bool = True) -> None:
        """Learns from the status with which the upstream has answered a request, and makes the writes that waited.

        With `shares` the store is told too; a request of which nothing may be stored does not share.
        """
        if trust is ALWAYS:
            return
        now = self.clock()
        if is_success(status):
            self._accepted.put(trust.credential, now)
            if shares and now - (self._shared.get(trust.credential) or -math.inf) >= RENEWED:
                self._share(trust.credential, now)
            await trust.accept(now)
        elif status in _REFUSALS and trust.accepted:
            trust.accepted_at = -math.inf
            self._accepted.put(trust.credential, -math.inf)
            if shares:
                self._share(trust.credential, -math.inf)

    async def prove(self, trust: Trust, headers: Headers) -> None:
        """Makes sure that the upstream accepts a credential now, or did so lately, before stored text is shown.

        It is asked for its list of models. A list that everybody may read proves nothing, unless there is no
        credential to prove. Raises `CredentialRefused`, `CredentialUnproven` and `UpstreamUnavailable`.
        """
        if trust.accepted_at >= self.clock() - FRESH:
            return
        credentials = [pair for pair in headers if pair[0] in self.credentials]
        reply = await self.upstream.page("/models", credentials, _TIMEOUT, _MAX_BYTES)
        if reply.status in _REFUSALS:
            await self.note(trust, reply.status)
            raise CredentialRefused(reply.status, reply.body)
        if not is_success(reply.status) or (credentials and not await self._guards_models()):
            raise CredentialUnproven
        if credentials:
            await self.note(trust, reply.status)

    async def _guards_models(self) -> bool:
        """Whether the upstream shows its models only to those whom it knows."""
        return (await self.upstream.page("/models", [], _TIMEOUT, 0)).status in _REFUSALS

    def _unexpired(self, at: float | None) -> float:
        return at if at is not None and self.clock() - LIFE < at else -math.inf

    def _name(self, credential: str) -> str:
        return f"accepted-{blake2b(f'{self.base_url} {credential}'.encode(), digest_size=16).hexdigest()}"

    def _share(self, credential: str, at: float) -> None:
        self._shared.put(credential, at)
        self.tasks.own(self._write(credential, at), to_its_end=True)

    async def _write(self, credential: str, at: float) -> None:
        await self.facts.put(self._name(credential), str(at).encode(), LIFE, _WHAT)
