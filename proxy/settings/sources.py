"""Where settings come from, and what is wrong with them.

Every source (the command line, the environment, the TOML file) becomes a tree of tables in one spelling (`normalized`)
before they are merged. pydantic says what is wrong with a value; a line for each key adds the nearest known key, the
value itself if it can be no secret, and the option, variable or file that it is from.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel, ValidationError

from proxy.quoting import not_this, printable
from strategies import TABLE
from strategies.core.errors import OptionError
from strategies.core.options import expand_mode, fill_options

PREFIX = "CONDENSER_"
CONFIG_VARIABLE = "CONDENSER_CONFIG"
_MAX_NAME = 200
"""Characters of a file's or variable's name that are shown."""
_AT_TOP = {"log_format": "format", "log_level": "level"}
"""Keys of `[log]` that may also be at the top, as `CONDENSER_LOG_FORMAT` is; the table's own key wins."""
_STRATEGIES = {name.replace("-", "_"): name for name in TABLE}
"""The tables of strategies, as variables of the environment spell them."""
_OPTIONS: Mapping[tuple[str, ...], str] = {
    **{(key,): f"--{key}" for key in ("host", "port", "workers", "strategy", "window")},
    ("upstream", "base_url"): "--upstream",
    ("store", "url"): "--store",
}
"""The options of the command line, by the path of the key that each sets."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Takes the place of a value that could not be read, so that validation reports it together with other errors."""

    problem: str


def normalized(data: Mapping[str, Any]) -> dict[str, Any]:
    """`data` in the one spelling that the settings declare.

    Tables of strategies move into `options`, and `background = "idle"` becomes `background.mode`.
    """
    rest = dict(data)
    if isinstance(rest.get("background"), str):
        rest["background"] = {"mode": rest["background"]}
    log = {key: rest.pop(name) for name, key in _AT_TOP.items() if name in rest}
    if log:
        rest["log"] = _merged(log, rest.get("log", {}))
    options = {name: rest.pop(name) for name in TABLE if name in rest}
    if options:
        rest["options"] = _merged(rest.get("options", {}), options)
    return rest


def _merged(table: Any, values: Any) -> Any:
    """Both as one table; `values` alone, for validation to refuse, if one of them is no table."""
    return {**table, **values} if isinstance(table, Mapping) and isinstance(values, Mapping) else values


