"""Callers: whose a request is, and whether the upstream has accepted its credential.

The owner of a request is named by the digest of its credential, of the subject of a signed login, or by a header from a
trusted proxy. A credential is only a text until the upstream has answered a request that carries it, at the endpoint's
own path and in the endpoint's own form: a page or a health check says 200 to anybody. Before that, nothing of its
caller is stored, and no model is asked with a key of the settings. A request from an unknown caller is condensed by
rules. Its writes wait in its `Trust` until such an answer has come; if none does, they are dropped.

A path with a provider's prefix that the operator has not listed may lead to any other server behind the same address.
So it is a place of its own: its stored data and its proofs hold for that prefix only.

Accepted credentials are remembered as digests for a while, in this process and as facts in the store, which replicas
share and a restart keeps. The upstream's next refusal makes a credential unknown again. Stored data, sizes included,
is shown only to a credential that was accepted in the last few minutes; for any other, the upstream is asked first.
An upstream that judges nobody proves nothing: there only sessions are shown that began there (`UNPROVEN`), and others
while one that judges has accepted the credential lately.
"""

from __future__ import annotations

import json
import logging
import math
import re
from base64 import urlsafe_b64decode
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from http import HTTPStatus
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import NamedTuple

from proxy import quoting
from proxy.callers.keys import Keys
from proxy.errors import BadRequest, CredentialRefused, CredentialUnproven
from proxy.http.headers import BEARER, COOKIE, Headers, is_success, lowered_names, may_bear_more, values_once
from proxy.runtime.lru import Lru
from proxy.runtime.owned_tasks import OwnedTasks
from proxy.servers import SHOWN
from proxy.servers.upstream import Upstream
from proxy.servers.upstream.choice import Destination
from proxy.settings import Settings
from proxy.settings.tables import KeyEntry, network
from proxy.store import path_beside, read_or_create
from proxy.store.access import Facts, Patience
from proxy.values import json_or_none

_SEGMENTS = 3  # of a JWT: header, claims, signature
_KEY_FILE = "tenant.key"
_SHARED_KEY = b"condenser"
LIFE = 3_600  # seconds for which an accepted credential is remembered
FRESH = 600.0  # seconds for which an accepted credential may see stored text without being proven again
RENEWED = 60.0  # seconds until an accepted credential is written to the store again
MAX_CREDENTIALS = 10_000
UNPROVEN = "unproven"
"""The trait of a session whose owner no upstream has proved, as it began at one that judges nobody."""
_log = logging.getLogger(__name__)
_WHAT = "whether a credential is accepted"
_TIMEOUT = 60.0  # seconds; a local server may have to load its model
_REFUSALS = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


class Owner(NamedTuple):
    """Whose request it is; all are keyed digests, so that no store ever holds a credential."""

    tenant: str
    credential: str  # what the caller authenticates with; the same for all callers without a credential
    login: str = ""  # whom a signed login says that it is of; "" if the tenant does not rest on that
    key: KeyEntry | None = None  # the key of the proxy's own that the request has, if callers need one

    def tenant_at(self, upstream: Destination) -> str:
        """The tenant at an upstream: of a signed login its subject, so that a refreshed one goes on with its sessions.

        Only the upstream can check the login. So what it says holds for that upstream alone, and for none to which it
        does not go.
        """
        if not self.login or not upstream.judges_callers:
            return self.tenant
        return blake2b(f"{self.login} {upstream.base_url}".encode(), digest_size=16).hexdigest()


