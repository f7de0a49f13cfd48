"""History as text for a summarizer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.core.budget import Budget
from strategies.core.history import WIDEST, Limits, as_text, break_fences, in_parts, originals
from strategies.core.plan import Plan, apply
from tests.strategies.driving import condensed
from tests.strategies.test_invariants import STABLE
from tests.support.transcripts import (
    WORDS,
    Body,
    agent,
    assistant,
    call,
    chat,
    conversations,
    tool,
    user,
    view_of,
    words,
)


def text_of(bodies: list[Body], cap: int = 100_000) -> str:
    view = view_of(bodies)
    return as_text(originals(view, view.items), cap, WORDS)


def test_every_message_stands_in_a_fence_with_its_place_and_role() -> None:
    assert text_of([user("a"), assistant("b", call("c", "f", '{"x": 1}')), tool("c", "d")]) == (
        '<message index="0" role="user">\na\n</message>\n'
        '<message index="1" role="assistant">\nb\ncalls f({"x": 1})\n</message>\n'
        '<message index="2" role="tool">\nd\n</message>'
    )


def test_tool_output_gives_way_first() -> None:
    bodies = [user("what the user said " + words(300)), assistant(None, call("c")), tool("c", words(3_000, "noise"))]
    text = text_of(bodies, cap=1_500)
    assert "[…]" in text
    assert text.count(" word") + text.count("\nword") == 300
    assert text.count("noise") < 1_500


@pytest.mark.parametrize("cap", [60, 300, 1_000, 5_000])
def test_the_text_fits_its_cap_and_keeps_both_ends(cap: int) -> None:
    text = text_of(chat(40, size=200), cap)
    assert WORDS.text(text) <= cap
    assert "left out" in text or "[…]" in text
    if cap >= 300:
        assert "Question 0?" in text
        assert "And now?" in text


@given(bodies=conversations(broken=True), cap=st.sampled_from([100, 400, 2_000]))
@STABLE
def test_the_text_of_any_history_fits_its_cap(bodies: list[Body], cap: int) -> None:
    assert WORDS.text(text_of(bodies, cap)) <= cap


def parts_of(bodies: list[Body], cap: int, most: int = 8, limits: Limits = WIDEST) -> list[str]:
    view = view_of(bodies)
    return in_parts(originals(view, view.items), cap, most, WORDS, limits)


def test_a_history_that_fits_is_one_part() -> None:
    assert parts_of(agent(5), 10_000) == [text_of(agent(5))]
    assert parts_of([], 100) == [""]


def test_a_history_that_does_not_fit_is_cut_between_messages() -> None:
    bodies = chat(30, size=100)
    parts = parts_of(bodies, cap=1_000)
    assert len(parts) == 5
    assert "\n".join(parts) == text_of(bodies)


def test_where_there_would_be_too_many_parts_every_message_gives_way() -> None:
    bodies = [user("go"), *(body for i in range(40) for body in agent(1, size=800)[2:])]
    parts = parts_of(bodies, cap=1_200, most=6)
    assert 2 < len(parts) <= 6
    assert "\n".join(parts).count("</message>") == 81
    assert "[…]" in parts[0]


def test_at_last_the_middle_is_left_out() -> None:
    parts = parts_of(chat(400, size=100), cap=600, most=4)
    assert len(parts) <= 4
    assert "Question 0?" in parts[0]
    assert "And now?" in parts[-1]
    assert sum(part.count("messages left out") for part in parts) == 1


def test_no_message_has_more_than_the_limits() -> None:
    bodies = [user("u" * 500), assistant("a" * 500, call("c", "f", "b" * 500)), tool("c", "r" * 500)]
    (part,) = parts_of(bodies, 5_000, limits=Limits(200, 100, 50))
    assert [part.count(letter * 100) for letter in "ua"] == [2, 2]
    assert "r" * 50 in part
    assert "r" * 51 not in part
    assert "b" * 26 not in part


@given(bodies=conversations(broken=True), cap=st.sampled_from([100, 400, 2_000]), most=st.sampled_from([1, 3, 8]))
@STABLE
def test_all_parts_of_any_history_fit_their_cap(bodies: list[Body], cap: int, most: int) -> None:
    parts = parts_of(bodies, cap, most)
    assert 1 <= len(parts) <= most
    assert all(WORDS.text(part) <= cap for part in parts)


def test_a_masked_result_is_shown_as_the_client_sent_it() -> None:
    view = condensed("mask", view_of(agent(10, size=200)), Budget.of(2_000))
    assert "left out" in view.items[2].message.text
    index, message = originals(view, view.items)[2]
    assert message.raw == view.transcript.chain[index].raw
    assert originals(apply(view, Plan(())), view.items[:1])[0][0] == 0


def test_only_fences_are_broken() -> None:
    assert break_fences("</message>") == "<\\/message>"
    assert break_fences("<history> <earlier_record>") == "<\\history> <\\earlier_record>"
    assert break_fences("a <b> </messages> <messenger>") == "a <b> </messages> <messenger>"
