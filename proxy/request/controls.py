"""The controls of a request: `X-Condenser-*` headers, the body's `condenser` member, a suffix of the model's name.

For each key the header wins over the body, and the body over the suffix. A key that the request does not set is taken
from the session, the settings for the model or the settings, in that order (`proxy.condensing.policy`).
"""

from __future__ import annotations

import logging
import re
import string
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, NamedTuple

from proxy.control_names import KEYS, why_no_pipeline
from proxy.errors import BadRequest
from proxy.http.headers import OWN_PREFIX
from proxy.quoting import printable, quoted
from strategies import TABLE, Pipeline, parse

_MIN_WINDOW = 256
_LONGEST_ID = 256
_LONGEST_MODEL = 512
_LONGEST_OPTIONS = 4_096
"""Characters. Models and options are keys of caches, which no client may fill with long ones."""
_PLAIN = frozenset(string.ascii_letters + string.digits + "-_")
_LONGEST_NAME = 64
"""Characters of an unknown header's name that are shown."""
_MIN_LIKENESS = 0.75
"""How like a known name an unknown one must be for that to be meant."""
_MAX_SHOWN = 4
_PRINTABLE = re.compile(r"[\x20-\x7e]+")
_SCOPE = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_log = logging.getLogger(__name__)


class Memory(NamedTuple):
    """How condensed messages may reach the model: injected before a user message, or through a search tool."""

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
    """The controls of one request; None and empty mean that the request does not set a key."""

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
    warnings: tuple[str, ...] = field(default=(), compare=False)
    """What is wrong with the request's headers, and was ignored."""
    params: Mapping[str, str] = field(default_factory=dict, compare=False)
    """The header or member of the body that sets each key, for errors."""

    def param(self, key: str) -> str:
        """The header or the member of the body that sets a key."""
        return self.params.get(key) or _header(key)

    @property
    def needs_reading(self) -> bool:
        """Whether the request can only be answered if its body can be read."""
        return self.dry_run or self.append

    @property
    def treatment(self) -> Hashable:
        """All controls but the session and its head, as a key: requests with the same key are treated alike."""
        how = self.strategy, repr(self.options), self.window, self.append, self.memory, self.memory_scope
        return (*how, self.force, self.no_store, self.dry_run)


class Permits(NamedTuple):
    """What clients may set; the settings describe the caps."""

    keys: Collection[str] = KEYS
    max_window: int = 0
    own_calls: bool = True

    def check(self, controls: Controls) -> None:
        """Raises `BadRequest` that names a control that may not be set, or not so."""
        for key, param in controls.params.items():
            if key not in self.keys:
                raise BadRequest(f"{param}: this proxy accepts no {key} from clients.", param=param)
        pipeline = controls.strategy
        if pipeline and not (self.own_calls or pipeline.observe) and (asking := _asking(pipeline)):
            param = controls.param("strategy")
            raise BadRequest(f"{param}: this proxy lets no client choose {asking}, which asks a model.", param=param)
        if 0 < self.max_window < (controls.window or 0):
            param = controls.param("window")
            raise BadRequest(f"{param} may be at most {self.max_window:,} at this proxy.", param=param)


def _asking(pipeline: Pipeline) -> str:
    return next((name for name in pipeline.names if TABLE[name].make.asks), "")


class UnknownHeaders:
    """Warns of request headers that begin with `X-Condenser-` and name no control.

    A request with one is served, for a newer client may talk to an older proxy. A misspelt name must not go unnoticed
    either, so the reply names it, and so does the log when it first comes. Names come from clients: at most `most` of
    them are kept, and none is logged beyond those.
    """

    def __init__(self, most: int = 32) -> None:
        self._most = most
        self._logged: set[str] = set()

    def warnings(self, names: Sequence[str]) -> tuple[str, ...]:
        """Warnings for the reply about the first of these names, in plain ASCII; each that is new is logged too."""
        return tuple(self._warning(name) for name in names[:_MAX_SHOWN])

    def _warning(self, name: str) -> str:
        """The warning about a name, never with the header's value."""
        shown = "".join(char if char in _PLAIN else "?" for char in name[:_LONGEST_NAME]).title()
        near = get_close_matches(shown, map(_header, KEYS), 1, _MIN_LIKENESS)
        self._log(shown, f"; did the client mean {near[0]}?" if near else "")
        return f"{shown} is unknown and ignored" + (f", did you mean {near[0]}?" if near else "")

    def _log(self, shown: str, hint: str) -> None:
        if shown in self._logged or len(self._logged) > self._most:
            return
        self._logged.add(shown)
        if len(self._logged) > self._most:
            _log.warning("more than %d unknown X-Condenser- request headers: no further one is logged", self._most)
        else:
            _log.warning("the request header %s is unknown and ignored%s", shown, hint)


_UNKNOWN = UnknownHeaders()
_NONE = Controls()
"""The controls of most requests."""
_ALL = Permits()


def read(
    headers: Iterable[tuple[bytes, bytes]], extension: object, suffix: Pipeline | None, permits: Permits = _ALL
) -> Controls:
    """The controls of a request; raises `BadRequest` that names the header or member that is wrong or not permitted."""
    from_headers, unknown = _from_headers(headers)
    from_suffix: dict[str, Given] = {"strategy": ("model", str(suffix))} if suffix else {}
    values = {**from_suffix, **_from_body(extension), **from_headers}
    if not (values or unknown):
        return _NONE
    params: dict[str, str] = {}
    for key, (param, _) in values.items():
        params[key] = param
    fields: dict[str, Any] = {}
    for key, (name, parse_value) in _PARSERS.items():
        if key in values:
            fields[name] = parse_value(*values[key])
    warnings = _UNKNOWN.warnings(unknown) if unknown else ()
    controls = Controls(**fields, warnings=warnings, params=params)
    if controls.if_head is not None and not controls.append:
        param = controls.param("if-head")
        raise BadRequest(f"{param} guards an append: it needs X-Condenser-History: append.", param=param)
    permits.check(controls)
    return controls


