"""Make, list and revoke the keys of callers, for a proxy with auth.mode = "keys"."""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import time
from collections.abc import Callable, Coroutine, Sequence
from hashlib import sha256
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from proxy.callers.keys import revoke, revoked_keys
from proxy.cli import USAGE
from proxy.commands.options import add_settings_arguments, settings_from
from proxy.commands.proxy_client import actions_of, moment, table
from proxy.errors import CommandFailed
from proxy.quoting import printable, redacted
from proxy.settings import Settings
from proxy.settings.tables import KeyEntry, KeyName
from proxy.store import open_store
from proxy.store.base import Store, StoreError

_BEGINNING = "condenser-"  # of a key, so that those who find one know what it opens
_SHORT = 12  # digits of a digest in a list
_NOT_SHARED = "store.url is memory://, which only the running proxy reads; take the key out of its settings"
T = TypeVar("T")


def add_arguments(command: argparse.ArgumentParser) -> None:
    actions = actions_of(command)
    for name, run, text in (
        ("new", _new, "print a new key, once, and its entry for the settings"),
        ("list", _list, "the keys of the settings, and those that were revoked"),
        ("revoke", _revoke, "end a key at all replicas within a second"),
    ):
        action = actions.add_parser(name, help=text, description=text[:1].upper() + text[1:] + ".")
        action.set_defaults(run=run, parser=action)
        if name != "list":
            action.add_argument("name", metavar="NAME", help="the name of the key")
        if name != "new":
            add_settings_arguments(action)
        if name == "list":
            action.add_argument("--json", action="store_true", help="as data")


def _new(arguments: argparse.Namespace) -> None:
    try:
        TypeAdapter(KeyName).validate_python(arguments.name)
    except ValidationError as error:
        raise CommandFailed(f"the name of a key {error.errors()[0]['ctx']['error']}", USAGE) from None
    key = _BEGINNING + secrets.token_urlsafe(32)
    print(f"{key}\n\nIt is shown only now. The entry for the settings:\n")
    print(f'[[auth.keys]]\nname = "{arguments.name}"\nsha256 = "{sha256(key.encode()).hexdigest()}"')


def _list(arguments: argparse.Namespace) -> None:
    settings = settings_from(arguments)
    revoked = [] if settings.store.url == "memory://" else _with_store(settings, revoked_keys)
    ended = {key.sha256: key for key in revoked}
    if arguments.json:
        entries = [
            {**entry.model_dump(mode="json"), "tenant": entry.owner, "role": entry.role} for entry in settings.auth.keys
        ]
        known = {entry["sha256"] for entry in entries}
        entries += [{"name": key.name, "sha256": key.sha256} for key in revoked if key.sha256 not in known]
        data = [{**each, "revoked": ended[each["sha256"]].at if each["sha256"] in ended else None} for each in entries]
        print(json.dumps({"object": "list", "data": data}, ensure_ascii=False, indent=2))
        return
    rows: list[tuple[str, ...]] = [("NAME", "TENANT", "DIGEST", "ROLE", "MODELS", "STRATEGIES", "EXPIRES", "REVOKED")]
    for entry in settings.auth.keys:
        at = ended.pop(entry.sha256, None)
        rows.append((*_row(entry), moment(at.at) if at else "no"))
    rows += [
        (printable(key.name), "-", key.sha256[:_SHORT], "-", "-", "-", "-", moment(key.at)) for key in ended.values()
    ]
    print("\n".join(table(rows)))


def _row(entry: KeyEntry) -> tuple[str, ...]:
    expires = moment(entry.expires.timestamp()) if entry.expires else "never"
    who = entry.name, entry.owner, entry.sha256[:_SHORT], entry.role or "-"
    return *who, _bound(entry.models), _bound(entry.strategies), expires


def _bound(names: Sequence[str] | None) -> str:
    return "all" if names is None else ", ".join(names) or "none"


def _revoke(arguments: argparse.Namespace) -> None:
    settings = settings_from(arguments)
    entry = next((key for key in settings.auth.keys if key.name == arguments.name), None)
    if entry is None:
        raise CommandFailed(f"the settings have no key {printable(arguments.name)}; `condenser keys list` shows all")
    if settings.store.url == "memory://":
        raise CommandFailed(_NOT_SHARED, USAGE)
    _with_store(settings, lambda store: revoke(store, entry, time.time()))
    print(f"revoked {entry.name} ({entry.sha256[:_SHORT]}); take its entry out of the settings, too")


def _with_store(settings: Settings, work: Callable[[Store], Coroutine[Any, Any, T]]) -> T:
    """What `work` gives on the store of the settings; raises `CommandFailed`."""

    async def done() -> T:
        store = await open_store(settings.store.url, keys=settings.store.encryption_keys)
        try:
            async with asyncio.timeout(settings.store.timeout):
                return await work(store)
        finally:
            await store.close()

    try:
        return asyncio.run(done())
    except (StoreError, TimeoutError) as error:
        why = str(error) or "no answer in time"
        raise CommandFailed(f"the store {redacted(settings.store.url)} cannot be used: {why}") from None
