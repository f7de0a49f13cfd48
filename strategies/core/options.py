"""The options of strategies: frozen dataclasses whose fields carry their bounds, filled from texts or settings.

A field is declared as `option(default, at_least, at_most)`. A value must have the type of the default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields, replace
from difflib import SequenceMatcher
from typing import Any, TypeVar, cast

from strategies.core.errors import OptionError

OptionsT = TypeVar("OptionsT", bound="Options")
Value = bool | int | float | str

_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


@dataclass(frozen=True, slots=True)
class Options:
    """The base of all options; a strategy without options uses this class itself.

    If there is an option `mode`, `preset` says which values of other options each mode stands for.
    """

    @property
    def conflict(self) -> str:
        """Why these values cannot hold together, naming the options; "" if they can."""
        return ""

    def preset(self, mode: str) -> Mapping[str, Value]:
        return {}


def option(default: Value, at_least: float | None = None, at_most: float | None = None, one_of: str = "") -> Any:
    """Declares a field of an `Options` class; `one_of` lists the allowed words of a text, separated by spaces."""
    return field(default=default, metadata={"low": at_least, "high": at_most, "words": one_of.split()})


def fill_options(options: OptionsT, values: Mapping[str, object]) -> OptionsT:
    """`options` with `values` filled in; raises an `OptionError` that names the option and its allowed values."""
    by_name = {declared.name: declared for declared in fields(options)}
    for name in values:
        if name not in by_name:
            raise unknown_option(name, by_name)
    filled = replace(options, **{name: _checked(by_name[name], value) for name, value in values.items()})
    if filled.conflict:
        raise OptionError(filled.conflict)
    return filled


def unknown_option(name: str, known: Mapping[str, Field[Any]]) -> OptionError:
    """The error for an unknown option. It suggests the nearest of the `known` options, and lists them all."""
    if not known:
        return OptionError(f"unknown option '{name}'; known: none")
    nearest = max(known, key=lambda written: SequenceMatcher(None, known[written].name, name.lower()).ratio())
    return OptionError(f"unknown option '{name}'; did you mean '{nearest}'? Known: {', '.join(known)}")


def expand_mode(options: Options, values: Mapping[str, object]) -> dict[str, object]:
    """`values` and those that their `mode` stands for; an explicit value wins over the mode's."""
    return {**options.preset(str(values.get("mode", ""))), **values}


def _checked(declared: Field[Any], value: object) -> Value:
    default = cast(Value, declared.default)
    try:
        typed = _convert(type(default), value)
        if _within(declared, typed):
            return typed
    except (KeyError, TypeError, ValueError):
        pass
    raise OptionError(f"'{declared.name}' must be {_expected(declared)}, not '{value}'")


def _convert(kind: type, value: object) -> Value:
    if kind is bool:
        return value if isinstance(value, bool) else _WORDS[str(value).lower()]
    if isinstance(value, bool):
        raise TypeError
    if kind is int and isinstance(value, float) and not value.is_integer():
        raise ValueError
    return cast(Value, kind(value))


def _within(declared: Field[Any], value: Value) -> bool:
    low, high, words = (declared.metadata[key] for key in ("low", "high", "words"))
    if isinstance(value, str):
        return not words or value in words
    return (low is None or value >= low) and (high is None or value <= high)


def _expected(declared: Field[Any]) -> str:
    low, high, words = (declared.metadata[key] for key in ("low", "high", "words"))
    if words:
        return "one of " + ", ".join(words)
    kind = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}[type(declared.default)]
    bounds = [f"{name} {bound:g}" for name, bound in (("at least", low), ("at most", high)) if bound is not None]
    return " ".join((kind, " and ".join(bounds))).strip()
