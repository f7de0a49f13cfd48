"""What a request asks of the proxy: by header, by the body's `condenser` member, or by a suffix of the model.

For each key the header wins over the body, the body over the suffix. What remains unset is decided by the
session, the settings for the model and the settings, in that order.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from proxy.errors import BadRequest
from proxy.http.headers import OURS
from strategies import TABLE, Pipeline, parse

KEYS = (
    "session",
    "strategy",
    "options",
    "window",
    "history",
    "if-head",
    "memory",
    "memory-scope",
    "force",
    "no-store",
    "dry-run",
)
_LEAST_WINDOW = 256
_LONGEST_ID = 256
_QUOTED = 64
_LONGEST_MODEL = 512
_LONGEST_OPTIONS = 4_096
"""Characters. What is known of models and of ways to treat a request is kept by these: no client may fill that."""
_PRINTABLE = re.compile(r"[\x20-\x7e]+")
_SCOPE = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Memory(NamedTuple):
    """How what was condensed away may reach the model: put before a user message, or asked for with a tool."""

    inject: bool = False
    tool: bool = False

    def __str__(self) -> str:
        return next(word for word, memory in MEMORY.items() if memory == self)


MEMORY = {
    "off": Memory(),
    "inject": Memory(inject=True),
    "tool": Memory(tool=True),
    "inject+tool": Memory(inject=True, tool=True),
}


@dataclass(frozen=True, slots=True)
class Controls:
    """The keys of one request; None and empty mean that the request does not say. `named` is how it calls them."""

    session: str | None = None
    strategy: Pipeline | None = None
    options: Mapping[str, object] = field(default_factory=dict)
    window: int | None = None
    append: bool = False
    if_head: str | None = None
    memory: Memory | None = None
    memory_scope: str | None = None
    force: bool = False
    no_store: bool = False
    dry_run: bool = False
    named: Mapping[str, str] = field(default_factory=dict, compare=False)

    def param(self, key: str) -> str:
        """What the request calls a key: its header, or the member of its body."""
        return self.named.get(key) or _header(key)

    @property
    def needs_reading(self) -> bool:
        """Whether it asks for what cannot be given of a body that is not read."""
        return self.dry_run or self.append

    @property
    def treatment(self) -> Hashable:
        """How the request wants to be treated, as a key: all that it says but for whose turn it is."""
        how = self.strategy, repr(self.options), self.window, self.append, self.memory, self.memory_scope
        return (*how, self.force, self.no_store, self.dry_run)


_SILENT = Controls()
"""What most requests say."""


def read(headers: Iterable[tuple[bytes, bytes]], extension: object, suffix: Pipeline | None) -> Controls:
    """The controls of a request; raises `BadRequest` that names the header or member that is wrong."""
    values = {**_from_body(extension), **_from_headers(headers)}
    if not values:
        return _SILENT if suffix is None else Controls(strategy=suffix)
    strategy = values.get("strategy")
    return Controls(
        session=_session(values.get("session")),
        strategy=_strategy(strategy) if strategy else suffix,
        options=_options(values.get("options")),
        window=_window(values.get("window")),
        append=_history(values.get("history")),
        if_head=_if_head(values),
        memory=_memory(values.get("memory")),
        memory_scope=_memory_scope(values.get("memory-scope")),
        force=_flag(values.get("force")),
        no_store=_flag(values.get("no-store")),
        dry_run=_flag(values.get("dry-run")),
        named={key: param for key, (param, _) in values.items()},
    )


def check_model(model: object) -> None:
    """Raises `BadRequest` for a name that no model can have."""
    if isinstance(model, str) and len(model) > _LONGEST_MODEL:
        raise BadRequest(f"'model' has more than {_LONGEST_MODEL} characters.", param="model")


def split_model(model: object) -> tuple[str | None, Pipeline | None]:
    """The model's name without its suffix, and the pipeline that the suffix names, if it names one."""
    if not isinstance(model, str):
        return None, None
    name, mark, suffix = model.rpartition("@")
    pipeline = parse(suffix) if mark and name else None
    return (name, pipeline) if pipeline else (model, None)


Given = tuple[str, Any]


def _from_headers(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, Given]:
    found: dict[str, Given] = {}
    for name, value in headers:
        if not (lowered := name.lower()).startswith(OURS):
            continue
        key = lowered.removeprefix(OURS).decode("latin-1")
        if key in KEYS:
            found[key] = (_header(key), value.decode("latin-1").strip())
    return found


