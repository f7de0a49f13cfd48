"""The controls of a request: what a client may ask of the proxy, by header, member of the body or suffix of the model.

`Controls` is their table: it has a field for each, and `control(...)` says everything about it. The reading of headers
and bodies, what a session keeps, `controls.allow` in the settings, errors, and the check of the table in
docs/reference/http.md all use these rows. A new control is one row, its line in the docs, and the code that uses it.

For each control the header wins over the body, and the body over the suffix. If a request does not set a control, it is
taken from the session if it sticks (`Controls.over`), and else from the settings (`proxy.condensing.policy`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from operator import attrgetter
from typing import Any, NamedTuple

from proxy.errors import BadRequest
from proxy.quoting import printable, quoted
from strategies import LONGEST, OBSERVE, TABLE, Pipeline, parse


def pipeline_named(text: str) -> Pipeline:
    """The pipeline with this name; raises `ValueError` that says which stage is wrong."""
    pipeline = parse(text)
    if pipeline is None:
        raise ValueError(_why_no_pipeline(text))
    return pipeline


def _why_no_pipeline(text: str) -> str:
    if len(text) > LONGEST:
        return f"a pipeline has at most {LONGEST} characters, not {len(text):,}"
    names = [name.strip() for name in text.removeprefix(OBSERVE).split("+")]
    unknown = next((name for name in names if name not in TABLE), None)
    known = f"known: {', '.join(TABLE)}, joined with '+'"
    if unknown is None:
        twice = next((name for name in names if names.count(name) > 1), None)
        return (
            f"{quoted(twice)} stands twice in {quoted(text)}"
            if twice
            else "'off' cannot be joined with other strategies"
        )
    if not unknown:
        place = f" in {quoted(text)}" if text else ""
        return f"a strategy is missing{place}; {known}"
    place = f" in {quoted(text)}" if unknown != text else ""
    near = get_close_matches(unknown, TABLE, 1)
    hint = f"; did you mean '{near[0]}'?" if near else ";"
    return f"unknown strategy {quoted(unknown)}{place}{hint} {known}"


MIN_WINDOW = 256
_MAX_ID = 256
_MAX_MODEL = 512
_MAX_OPTIONS = 4_096  # characters. Models and options are keys of caches, which clients must not fill with long keys.
_MAX_NAME = 64
_MIN_LIKENESS = 0.75  # how similar an unknown name must be to a known one to be taken for a misspelling of it
_MAX_SHOWN = 4


# -- values ----------------------------------------------------------------------------------------------------
# Each function reads the value of a header, or of a member of the body, which may be any JSON value. It raises
# `ValueError` with words that continue the name of the header or member.


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


def _strategy(value: object) -> Pipeline:
    try:
        return pipeline_named(str(value))
    except ValueError as error:
        raise ValueError(f": {error}") from None


def _options(value: Any) -> Mapping[str, object]:
    if len(str(value)) > _MAX_OPTIONS:
        raise ValueError(f" has more than {_MAX_OPTIONS:,} characters")
    if isinstance(value, Mapping):
        return {str(key): option for key, option in value.items()}
    if not isinstance(value, str):
        raise ValueError(f" must be a list of key=value, not {quoted(value)}")  # noqa: TRY004
    return dict(_pair(pair) for pair in value.split(",") if pair.strip())


def _pair(text: str) -> tuple[str, str]:
    key, mark, value = text.partition("=")
    if not mark or not key.strip() or not value.strip():
        raise ValueError(f": {quoted(text.strip())} is not key=value")
    return key.strip(), value.strip()


def _window(value: object) -> int:
    text = str(value)
    if isinstance(value, bool) or not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) < MIN_WINDOW:
        raise ValueError(f" must be a whole number of tokens, at least {MIN_WINDOW}, not {quoted(value)}")
    return int(text)


def _flag(value: object) -> bool:
    word = str(value).lower()
    if word not in ("true", "false"):
        raise ValueError(f" must be 'true' or 'false', not {quoted(value)}")
    return word == "true"


def _text(pattern: str, allowed: str) -> Callable[[Any], str]:

    def read_text(value: object) -> str:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            is_long = isinstance(value, str) and len(value) > _MAX_ID
            shown = f"{len(str(value)):,} characters" if is_long else quoted(value)
            raise ValueError(f" must be {allowed}, not {shown}")
        return value

    return read_text


def _word(values: Mapping[str, Any], allowed: str) -> Callable[[Any], Any]:
    """Reads one of the given words as the value that it stands for."""

    def read_word(value: object) -> Any:
        if not isinstance(value, str) or value not in values:
            raise ValueError(f" must be {allowed}, not {quoted(value)}")
        return values[value]

    return read_word


# -- the table -------------------------------------------------------------------------------------------------


class Control(NamedTuple):
    key: str  # its name in the settings, in errors and in the body, which may also have `_` for `-`
    read: Callable[[Any], Any]
    what: str  # the possible values, for the docs
    sticks: str = ""  # how a session keeps the value, for the docs; "" if it does not
    settings: str = ""
    """The keys of the settings that apply if neither request nor session sets it, in order, for the docs."""


def control(*row: Any, default: object = None, **more: Any) -> Any:
    """Declares a field of `Controls` with its `Control`. The default means that the request does not set it."""
    default_or_factory: dict[str, Any] = {"default_factory": dict} if default is dict else {"default": default}
    return field(**default_or_factory, metadata={"row": Control(*row, **more)})


@dataclass(frozen=True, slots=True)
class Controls:
    """The controls of one request; a default means that the request does not set a control."""

    session: str | None = control(
        "session",
        _text(rf"[\x20-\x7e]{{1,{_MAX_ID}}}", f"1-{_MAX_ID} printable ASCII characters"),
        "the session's id: 1-256 printable ASCII characters, else 400",
    )
    strategy: Pipeline | None = control(  # noqa: RUF009
        "strategy",
        _strategy,
        "a strategy, a pipeline (`mask+half-window`), or `observe:` before either",
        sticks="yes; `off` holds for one request",
        settings="`models[].strategy`, `strategy`",
    )
    options: Mapping[str, object] = control(
        "options",
        _options,
        "`key=value` list: `mask.keep=5, min_rounds=6`",
        default=dict,
        sticks="with the strategy",
        settings="the strategies' tables",
    )
    window: int | None = control(
        "window",
        _window,
        "context length to assume, tokens, 256 or more",
        settings="`models[].window`, `window`, then [what is found out](configuration.md#windows)",
    )
    append: bool = control(
        "history",
        _word({"replay": False, "append": True}, "'replay' or 'append'"),
        "`replay` (default) or `append`",
        default=False,
    )
    if_head: str | None = control("if-head", str, "the head that an append must find")
    memory: Memory | None = control(  # noqa: RUF009
        "memory",
        _word(MEMORY, f"one of {', '.join(MEMORY)}"),
        "`off`, `inject` (relevant messages that were condensed away are put before the user message), `tool` (the"
        " model may search them) or `inject+tool`",
        sticks="yes; a change takes effect at once",
        settings="`memory.default`; `inject` with rolling; `off` in the modes refer and openhands of dynacontext",
    )
    memory_scope: str | None = control(
        "memory-scope",
        _text(r"[A-Za-z0-9_.-]{1,64}", "1-64 letters, digits, '_', '.' or '-' of ASCII"),
        "what the session [shares memory cards](../internals/sessions.md#memory) with: 1-64 of"
        " `A-Z a-z 0-9 _ . -`; 400 unless `memory.scopes` is set",
        sticks="yes, until another scope is named",
    )
    economy: str | None = control(
        "economy",
        _word({word: word for word in ("off", "advise", "auto")}, "one of off, advise, auto"),
        "`auto`: condense at the [cheapest](../internals/economics.md) size; `advise`: give that size in the reply;"
        " `off`",
        sticks="yes",
        settings="`models[].economy`, `economy`",
    )
    strict: str | None = control(
        "strict",
        lambda value: str(_flag(value)).lower(),
        "`true`: refuse with a 400 what stays over the budget, `false`: send it",
        sticks="yes",
        settings="`models[].strict`, `strict`",
    )
    upstream: str | None = control("upstream", str, "the [upstream](configuration.md#upstream) of this name, else 400")
    force: bool = control(
        "force",
        _flag,
        "`true`: condense now, whatever the marks say: down to `target`, or, if the view is below it already, about"
        " half of what may be condensed",
        default=False,
    )
    no_store: bool = control("no-store", _flag, "`true`: keep nothing of this request", default=False)
    dry_run: bool = control(
        "dry-run", _flag, "`true`: answer with plan and view; no upstream call, nothing stored", default=False
    )
    warnings: tuple[str, ...] = field(default=(), compare=False)
    """Problems with the request's headers that were ignored."""
    params: Mapping[str, str] = field(default_factory=dict, compare=False)
    """For each key that is set, the header or member of the body that sets it, for errors."""

    def param(self, key: str) -> str:
        return self.params.get(key) or _header(key)

    @property
    def needs_reading(self) -> bool:
        """Whether the request can be answered only if its body can be read."""
        return self.dry_run or self.append

    def over(self, kept: Mapping[str, Any]) -> Controls:
        """These controls; those that are not set are taken from what a session has kept, if it can be read."""
        stored = {name: _stored(row, kept.get(name)) for name, row in _STICKY.items()}
        if self.strategy is not None or stored["strategy"] is None:
            del stored["options"]  # options belong to the strategy that they were sent with
        return replace(self, **{name: getattr(self, name) or stored[name] for name in stored if stored[name]})

    def kept(self, before: Mapping[str, Any], pipeline: Pipeline) -> dict[str, Any]:
        """What the session keeps after this request, given what it kept `before` and the request's `pipeline`."""
        own = {name: getattr(self, name) for name in _STICKY}
        strategy, options = own.pop("strategy"), own.pop("options")
        own = {name: str(value) for name, value in own.items() if value not in (None, False)}
        if not pipeline.is_off and (strategy or options):
            own |= {"strategy": pipeline.text, "options": dict(options)}
        return {**before, **own}


