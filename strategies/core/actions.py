"""Actions: what an agent did by calling tools, one line for each call that changed something.

A call that changes something is told from one that looks something up by where the text flows: what is looked up comes
back, so the result is many times longer than the call. A line has the tool's name, the short values of its arguments,
what its result names that the call did not, and whether it failed. Keys of JSON say nothing and are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from itertools import islice
from typing import NamedTuple

from strategies.core.messages import ToolCall
from strategies.core.names import is_measure, without_keys
from strategies.core.parsing import has_many_values, loads
from strategies.core.paths import target

_VALUE = 48  # characters of a value that is shown; of a longer one only the beginning
_VALUES = 8
_NAMED = 4  # names of a result
_FLOW = 3  # how many times longer than the call the result of a look-up is
_SHORT = 60  # characters; a shorter result acknowledges
_DEPTH = 4


class Action(NamedTuple):
    tool: str
    on: str  # the file, or the short values of the arguments
    named: tuple[str, ...] = ()
    has_failed: bool = False
    changes: bool = False
    is_used_later: bool = False  # whether the assistant uses a name of its result

    @property
    def has_created(self) -> bool:
        """Whether its result names something that the call did not: an id, a file, a job."""
        return bool(self.named) and not self.has_failed

    def line(self) -> str:
        named = f" → {', '.join(self.named)}" if self.named else ""
        return f"{self.tool}: {self.on}{named}{' (failed)' if self.has_failed else ''}"


class Subject(NamedTuple):
    """What a call is about."""

    path: str | None  # of the file that it reads or writes
    values: str  # the short values of its arguments


def subject(call: ToolCall) -> Subject:
    file = target(call)
    values = " ".join(map(_short, islice(_values(call.arguments), _VALUES)))
    return Subject(file.path if file else None, values)


def changes(call: ToolCall, size: int) -> bool:
    """Whether a call brought less back than it took along, given the characters of its result."""
    return size <= max(_FLOW * len(call.arguments), _SHORT)


def action(
    call: ToolCall, on: Subject, names: Iterable[str], later: Set[str], *, changes: bool, has_failed: bool
) -> Action:
    """What a call did; of the `names` in its result those in `later`, which are used, come first."""
    new = [name for name in names if name not in call.arguments and not is_measure(name)]
    new.sort(key=lambda name: name not in later)
    told = on.values if changes or on.path is None else on.path
    return Action(call.name, told, tuple(new[:_NAMED]), has_failed, changes, bool(new) and new[0] in later)


def _values(arguments: str) -> Iterator[str]:
    """The values of a call's arguments, without their keys, in order."""
    if has_many_values(arguments):
        return iter((without_keys(arguments),))
    try:
        return _within(loads(arguments), _DEPTH)
    except (ValueError, RecursionError):
        return iter((arguments,))


def _within(value: object, depth: int) -> Iterator[str]:
    if isinstance(value, Mapping) and depth:
        for each in value.values():
            yield from _within(each, depth - 1)
    elif isinstance(value, list) and depth:
        for each in value:
            yield from _within(each, depth - 1)
    elif isinstance(value, str | int | float) and value not in ("", None):
        yield str(value)


def _short(value: str) -> str:
    line = " ".join(value.split())
    if len(line) <= _VALUE:
        return line
    words = line[:_VALUE].rpartition(" ")[0]
    return f"{words if 2 * len(words) > _VALUE else line[:_VALUE]}…"


def keys_of(calls: Iterable[ToolCall]) -> frozenset[str]:
    """The names of tools and of their parameters, which are words of a schema and name nothing."""
    keys: set[str] = set()
    for call in calls:
        keys.add(call.name)
        if not has_many_values(call.arguments):
            try:
                value = loads(call.arguments)
            except (ValueError, RecursionError):
                continue
            keys |= _keys(value, _DEPTH)
    return frozenset(keys)


def _keys(value: object, depth: int) -> set[str]:
    if isinstance(value, Mapping) and depth:
        return {*map(str, value), *(key for each in value.values() for key in _keys(each, depth - 1))}
    if isinstance(value, list) and depth:
        return {key for each in value for key in _keys(each, depth - 1)}
    return set()
