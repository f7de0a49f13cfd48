"""A rule that the user revokes or changes is removed if it is clear which one is meant; else both stay, in order."""

from __future__ import annotations

import pytest

from strategies.core.superseding import merge_rules


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("Never use sudo.", "Forget what I said about sudo."),
        ("Never touch ticket 4711.", "Drop the ticket 4711 rule."),
        ("Never run the tests.", "You can run the tests again."),
        ("Always reply in French.", "You no longer need to reply in French."),
        ("Use tabs for indentation.", "Use spaces instead of tabs."),
        ("Use npm.", "Switch from npm to pnpm."),
        ("注释必须用中文。", "以后不用再用中文写注释了。"),
        ("回答必须用英文。", "把英文改成中文。"),
        ("不要修改配置文件。", "忘掉我之前说的关于配置文件的要求。"),
    ],
)
def test_what_is_taken_back_or_changed_goes_and_what_does_so_stays(earlier: str, later: str) -> None:
    assert merge_rules([earlier], [later]) == [later]
    assert merge_rules([], [earlier, "Never push to main.", later]) == ["Never push to main.", later]


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("Never close ticket 4711.", "Never close ticket 4712."),
        ("Always run the tests.", "You can run the tests again."),
        ("Never use tabs.", "Use spaces instead of tabs."),
        ("Use pytest and write all tests in tests/unit.", "Use unittest instead of pytest."),
        ("Never use C.", "Never use C++."),
        ("Never use sudo.", "Forget it."),
        ("不要修改订单4711。", "取消订单4711。"),
    ],
)
def test_where_it_is_not_clear_both_stay_in_order(earlier: str, later: str) -> None:
    assert merge_rules([earlier], [later]) == [earlier, later]


def test_where_two_could_be_meant_both_stay() -> None:
    rules = ["Never run the tests on web-01.", "Always write tests."]
    assert merge_rules(rules, ["Forget what I said about tests."]) == [*rules, "Forget what I said about tests."]


def test_what_was_said_already_is_left_out() -> None:
    rules = ["Never use sudo!", "回答用中文。"]
    assert merge_rules(rules, ["Please remember: never use sudo.", "never  use SUDO", "回答用中文"]) == rules


def test_a_task_that_is_done_goes() -> None:
    assert merge_rules(["[ ] write docs", "[ ] write tests"], ["[x] write docs"]) == ["[ ] write tests"]


def test_what_holds_stays_in_the_order_in_which_it_was_said() -> None:
    rules = [f"Never open door {i}." for i in range(9)]
    assert merge_rules(rules[:4], rules[4:]) == rules
    assert merge_rules(rules, reversed(rules)) == rules
