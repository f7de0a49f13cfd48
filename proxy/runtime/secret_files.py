"""Secret files in the folder of the SQLite store: created once, readable by their owner only."""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path

_SQLITE = "sqlite:///"


def sqlite_file(store_url: str) -> Path | None:
    """The file of a SQLite store; None for other stores."""
    return Path(store_url.removeprefix(_SQLITE)) if store_url.startswith(_SQLITE) else None


def path_beside(store_url: str, name: str) -> Path | None:
    """The path of a file of this name in the folder of a SQLite store; None for other stores."""
    file = sqlite_file(store_url)
    return file.parent / name if file else None


def read_or_create(path: Path) -> bytes:
    """The secret in `path`, created if there is none; processes that start at once all get the same one."""
    if path.exists():
        return path.read_bytes()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, written = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    with os.fdopen(handle, "wb") as file:
        file.write(secrets.token_hex(32).encode())
    try:
        # Linking is atomic, and fails if another process was first.
        os.link(written, path)
    except FileExistsError:
        pass
    finally:
        os.unlink(written)
    return path.read_bytes()
