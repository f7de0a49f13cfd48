"""Secrets in files beside the embedded store: made once, readable by their owner only."""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path

_SQLITE = "sqlite:///"


def embedded(store_url: str) -> Path | None:
    """The file that the store is; None where it is none."""
    return Path(store_url.removeprefix(_SQLITE)) if store_url.startswith(_SQLITE) else None


def beside(store_url: str, name: str) -> Path | None:
    """The place of a file of that name beside the store; None where the store is no file."""
    file = embedded(store_url)
    return file.parent / name if file else None


def made_once(path: Path) -> bytes:
    """The secret in `path`, made if there is none; of several processes that start at once all read the same one."""
    if path.exists():
        return path.read_bytes()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, written = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    with os.fdopen(handle, "wb") as file:
        file.write(secrets.token_hex(32).encode())
    try:
        # A link is made whole or not at all, and never over another's.
        os.link(written, path)
    except FileExistsError:
        pass
    finally:
        os.unlink(written)
    return path.read_bytes()
