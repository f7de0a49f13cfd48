"""Plans: how a view becomes the next one, and every way in which one may be wrong."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.core.errors import InvalidPlan
from strategies.core.messages import dump
from strategies.core.pieces import Keep, Literal, Overlay, PieceKind
from strategies.core.plan import (
    Plan,
    Replace,
    apply,
    check,
    head_pieces,
    newest_is_shortened,
    replace_before,
    task_piece,
    violations,
)
from strategies.core.view import View, fold
from tests.strategies.driving import later, texts
from tests.support.transcripts import (
    WORDS,
    Body,
    agent,
    assistant,
    call,
    conversations,
    message,
    system,
    tool,
    transcript_of,
    user,
    view_of,
    words,
)

SUMMARY = Literal(dump(user("[summary]")), PieceKind.REPLACEMENT)
WORK: list[Body] = [
    user("task"),
    assistant(None, call("a"), call("b")), tool("a", "ra"), tool("b", "rb"),
    assistant("so far"),
    user("go on"),
    assistant(None, call("c")), tool("c", "rc"),
]  # fmt: skip


def planned(bodies: list[Body], *edits: Replace) -> View:
    return apply(view_of(bodies), Plan(edits))


def refusal(bodies: list[Body], *edits: Replace, shorten: bool = False) -> str:
    with pytest.raises(InvalidPlan) as error:
        check(planned(bodies, *edits), may_cut_newest_results=shorten)
    return error.value.detail


def literal_of(body: Body, kind: PieceKind, origin: int) -> Literal:
    return Literal(dump(body), kind, origin)


def test_pieces_take_the_place_of_a_span() -> None:
    view = planned(WORK, Replace(0, 5, (Keep(0), SUMMARY)))
    assert texts(view) == ["task", "[summary]", "go on", "", "rc"]
    assert (view.head_size, view.covered_count) == (2, 5)
    assert head_pieces(view) == (Keep(0), SUMMARY)
    check(view)


def test_edits_apart_leave_what_lies_between_them_in_the_head() -> None:
    masked = literal_of(tool("a", "[a]"), PieceKind.MASKED, 2)
    view = planned(WORK, Replace(2, 3, (masked,)), Replace(4, 5))
    assert texts(view) == ["task", "", "[a]", "rb", "go on", "", "rc"]
    assert head_pieces(view) == (Keep(0), Keep(1), masked, Keep(3))
    assert (view.head_size, view.covered_count) == (4, 5)


def test_a_plan_on_a_condensed_view_makes_one_complete_head() -> None:
    view = planned(WORK, Replace(0, 4, (Keep(0), SUMMARY)))
    view = apply(view, Plan((Replace(2, 3),)))
    assert head_pieces(view) == (Keep(0), SUMMARY)
    assert view.covered_count == 5
    grown = transcript_of([*WORK, assistant("done")])
    assert texts(later(view, grown)) == ["task", "[summary]", "go on", "", "rc", "done"]


def test_an_edit_inside_the_head_leaves_what_it_covers() -> None:
    view = planned(WORK, Replace(0, 5, (Keep(0), SUMMARY)))
    again = apply(view, Plan((Replace(1, 2, (Literal(dump(user("[new]")), PieceKind.REPLACEMENT),)),)))
    assert (again.head_size, again.covered_count, texts(again)[1]) == (2, 5, "[new]")


@pytest.mark.parametrize(
    "edits",
    [
        [Replace(0, 5), Replace(4, 6)],
        [Replace(5, 6), Replace(0, 1)],
        [Replace(3, 3)],
        [Replace(4, 2)],
        [Replace(7, 9)],
        [Replace(-1, 1)],
    ],
    ids=["overlap", "order", "empty", "backwards", "outside", "negative"],
)
def test_spans_that_overlap_or_lie_outside_are_refused(edits: list[Replace]) -> None:
    with pytest.raises(InvalidPlan, match="overlaps or is outside"):
        planned(WORK, *edits)


@pytest.mark.parametrize("span", [(0, 2), (2, 4), (1, 3), (3, 4), (2, 5), (6, 7)])
def test_a_span_between_a_call_and_its_result_is_refused(span: tuple[int, int]) -> None:
    with pytest.raises(InvalidPlan, match="parts a call from its result"):
        planned(WORK, Replace(*span))


def test_a_message_may_be_rewritten_in_its_place_within_a_round() -> None:
    check(planned(WORK, Replace(2, 3, (literal_of(tool("a", "[a]"), PieceKind.MASKED, 2),))))


WITH_SYSTEM: list[Body] = [
    user("task"), system("Be brief."),
    assistant(None, call("a"), call("b")), tool("a", "ra"), tool("b", "rb"),
    assistant("done"), user("go on"),
]  # fmt: skip
MASKED_A = Literal(dump(tool("a", "[masked]")), PieceKind.MASKED, 2)


def test_a_head_ends_behind_a_whole_round() -> None:
    view = planned(WITH_SYSTEM, Replace(2, 3, (MASKED_A,)))

    assert (view.head_size, view.covered_count) == (4, 4)
    assert [each.text for each in view.messages] == ["task", "", "[masked]", "rb", "Be brief.", "done", "go on"]
    check(view)


def test_a_head_inside_a_round_with_system_messages_to_follow_is_refused() -> None:
    transcript = transcript_of(WITH_SYSTEM)
    inside = Overlay(transcript.digests[2], 0, 3, (Keep(0), Keep(1), MASKED_A))

    with pytest.raises(InvalidPlan, match="separate a call from its results"):
        check(fold(transcript, (inside,), 0, WORDS))


def test_a_result_that_answers_another_call_is_refused() -> None:
    assert "new violations" in refusal(WORK, Replace(2, 3, (literal_of(tool("z", "[a]"), PieceKind.MASKED, 2),)))


def test_a_call_that_is_left_without_its_result_is_refused() -> None:
    lost = literal_of(user("[a]"), PieceKind.MASKED, 2)
    assert "new violations" in refusal(WORK, Replace(2, 3, (lost,)))


def test_two_replacements_are_refused() -> None:
    assert refusal(WORK, Replace(1, 5, (SUMMARY, SUMMARY))) == "two replacements in one view"


def test_a_view_without_the_first_user_message_is_refused() -> None:
    assert refusal(WORK, Replace(0, 5, (SUMMARY,))) == "the first user message is gone"


@pytest.mark.parametrize(
    "piece", [(), (literal_of(user("go"), PieceKind.TASK, 5),), (SUMMARY,)], ids=["dropped", "cut", "replaced"]
)
def test_a_last_user_message_that_does_not_stand_is_refused(piece: tuple[Literal, ...]) -> None:
    assert "was changed" in refusal(WORK, Replace(5, 6, piece))


def test_a_newest_round_that_does_not_stand_is_refused() -> None:
    assert "was changed" in refusal(WORK, Replace(6, 8))
    cut_call = literal_of(assistant(None, call("c", "g")), PieceKind.SHORTENED, 6)
    assert "was changed" in refusal(WORK, Replace(6, 7, (cut_call,)), shorten=True)


def test_only_shorten_may_cut_the_newest_results_and_only_as_such() -> None:
    cut = Replace(7, 8, (literal_of(tool("c", "r…"), PieceKind.SHORTENED, 7),))
    assert "was changed" in refusal(WORK, cut)
    check(planned(WORK, cut), may_cut_newest_results=True)
    masked = Replace(7, 8, (literal_of(tool("c", "r…"), PieceKind.MASKED, 7),))
    assert "was changed" in refusal(WORK, masked, shorten=True)


def test_a_view_says_whether_its_newest_results_were_cut() -> None:
    assert not newest_is_shortened(view_of(WORK))
    assert newest_is_shortened(planned(WORK, Replace(7, 8, (literal_of(tool("c", "…"), PieceKind.SHORTENED, 7),))))
    assert not newest_is_shortened(planned(WORK, Replace(2, 3, (literal_of(tool("a", "…"), PieceKind.SHORTENED, 2),))))


def test_a_violation_that_the_client_sent_is_not_held_against_a_plan() -> None:
    broken = [user("task"), tool("gone", "x"), assistant("a"), assistant("b"), user("c")]
    check(planned(broken, Replace(2, 3)))


def test_violations_are_orphans_and_calls_without_results() -> None:
    def found(*bodies: Body) -> set[tuple[str, str]]:
        return violations(message(body) for body in bodies)

    assert found(*WORK) == set()
    assert found(user("a"), tool("x")) == {("orphan", "x")}
    assert found(assistant(None, call("x")), user("a")) == {("unanswered", "x")}
    assert found(assistant(None, call("x")), tool("x"), tool("x")) == {("orphan", "x")}
    assert found(assistant(None, call("x")), tool("x"), assistant(None, call("x")), user("b")) == {("unanswered", "x")}
    assert found(assistant(None, call("x"))) == set()
    old_style = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": ""}}
    assert found(old_style, {"role": "function", "name": "f", "content": ""}) == set()
    assert found(old_style, user("a")) == {("unanswered", "")}


@given(conversations(broken=True), st.data())
def test_new_violations_are_found_in_the_opening_of_a_view(bodies: list[Body], data: Any) -> None:
    transcript = transcript_of(bodies)
    covered = data.draw(st.integers(0, len(transcript.chain)))
    kept = tuple(Keep(i) for i in range(covered) if data.draw(st.booleans()))
    overlay = Overlay(b"", covered, covered, (SUMMARY, *kept))
    view = fold(transcript, (overlay,) if covered else (), 0, WORDS)
    there = violations(transcript.chain)
    assert violations(view.opening) - there == violations(view.item_messages) - there
    assert len(view.opening) <= len(view.item_messages)


def test_a_replacement_keeps_the_task_and_last_user_message() -> None:
    view = view_of([*WORK, *agent(3)[2:]])
    edit = replace_before(view, 10, SUMMARY, 100)
    assert edit == Replace(0, 10, (Keep(0), SUMMARY, Keep(5)))
    check(apply(view, Plan((edit,))))


def test_a_task_behind_the_cut_is_not_sent_twice() -> None:
    """An assistant's opening may be all that is condensed: the first user message then stays where it is."""
    view = view_of([assistant("Welcome. " + words(50)), user("task"), assistant("a"), user("b"), assistant("c")])
    edit = replace_before(view, 1, SUMMARY, 100)
    assert edit.pieces == (SUMMARY,)
    assert texts(apply(view, Plan((edit,))))[:2] == ["[summary]", "task"]