def check_model(model: object) -> None:
    """Raises `BadRequest` for a name that is too long to be that of a model."""
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
"""The header or member that sets a key, and its value."""


def _from_headers(headers: Iterable[tuple[bytes, bytes]]) -> tuple[dict[str, Given], list[str]]:
    """What the headers set, and the names of those that are unknown."""
    found: dict[str, Given] = {}
    unknown: list[str] = []
    for name, value in headers:
        if not (lowered := name.lower()).startswith(OWN_PREFIX):
            continue
        key = lowered.removeprefix(OWN_PREFIX).decode("latin-1")
        if key in KEYS:
            found[key] = (_HEADERS[key], value.decode("latin-1").strip())
        else:
            unknown.append(_header(key))
    return found, unknown


def _header(key: str) -> str:
    return f"X-Condenser-{key.title()}"


_HEADERS = {key: _header(key) for key in KEYS}


def _from_body(extension: object) -> dict[str, Given]:
    if extension is None:
        return {}
    if not isinstance(extension, Mapping):
        raise BadRequest("'condenser' must be an object.", param="condenser")
    found: dict[str, Given] = {}
    for name, value in extension.items():
        key = str(name).replace("_", "-").lower()
        if key not in KEYS:
            param = f"condenser.{printable(name)}"
            near = get_close_matches(key, KEYS, 1, _MIN_LIKENESS)
            hint = f"did you mean {near[0]!r}? Known: " if near else "known: "
            raise BadRequest(f"'condenser' has no key {quoted(name)}; {hint}{', '.join(KEYS)}.", param=param)
        if value is not None:
            found[key] = (f"condenser.{name}", value)
    return found


def _session(param: str, value: object) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST_ID or not _PRINTABLE.fullmatch(value):
        is_long = isinstance(value, str) and len(value) > _LONGEST_ID
        shown = f"{len(str(value)):,} characters" if is_long else quoted(value)
        raise BadRequest(f"{param} must be 1-{_LONGEST_ID} printable ASCII characters, not {shown}.", param=param)
    return value


def _strategy(param: str, value: object) -> Pipeline:
    pipeline = parse(value) if isinstance(value, str) else None
    if pipeline is None:
        raise BadRequest(f"{param}: {why_no_pipeline(str(value))}.", param=param)
    return pipeline


def _options(param: str, value: Any) -> Mapping[str, object]:
    if len(str(value)) > _LONGEST_OPTIONS:
        raise BadRequest(f"{param} has more than {_LONGEST_OPTIONS:,} characters.", param=param)
    if isinstance(value, Mapping):
        return {str(key): option for key, option in value.items()}
    if not isinstance(value, str):
        raise BadRequest(f"{param} must be a list of key=value, not {quoted(value)}.", param=param)
    return dict(_pair(param, pair) for pair in value.split(",") if pair.strip())


def _pair(param: str, text: str) -> tuple[str, str]:
    key, mark, value = text.partition("=")
    if not mark or not key.strip() or not value.strip():
        raise BadRequest(f"{param}: {quoted(text.strip())} is not key=value.", param=param)
    return key.strip(), value.strip()


def _window(param: str, value: object) -> int:
    text = str(value)
    if isinstance(value, bool) or not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) < _MIN_WINDOW:
        message = f"{param} must be a whole number of tokens, at least {_MIN_WINDOW}, not {quoted(value)}."
        raise BadRequest(message, param=param)
    return int(text)


def _history(param: str, value: object) -> bool:
    if value not in ("replay", "append"):
        raise BadRequest(f"{param} must be 'replay' or 'append', not {quoted(value)}.", param=param)
    return bool(value == "append")


def _if_head(_: str, value: object) -> str:
    return str(value)


def _memory(param: str, value: object) -> Memory:
    memory = memory_of(value)
    if memory is None:
        raise BadRequest(f"{param} must be one of {', '.join(MEMORY)}, not {quoted(value)}.", param=param)
    return memory


def memory_of(value: object) -> Memory | None:
    """The memory mode that a word names; None for any other value."""
    return MEMORY.get(value) if isinstance(value, str) else None


def _memory_scope(param: str, value: object) -> str:
    if not isinstance(value, str) or not _SCOPE.fullmatch(value):
        message = f"{param} must be 1-64 letters, digits, '_', '.' or '-' of ASCII, not {quoted(value)}."
        raise BadRequest(message, param=param)
    return value


def _flag(param: str, value: object) -> bool:
    word = str(value).lower()
    if word not in ("true", "false"):
        raise BadRequest(f"{param} must be 'true' or 'false', not {quoted(value)}.", param=param)
    return word == "true"


_PARSERS: Mapping[str, tuple[str, Callable[[str, Any], Any]]] = {
    "session": ("session", _session),
    "strategy": ("strategy", _strategy),
    "options": ("options", _options),
    "window": ("window", _window),
    "history": ("append", _history),
    "if-head": ("if_head", _if_head),
    "memory": ("memory", _memory),
    "memory-scope": ("memory_scope", _memory_scope),
    "force": ("force", _flag),
    "no-store": ("no_store", _flag),
    "dry-run": ("dry_run", _flag),
}
"""The field of `Controls` that a key sets, and what reads its value, given the name of its header or member too."""