def from_environment(environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """What the environment sets."""
    return normalized({_STRATEGIES.get(name, name): value for name, value in environment_tree(environ).items()})


def environment_tree(environ: Mapping[str, str]) -> dict[str, Any]:
    """`CONDENSER_STORE__URL=x` as `{"store": {"url": "x"}}`; values that look like JSON are read as JSON."""
    tree: dict[str, Any] = {}
    for variable, text in _variables(environ):
        *tables, key = variable.removeprefix(PREFIX).removesuffix("_FILE").lower().split("__")
        plain = variable.removesuffix("_FILE")
        if plain == variable:
            value = _value(variable, text)
        elif plain in environ:
            value = Unreadable(f"{plain} and {variable} are both set; leave one of them out")
        else:
            value = _of_file_named_by(variable, text)
        _put(tree, tables, key, value)
    return tree


def _variables(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """The variables that are settings, by name."""
    return sorted(pair for pair in environ.items() if pair[0].startswith(PREFIX) and pair[0] != CONFIG_VARIABLE)


def _of_file_named_by(variable: str, path: str) -> Any:
    try:
        return _value(variable, Path(path).read_text("utf-8").strip())
    except (OSError, ValueError) as error:
        return Unreadable(f"{variable} names {_unreadable(path, error)}")


def _unreadable(path: str, error: OSError | ValueError) -> str:
    """The words for a file that cannot be read; its contents may be a secret and are not quoted."""
    why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
    return f"{printable(path, _MAX_NAME)}, which cannot be read: {why}"


def _value(variable: str, text: str) -> Any:
    """The text itself, or the value that it holds if it looks like JSON."""
    try:
        return json.loads(text) if text[:1] in ("[", "{") else text
    except (ValueError, RecursionError) as error:
        return Unreadable(f"{variable} begins as JSON does, but cannot be read as such: {error}")


def _put(tree: dict[str, Any], tables: Sequence[str], key: str, value: Any) -> None:
    for name in tables:
        table = tree.setdefault(name, {})
        if not isinstance(table, dict):
            tree[name] = Unreadable(f"{PREFIX}{name.upper()} is given as a value and as a table")
            return
        tree = table
    tree[key] = value


def from_file() -> dict[str, Any]:
    """What the TOML file that `CONDENSER_CONFIG` names sets."""
    path = os.environ.get(CONFIG_VARIABLE)
    if not path:
        return {}
    try:
        return normalized(tomllib.loads(Path(path).read_text("utf-8")))
    except tomllib.TOMLDecodeError as error:
        problem = f"{printable(path, _MAX_NAME)} is not valid TOML: {error}"
    except (OSError, ValueError) as error:
        problem = f"the settings are in {_unreadable(path, error)}"
    return {"config": Unreadable(problem)}  # no setting is called so


def trees_by_source(**given: Any) -> dict[str, dict[str, Any]]:
    """What each source sets for `load_settings` with the same arguments, by the source's name; the first one wins."""
    return {"command line": normalized(given), "environment": from_environment(), "file": from_file()}


def origins(given: Mapping[str, Any], path: Sequence[str | int]) -> list[str]:
    """Where the key at `path`, or a key of the table there, is set: its option, its variables or the file.

    The names are those that a user knows. `given` is what the command line sets. The list is empty for a value that a
    program has given otherwise.
    """
    if sets(normalized(given), path):
        option = _OPTIONS.get(tuple(map(str, path)))
        return [option] if option else []
    variables = [name for name, text in _variables(os.environ) if sets(from_environment({name: text}), path)]
    if variables:
        return variables
    return [printable(os.environ[CONFIG_VARIABLE], _MAX_NAME)] if sets(from_file(), path) else []


def sets(tree: Any, path: Sequence[str | int]) -> bool:
    """Whether a tree has the key at a path, or a value in place of one of its tables."""
    if not tree:
        return False
    for part in path:
        try:
            tree = None if isinstance(tree, str) else tree[part]
        except LookupError:
            return False
        except TypeError:
            return True  # a value, or a list, in place of a table
    return True


# What is wrong

KeyPath = tuple[str | int, ...]
"""Where a key is: the names of its tables and its own, and numbers within lists."""
_MAX_LISTED = 12
"""If no key resembles an unknown one, the keys of a table of at most this size are listed."""
_LIKENESS = 0.6
_SECRETS = frozenset({"api_key", "token", "pepper", "url", "base_url"})
_MAX_PROBLEM = 400
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

    path: KeyPath
    text: str | None
    is_whole: bool = False
    """Whether the text itself says where the value is from."""


def problems_in_words(error: ValidationError, model: type[BaseModel], given: Mapping[str, Any]) -> list[str]:
    """A line for each key that is wrong, in the order in which the settings declare them.

    `given` is what the command line sets.
    """
    # A default that depends on another key is missing if that key is wrong, which has an error of its own.
    details = (detail for detail in error.errors() if detail["type"] != "default_factory_not_called")
    found = [problem for detail in details for problem in _problems(detail)]
    return [line for problem in found for line in _lines(problem, model, given)]


def _problems(error: Any) -> Iterator[_Problem]:
    path: KeyPath = tuple(error["loc"])
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


def _lines(problem: _Problem, model: type[BaseModel], given: Mapping[str, Any]) -> Iterator[str]:
    if problem.is_whole:
        yield printable(problem.text or "", _MAX_PROBLEM)
        return
    # The tables of strategies are at the top, as the user has them.
    written = problem.path[1:] if problem.path[:1] == ("options",) and len(problem.path) > 1 else problem.path
    key = ".".join(map(str, written))
    # A missing key is set nowhere, so the origin is that of its table.
    found = origins(given, problem.path[:-1] if problem.text == _MISSING else problem.path)
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


def _keys_beside(written: KeyPath, model: type[BaseModel]) -> list[str]:
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
