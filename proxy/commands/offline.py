"""`check --offline` changes nothing on disk.

Files that a proxy would make are listed instead. A store that could not be opened without a change to its file is
replaced by one in memory, and secrets that would be made by a constant.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from pydantic import SecretStr

from proxy.request.tenants import key_file
from proxy.runtime.secret_files import sqlite_file
from proxy.services import Services, open_services
from proxy.settings import Settings
from proxy.settings.token import token_file
from proxy.store import open_store
from proxy.store.sqlite_file import SCHEMA_VERSION, version_on_disk

_STAND_IN = SecretStr("nobody is told")


class UnopenedStore(NamedTuple):
    """Why a store is not opened, and whether `serve` could open it."""

    reason: str
    is_usable: bool


def why_unopened(settings: Settings) -> UnopenedStore | None:
    """Why the store cannot be opened without a change to the disk; None where it can. Raises `OSError`."""
    file = sqlite_file(settings.store.url)
    if file is None:
        return None
    if not file.exists():
        return _place(file)
    version = version_on_disk(file)
    if version and version < SCHEMA_VERSION:
        return UnopenedStore(f"of version {version}, which serve brings up to {SCHEMA_VERSION}", is_usable=True)
    return UnopenedStore("an empty file, which serve fills", is_usable=True) if not file.stat().st_size else None


def _place(file: Path) -> UnopenedStore:
    """The reason for a file that does not exist; it is usable if the nearest folder that exists is writable."""
    nearest = next(each for each in Path(os.path.abspath(file)).parents if each.exists())
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        return UnopenedStore("not there yet", is_usable=True)
    return UnopenedStore(f"not there, and nothing can be made in {nearest}", is_usable=False)


def missing_paths(settings: Settings) -> list[Path]:
    """What a proxy with these settings makes when it starts: the folder of the store, and files; absolute."""
    files = missing_files(settings)
    return [*dict.fromkeys(file.parent for file in files if not file.parent.exists()), *files]


def missing_files(settings: Settings) -> list[Path]:
    """The files that a proxy with these settings makes when it starts, absolute."""
    files = sqlite_file(settings.store.url), key_file(settings), token_file(settings)
    return [Path(os.path.abspath(file)) for file in files if file is not None and not file.exists()]


@asynccontextmanager
async def open_services_without_files(settings: Settings) -> AsyncIterator[Services]:
    """The services of a proxy, without making a file; a store that cannot be opened so is replaced by one in memory."""
    if why_unopened(settings) is None:
        async with open_services(_without_files(settings)) as built:
            yield built
        return
    store = await open_store("memory://")
    try:
        async with open_services(_without_files(settings), store=store) as built:
            yield built
    finally:
        await store.close()


def _without_files(settings: Settings) -> Settings:
    """The settings with a constant for each secret whose file would be made."""
    files = key_file(settings), token_file(settings)
    needs_key, needs_token = (file is not None and not file.exists() for file in files)
    tenant = settings.tenant.model_copy(update={"pepper": _STAND_IN}) if needs_key else settings.tenant
    admin = settings.admin.model_copy(update={"token": _STAND_IN}) if needs_token else settings.admin
    return settings.model_copy(update={"tenant": tenant, "admin": admin})
