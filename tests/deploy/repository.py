"""Where the repository lies, and what is in it."""

import os
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UNTRACKED = frozenset({"node_modules", "dist", "__pycache__"})


def files() -> Iterator[Path]:
    """Every file a commit could hold, relative to the root: hidden and built folders are left out."""
    for folder, inner, names in os.walk(ROOT):
        inner[:] = [name for name in inner if name not in UNTRACKED and not name.startswith(".")]
        yield from ((Path(folder) / name).relative_to(ROOT) for name in names)