def test_a_task_beyond_its_cap_keeps_its_ends() -> None:
    view = view_of([user(f"begin {words(500)} end"), assistant("a"), user("b")])
    assert task_piece(view, 10_000) == (Keep(0),)
    (piece,) = task_piece(view, 100)
    assert isinstance(piece, Literal)
    assert (piece.kind, piece.source) == (PieceKind.TASK, 0)
    excerpt = apply(view, Plan((Replace(0, 1, (piece,)),))).items[0].message
    assert excerpt.tokens <= 100
    assert excerpt.text.startswith("begin")
    assert excerpt.text.endswith("end")


def test_a_task_that_is_the_last_user_message_is_never_cut() -> None:
    view = view_of([user(words(500)), assistant("a"), assistant("b")])
    assert task_piece(view, 100) == (Keep(0),)


def test_a_cut_task_stays_as_it_was_cut() -> None:
    view = view_of([user(words(500)), assistant("a"), user("b")])
    cut = apply(view, Plan((Replace(0, 1, task_piece(view, 100)),)))
    assert task_piece(cut, 50) == (cut.items[0].piece,)


def test_a_view_without_a_user_has_no_task_to_keep() -> None:
    view = view_of([assistant("a"), assistant("b")])
    assert task_piece(view, 100) == ()
    check(apply(view, Plan((replace_before(view, 1, SUMMARY, 100),))))


def test_another_task_than_the_clients_does_not_stand_there() -> None:
    work = [user("go"), assistant("a"), assistant("b"), assistant("c")]
    other = literal_of(user("stay"), PieceKind.TASK, 0)
    assert "was changed" in refusal(work, Replace(0, 2, (other, SUMMARY)))


def test_a_standing_memory_block_is_not_recorded() -> None:
    bodies = [user("task"), assistant("one"), user("two"), assistant("three"), user("four"), assistant("five")]
    transcript = transcript_of(bodies)
    block = Literal(dump(assistant("## Relevant Memories")), PieceKind.MEMORY)
    view = fold(transcript, (Overlay(transcript.digests[1], 2, 0, (block,)),), 0, WORDS)
    shorter = Literal(dump(assistant("3")), PieceKind.SHORTENED, 3)
    after = apply(view, Plan((Replace(4, 5, (shorter,)),)))
    assert block in [item.piece for item in after.front[: after.head_size]]
    assert head_pieces(after) == (Keep(0), Keep(1), Keep(2), shorter)
