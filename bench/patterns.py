"""Patterns: what each of the product's costs on texts made of its own words, as a ratio to plain prose.

A pattern that looks far ahead from each place where it may begin is cheap on prose and dear on a text that repeats its
beginning. For each pattern the pumps are its literals, alone and one behind the other; the dearest counts, in two
lengths. A cost for each character that grows with the length is that of a pattern which must not get long texts.
Each is searched for everywhere, which is more than many are: those that are only matched at a place, or get a line, are
dearer here than where they are used.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
import types
from collections.abc import Iterator
from itertools import islice, permutations
from time import perf_counter
from typing import Any

import proxy
import strategies

PROSE = "The proxy condenses the history of a conversation, and what need not change keeps its bytes. "
LENGTH, GROWTH = 4_000, 4  # characters of the first text; the second has so many times more
SHOWN = 20
_GROWN = f"growth at {GROWTH} times the length"
_PUMPS, _LITERALS = 24, 8  # pairs of one pattern, and the literals that they are of
_LONG = 0.5  # seconds of one text after which no longer one is tried
_NOT_SERVING = ("proxy.commands", "proxy.__main__", "proxy.tracing")


def found() -> Iterator[tuple[types.ModuleType, str, Any]]:
    """Each name of a module that serves and is a pattern, has one, or is a method of one."""
    for package in (proxy, strategies):
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not info.name.startswith(_NOT_SERVING):
                importlib.import_module(info.name)
    for name, module in sorted(sys.modules.items()):
        if name.partition(".")[0] in ("proxy", "strategies"):
            yield from ((module, key, value) for key, value in list(vars(module).items()) if list(patterns_in(value)))


def patterns_in(value: Any) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, types.BuiltinMethodType) and isinstance(value.__self__, re.Pattern):
        yield value.__self__
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from patterns_in(each)


def measure(length: int = LENGTH, shown: int = SHOWN) -> list[dict[str, Any]]:
    """A row for each of the patterns that are dearest on a long text; about two minutes for all."""
    named = {one: f"{module.__name__}.{key}" for module, key, value in found() for one in patterns_in(value)}
    rows = [row(name, pattern, length) for pattern, name in named.items()]
    return sorted(rows, key=lambda each: -each["times prose"] * each[_GROWN])[:shown]


def row(name: str, pattern: re.Pattern[Any], length: int) -> dict[str, Any]:
    """What a pattern costs on the dearest of its pumps; nanoseconds for each character."""
    prose = _cost(pattern, PROSE, length)
    costs = {pump: _cost(pattern, pump, length) for pump in pumps(pattern)} or {PROSE: prose}
    pump, dearest = max(costs.items(), key=lambda each: each[1])
    longer = _cost(pattern, pump, GROWTH * length) if dearest * length < _LONG * 1e9 else dearest
    return {
        "pattern": name,
        "pump": repr(pump[:24]),
        "ns a character": dearest,
        "times prose": dearest / prose,
        _GROWN: longer / dearest,
    }


def pumps(pattern: re.Pattern[Any]) -> list[str]:
    """Texts that repeat what a pattern looks for: each of its literals, and two of the first ones in each order."""
    texts = list(dict.fromkeys(_literals(pattern)))
    pairs = (f"{one}{between}{other}" for one, other in permutations(texts[:_LITERALS], 2) for between in ("", " "))
    return list(dict.fromkeys((*texts, *(f"{text} " for text in texts), *islice(pairs, _PUMPS))))


def _literals(pattern: re.Pattern[Any]) -> Iterator[str]:
    """The runs of plain characters in a pattern, in their order; escapes stand for a character that they match."""
    source = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    plain = re.sub(r"\\[sbBAZ]|\[\^?(?:\\.|[^\]\\])*\]|\(\?[^:)]*[:)]|\{[\d,]*\}[+?]?", " ", source)
    plain = plain.replace(r"\d", "1").replace(r"\w", "a")
    for run in re.findall(r"(?:\\[^\w\s]|[^\s\\()|*+?.^$])+", plain):
        yield re.sub(r"\\(.)", r"\1", run)


def _cost(pattern: re.Pattern[Any], pump: str, length: int) -> float:
    """Nanoseconds for each character of a text of so many that repeats `pump`."""
    text: Any = (pump * (length // len(pump) + 1))[:length]
    if isinstance(pattern.pattern, bytes):
        text = text.encode()
    began = perf_counter()
    for _ in pattern.finditer(text):
        pass
    return max(perf_counter() - began, 1e-9) * 1e9 / length
