"""Turns, rounds and the places where a list may be cut."""

import pytest
from hypothesis import given

from strategies.core.rounds import Structure, structure
from tests.strategies.test_invariants import STABLE
from tests.support.transcripts import Body, assistant, call, conversations, system, tool, transcript_of, user

U, A = user("u"), assistant("a")


def structured(*bodies: Body) -> Structure:
    return structure(transcript_of(bodies).chain)


def turns(found: Structure) -> list[tuple[int, int, int | None]]:
    return [(turn.start, turn.end, turn.user) for turn in found.turns]


def rounds(found: Structure) -> list[tuple[int, int]]:
    return [(each.start, each.end) for each in found.rounds]


def legal(found: Structure) -> list[int]:
    return [i for i, may in enumerate(found.cuts) if may]


def test_a_turn_is_a_user_message_and_all_that_follows() -> None:
    found = structured(U, A, U, A, A, U)
    assert turns(found) == [(0, 2, 0), (2, 5, 2), (5, 6, 5)]
    assert rounds(found) == [(1, 2), (3, 4), (4, 5)]
    assert legal(found) == list(range(7))


def test_what_stands_before_the_first_user_message_is_a_turn_without_one() -> None:
    found = structured(A, U, A)
    assert turns(found) == [(0, 1, None), (1, 3, 1)]
    assert rounds(found) == [(0, 1), (2, 3)]


def test_a_round_is_an_assistant_message_with_its_results() -> None:
    found = structured(
        U, assistant(None, call("a"), call("b")), tool("a"), tool("b"), assistant(None, call("c")), tool("c")
    )
    assert rounds(found) == [(1, 4), (4, 6)]
    assert found.newest_round == (4, 6)


def test_parallel_calls_are_never_parted_from_any_of_their_results() -> None:
    calls = assistant(None, call("a"), call("b"), call("c"))
    found = structured(U, calls, tool("c"), tool("a"), tool("b"), A)
    assert legal(found) == [0, 1, 5, 6]


def test_ids_that_are_used_again_belong_to_the_newest_call() -> None:
    again = [assistant(None, call("x")), tool("x")]
    found = structured(U, *again, *again, U, *again)
    assert legal(found) == [0, 1, 3, 5, 6, 8]
    assert rounds(found) == [(1, 3), (3, 5), (6, 8)]


def test_a_result_after_a_user_message_belongs_to_its_call() -> None:
    found = structured(U, assistant(None, call("a")), U, tool("a"), A)
    assert legal(found) == [0, 1, 4, 5]


def test_results_without_an_id_answer_the_assistant_before_them() -> None:
    old_style = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    result = {"role": "function", "name": "f", "content": "x"}
    found = structured(U, old_style, result, old_style, result, A)
    assert legal(found) == [0, 1, 3, 5, 6]


def test_output_in_user_messages_is_tied_to_no_old_call() -> None:
    """Both have no id; one tie over the whole list would leave no place to cut."""
    old_style = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    result = {"role": "function", "name": "f", "content": "x"}
    found = structured(U, old_style, result, A, user("Observation: 1"), A, user("Observation: 2"))
    assert legal(found) == [0, 1, 3, 5, 7]


def test_tool_output_as_a_user_message_opens_no_turn() -> None:
    found = structured(U, A, user("Observation: 1"), A, user("Observation: 2"))
    assert turns(found) == [(0, 5, 0)]
    assert rounds(found) == [(1, 3), (3, 5)]
    assert legal(found) == [0, 1, 3, 5]


def test_an_orphan_ties_to_the_assistant_before_it_and_else_to_nothing() -> None:
    assert legal(structured(tool("gone"), U, A)) == [0, 1, 2, 3]
    found = structured(U, A, tool("gone"), A)
    assert legal(found) == [0, 1, 3, 4]
    assert rounds(found) == [(1, 3), (3, 4)]


def test_a_result_before_any_assistant_is_a_round_of_its_own() -> None:
    assert rounds(structured(tool("a"), tool("b"), U)) == [(0, 2)]


def test_systems_between_a_call_and_its_result_are_not_seen() -> None:
    found = structured(system(), U, assistant(None, call("a")), system("now"), tool("a"), system(), A)
    assert legal(found) == [0, 1, 3, 4]
    assert rounds(found) == [(1, 3), (3, 4)]


def test_an_empty_list_has_one_cut_and_nothing_else() -> None:
    found = structure(())
    assert (found.turns, found.cuts, found.newest_round) == ([], [True], None)


@pytest.mark.parametrize("broken", [False, True])
def test_turns_cover_the_list_and_rounds_lie_inside_of_them(broken: bool) -> None:
    @given(bodies=conversations(broken=broken))
    @STABLE
    def check(bodies: list[Body]) -> None:
        chain = transcript_of(bodies).chain
        found = structure(chain)
        ends = [turn.end for turn in found.turns]
        assert [turn.start for turn in found.turns] == [0, *ends[:-1]]
        assert ends[-1] == len(chain)
        assert len(found.cuts) == len(chain) + 1
        assert found.cuts[0]
        assert found.cuts[-1]
        for turn in found.turns:
            places = [place for each in turn.rounds for place in each]
            assert places == sorted(places)
            assert all(turn.start <= place <= turn.end for place in places)

    check()