def _header(key: str) -> str:
    return f"X-Condenser-{key.title()}"


def _stored(row: Control, value: object) -> Any:
    """The value of a control that a session has kept; None if it cannot be read."""
    try:
        return row.read(value)
    except ValueError:
        return None


ROWS: Mapping[str, Control] = {each.name: each.metadata["row"] for each in fields(Controls) if each.metadata}
"""The controls, by field."""
KEYS = tuple(row.key for row in ROWS.values())
_STICKY = {name: row for name, row in ROWS.items() if row.sticks}
TREATMENT = attrgetter(*(name for name in ROWS if name not in ("session", "if_head", "options")))
"""The controls that do more than select the history, without `options`: requests with equal ones are treated alike."""
_HEADERS = {key: _header(key) for key in KEYS}
_PREFIX = _header("").lower().encode()
_UPSTREAM = _header("upstream").lower().encode()
_NONE = Controls()  # the controls of most requests


class Member(NamedTuple):
    name: str  # of the member of a body that sets controls
    keys: Mapping[str, str]  # the control that each of its keys sets; "" for a key that sets none


EXTENSION = Member("condenser", {key: key for key in KEYS})


# -- reading ---------------------------------------------------------------------------------------------------


Given = tuple[str, Any]  # the header or member that sets a key, and its value