def _header(key: str) -> str:
    return f"X-Condenser-{key.title()}"


def _from_body(extension: object) -> dict[str, Given]:
    if extension is None:
        return {}
    if not isinstance(extension, Mapping):
        raise BadRequest("'condenser' must be an object.", param="condenser")
    found: dict[str, Given] = {}
    for name, value in extension.items():
        key = str(name).replace("_", "-").lower()
        if key not in KEYS:
            raise BadRequest(f"'condenser' has no key '{name}'; known: {', '.join(KEYS)}.", param=f"condenser.{name}")
        if value is not None:
            found[key] = (f"condenser.{name}", value)
    return found


def _session(given: Given | None) -> str | None:
    if given is None:
        return None
    param, value = given
    if not isinstance(value, str) or len(value) > _LONGEST_ID or not _PRINTABLE.fullmatch(value):
        raise BadRequest(f"{param} must be 1-{_LONGEST_ID} printable ASCII characters.", param=param)
    return value


def _strategy(given: Given) -> Pipeline:
    param, value = given
    pipeline = parse(value) if isinstance(value, str) else None
    if pipeline is None:
        known = ", ".join(TABLE)
        raise BadRequest(
            f"{param}: there is no strategy '{str(value)[:_QUOTED]}'; known: {known}, joined with '+'.", param=param
        )
    return pipeline


def _options(given: Given | None) -> Mapping[str, object]:
    if given is None:
        return {}
    param, value = given
    if len(value if isinstance(value, str) else repr(value)) > _LONGEST_OPTIONS:
        raise BadRequest(f"{param} has more than {_LONGEST_OPTIONS:,} characters.", param=param)
    if isinstance(value, Mapping):
        return {str(key): each for key, each in value.items()}
    if not isinstance(value, str):
        raise BadRequest(f"{param} must be a list of key=value.", param=param)
    return dict(_pair(each, param) for each in value.split(",") if each.strip())


def _pair(text: str, param: str) -> tuple[str, str]:
    key, mark, value = text.partition("=")
    if not mark or not key.strip() or not value.strip():
        raise BadRequest(f"{param}: '{text.strip()}' is not key=value.", param=param)
    return key.strip(), value.strip()


def _window(given: Given | None) -> int | None:
    if given is None:
        return None
    param, value = given
    text = str(value)
    if (
        isinstance(value, bool)
        or not text.isascii()
        or not text.isdigit()
        or len(text) > 9
        or int(text) < _LEAST_WINDOW
    ):
        raise BadRequest(f"{param} must be a whole number of tokens, at least {_LEAST_WINDOW}.", param=param)
    return int(text)


def _history(given: Given | None) -> bool:
    if given is None:
        return False
    param, value = given
    if value not in ("replay", "append"):
        raise BadRequest(f"{param} must be 'replay' or 'append'.", param=param)
    return bool(value == "append")


def _memory(given: Given | None) -> Memory | None:
    if given is None:
        return None
    param, value = given
    memory = memory_of(value)
    if memory is None:
        raise BadRequest(f"{param} must be one of {', '.join(MEMORY)}.", param=param)
    return memory


def _memory_scope(given: Given | None) -> str | None:
    if given is None:
        return None
    param, value = given
    if not isinstance(value, str) or not _SCOPE.fullmatch(value):
        raise BadRequest(f"{param} must be 1-64 letters, digits, '_', '.' or '-' of ASCII.", param=param)
    return value


def memory_of(value: object) -> Memory | None:
    """What a word means for memory; None where it means nothing."""
    return MEMORY.get(value) if isinstance(value, str) else None


def _if_head(values: Mapping[str, Given]) -> str | None:
    """The guard of an append; where nothing is appended it would guard nothing."""
    if (given := values.get("if-head")) is None:
        return None
    param, value = given
    if not _history(values.get("history")):
        raise BadRequest(f"{param} guards an append: it needs X-Condenser-History: append.", param=param)
    return str(value)


def _flag(given: Given | None) -> bool:
    if given is None:
        return False
    param, value = given
    word = str(value).lower()
    if word not in ("true", "false"):
        raise BadRequest(f"{param} must be 'true' or 'false'.", param=param)
    return word == "true"
