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
_NOT_SETTINGS = {CONFIG_VARIABLE}
_ALONE = {"background": "mode"}
"""Tables for which one of their keys may stand alone."""
_AT_TOP = {"reserve": ("marks", "reserve"), "log_format": ("log", "format"), "log_level": ("log", "level")}
"""Keys of tables that may stand at the top too, where `CONDENSER_LOG_FORMAT` puts one; the table's own key wins."""
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
    """Stands in a tree for a value that could not be read, so that validation reports it beside all other errors."""

    problem: str


def normalized(data: Mapping[str, Any]) -> dict[str, Any]:
    """`data` in the one spelling that the settings declare.

    Tables of strategies move into `options`; `background = "idle"` becomes `background.mode`; `reserve` becomes
    `marks.reserve`. Each source is normalized before they are merged.
    """
    rest = dict(data)
    for name, key in _ALONE.items():
        if isinstance(rest.get(name), str):
            rest[name] = {key: rest[name]}
    for name, (table, key) in _AT_TOP.items():
        if name in rest:
            rest[table] = _merged({key: rest.pop(name)}, rest.get(table, {}))
    options: dict[str, Any] = {}
    for name in TABLE:
        for spelling in dict.fromkeys((name, name.replace("-", "_"))):
            if spelling in rest:
                options[name] = _merged(options.get(name, {}), rest.pop(spelling))
    return {**rest, "options": _merged(rest.get("options", {}), options)} if options else rest


def _merged(table: Any, values: Any) -> Any:
    """Both spellings of one table as one; where one of them is no table, the second, for validation to refuse."""
    return {**table, **values} if isinstance(table, Mapping) and isinstance(values, Mapping) else values


def from_environment() -> dict[str, Any]:
    """What the environment sets."""
    return normalized(environment_tree(os.environ))


def environment_tree(environ: Mapping[str, str]) -> dict[str, Any]:
    """`CONDENSER_STORE__URL=x` as `{"store": {"url": "x"}}`; values that look like JSON are read as JSON."""
    tree: dict[str, Any] = {}
    for variable, text in _variables(environ):
        *tables, key = variable.removeprefix(PREFIX).removesuffix("_FILE").lower().split("__")
        if variable.endswith("_FILE") and variable.removesuffix("_FILE") in environ:
            value: Any = Unreadable(
                f"{variable.removesuffix('_FILE')} and {variable} are both set; leave one of them out"
            )
        else:
            value = _of_file_named_by(variable, text) if variable.endswith("_FILE") else _value(variable, text)
        _put(tree, tables, key, value)
    return tree


def _variables(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """The variables that are settings, by name."""
    return sorted(each for each in environ.items() if each[0].startswith(PREFIX) and each[0] not in _NOT_SETTINGS)


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
    """A text, or what it says where it looks like JSON."""
    try:
        return json.loads(text) if text[:1] in ("[", "{") else text
    except (ValueError, RecursionError) as error:
        return Unreadable(f"{variable} begins as JSON does, but cannot be read as such: {error}")


def _put(tree: dict[str, Any], tables: Sequence[str], key: str, value: Any) -> None:
    for each in tables:
        if each in _ALONE and isinstance(tree.get(each), str):
            tree[each] = {_ALONE[each]: tree[each]}
        table = tree.setdefault(each, {})
        if not isinstance(table, dict):
            tree[each] = Unreadable(f"{PREFIX}{each.upper()} is given as a value and as a table")
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
    """The option, the variables or the file that set the key at `path`, or keys of the table there; as a user has them.

    `given` is what the command line sets. Nothing is said of a value that a program has given otherwise.
    """
    if _sets(normalized(given), path):
        option = _OPTIONS.get(tuple(map(str, path)))
        return [option] if option else []
    variables = [each for each in _variables(os.environ) if _sets(normalized(environment_tree(dict([each]))), path)]
    if variables:
        return [name for name, _ in variables]
    return [printable(os.environ[CONFIG_VARIABLE], _LONGEST_PATH)] if _sets(from_file(), path) else []


def _sets(tree: Any, path: Sequence[str | int]) -> bool:
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