def read(
    headers: Iterable[tuple[bytes, bytes]],
    extension: object,
    suffix: Pipeline | None,
    check: Callable[[Controls], None] | None = None,
    member: Member = EXTENSION,
) -> Controls:
    """The controls of a request; raises `BadRequest` that names the wrong header or member.

    `check` raises it for controls that clients may not set; `member` is the one whose value `extension` is.
    """
    from_headers, unknown = _from_headers(headers)
    from_suffix: dict[str, Given] = {"strategy": ("model", str(suffix))} if suffix else {}
    given = {**from_suffix, **_from_body(extension, member), **from_headers}
    if not (given or unknown):
        return _NONE
    values: dict[str, Any] = {"params": {key: param for key, (param, _) in given.items()}}
    for name, row in ROWS.items():
        if row.key in given:
            param, value = given[row.key]
            try:
                values[name] = row.read(value)
            except ValueError as error:
                raise BadRequest(f"{param}{error}.", param=param) from None
    controls = Controls(**values, warnings=unknown_headers(unknown) if unknown else ())
    if controls.if_head is not None and not controls.append:
        param = controls.param("if-head")
        raise BadRequest(f"{param} guards an append: it needs X-Condenser-History: append.", param=param)
    if check:
        check(controls)
    return controls


def of_upstream(headers: Iterable[tuple[bytes, bytes]], check: Callable[[Controls], None] | None) -> Controls:
    """The control that a request may have whose others are not read."""
    return read([pair for pair in headers if pair[0].lower() == _UPSTREAM], None, None, check)


