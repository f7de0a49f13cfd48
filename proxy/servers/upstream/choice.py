"""Which upstream a request goes to: `destination_of` picks one of those of the settings.

A request never chooses an address. It says its protocol, by its path, its model, or the name of an upstream; the header
`anthropic-version`, which no other API has, stands for the protocol `messages` at any path. Everything that is kept for
each upstream (proofs of credentials, windows, lanes, forms, calibrations) is kept by the `base_url` of the destination.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from proxy.controls import Controls
from proxy.errors import BadRequest, NoUpstream
from proxy.http.headers import (
    ANTHROPIC_VERSION,
    BEARER,
    COOKIE,
    CREDENTIALS,
    PASSED,
    Headers,
    Passes,
    first,
    lowered_names,
    passing,
    query_passed,
    to_upstream,
)
from proxy.quoting import quoted, redacted
from proxy.settings.tables import DEFAULT_UPSTREAMS, PROTOCOLS, UpstreamEntry
from strategies.dialects.chat import CHAT
from strategies.dialects.messages import MESSAGES

if TYPE_CHECKING:
    from proxy.settings import Settings

_VENDORS = (
    "api.openai.com", "api.anthropic.com", "generativelanguage.googleapis.com", "api.x.ai", "api.deepseek.com",
    "api.mistral.ai",
)  # fmt: skip
"""The hosts of vendors that take their published prices from every key."""
_SUBSCRIPTION = "Bearer sk-ant-oat"  # how the token of a Claude subscription begins


@dataclass(frozen=True)
class Destination:
    """One upstream: its address, the operator's key for it if there is one, the protocols and the models that go there.

    `models` are patterns; without any, all models go there. The `fixed` headers go with each request; of a caller's,
    those that `passes` lets through, all if it is None. Where a credential of the operator goes, the upstream
    `is_guarded`: beside that goes only what is on a list.
    """

    name: str
    base_url: str
    api_key: str | None = field(default=None, repr=False)
    protocols: Sequence[str] = PROTOCOLS
    models: Sequence[str] = ()
    takes_credentials: bool = True
    has_list_prices: bool = False  # whether a token costs there what its model's vendor says
    in_flight: int | None = None  # the most requests of clients that are served there at the same time
    fixed: Sequence[tuple[bytes, bytes]] = field(default=(), repr=False)
    passes: Passes | None = field(default=None, repr=False, compare=False)
    is_guarded: bool = field(default=False, compare=False)

    @cached_property
    def judges_callers(self) -> bool:
        """Whether the callers' own credentials go there."""
        return self.api_key is None and self.takes_credentials

    def serves(self, model: str) -> bool:
        """Whether a model goes there; one that is not known ("") only if all do."""
        return not self.models or (model != "" and any(fnmatchcase(model, pattern) for pattern in self.models))

    def forwarded(self, headers: Iterable[tuple[bytes, bytes]], key_header: tuple[bytes, bytes]) -> Headers:
        """The headers of a client's request as they go there; `key_header` is that of the request's endpoint."""
        kept = to_upstream(headers, self.passes)
        if self.passes is not None:
            kept += self.fixed
            if self.api_key is not None:
                kept.append((key_header[0], key_header[1] + self.api_key.encode()))
        return kept

    def query(self, query: bytes) -> bytes:
        """The query of a client's request as it goes there: it may hold a credential of the caller's."""
        goes_whole = self.judges_callers and not self.is_guarded
        return query if goes_whole else query_passed(query, is_guarded=self.is_guarded)

    def charges(self, headers: Headers, *, is_login: bool) -> bool:
        """Whether a request with these headers pays the vendor's price for each token; a login pays none."""
        if not self.has_list_prices:
            return False
        return not (is_login or (first(headers, BEARER[0]) or "").startswith(_SUBSCRIPTION))

    @property
    def headers(self) -> Headers:
        """The headers of the proxy's own requests for pages: the fixed ones, and the key if there is one."""
        if self.api_key is None:
            return [*self.fixed]
        if tuple(self.protocols) == (MESSAGES.name,):
            return [*self.fixed, (b"x-api-key", self.api_key.encode()), ANTHROPIC_VERSION]
        return [*self.fixed, (BEARER[0], BEARER[1] + self.api_key.encode())]


