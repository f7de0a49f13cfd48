"""The keys of callers, for a proxy that has its own (`auth.mode = "keys"`): who may use it, and for what.

A key is known by its digest alone. It says whose a request is, and is forwarded nowhere: the upstream gets its own. A
key may be bound to models; then a request whose model cannot be read is refused, because it might name any.

A revoked key is in a list in the store, which each process reads again within a second. While the store does not
answer, the list that was read last holds; what was once seen in it stays revoked until the process ends, and is put
back into a list that has lost it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from hashlib import sha256
from hmac import compare_digest
from typing import Any, NamedTuple

from proxy.controls import Controls
from proxy.errors import InvalidKey, NotPermitted
from proxy.http.headers import values_once
from proxy.quoting import quoted
from proxy.settings.tables import AuthSettings, KeyEntry
from proxy.store.access import Outage
from proxy.store.base import Store, StoreError

_HEADERS = {b"authorization": "Authorization", b"x-api-key": "x-api-key"}
_SUM = "revoked-keys"
_KEPT = 10 * 365 * 24 * 3600  # seconds for which a key stays in the list after the last one was put into it
_ENTRY = re.compile(r"[0-9a-f]{64}:[^:]{1,256}:[0-9]{1,12}(?::|$)")
EVERY = 0.4  # seconds between two readings of the list
_MODELS = re.compile(r"models?|engine|deployment|(?:.*_)?fallbacks|.*_model")
_SERVERS = ("api_base", "base_url", "user_config", "litellm_params", "provider")
"""Members by which servers take other models than `model` names, and other servers. Some read names in any case."""
_HAVE_SCHEMAS = ("tools", "functions", "response_format", "text", "output_format", "output_config")
_SCHEMAS = ("parameters", "input_schema", "schema")
_log = logging.getLogger(__name__)
_MISSING = "This proxy needs a key of its own: send it as Authorization: Bearer KEY, or as x-api-key."


class Keys:
    """The keys of the settings; `clock` gives seconds since the epoch."""

    def __init__(self, settings: AuthSettings, clock: Callable[[], float]) -> None:
        self.know(settings)
        self._clock = clock
        self.revoked: dict[str, str] = {}
        """The entries of the list of revoked keys, by their digests."""

    def know(self, settings: AuthSettings) -> None:
        """Knows these keys, and no others."""
        self._entries = [(bytes.fromhex(entry.sha256), entry) for entry in settings.keys]

    def key_of(self, headers: Sequence[tuple[bytes, bytes]]) -> KeyEntry:
        """The key of a request; raises `InvalidKey`, and `BadRequest` if one of its headers stands twice."""
        values = values_once(headers, _HEADERS)
        scheme, _, bearer = values.pop(b"authorization", "").partition(" ")
        given = {*values.values(), *([bearer.strip()] if scheme.lower() == "bearer" else [])} - {""}
        if len(given) > 1:
            raise InvalidKey("Authorization and x-api-key hold different keys; send one of them.")
        if not given:
            raise InvalidKey(_MISSING)
        return self.entry_of(given.pop())

    def entry_of(self, given: str) -> KeyEntry:
        """The entry of this key; raises `InvalidKey`."""
        digest = sha256(given.encode("utf-8", "surrogatepass")).digest()
        # All are compared, and each in constant time, so that the time tells nothing of any.
        found = [entry for known, entry in self._entries if compare_digest(known, digest)]
        if not found or found[0].sha256 in self.revoked:
            raise InvalidKey("This proxy does not know this key, or it was revoked.")
        if self._has_expired(found[0]):
            raise InvalidKey("This key has expired.")
        return found[0]

    def valid(self) -> list[KeyEntry]:
        """The entries of all keys that hold now."""
        return [each for _, each in self._entries if each.sha256 not in self.revoked and not self._has_expired(each)]

    def _has_expired(self, entry: KeyEntry) -> bool:
        return entry.expires is not None and entry.expires.timestamp() <= self._clock()


def check_permitted(
    key: KeyEntry, model: str | None, values: Mapping[str, Any], asked: Controls, *, unlisted: str = ""
) -> None:
    """Raises `NotPermitted` if a key is not for all that a request which was read asks for.

    `unlisted` is a prefix of its path that no setting spells out: it may name a model, which then counts, as Azure's
    deployments do.
    """
    if key.models is not None:
        if not _allows(key.models, model):
            raise NotPermitted(f"This key is not for the model {quoted(model or '')}.", param="model")
        for member, value in values.items():
            if member != "model" and any(not _allows(key.models, name) for name in _models_in(member, value)):
                message = f"This key is for some models only, so {quoted(member)} may name no others, and no server."
                raise NotPermitted(message, param=member)
    names = asked.strategy.names if asked.strategy is not None else ()
    if key.strategies is not None and not set(names) <= set(key.strategies):
        message = f"This key is not for the strategy {quoted(str(asked.strategy))}."
        raise NotPermitted(message, param=asked.param("strategy"), code="strategy_not_allowed")
    if key.models is not None and unlisted:
        raise NotPermitted("This key is for some models only, and the path may name another one.", param="path")


def _allows(patterns: Sequence[str], model: object) -> bool:
    if not isinstance(model, str):
        return False
    # LiteLLM takes several names with commas between them.
    return all(any(fnmatchcase(name, each) for each in patterns) for name in model.split(","))


def _models_in(member: str, value: object) -> Iterator[str | None]:
    """The models that a member of a body names at any depth, but in schemas; None for each server that it names."""
    rest = [(member, value, False)]
    while rest:
        name, value, is_model = rest.pop()
        plain = name.casefold()
        is_model = is_model or _MODELS.fullmatch(plain) is not None
        if plain in _SERVERS:
            yield None
        if isinstance(value, str) and is_model:
            yield value
        elif isinstance(value, list):
            rest += [("", each, is_model) for each in value]
        elif isinstance(value, dict) and not (plain in _SCHEMAS and member in _HAVE_SCHEMAS):
            rest += [(key, each, is_model) for key, each in value.items()]


def check_unread(key: KeyEntry | None) -> None:
    """Raises `NotPermitted` for a request that is not read, if its key is bound to models."""
    if key is not None and key.models is not None:
        message = "This key is for some models only, and the proxy does not read the model of such a request."
        raise NotPermitted(message, param="model")


# -- the list of revoked keys --------------------------------------------------------------------------------------


class RevokedKey(NamedTuple):
    sha256: str
    name: str
    at: int  # when it was revoked, in seconds since the epoch


async def revoke(store: Store, key: KeyEntry, now: float) -> None:
    """Puts a key into the list; may be repeated. Raises `StoreError`."""
    if not any(each.sha256 == key.sha256 for each in await revoked_keys(store)):
        await store.add(_SUM, {f"{key.sha256}:{key.name}:{int(now)}": 1}, _KEPT)


async def revoked_keys(store: Store) -> list[RevokedKey]:
    """The list, the oldest first; raises `StoreError`."""
    keys = [
        RevokedKey(digest, name, int(at))
        for digest, entry in (await _entries(store)).items()
        for name, at in [entry.split(":")[1:3]]
    ]
    return sorted(keys, key=lambda key: key.at)


async def _entries(store: Store) -> dict[str, str]:
    """The entries of the list by their digests; what is none is skipped, and a later version may add to one's end."""
    (found,) = await store.sums([_SUM])
    return {entry[: entry.index(":")]: entry for entry in found if _ENTRY.match(entry)}


InTime = Callable[[Coroutine[Any, Any, Any]], Awaitable[Any]]


async def read_revoked(keys: Keys, in_time: InTime, store: Store, outage: Outage) -> None:
    """Reads the list; puts back what it has lost, which other replicas and the next start do not know."""
    try:
        entries = await in_time(_entries(store))
        if lost := keys.revoked.keys() - entries.keys():
            _log.warning("the list of revoked keys had lost %d of them, which are put back", len(lost))
            await in_time(store.add(_SUM, {keys.revoked[digest]: 1 for digest in lost}, _KEPT))
        keys.revoked.update(entries)
        outage.answered()
    except StoreError as error:
        outage.failed("the list of revoked keys was not read", error)
