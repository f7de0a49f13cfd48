"""What must hold before the proxy starts, and the socket that it listens on."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import time

from proxy.cli import OK, USAGE
from proxy.commands.running import Note, client_url
from proxy.http.server import use_one_heap
from proxy.log import configure_logging
from proxy.quoting import in_words, redacted
from proxy.request.callers import tenant_key
from proxy.settings import Settings
from proxy.settings.tables import ModelRole, UpstreamSettings
from proxy.settings.token import admin_token, is_loopback, token_file
from proxy.store import open_store
from proxy.store.base import Store, StoreError
from proxy.version import LOGGER

_log = logging.getLogger(LOGGER)

REFUSAL = """condenser: refusing to start on {host} with {keys}:
anyone who reaches the port could use your key. Ways out, one of them:
  - listen on this machine only: --host 127.0.0.1
  - leave the key out, so that only the credentials of the callers are used
  - put a proxy that authenticates in front, and name tenants by it: tenant.from = "header:NAME"
  - say that it is meant: open_to_all = true, or CONDENSER_OPEN_TO_ALL=true; so a container listens whose port is
    published on this machine only (-p 127.0.0.1:8484:8484)"""
STORE_NOT_SHARED = """condenser: refusing to start several workers with memory://, which is the memory of one of them:
a conversation's next request would mostly reach another. Give them a store to share: a SQLite file or Redis."""
NOT_STARTED = 3


def why_not_started(settings: Settings) -> int:
    """Checks settings and store, and sets up the log; the exit code, with its cause printed, or 0 if all is well."""
    if gives_the_key_away(settings):
        print(REFUSAL.format(host=settings.host, keys=" and ".join(keys_of(settings))), file=sys.stderr)
        return USAGE
    if settings.workers > 1 and settings.store.url == "memory://":
        print(STORE_NOT_SHARED, file=sys.stderr)
        return USAGE
    configure_logging(settings.log)
    use_one_heap()
    if problem := asyncio.run(store_problem(settings)):
        print(f"condenser: {problem}", file=sys.stderr)
        return NOT_STARTED
    for warning in warnings(settings):
        _log.warning(warning)
    return OK


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket at an address, of IPv4 where the host has both kinds; raises `OSError`."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = min(found, key=lambda info: info[0] != socket.AF_INET)
    bound = socket.socket(family)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(address)
        bound.set_inheritable(True)
    except OSError:
        bound.close()
        raise
    return bound


def note_of(settings: Settings, configured: str, port: int) -> Note:
    """What other commands on this machine need to find this proxy."""
    token = token_file(settings)
    return Note(client_url(settings.host, port), configured, os.path.abspath(token) if token else None, time.time())


async def store_problem(settings: Settings) -> str:
    """Why the store, or a secret file next to it, cannot be opened; "" if all of them can be.

    This is checked before the port is taken, because an error within the server would print a traceback.
    """
    try:
        store = await open_store(settings.store.url)
        try:
            await _warn_of_silence(store, settings)
        finally:
            await store.close()
        tenant_key(settings)
        admin_token(settings)
    except (StoreError, OSError, ValueError) as error:
        return f"store.url is {redacted(settings.store.url)}, which cannot be opened: {in_words(error)}"
    return ""


async def _warn_of_silence(store: Store, settings: Settings) -> None:
    """Warns if the store does not answer: a server may be down when the proxy starts, or its address be wrong."""
    try:
        async with asyncio.timeout(settings.store.timeout):
            await store.ping()
    except (StoreError, TimeoutError) as error:
        why = str(error) or f"{redacted(settings.store.url)} gave no answer in time"
        _log.warning("the store cannot be reached, and requests are served without it until it answers: %s", why)


def warnings(settings: Settings) -> list[str]:
    """What an operator should know of these settings before they do harm."""
    is_keyed = settings.tenant.pepper is not None or settings.tenant.source == "fixed"
    found = []
    if settings.store.url.lower().startswith("redis") and not is_keyed:
        found.append(
            "tenant.pepper is not set: anyone who can read the Redis can test guesses of the callers' credentials;"
            " set it to one secret on all replicas"
        )
    if settings.open_to_all and (keys := keys_of(settings)) and not is_loopback(settings.host):
        place = f"{settings.host}:{settings.port}"
        found.append(f"anyone who reaches {place} can use {' and '.join(keys)}: open_to_all is true")
    return found


def gives_the_key_away(settings: Settings) -> bool:
    """Whether anyone who reaches the port could spend one of the operator's keys."""
    behind_a_proxy = settings.tenant.source.startswith("header:")
    is_open = not (is_loopback(settings.host) or behind_a_proxy or settings.open_to_all)
    return is_open and bool(keys_of(settings))


def keys_of(settings: Settings) -> list[str]:
    """The names of the operator's keys with which calls for clients are made."""
    holders: dict[str, UpstreamSettings | ModelRole | None] = {
        "upstream": settings.upstream,
        "summarizer": settings.summarizer,
        "judge": settings.judge,
    }
    for i, entry in enumerate(settings.models):
        holders |= {f"models[{i}].summarizer": entry.summarizer, f"models[{i}].judge": entry.judge}
    return [f"{name}.api_key" for name, holder in holders.items() if holder and holder.api_key]