def _from_headers(headers: Iterable[tuple[bytes, bytes]]) -> tuple[dict[str, Given], list[str]]:
    values: dict[str, Given] = {}
    unknown: list[str] = []
    for name, value in headers:
        if not (lowered := name.lower()).startswith(_PREFIX):
            continue
        key = lowered.removeprefix(_PREFIX).decode("latin-1")
        if key in _HEADERS:
            values[key] = (_HEADERS[key], value.decode("latin-1").strip())
        else:
            unknown.append(_header(key))
    return values, unknown


def _from_body(extension: object, member: Member) -> dict[str, Given]:
    if extension is None:
        return {}
    if not isinstance(extension, Mapping):
        raise BadRequest(f"'{member.name}' must be an object.", param=member.name)
    values: dict[str, Given] = {}
    for name, value in extension.items():
        key = member.keys.get(name.replace("_", "-"))
        if key is None:
            message = f"'{member.name}' has no key {quoted(name)}; known: {', '.join(member.keys)}."
            raise BadRequest(message, param=f"{member.name}.{printable(name)}")
        if key and value is not None:
            values[key] = (f"{member.name}.{name}", value)
    return values


def unknown_headers(names: Sequence[str]) -> tuple[str, ...]:
    """Warnings about the first of these headers, in plain ASCII and without values.

    A request with a header that begins with `X-Condenser-` and names no control is served, because a newer client may
    talk to an older proxy. But a misspelling must not go unnoticed, so the reply names it.
    """
    shown = (re.sub(r"[^\w-]", "?", name[:_MAX_NAME], flags=re.ASCII).title() for name in names[:_MAX_SHOWN])
    near = ((name, get_close_matches(name, _HEADERS.values(), 1, _MIN_LIKENESS)) for name in shown)
    return tuple(
        f"{name} is unknown and ignored" + "".join(f", did you mean {each}?" for each in like) for name, like in near
    )


def check_model(model: object) -> None:
    """Raises `BadRequest` if the name of a model is too long."""
    if isinstance(model, str) and len(model) > _MAX_MODEL:
        raise BadRequest(f"'model' has more than {_MAX_MODEL} characters.", param="model")


def split_model(model: object) -> tuple[str | None, Pipeline | None]:
    """The name of a model without its suffix, and the pipeline that the suffix names, if any."""
    if not isinstance(model, str):
        return None, None
    name, mark, suffix = model.rpartition("@")
    pipeline = parse(suffix) if mark and name else None
    return (name, pipeline) if pipeline else (model, None)


def suffix_warning(model: str) -> str:
    """A warning if what follows the last `@` of a model's name is probably a misspelt pipeline; else "".

    Models have such names of their own, so the name is sent on as it came.
    """
    name, mark, suffix = model.rpartition("@")
    if not (mark and name) or len(suffix) > LONGEST or parse(suffix):
        return ""
    stages = [stage.strip() for stage in suffix.removeprefix(OBSERVE).split("+")]
    near = [get_close_matches(stage, TABLE, 1, _MIN_LIKENESS) for stage in stages]
    if not all(near):
        return ""
    meant = "+".join(dict.fromkeys(name for (name,) in near))
    shown = re.sub(r"[^\w+:-]", "?", suffix, flags=re.ASCII)
    return f"the model's name was sent on with its ending @{shown}, did you mean @{meant}?"
