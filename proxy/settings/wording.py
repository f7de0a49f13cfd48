"""What is wrong with settings: a line for each key, with the option, variable or file that its value is from.

pydantic says what is wrong with a value. This module adds the nearest known key, and the value itself if it can be no
secret.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel, ValidationError

from proxy.quoting import not_this, printable
from proxy.settings.sources import PREFIX, Unreadable
from strategies import TABLE
from strategies.core.errors import OptionError
from strategies.core.options import expand_mode, fill_options

Path = tuple[str | int, ...]
"""Where a key is: the names of its tables and its own, and numbers within lists."""
Origins = Callable[[Path], Sequence[str]]
"""Finds which options, variables or file set the key at a path, or keys of the table there, as the user wrote them."""

_MAX_LISTED = 12
"""If no key resembles an unknown one, the keys of a table of at most this size are listed."""
_LIKENESS = 0.6
_SECRETS = frozenset({"api_key", "token", "pepper", "url", "base_url"})
_MAX_PROBLEM = 400
_MAX_NAME = 200
_MISSING = "is missing"
_TABLE = "must be a table"
_WORDS = {
    "missing": _MISSING,
    "tuple_type": "must be a list; in the environment it is one in JSON",
    "dict_type": _TABLE,
    "model_type": _TABLE,
    "model_attributes_type": _TABLE,
}
"""The kinds of errors for which pydantic's own words do not suit a file of settings."""
_WHY = re.compile(r", (?:unable|got) .*")
_MOVED = {("reserve",): "marks.reserve", ("models", "marks", "reserve"): "models[].reserve"}
"""Keys of earlier releases, by their path without numbers, and what they are called now."""


class _Problem(NamedTuple):
    """What is wrong at a path; None if there is no such key."""

    path: Path
    text: str | None
    is_whole: bool = False
    """Whether the text itself says where the value is from."""


def problems_in_words(error: ValidationError, model: type[BaseModel], origins: Origins) -> list[str]:
    """A line for each key that is wrong, in the order in which the settings declare them."""
    # A default that depends on another key is missing if that key is wrong, which has an error of its own.
    details = (detail for detail in error.errors() if detail["type"] != "default_factory_not_called")
    found = [problem for detail in details for problem in _problems(detail)]
    return [line for problem in found for line in _lines(problem, model, origins)]


def _problems(error: Any) -> Iterator[_Problem]:
    path: Path = tuple(error["loc"])
    if isinstance(error["input"], Unreadable):
        yield _Problem(path, error["input"].problem, is_whole=True)
    elif path == ("options",) and isinstance(error["input"], Mapping):
        yield from option_problems(error["input"])
    elif error["type"] == "extra_forbidden":
        yield _Problem(path, None)
    else:
        yield _Problem(path, _translated(error, is_secret=bool(path) and path[-1] in _SECRETS))


def option_problems(options: Mapping[str, Any]) -> Iterator[_Problem]:
    """The options of strategies that are wrong, each by itself, or else together with others of its table."""
    for name, values in options.items():
        if name not in TABLE:
            yield _Problem(("options", name), None)
            continue
        wrong = [problem for key, value in values.items() if (problem := _option_problem(name, key, value))]
        yield from wrong
        try:
            fill_options(TABLE[name].options, {} if wrong else expand_mode(TABLE[name].options, values))
        except OptionError as error:
            yield _Problem(("options", name), error.detail)


def _option_problem(strategy: str, key: str, value: object) -> _Problem | None:
    path = ("options", strategy, key)
    if isinstance(value, Unreadable):
        return _Problem(path, value.problem, is_whole=True)
    try:
        fill_options(TABLE[strategy].options, {key: value})
    except OptionError as error:
        return _Problem(path, error.detail.removeprefix(f"'{key}' ") if key in _options_of(strategy) else None)
    return None


def _translated(error: Any, *, is_secret: bool) -> str:
    """What is wrong with a value."""
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    if error["type"] in _WORDS:
        # A value in the place of a table may be one of its secrets, so it is not shown.
        return _WORDS[error["type"]]
    text = _WHY.sub("", error["msg"].replace("Input should ", "must "))
    return text + ("" if is_secret else not_this(error["input"]))


def _lines(problem: _Problem, model: type[BaseModel], origins: Origins) -> Iterator[str]:
    if problem.is_whole:
        yield printable(problem.text or "", _MAX_PROBLEM)
        return
    written = _as_written(problem.path)
    key = ".".join(map(str, written))
    # What is missing is set nowhere, but its table is.
    found = origins(problem.path[:-1] if problem.text == _MISSING else problem.path)
    if problem.text is not None:
        where = f" ({found[0]})" if found else ""
        yield f"{key}: {printable(problem.text, _MAX_PROBLEM)}{where}"
        return
    known = _keys_beside(written, model)
    near = get_close_matches(str(written[-1]), known, 1, _LIKENESS)
    moved = _MOVED.get(tuple(part for part in written if isinstance(part, str)))
    listed = f"; known: {', '.join(known)}" if 0 < len(known) <= _MAX_LISTED else ""
    for origin in found or [""]:
        words = origin.removeprefix(PREFIX).split("__")
        if origin.startswith(PREFIX) and len(words) >= len(written):
            name, where = f"variable {printable(origin, _MAX_NAME)}", ""
            meant = _variable(words, len(written) - 1, near[0]) if near else ""
        else:
            name, where = f"key '{printable(key, _MAX_NAME)}'", f" ({origin})" if origin else ""
            meant = f"'{'.'.join([*key.split('.')[:-1], near[0]])}'" if near else ""
        hint = f"; it is called '{moved}' now" if moved else f"; did you mean {meant}?" if meant else listed
        yield f"unknown {name}{hint}{where}"


def _variable(words: Sequence[str], place: int, near: str) -> str:
    """The variable that was perhaps meant: the word at `place` is replaced."""
    suffix = "_FILE" if place == len(words) - 1 and words[place].endswith("_FILE") else ""
    meant = [*words[:place], near.upper().replace("-", "_") + suffix, *words[place + 1 :]]
    return f"{PREFIX}{'__'.join(meant)}"


def _as_written(path: Path) -> Path:
    """A path as the user has it: the tables of strategies are at the top."""
    return path[1:] if path[:1] == ("options",) and len(path) > 1 else path


def _keys_beside(written: Path, model: type[BaseModel]) -> list[str]:
    """All keys that the table of a key may have."""
    if len(written) > 1 and written[0] in TABLE:
        return list(_options_of(str(written[0])))
    table: Any = model
    for part in written[:-1]:
        if isinstance(part, str):
            table = _table_of(table.model_fields[part].annotation)
    keys = [info.alias or name for name, info in table.model_fields.items()]
    return [*keys, *(TABLE if table is model else ())]


def _options_of(strategy: str) -> dict[str, Any]:
    return {option.name: option for option in fields(TABLE[strategy].options)}


def _table_of(annotation: Any) -> Any:
    """The table class in `T`, `T | None` or `tuple[T, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(found for part in get_args(annotation) if (found := _table_of(part)) is not None)
