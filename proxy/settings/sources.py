"""Where settings come from: the command line, the environment and the TOML file, and which of them sets a key.

Every source becomes a tree of tables in one spelling (`normalized`) before they are merged.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxy.quoting import printable
from strategies import TABLE

PREFIX = "CONDENSER_"
CONFIG_VARIABLE = "CONDENSER_CONFIG"
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
_LONGEST_PATH = 200
_FILE = "config"
"""The key under which a file that cannot be read is reported; no setting has it."""


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
    return f"{printable(path, _LONGEST_PATH)}, which cannot be read: {why}"


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
        problem = f"{printable(path, _LONGEST_PATH)} is not valid TOML: {error}"
    except (OSError, ValueError) as error:
        problem = f"the settings are in {_unreadable(path, error)}"
    return {_FILE: Unreadable(problem)}


def sources(**given: Any) -> dict[str, dict[str, Any]]:
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
    return [printable(os.environ[CONFIG_VARIABLE], _LONGEST_PATH)] if sets(from_file(), path) else []


def sets(tree: Any, path: Sequence[str | int]) -> bool:
    """Whether a tree has the key at a path, or a value in place of one of its tables."""
    if not tree:
        return False
    for part in path:
        if isinstance(tree, Mapping):
            if part not in tree:
                return False
            tree = tree[part]
        elif isinstance(tree, Sequence) and not isinstance(tree, str) and isinstance(part, int):
            if part >= len(tree):
                return False
            tree = tree[part]
    return True