class Tenants:
    """Names the owner of each request; `keys` has the callers' keys, None where their own credentials pass through."""

    def __init__(self, settings: Settings, key: bytes, keys: Keys | None = None) -> None:
        self._keys = keys
        self._source = settings.tenant_source
        self._header = self._source.partition(":")[2]
        self._credentials = lowered_names([*quoting.CREDENTIALS, *settings.tenant.headers])
        self._names = lowered_names([*self._credentials.values(), COOKIE.decode(), *filter(None, [self._header])])
        self._known = {*self._names, *lowered_names(settings.sessions.headers)}
        self._trusted = TrustedProxies(settings.server.trusted_proxies)
        self._key = key[:64]
        self._shown: dict[str, str] = {}
        self.names: Collection[str] = self._shown.values()  # those that tenants have by now
        self.name_all(settings)

    def name_all(self, settings: Settings) -> None:
        """Takes the names of tenants from these settings."""
        shown = {self.of_key(entry.owner): entry.owner for entry in settings.auth.keys} | settings.tenant.names
        self._shown.clear()
        self._shown.update(shown)

    def of_key(self, name: str) -> str:
        """The tenant with this name among those of keys."""
        return self._digest("key", name)

    def name(self, tenant: str) -> str | None:
        """The name of a tenant, by its key or by `tenant.names`; None if it has none."""
        return self._shown.get(tenant)

    def shown(self, tenant: str) -> str:
        """A tenant for people: its name, else the beginning of its digest."""
        return self._shown.get(tenant) or tenant[:SHOWN]

    def named(self, name: str) -> list[str]:
        """The tenants that a person means by a text: those with this name.

        If there are none, it is the name of a key that the settings no longer have, or the digest of a tenant.
        """
        return [tenant for tenant, shown in self._shown.items() if shown == name] or [self.of_key(name), name]

    def owner(
        self, headers: Sequence[tuple[bytes, bytes]], peer: str | None, prefix: str = "", query: bytes = b""
    ) -> Owner:
        """The owner of a request from the address `peer`, at a path with an unlisted `prefix`; "" for any other path.

        Raises `InvalidKey` if callers need a key of the proxy and the request has none that holds. Else raises
        `BadRequest` if the header that must name the tenant is missing or does not come from a trusted proxy, and if
        that header, or one with a credential, occurs twice or is not meant for the upstream.
        """
        if self._keys is not None:
            entry = self._keys.key_of(headers)
            return Owner(self.of_key(entry.owner), entry.sha256, key=entry)
        values = values_once(headers, self._names)
        # There may be several, and all of them count.
        named = b",".join([value.lower() for name, value in headers if name.lower() == b"connection"])
        for name in named.split(b","):
            if (own := name.strip()) in self._names:
                raise BadRequest(f"Connection must not name {self._names[own]}.", param="Connection")
        tenant, credential, authorization = self._by_credentials(values, prefix)
        if self._source == "credential":
            # An upstream may judge another credential instead, if there may be one; a query may hold one too.
            claims = claims_of(authorization)
            if claims is None or may_bear_more(headers, self._known):
                return Owner(tenant, credential)
            login = json.dumps([*claims, prefix, query.decode("latin-1")])
            return Owner(tenant, self._digest("login alone", tenant), self._digest("login", login))
        if not self._header:
            return Owner(self._digest("prefix", prefix) if prefix else self._source, credential)
        value = values.get(self._header.lower().encode())
        if value is None or peer not in self._trusted:
            raise BadRequest(
                f"The header {self._header} from a trusted proxy must name the tenant.", param=self._header
            )
        return Owner(self._digest("header", f"{value}\0{prefix}" if prefix else value), credential)

    def _by_credentials(self, values: Mapping[bytes, str], prefix: str) -> tuple[str, str, str]:
        """The tenant by its credentials, what proves that, and `Authorization` if that is all there is, else "".

        A cookie may change with each reply, so it names the tenant only where it is the only credential.
        """
        # All credentials as one text; the first one as its value alone, whichever header it is in.
        parts: list[str] = []
        for name in self._credentials:
            if name in values:
                parts += [name.decode(), values[name]] if parts else [values[name]]
        cookie = values.get(COOKIE)
        if cookie and not parts:
            parts = [COOKIE.decode(), cookie]
        text = "\0".join([*parts, "prefix", prefix] if prefix else parts)
        tenant, alone = self._digest("credential", text), values.get(BEARER[0], "") if len(parts) == 1 else ""
        # What the upstream accepts may be the cookie, which proves nothing of the credential where that comes alone.
        return (tenant, self._digest("beside a cookie", tenant), "") if cookie else (tenant, tenant, alone)

    def _digest(self, kind: str, value: str) -> str:
        data = f"{kind}\0{value}".encode("utf-8", "surrogatepass")
        return blake2b(data, key=self._key, digest_size=16).hexdigest()


def claims_of(authorization: str) -> tuple[str, str] | None:
    """The issuer and the subject that a signed login (a JWT) names, unchecked; None for any other credential."""
    scheme, _, token = authorization.partition(" ")
    header, *rest = token.strip().split(".")
    if scheme.lower() != "bearer" or len(rest) != _SEGMENTS - 1 or not all((header, *rest)):
        return None
    try:
        texts = [urlsafe_b64decode(part + "=" * (-len(part) % 4)) for part in (header, rest[0])]
    except ValueError:
        return None
    signed, said = map(json_or_none, texts)
    if not isinstance(signed, dict) or not isinstance(said, dict) or "alg" not in signed:
        return None
    issuer, subject = said.get("iss"), said.get("sub")
    return (issuer, subject) if isinstance(issuer, str) and isinstance(subject, str) and issuer and subject else None


