"""A call has failed by its own form: the word alone is no failure."""

import json

import pytest

from strategies.core.failures import LONGEST, failures
from strategies.core.messages import Message
from strategies.dialects.messages import MESSAGES
from tests.support.transcripts import READER, message, tool


def told(text: str, *, is_file: bool = False) -> list[str]:
    return failures(message(tool("c", text)), text, is_file=is_file)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("Traceback (most recent call last):\n  File \"a.py\", line 1\n    x\nKeyError: 'a'\n", "KeyError: 'a'"),
        ("compiling\nsrc/a.c:7:3: error: no such field\ndone", "src/a.c:7:3: error: no such field"),
        ("error[E0308]: mismatched types\n --> src/a.rs", "error[E0308]: mismatched types"),
        ("Error: no such flight", "Error: no such flight"),
        ("fatal: not a git repository", "fatal: not a git repository"),
        ("bash: foo: command not found\nexit code: 127", "bash: foo: command not found"),
        ("Error: Exit code 1\n   cd: no such directory\n   hint: look", "cd: no such directory"),
        ("Error: Exit code 1\n  Traceback (most recent call last):\n    File x\n  KeyError: 'a'\n", "KeyError: 'a'"),
        ("Error: Exit code 1", "Error: Exit code 1"),
        (json.dumps({"error": "no seat is left"}), "no seat is left"),
        (json.dumps({"error": {"code": 4, "message": "no seat is left"}}), "no seat is left"),
        ("E   TypeError: no parser", "E   TypeError: no parser"),
        ("FAILED tests/test_a.py::test_b", "FAILED tests/test_a.py::test_b"),
    ],
)
def test_a_failure_is_told_by_its_form(text: str, line: str) -> None:
    assert told(text) == [line]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"flight": "HAT-204", "error": None}),
        json.dumps({"errors": [], "rows": 3}),
        "No errors were found.\n0 failed, 12 passed",
        "def fail():\n    raise ValueError('error: bad')",
        "The chapter on errors: how to handle an exception.",
        "done\nexit code: 0",
        "",
    ],
)
def test_what_only_speaks_of_errors_is_no_failure(text: str) -> None:
    assert told(text) == []


@pytest.mark.parametrize("text", ["Error: this is a test", "Traceback (most recent call last):\n  x\nKeyError: 'a'"])
def test_a_file_that_was_read_has_not_failed(text: str) -> None:
    assert told(text, is_file=True) == []


def marked(*, is_error: bool) -> Message:
    """A result of the Messages API with the protocol's mark."""
    block = {"type": "tool_result", "tool_use_id": "c", "content": "nothing came", "is_error": is_error}
    body = {"role": "user", "content": [block]}
    return READER.read(json.dumps(body), body, 10, MESSAGES)


def test_the_protocols_mark_counts_whatever_the_text_says() -> None:
    assert failures(marked(is_error=True), "nothing came", is_file=False) == ["nothing came"]
    assert failures(marked(is_error=True), "nothing came", is_file=True) == ["nothing came"]
    assert failures(marked(is_error=False), "nothing came", is_file=False) == []


def test_lines_too_long_to_read_are_left_out_whole() -> None:
    assert told(f"Error: {'x' * LONGEST}") == []


def test_of_a_long_output_both_ends_are_read() -> None:
    between = "it is so\n" * 9_000
    text = f"error: first\n{between}error: last"
    assert told(text) == ["error: first", "error: last"]