def destinations(settings: Settings) -> tuple[Destination, ...]:
    """The upstreams of the settings, in the order in which they are tried."""
    credentials = (*CREDENTIALS, COOKIE, *lowered_names(settings.tenant.headers))
    sessions = lowered_names(settings.sessions.headers)
    return tuple(_destination(entry, credentials, sessions) for entry in settings.named_upstreams)


def _destination(
    entry: UpstreamEntry, credentials: Collection[bytes] = CREDENTIALS, sessions: Collection[bytes] = ()
) -> Destination:
    key = entry.api_key.get_secret_value() if entry.api_key is not None else None
    judges, is_guarded = key is None and entry.takes_credentials, entry.has_credential
    without = {*dict(entry.fixed), *(() if judges else credentials)}
    listed = [*PASSED, *sessions, *lowered_names(entry.pass_headers), *credentials] if is_guarded else [b"*"]
    return Destination(
        entry.name,
        entry.base_url,
        key,
        entry.protocols,
        entry.models,
        entry.takes_credentials,
        has_list_prices=urlsplit(entry.base_url).hostname in _VENDORS,
        in_flight=entry.in_flight,
        fixed=tuple(entry.fixed),
        passes=passing(listed, without=without) if is_guarded or without else None,
        is_guarded=is_guarded,
    )


DEFAULTS = tuple(map(_destination, DEFAULT_UPSTREAMS))


def destination_of(
    destinations: Sequence[Destination],
    protocol: str,
    headers: Iterable[tuple[bytes, bytes]],
    model: str = "",
    controls: Controls | None = None,
) -> Destination:
    """The upstream that takes a request: the one that its controls name, else the first for its protocol and model.

    The names of the headers are in lower case. A path of no protocol (`""`) leads to where chat's does, else to any
    upstream. A request whose model is not known (`""`) goes to the first of them for all models, else to the first.
    Raises `NoUpstream`, and `BadRequest` for a name that no upstream has, or that takes no such requests.
    """
    if ANTHROPIC_VERSION[0] in dict(headers):
        protocol = MESSAGES.name
    if controls is not None and controls.upstream is not None:
        return _named(destinations, protocol, controls.upstream, controls.param("upstream"))
    taking = [each for each in destinations if (protocol or CHAT.name) in each.protocols]
    if not taking and protocol:
        raise NoUpstream(f"No upstream of this proxy takes requests of the protocol {protocol}.")
    taking = taking or list(destinations)
    for each in taking:
        if each.serves(model):
            return each
    if model:
        raise NoUpstream(f"No upstream of this proxy takes the model {quoted(model)}.", param="model")
    return taking[0]


def _named(destinations: Sequence[Destination], protocol: str, name: str, param: str) -> Destination:
    found = next((each for each in destinations if each.name == name), None)
    if found is None:
        known = ", ".join(each.name for each in destinations)
        raise BadRequest(f"{param}: this proxy has no upstream {quoted(name)}; known: {known}.", param=param)
    if protocol and protocol not in found.protocols:
        raise BadRequest(f"{param}: {name} takes no requests of the protocol {protocol}.", param=param)
    return found


def taking_credentials(destinations: Sequence[Destination]) -> list[str]:
    """The names of upstreams of one protocol that all get callers' credentials, of the first such protocol."""
    for protocol in PROTOCOLS:
        found = {
            each.base_url: each.name for each in destinations if each.judges_callers and protocol in each.protocols
        }
        if len(found) > 1:
            return list(found.values())
    return []


def shown(destinations: Sequence[Destination]) -> str:
    """The addresses of upstreams for people, without credentials; with their names if there are several."""
    if len(destinations) == 1:
        return redacted(destinations[0].base_url)
    return ", ".join(f"{redacted(each.base_url)} ({each.name}: {' '.join(each.protocols)})" for each in destinations)