def tenant_key(settings: Settings) -> bytes:
    """The key of tenant digests: from the settings, else from a file next to the embedded store.

    Replicas that share a Redis must agree on the key, so without a setting they use a fixed one.
    """
    if settings.tenant.pepper is not None:
        return settings.tenant.pepper.get_secret_value().encode()
    path = key_file(settings)
    return read_or_create(path) if path else _SHARED_KEY


def key_file(settings: Settings) -> Path | None:
    """The file with the key of tenant digests; None if the key is not in a file."""
    return path_beside(settings.store.url, _KEY_FILE) if settings.tenant.pepper is None else None


class TrustedProxies:
    def __init__(self, networks: Iterable[str]) -> None:
        self._networks = tuple(map(network, networks))

    def __contains__(self, peer: str | None) -> bool:
        """Whether a peer is trusted; a peer without an address, as on a local socket, is not."""
        try:
            address = ip_address(peer or "")
        except ValueError:
            return False
        if isinstance(address, IPv6Address):
            address = address.ipv4_mapped or address
        return any(address in trusted for trusted in self._networks)


@dataclass(slots=True, eq=False)
class Trust:
    """What is known of the caller of one request, and the writes that wait until its credential is accepted."""

    credential: str  # with the upstream that is to accept it
    accepted_at: float
    is_claimed: bool = False  # whether the tenant rests on what the credential says, which only the upstream can check
    _callers: Callers | None = None
    judged_at: float = -math.inf  # when the head of the upstream's reply to the request came
    _deferred: list[Callable[[], Awaitable[object]]] = field(default_factory=list)
    elsewhere: Sequence[str] = ()  # the credential with each upstream that judges it, where the request's does not
    stranger: str = ""  # the tenant there of a caller to whom what is stored is not shown

    @property
    def accepted(self) -> bool:
        return self.accepted_at > -math.inf

    @property
    def may_see_stored(self) -> bool:
        """Whether the upstream has accepted the credential so lately that stored text may be shown."""
        return self._callers is None or self.accepted_at >= self._callers.clock() - FRESH

    async def look_up(self, patience: Patience) -> None:
        if self.accepted_at == -math.inf and self._callers is not None:
            self.accepted_at = await self._callers.stored_time(self.credential, patience)

    async def shows(self, traits: Mapping[str, object], patience: Patience) -> bool:
        """Whether a session with these traits may be shown, as far as an upstream elsewhere has to prove its owner."""
        if not self.elsewhere or self._callers is None or UNPROVEN in traits:
            return True
        lately = self._callers.clock() - FRESH
        return any([await self._callers.known_time(each, patience) >= lately for each in self.elsewhere])

    async def prove(self, headers: Headers, ping: Ping) -> None:
        """Makes sure that the bearer of the credential in these headers may see stored text; raises `ProxyError`."""
        if self._callers is not None and not self.may_see_stored:
            await self._callers.prove(self, headers, ping)

    def defers(self, write: Callable[[], Awaitable[object]]) -> bool:
        """Keeps a write until the credential is accepted, and returns True; False if it can be made now."""
        if not self.accepted:
            self._deferred.append(write)
        return not self.accepted

    def accept(self, now: float) -> Sequence[Callable[[], Awaitable[object]]]:
        """Notes that the upstream has accepted the credential; returns the deferred writes, to be made now."""
        self.accepted_at = max(self.accepted_at, now)
        deferred, self._deferred = self._deferred, []
        return deferred


class Ping(NamedTuple):
    """A question of one token to an endpoint, which tells whether it accepts a credential."""

    base_url: str  # that of the endpoint's upstream
    target: str  # the endpoint's path, with the request's query
    bodies: Sequence[bytes]  # the question in each form that the endpoint may take
    answer: re.Pattern[bytes]  # matches an answer of the endpoint, but no error and no page


ALWAYS = Trust("", math.inf)
"""The trust in callers of whom the upstream sees no credential of their own."""


