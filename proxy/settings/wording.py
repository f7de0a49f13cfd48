"""What is wrong with settings, in words: a line for each key, with the option, variable or file that its value is from.

pydantic says what is wrong in its own terms; each kind of error that settings can have is translated here. A value is
quoted only where it can be no secret.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel, ValidationError

from proxy.quoting import not_this, printable
from proxy.settings.sources import PREFIX, Unreadable
from strategies import TABLE
from strategies.core.errors import OptionError
from strategies.core.options import fill_options

Path = tuple[str | int, ...]
"""Where a key is: the names of its tables and its own, and numbers within lists."""

_FEW_KEYS = 12
"""A table of at most so many keys is listed where an unknown key is near to none of them."""
_NEAR = 0.6
_SECRETS = frozenset({"api_key", "token", "pepper", "url", "base_url"})
_LONGEST_PROBLEM = 400
_LONGEST_NAME = 200
_MISSING = "is missing"
_LIST = "a list; in the environment it is one in JSON"
_TABLE = "a table"
_WANTED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number",
    "int_from_float": "a whole number",
    "finite_number": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "a text",
    "path_type": "a path",
    "model_type": _TABLE,
    "model_attributes_type": _TABLE,
    "dict_type": _TABLE,
}
_BOUNDS = {
    "greater_than": ("more than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}


Origins = Callable[[Path], Sequence[str]]
"""Finds which options, variables or file set the key at a path, or keys of the table there, as the user wrote them."""


class _Problem(NamedTuple):
    """What is wrong at a path; None where there is no such key."""

    path: Path
    text: str | None
    is_whole: bool = False
    """Whether the text says itself where the value is from."""


def problems_in_words(error: ValidationError, model: type[BaseModel], origins: Origins) -> list[str]:
    """A line for each key that is wrong, in the order in which the settings declare them."""
    found = [problem for each in error.errors() for problem in _problems(each)]
    return [line for problem in found for line in _lines(problem, model, origins)]


def _problems(error: Any) -> Iterator[_Problem]:
    path: Path = tuple(error["loc"])
    if isinstance(error["input"], Unreadable):
        yield _Problem(path, error["input"].problem, is_whole=True)
    elif path == ("options",) and isinstance(error["input"], Mapping):
        yield from _option_problems(error["input"])
    elif error["type"] == "extra_forbidden":
        yield _Problem(path, None)
    else:
        yield _Problem(path, _translated(error, is_secret=bool(path) and path[-1] in _SECRETS))


def _option_problems(options: Mapping[str, Any]) -> Iterator[_Problem]:
    """The options of strategies that are wrong; strategies check them, and stop at the first."""
    for name, values in options.items():
        if name not in TABLE:
            yield _Problem(("options", name), None)
            continue
        for key, value in values.items():
            if isinstance(value, Unreadable):
                yield _Problem(("options", name, key), value.problem, is_whole=True)
                continue
            try:
                fill_options(TABLE[name].options, {key: value})
            except OptionError as error:
                is_known = key in _options_of(name)
                yield _Problem(("options", name, key), error.detail.removeprefix(f"'{key}' ") if is_known else None)


def _translated(error: Any, *, is_secret: bool) -> str:
    """What is wrong with a value."""
    kind, context = error["type"], error.get("ctx", {})
    if kind == "value_error":
        return str(context["error"])
    if kind == "missing":
        return _MISSING
    if kind == "tuple_type":
        return f"must be {_LIST}"
    if kind in _BOUNDS:
        words, bound = _BOUNDS[kind]
        wanted = f"{words} {_number(context[bound])}"
    else:
        wanted = str(context["expected"]) if kind == "literal_error" else _WANTED.get(kind, "")
    if not wanted:
        return str(error["msg"])
    # What stands in the place of a table may be one of its secrets.
    return f"must be {wanted}" + ("" if is_secret or wanted == _TABLE else not_this(error["input"]))


def _number(value: float) -> str:
    return f"{int(value):,}" if value == int(value) else f"{value:g}"


def _lines(problem: _Problem, model: type[BaseModel], origins: Origins) -> Iterator[str]:
    if problem.is_whole:
        yield printable(problem.text or "", _LONGEST_PROBLEM)
        return
    written = _as_written(problem.path)
    key = ".".join(map(str, written))
    # What is missing stands nowhere, but its table does.
    found = origins(problem.path[:-1] if problem.text == _MISSING else problem.path)
    if problem.text is not None:
        where = f" ({found[0]})" if found else ""
        yield f"{key}: {printable(problem.text, _LONGEST_PROBLEM)}{where}"
        return
    known = _keys_beside(problem.path, model)
    near = get_close_matches(str(written[-1]), known, 1, _NEAR)
    for origin in found or [""]:
        words = origin.removeprefix(PREFIX).split("__")
        if origin.startswith(PREFIX) and len(words) >= len(written):
            hint = _hinted_variable(words, len(written) - 1, near[0]) if near else _hint((), known)
            yield f"unknown variable {printable(origin, _LONGEST_NAME)}{hint}"
        else:
            where = f" ({origin})" if origin else ""
            yield f"unknown key '{printable(key, _LONGEST_NAME)}'{_hint(near, known, key)}{where}"


def _hinted_variable(words: Sequence[str], place: int, near: str) -> str:
    """The variable that was perhaps meant: the word at `place` is replaced."""
    suffix = "_FILE" if place == len(words) - 1 and words[place].endswith("_FILE") else ""
    meant = [*words[:place], near.upper().replace("-", "_") + suffix, *words[place + 1 :]]
    return f"; did you mean {PREFIX}{'__'.join(meant)}?"


def _hint(near: Sequence[str], known: Sequence[str], key: str = "") -> str:
    """The key beside `key` that was perhaps meant, else all that there are where they are few."""
    if near:
        return f"; did you mean '{'.'.join([*key.split('.')[:-1], near[0]])}'?"
    return f"; known: {', '.join(known)}" if 0 < len(known) <= _FEW_KEYS else ""


def _as_written(path: Path) -> Path:
    """A path as the user has it: the tables of strategies stand at the top."""
    return path[1:] if path[:1] == ("options",) and len(path) > 1 else path


def _keys_beside(path: Path, model: type[BaseModel]) -> list[str]:
    """All keys that the table of a key may have."""
    written = _as_written(path)
    if len(written) > 1 and written[0] in TABLE:
        return list(_options_of(str(written[0])))
    table: Any = model
    for part in written[:-1]:
        if isinstance(part, str):
            table = _table_of(table.model_fields[part].annotation)
    keys = [info.alias or name for name, info in table.model_fields.items()]
    return [*keys, *((*TABLE, "reserve") if table is model else ())]


def _options_of(strategy: str) -> dict[str, Any]:
    return {each.name: each for each in fields(TABLE[strategy].options)}


def _table_of(annotation: Any) -> Any:
    """The table class in `T`, `T | None` or `tuple[T, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(found for each in get_args(annotation) if (found := _table_of(each)) is not None)
