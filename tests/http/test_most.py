"""`marks.most` and price steps, at a server whose window is unknown or large."""

from typing import Any

import pytest

from tests.support.stage import Stage, chat, controls, proxy_with_upstream, rounds_over

MOST = 6_000
STEP = {"input": 1.0, "output": 2.0, "step": {"above": MOST}}


def answered(size: int, **settings: Any) -> tuple[Stage, Any]:
    with proxy_with_upstream(**{"strategy": "extract", "window": None, **settings}) as stage:
        stage.model = "somebodys-finetune"
        return stage, stage.ask(chat(rounds_over(size)), controls(session="s"))


def test_a_view_is_condensed_at_most_although_its_window_is_unknown() -> None:
    stage, answer = answered(MOST, marks={"most": MOST})
    assert (answer.window, answer.action, answer.trigger) == ("unknown", "condensed", "threshold")
    assert answer.header("x-condenser-headroom") is None
    asked = [each["content"] for each in chat(rounds_over(MOST)) if each["role"] == "user"]
    assert [each["content"] for each in stage.last_view if each["content"] in asked] == asked


def test_below_most_nothing_is_due_and_the_window_stays_unknown() -> None:
    _, answer = answered(MOST // 2, marks={"most": MOST})
    assert (answer.window, answer.action, answer.reason) == ("unknown", "passed", "window-unknown")


def test_without_most_an_unknown_window_condenses_nothing() -> None:
    _, answer = answered(MOST, marks={"most": 0})
    assert (answer.action, answer.reason) == ("passed", "window-unknown")


@pytest.mark.parametrize("window", [None, 1_000_000])
def test_a_price_step_of_the_settings_is_a_trigger(window: int | None) -> None:
    models = [{"match": "*", "prices": STEP, "window": window, "marks": {"most": 0}}]
    _, answer = answered(MOST, models=models)
    assert answer.action == "condensed"


def test_a_price_step_of_the_table_is_none_at_a_server_with_prices_of_its_own() -> None:
    with proxy_with_upstream(strategy="extract", window=None, marks={"most": 0}) as stage:
        stage.model = "claude-haiku-5-5"
        answer = stage.ask(chat(rounds_over(101_000)), controls(session="s"))
    assert (answer.window, answer.action) == ("1000000", "passed")


def test_a_large_window_is_left_only_at_the_share_where_most_is_higher() -> None:
    _, answer = answered(MOST, marks={"most": 50_000}, window=1_000_000)
    assert answer.action == "passed"


def test_where_the_users_own_words_are_above_most_the_rest_is_condensed_and_the_next_cut_waits() -> None:
    said, told = "What of it? " * 100, "It is so. " * 100
    talk = [
        {"role": role, "content": f"{i}: {text}"}
        for i in range(20)
        for role, text in (("user", said), ("assistant", told))
    ]
    with proxy_with_upstream(strategy="extract", window=None, marks={"most": MOST // 2}) as stage:
        stage.model = "somebodys-finetune"
        first, more = {"role": "user", "content": "Go on."}, {"role": "user", "content": "And then?"}
        answer = stage.ask([*talk, first], controls(session="s"))
        assert answer.action == "condensed"
        assert sum(each["content"].endswith(said.strip() + " ") for each in stage.last_view) == 20
        reply = {"role": "assistant", "content": "I went on."}
        assert stage.ask([*talk, first, reply, more], controls(session="s")).action == "replayed"
