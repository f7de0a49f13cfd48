"""Paths: finds the file that a tool call is about in the call's arguments, for any agent's tools."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from strategies.core.messages import ToolCall
from strategies.core.parsing import has_many_values, loads

_PATH_KEYS = ("path", "file_path", "filepath", "filename", "file", "target_file", "notebook_path", "uri")
_PART_KEYS = (
    *("offset", "limit", "view_range", "start_line", "end_line", "line_start", "line_end"),
    *("pattern", "regex", "query"),
    *("oldText", "old_string", "old_str", "old_text", "diff", "patch"),
)
_COMMAND_KEYS = ("command", "cmd", "input")
_SHELL_READ = re.compile(r"^\s*(?:cat|nl|bat|type)\s+(?:-\w+\s+)*([^\s|;&<>'\"]+)\s*$")
_PATH_LIKE = re.compile(r"^[\w@.~/\\: -]*[\w@~/\\-]\.\w{1,8}$|^[\w@.~-]*/[\w@.~/-]+$")


class Target(NamedTuple):
    """The file that a call reads or writes; `whole` says whether its complete content passes through the call."""

    path: str
    whole: bool


def target(call: ToolCall) -> Target | None:
    """The file that a call names in its arguments, or None."""
    arguments = parsed(call.arguments)
    return None if arguments is None else target_in(arguments)


def target_in(arguments: Mapping[str, object]) -> Target | None:
    for key in _PATH_KEYS:
        value = arguments.get(key)
        if isinstance(value, str) and value:
            return Target(value, not any(part in arguments for part in _PART_KEYS))
    commands = (value for key in _COMMAND_KEYS if isinstance(value := arguments.get(key), str))
    read = next((read for command in commands if (read := _SHELL_READ.match(command))), None)
    if read:
        return Target(read.group(1), True)
    # Some agents have tools whose only argument is a file.
    only = arguments.get("input") if len(arguments) == 1 else None
    if isinstance(only, str) and len(only) < 260 and _PATH_LIKE.match(only.strip()):
        return Target(only.strip(), True)
    return None


def parsed(arguments: str) -> Mapping[str, object] | None:
    if has_many_values(arguments):
        return None
    try:
        value = loads(arguments)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, Mapping) else None
