"""The view: a transcript folded with its overlays, systems woven in."""

import json

import pytest

from strategies.core.messages import Role, dump
from strategies.core.pieces import Keep, Literal, Overlay, Piece, PieceKind
from strategies.core.transcript import Transcript
from strategies.core.view import View, fold
from tests.strategies.driving import texts
from tests.support.transcripts import (
    WORDS,
    Body,
    agent,
    assistant,
    bodies_of,
    call,
    message,
    system,
    tool,
    transcript_of,
    user,
    view_of,
)

SUMMARY = Literal(dump(user("[summary]")), PieceKind.REPLACEMENT)
CHAT: list[Body] = [user("one"), assistant("two"), user("three"), assistant("four"), user("five")]


def folded(bodies: list[Body], covered: int, *pieces: Piece, fixed: int = 0) -> View:
    transcript = transcript_of(bodies)
    return fold(transcript, (Overlay(transcript.digests[covered - 1], covered, covered, pieces),), fixed, WORDS)


def sent(view: View) -> list[object]:
    return [body["content"] for body in bodies_of(view)]


def test_without_overlays_a_view_is_the_transcript_byte_for_byte() -> None:
    raw = [
        '{"role":"system", "content":"s"}',
        '{ "role": "user","content":"u", "x": 1e2 }',
        '{"role":"assistant","content":null}',
    ]
    transcript = Transcript.of([message(json.loads(each), raw=each) for each in raw])
    view = fold(transcript, (), 5, WORDS)
    assert view.to_json() == "[" + ",".join(raw) + "]"
    assert not view.is_changed
    assert view.tokens == 5 + transcript.tokens


def test_a_head_stands_for_what_it_covers() -> None:
    view = folded(CHAT, 3, Keep(0), SUMMARY, Keep(2))
    assert sent(view) == ["one", "[summary]", "three", "four", "five"]
    assert (view.head_size, view.covered_count, view.is_changed) == (3, 3, True)
    assert (view.task, view.replacement, view.last_user) == (0, 1, 4)


def test_systems_before_the_first_message_lead() -> None:
    assert sent(folded([system("a"), system("b", "developer"), *CHAT], 3, SUMMARY)) == [
        "a",
        "b",
        "[summary]",
        "four",
        "five",
    ]


def test_systems_of_the_covered_span_follow_the_head_in_order() -> None:
    bodies = [CHAT[0], system("a"), *CHAT[1:3], system("b"), *CHAT[3:]]
    assert sent(folded(bodies, 3, SUMMARY, Keep(2))) == ["[summary]", "three", "a", "b", "four", "five"]


def test_systems_behind_the_head_stay_where_they_were() -> None:
    bodies = [*CHAT[:4], system("a"), CHAT[4], system("b")]
    assert sent(folded(bodies, 2, SUMMARY)) == ["[summary]", "three", "four", "a", "five", "b"]


@pytest.mark.parametrize("covered", range(1, 6))
def test_every_system_message_is_sent_once(covered: int) -> None:
    bodies = [each for i, body in enumerate(CHAT) for each in (system(f"s{i}"), body)] + [system("s5")]
    view = folded(bodies, covered, SUMMARY)
    systems = [str(content) for content in sent(view) if str(content).startswith("s") and content != "[summary]"]
    assert systems == ["s0", "s1", "s2", "s3", "s4", "s5"]


def test_a_head_without_pieces_drops_what_it_covers() -> None:
    view = folded([system("a"), CHAT[0], system("b"), *CHAT[1:]], 2)
    assert sent(view) == ["a", "b", "three", "four", "five"]
    assert view.is_changed


def test_systems_count_as_fixed_tokens() -> None:
    bodies = [system("a b c"), *CHAT]
    view = folded(bodies, 3, SUMMARY, fixed=10)
    assert view.fixed_tokens == 10 + transcript_of(bodies).system_tokens
    assert view.tokens == view.fixed_tokens + sum(item.message.tokens for item in view.items)


def test_the_overlay_that_covers_most_is_the_head() -> None:
    transcript = transcript_of(CHAT)
    short = Overlay(transcript.digests[0], 1, 1, (SUMMARY,))
    long = Overlay(transcript.digests[2], 3, 3, (SUMMARY, Keep(2)))
    assert fold(transcript, (short, long), 0, WORDS).covered_count == 3


def test_an_overlay_without_length_inserts_before_its_message() -> None:
    transcript = transcript_of(CHAT)
    memory = Literal(dump(user("[memory]")), PieceKind.MEMORY)
    view = fold(transcript, (Overlay(transcript.digests[3], 4, 0, (memory,)),), 0, WORDS)
    assert texts(view) == ["one", "two", "three", "four", "[memory]", "five"]
    assert view.last_user == 5
    assert len(view.structure.turns) == 3


def test_what_an_overlay_inserts_inside_the_head_is_not_shown() -> None:
    transcript = transcript_of(CHAT)
    memory = Overlay(transcript.digests[1], 2, 0, (Literal(dump(user("[memory]")), PieceKind.MEMORY),))
    head = Overlay(transcript.digests[2], 3, 3, (SUMMARY,))
    assert texts(fold(transcript, (memory, head), 0, WORDS)) == ["[summary]", "four", "five"]


def test_a_replacement_is_nobodys_turn_and_a_masked_message_keeps_its_place() -> None:
    bodies = [user("go"), assistant(None, call("a")), tool("a", "long"), user("Observation: x"), assistant("done")]
    masked = Literal(dump(tool("a", "[left out]")), PieceKind.MASKED, 2)
    view = folded(bodies, 4, Keep(0), SUMMARY, Keep(1), masked, Keep(3))
    assert [item.role for item in view.items] == [Role.USER, None, Role.ASSISTANT, Role.TOOL, Role.TOOL, Role.ASSISTANT]
    assert [item.source for item in view.items] == [0, None, 1, 2, 3, 4]
    assert len(view.structure.turns) == 1


def test_masked_output_without_a_tool_role_is_a_tool_result() -> None:
    bodies = [user("go"), assistant("ls"), user("Observation: x"), assistant("done")]
    view = folded(bodies, 3, Keep(0), Keep(1), Literal(dump(user("[left out]")), PieceKind.MASKED, 2))
    assert view.items[2].role is Role.TOOL


@pytest.mark.parametrize(
    ("bodies", "limit"),
    [
        (CHAT, 3),
        (CHAT[:4], 3),
        ([user("a"), assistant("b"), assistant("c")], 2),
        ([user("a"), assistant(None, call("x")), tool("x")], 1),
        ([user("a"), user("b"), user("c")], 2),
        ([user("a")], 0),
        ([assistant("a"), user("b")], 0),
        ([tool("x"), user("b")], 0),
    ],
)
def test_the_newest_round_and_last_user_message_are_not_condensed(bodies: list[Body], limit: int) -> None:
    assert view_of(bodies).last_cut == limit


def test_single_items_are_the_same_as_all_of_them() -> None:
    transcript = transcript_of(agent(6))
    pieces = (Keep(0), Literal('{"role":"user","content":"record"}', PieceKind.REPLACEMENT))
    overlay = Overlay(transcript.digests[4], 5, 5, pieces)
    for overlays in ((), (overlay,)):
        view = fold(transcript, overlays, 0, WORDS)
        assert view.size == len(view.items)
        assert [view.item(place) for place in range(view.size)] == list(view.items)
        assert list(view.item_messages) == [item.message for item in view.items]
        assert [view.item_of(view.items[i].source) for i in range(view.size) if view.items[i].source is not None] == [
            i for i in range(view.size) if view.items[i].source is not None
        ]
