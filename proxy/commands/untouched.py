"""A check that changes nothing on the disk: what a proxy would make there is told, and stood in for."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from pydantic import SecretStr

from proxy.request.identity import key_file
from proxy.runtime.secret_files import embedded
from proxy.services import Services, services
from proxy.sessions.admin import token_file
from proxy.settings import Settings
from proxy.store import open_store
from proxy.store.sqlite_file import SCHEMA_VERSION, version_on_disk

_STAND_IN = SecretStr("nobody is told")


class LeftAlone(NamedTuple):
    """Why a store is left as it is, and whether `serve` could open it."""

    why: str
    good: bool


def left_alone(settings: Settings) -> LeftAlone | None:
    """Why the store cannot be opened without a change to the disk; None where it can. Raises `OSError`."""
    file = embedded(settings.store.url)
    if file is None:
        return None
    if not file.exists():
        return _place(file)
    version = version_on_disk(file)
    if version and version < SCHEMA_VERSION:
        return LeftAlone(f"of version {version}, which serve brings up to {SCHEMA_VERSION}", good=True)
    return LeftAlone("an empty file, which serve fills", good=True) if not file.stat().st_size else None


def _place(file: Path) -> LeftAlone:
    """A file that is not there, with what is nearest to it."""
    nearest = next(each for each in Path(os.path.abspath(file)).parents if each.exists())
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        return LeftAlone("not there yet", good=True)
    return LeftAlone(f"not there, and nothing can be made in {nearest}", good=False)


def unmade(settings: Settings) -> list[Path]:
    """The files that a proxy with these settings makes when it starts, absolute."""
    files = embedded(settings.store.url), key_file(settings), token_file(settings)
    return [Path(os.path.abspath(file)) for file in files if file is not None and not file.exists()]


@asynccontextmanager
async def untouched(settings: Settings) -> AsyncIterator[Services]:
    """The parts of a proxy, for which no file is made; in place of a store that is left as it is, one in memory."""
    if left_alone(settings) is None:
        async with services(_without_files(settings)) as built:
            yield built
        return
    store = await open_store("memory://")
    try:
        async with services(_without_files(settings), store=store) as built:
            yield built
    finally:
        await store.close()


def _without_files(settings: Settings) -> Settings:
    """The settings with a secret for each that would be made."""
    files = key_file(settings), token_file(settings)
    needs_key, needs_token = (file is not None and not file.exists() for file in files)
    tenant = settings.tenant.model_copy(update={"pepper": _STAND_IN}) if needs_key else settings.tenant
    admin = settings.admin.model_copy(update={"token": _STAND_IN}) if needs_token else settings.admin
    return settings.model_copy(update={"tenant": tenant, "admin": admin})
