"""Rows that keep number, place and role: what is done follows from the list alone, in steps."""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from strategies.core.budget import Budget
from strategies.rows import Rows
from tests.support.transcripts import WORDS, Words, assistant, call, message, tool, user, words

Body = dict[str, Any]
BUDGET = Budget.of(2_000, reserve=0)  # trigger 1,700, target 1,000, step 300


def gone_through(bodies: Sequence[Body], budget: Budget = BUDGET, overhead: int = 0) -> Rows:
    rows = Rows(WORDS, 60, 120)
    rows.go_through([message(each) for each in bodies], overhead, budget)
    return rows


def shown(bodies: Sequence[Body], budget: Budget = BUDGET) -> list[Body]:
    rows = gone_through(bodies, budget)
    return [json.loads(rows.shorter[i]) if i in rows.shorter else each for i, each in enumerate(bodies)]


def tokens(bodies: Sequence[Body]) -> int:
    return sum(map(WORDS.message, bodies))


def results(number: int, size: int = 100) -> list[Body]:
    return [tool(f"c{i}", words(size, f"w{i}")) for i in range(number)]


lists = st.lists(
    st.one_of(
        st.builds(lambda size, name: tool(f"c{name}", words(size, f"w{name}")), st.integers(1, 900), st.integers(0, 9)),
        st.builds(lambda size: user(words(size)), st.integers(1, 120)),
        st.builds(lambda name: assistant(None, call(f"c{name}")), st.integers(0, 9)),
    ),
    max_size=60,
)


@given(lists)
def test_only_results_change_and_none_becomes_larger(bodies: list[Body]) -> None:
    after = shown(bodies)
    for before, now in zip(bodies, after, strict=True):
        assert before == now or before["role"] == "tool"
        assert {**before, "content": ""} == {**now, "content": ""}
        assert WORDS.message(now) <= WORDS.message(before)
    assert tokens(bodies) - tokens(after) == gone_through(bodies).saved


@given(lists)
def test_what_is_done_to_a_list_begins_with_what_is_done_to_its_beginning_until_the_next_step(
    bodies: list[Body],
) -> None:
    for end in range(len(bodies)):
        before, after = shown(bodies[:end]), shown(bodies[: end + 1])
        if after[:end] != before:  # a step, which is worth it
            assert tokens(after) < tokens(before) + WORDS.message(bodies[end])


def test_steps_are_rare() -> None:
    bodies, before, steps = results(110), list[Body](), list[int]()
    for end in range(1, len(bodies) + 1):
        after = shown(bodies[:end])
        if after[: end - 1] != before:
            steps.append(end)
        before = after
    assert steps[0] == 14  # 1,700 less a step are 13 results
    assert all(later - step >= 4 for step, later in pairwise(steps))
    assert tokens(before) < 1_700


def test_a_row_that_comes_in_before_others_moves_no_step() -> None:
    bodies = results(30)
    for place in (0, 10, 29):
        put_in = [*bodies[:place], user("Fix the door."), *bodies[place:]]
        rest = shown(put_in)
        assert [*rest[:place], *rest[place + 1 :]] == shown(bodies)


def test_lines_lose_their_words_before_they_fill_the_window() -> None:
    after = shown(results(200))
    contents = [each["content"] for each in after]
    assert contents[0] == "[…]"
    assert any(each.startswith("[result of a tool left out: ") for each in contents)
    assert contents[-1] == results(200)[-1]["content"]


def test_a_line_names_the_call_where_it_is_in_the_list_and_no_handle() -> None:
    read = assistant(None, call("c0", "read_file", {"path": "src/a.py"}))
    after = shown([read, *results(20)])
    assert after[1]["content"].startswith("[result of read_file on src/a.py left out: ")
    assert "handle" not in after[1]["content"]


def test_of_one_result_that_is_too_large_its_ends_stay() -> None:
    (after,) = shown([tool("c", words(5_000))])
    assert after["content"].startswith("word")
    assert after["content"].endswith("word")
    assert tokens([after]) <= 700


def test_a_result_that_fits_is_never_cut() -> None:
    assert shown(results(13)) == results(13)
    assert shown([tool("c", words(1_300))]) == [tool("c", words(1_300))]


def test_what_other_rows_take_is_room_for_fewer_results() -> None:
    assert not gone_through(results(13)).saved
    assert gone_through([user(words(350)), *results(13)]).saved
    assert gone_through(results(13), overhead=350).saved


def test_a_result_that_may_not_be_cut_is_not_tried_again_with_each_row() -> None:
    class Counting(Words):
        counted = 0

        def message(self, value: Mapping[str, Any]) -> int:
            self.counted += 1
            return super().message(value)

    counter = Counting()
    rows = Rows(counter, 60, cut_to=10_000)
    rows.go_through([message(tool("c", words(9_000))), *[message(user("go on"))] * 100], 0, BUDGET)
    assert (rows.shorter, counter.counted) == ({}, 0)
