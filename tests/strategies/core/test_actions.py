"""A line for each call that changed something: the tool, short values, what its result names, whether it failed."""

import json
from typing import Any

import pytest

from strategies.core.actions import Action, action, changes, keys_of, subject
from strategies.core.messages import ToolCall


def called(arguments: Any, name: str = "create") -> ToolCall:
    return ToolCall("c", name, arguments if isinstance(arguments, str) else json.dumps(arguments))


def line(arguments: Any, *named: str, later: frozenset[str] = frozenset(), failed: bool = False) -> str:
    call = called(arguments)
    return action(call, subject(call), named, later, changes=True, has_failed=failed).line()


def test_a_call_is_told_by_the_values_of_its_arguments_and_not_by_their_keys() -> None:
    given = {"name": "openclaw-pr-scout", "schedule": {"cron": "0 17 * * 0"}, "tags": ["a", "b"], "note": None, "n": 3}
    assert line(given) == "create: openclaw-pr-scout 0 17 * * 0 a b 3"


def test_of_a_long_value_only_the_beginning_is_told() -> None:
    assert line({"body": f"Dear all, {'we write to you ' * 20}"}).endswith("…")
    assert len(line({"body": "x" * 900})) < 100


def test_arguments_that_are_no_json_are_told_as_they_stand() -> None:
    assert line("make   all") == "create: make all"


def test_what_the_result_names_is_told_unless_the_call_named_it() -> None:
    assert line({"name": "web-01"}, "web-01", "job_77") == "create: web-01 → job_77"


def test_of_the_names_in_a_result_those_that_later_calls_use_come_first() -> None:
    call = called({"a": 1})
    found = action(call, subject(call), ["a-1", "b-2"], frozenset({"b-2"}), changes=True, has_failed=False)
    assert (found.named, found.is_used_later) == (("b-2", "a-1"), True)


def test_how_much_a_result_counts_names_nothing() -> None:
    call = called({"a": 1})
    found = action(call, subject(call), ["Read 271 lines", "took 4 s"], frozenset(), changes=True, has_failed=False)
    assert (found.named, found.has_created) == ((), False)


def test_a_failed_call_says_so() -> None:
    assert line({"name": "web"}, failed=True) == "create: web (failed)"


@pytest.mark.parametrize(
    ("result", "is_change"), [("ok", True), ("x" * 60, True), ("x" * 100, False), ("x" * 4_000, False)]
)
def test_a_call_that_brings_much_back_looked_something_up(result: str, is_change: bool) -> None:
    assert changes(called({"path": "a.py"}), len(result)) == is_change


def test_a_long_call_that_brings_little_back_changed_something() -> None:
    assert changes(called({"path": "a.py", "content": "x" * 4_000}), 400)


def test_what_looked_at_a_file_is_told_by_its_path() -> None:
    call = called({"path": "src/a.py", "limit": 9}, "read")
    read = action(call, subject(call), (), frozenset(), changes=False, has_failed=False)
    assert read == Action("read", "src/a.py")


def test_words_of_a_schema_are_the_names_of_tools_and_parameters() -> None:
    given = [called({"user_id": {"zip_code": 1}, "items": [{"item_id": "shoe_9"}]}, "update_order"), called("no json")]
    assert keys_of(given) == {"update_order", "create", "user_id", "zip_code", "items", "item_id"}
