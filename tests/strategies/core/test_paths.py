"""Which file a tool call is about."""

import pytest

from strategies.core.messages import ToolCall
from strategies.core.paths import Target, parsed, target


def found(arguments: str) -> Target | None:
    return target(ToolCall("c", "tool", arguments))


@pytest.mark.parametrize(
    ("arguments", "path", "whole"),
    [
        ('{"path": "src/a.py"}', "src/a.py", True),
        ('{"file_path": "/x/a.py", "content": "x"}', "/x/a.py", True),
        ('{"path": "a.py", "offset": 10, "limit": 20}', "a.py", False),
        ('{"path": "a.py", "view_range": [1, 5]}', "a.py", False),
        ('{"path": "a.py", "old_str": "x", "new_str": "y"}', "a.py", False),
        ('{"path": "a.py", "pattern": "def f"}', "a.py", False),
        ('{"command": "cat src/a.py"}', "src/a.py", True),
        ('{"command": "cat -n src/a.py"}', "src/a.py", True),
        ('{"input": "docs/readme.md"}', "docs/readme.md", True),
    ],
)
def test_the_file_is_read_from_the_arguments(arguments: str, path: str, whole: bool) -> None:
    assert found(arguments) == Target(path, whole)


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "{",
        "[]",
        "null",
        '{"path": 3}',
        '{"path": ""}',
        '{"command": "ls -l"}',
        '{"command": "cat a.py | head"}',
        '{"command": "cat a.py > b.py"}',
        '{"command": ["cat", "a.py"]}',
        '{"input": "two words and no file"}',
        '{"query": "x"}',
    ],
)
def test_a_call_that_names_no_file_has_none(arguments: str) -> None:
    assert found(arguments) is None


def test_arguments_are_an_object_or_nothing() -> None:
    assert parsed('{"a": 1}') == {"a": 1}
    assert parsed("[" * 50_000) is None