@dataclass(slots=True, eq=False)
class Callers:
    """Remembers whose credentials which upstream has accepted; one per app.

    Where no credential of theirs goes, as with a key of the operator, all callers are trusted. `clock` gives seconds
    since the epoch.
    """

    upstream: Upstream
    facts: Facts
    tasks: OwnedTasks
    clock: Callable[[], float]
    judging: Sequence[Destination] = ()  # the upstreams that judge callers, if tenants are named by credentials
    _accepted: Lru[str, float] = field(default_factory=lambda: Lru(MAX_CREDENTIALS))
    _refused: Lru[str, float] = field(default_factory=lambda: Lru(MAX_CREDENTIALS))
    _shared: Lru[str, float] = field(default_factory=lambda: Lru(MAX_CREDENTIALS))

    def trust_in(self, owner: Owner, upstream: Destination) -> Trust:
        if not upstream.judges_callers:
            elsewhere = [f"{each.base_url} {owner.credential}" for each in self.judging]
            stranger = blake2b(f"{owner.tenant} {upstream.base_url}".encode(), digest_size=16).hexdigest()
            return Trust("", math.inf, _callers=self, elsewhere=elsewhere, stranger=stranger) if elsewhere else ALWAYS
        proven = f"{upstream.base_url} {owner.credential}"  # what one upstream accepts proves nothing to another
        return Trust(proven, self._unexpired(self._accepted.get(proven)), bool(owner.login), self)

    async def known_time(self, credential: str, patience: Patience) -> float:
        """When a credential was last accepted, as far as this process knows, or else the store."""
        known = self._unexpired(self._accepted.get(credential))
        return known if known > -math.inf else await self.stored_time(credential, patience)

    async def stored_time(self, credential: str, patience: Patience) -> float:
        """When the store was last told that a credential was accepted, which this process then knows too."""
        fact = await self.facts.get(self._name(credential), _WHAT, patience)
        try:
            at = self._unexpired(float(fact) if fact else None)
        except ValueError:
            _log.warning("the store's note that a credential was accepted cannot be read")
            return -math.inf
        if at > -math.inf:
            self._accepted.put(credential, at)
        return at

    def note_status(self, trust: Trust, status: int, *, shares: bool = True) -> None:
        """Learns from the head of an upstream's reply whether it refuses the credential.

        With `shares`, the store learns it too, unlike for a request of which nothing may be stored.
        """
        if not trust.credential:
            return
        trust.judged_at = self.clock()
        if status in _REFUSALS:
            self._refused.put(trust.credential, trust.judged_at)
            if trust.accepted:
                trust.accepted_at = -math.inf
                self._accepted.put(trust.credential, -math.inf)
                if shares:
                    self._share(trust.credential, -math.inf)

    def accept(self, trust: Trust, *, shares: bool = True) -> Sequence[Callable[[], Awaitable[object]]]:
        """Learns that the upstream has accepted a credential; returns the writes that have waited for that."""
        # A long reply may end after its credential was refused elsewhere: the newer word counts.
        if not trust.credential or trust.judged_at < (self._refused.get(trust.credential) or -math.inf):
            return ()
        now = self.clock()
        self._accepted.put(trust.credential, now)
        if shares and now - (self._shared.get(trust.credential) or -math.inf) >= RENEWED:
            self._share(trust.credential, now)
        return trust.accept(now)

    async def prove(self, trust: Trust, headers: Headers, ping: Ping) -> None:
        """Makes sure that the upstream accepts a credential now, before stored text is shown.

        The endpoint itself is asked, at the request's own path: any other page, such as the list of models, may be open
        to everybody, closed to a key that may ask models, or served by another server than the key is for. Raises
        `CredentialRefused`, `CredentialUnproven` and `UpstreamUnavailable`.
        """
        for body in ping.bodies:
            reply = await self.upstream.ask(ping.base_url, ping.target, headers, body, _TIMEOUT)
            self.note_status(trust, reply.status)
            if reply.status in _REFUSALS:
                raise CredentialRefused(reply.status, reply.body)
            if is_success(reply.status) and ping.answer.search(reply.body):
                self.accept(trust)
                return
        raise CredentialUnproven

    def _unexpired(self, at: float | None) -> float:
        return at if at is not None and self.clock() - LIFE < at else -math.inf

    def _name(self, credential: str) -> str:
        return f"accepted-{blake2b(credential.encode(), digest_size=16).hexdigest()}"

    def _share(self, credential: str, at: float) -> None:
        self._shared.put(credential, at)
        self.tasks.own(self.facts.put(self._name(credential), str(at).encode(), LIFE, _WHAT), to_its_end=True)
