"""What a running proxy takes over from settings that are read anew, and what waits for its next start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from proxy.settings.loading import Settings

RELOADED = ("auth.keys", "log.level", "models", "tenant.names")


def taken_over(running: Settings, read: Settings) -> Settings:
    """`running` with the callers' keys, the models and their prices, the names of tenants and the log level of `read`.

    Where `read` has another `auth.mode`, the keys stay too: keys alone would lock all out, or let nobody in.
    """
    keys = read.auth.keys if read.auth.mode == running.auth.mode else running.auth.keys
    changes = {"auth": {"keys": keys}, "log": {"level": read.log.level}, "tenant": {"names": read.tenant.names}}
    tables = {name: getattr(running, name).model_copy(update=change) for name, change in changes.items()}
    return running.model_copy(update={"models": read.models, **tables})


def waiting(before: Settings, read: Settings) -> list[str]:
    """The keys that differ from those `before`, and take effect only at the next start."""
    old, new = dict(_leaves(before.model_dump(by_alias=True))), dict(_leaves(read.model_dump(by_alias=True)))
    return sorted(key for key in old.keys() | new.keys() if key not in RELOADED and old.get(key) != new.get(key))


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and path not in RELOADED:
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else key)
    else:
        yield path, value
