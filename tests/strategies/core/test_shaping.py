"""Forms: if a strict server accepts the client's list, it also accepts every list that we make of it."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies import TABLE
from strategies.core.budget import Budget
from strategies.core.errors import StrategyError
from strategies.core.messages import Form, Role, dump
from strategies.core.pieces import Keep, Literal, Overlay, Piece, PieceKind
from strategies.core.replacement import context_summary, replacement
from strategies.core.requirement import Requirement
from strategies.core.view import BRIDGE, Placed, View, fold, shape
from strategies.dialects.chat import CALLING
from tests.strategies.driving import attempted, later
from tests.strategies.test_invariants import FEWER
from tests.support.strict_servers import DEMANDS, accepted, alternation, no_names, refusal_of, sides, systems_first
from tests.support.transcripts import (
    WORDS,
    Body,
    assistant,
    bodies_of,
    call,
    conversations,
    largest_of_each_kind,
    step,
    system,
    tool,
    transcript_of,
    user,
    view_of,
    words,
)

STRICT = Form(alternate_roles=True, assistant_name=False, empty_assistant=False, middle_system=False)
ALTERNATING = Form(alternate_roles=True)
PIPELINES = [*(name for name in TABLE if name != "off"), "mask+half-window"]

RECORD = replacement("It was planned.", 3, WORDS.dialect)
SUMMARY = context_summary("It was planned.", 3, WORDS.dialect)
BLOCK = Literal(dump({"role": "assistant", "name": "memory_context", "content": "[memory]"}), PieceKind.MEMORY)
LEAD_IN = Literal(dump(assistant("")), PieceKind.LEAD_IN)
CHAT: list[Body] = [user("one"), assistant("two"), user("three"), assistant("four"), user("five")]


def folded(bodies: Sequence[Body], covered: int, *pieces: Piece, form: Form = STRICT) -> View:
    transcript = replace(transcript_of(bodies), form=form)
    return fold(transcript, (Overlay(transcript.digests[covered - 1], covered, covered, pieces),), 0, WORDS)


def written(view: View, form: Form | None) -> View:
    return replace(view, transcript=replace(view.transcript, form=form))


def roles(view: View) -> list[str]:
    return [body["role"] for body in bodies_of(view)]


# -- every strategy ------------------------------------------------------------------------------------------------


def check(pipeline: str, bodies: list[Body], window: int) -> bool:
    """Whether something was condensed; every form of it is one that a server with all demands takes."""
    assert refusal_of(bodies) == ""
    view, outcome = view_of(bodies), None
    with suppress(StrategyError):
        outcome = attempted(Requirement.HARD, pipeline, view, Budget.of(window))
    if outcome is None:
        return False
    shaped = written(outcome.view, STRICT)
    assert refusal_of(bodies_of(shaped)) == ""
    assert shaped.tokens == sum(WORDS.message(each) for each in bodies_of(shaped))
    assert_grows(shaped, bodies)
    return True


def assert_grows(view: View, bodies: list[Body]) -> None:
    """What follows changes nothing that was sent before."""
    if bodies[-1]["role"] != "user":
        return
    longer = replace(transcript_of([*bodies, assistant("Good."), user("And?")]), form=STRICT)
    assert later(view, longer).to_json().startswith(view.to_json()[:-1])


def played(turns: Sequence[tuple[int, int]]) -> list[Body]:
    """A conversation of turns, each with so many calls whose results, and answers, are of so many tokens."""
    bodies: list[Body] = [system()]
    for number, (calls, size) in enumerate(turns):
        bodies.append(user(f"Question {number}? {words(size // 4)}"))
        for each in range(calls):
            bodies += [*step(10 * number + each, size)]
        bodies.append(assistant(f"Answer {number}: {words(size)}"))
    return accepted([*bodies, user("And now?")])


OF_CHAT = [each for each in PIPELINES if each != "native"]  # no chat server has a compaction
turns = st.tuples(st.integers(0, 3), st.sampled_from([5, 60, 200]))


@pytest.mark.parametrize("pipeline", OF_CHAT)
@given(talk=st.lists(turns, min_size=4, max_size=9), window=st.sampled_from([300, 700]))
@FEWER
def test_every_view_fits_strict_servers(pipeline: str, talk: list[tuple[int, int]], window: int) -> None:
    check(pipeline, played(talk), window)


@pytest.mark.parametrize("pipeline", OF_CHAT)
def test_what_is_generated_here_is_condensed(pipeline: str) -> None:
    assert check(pipeline, played([(number % 3, 60) for number in range(8)]), 700)


@pytest.mark.parametrize("pipeline", ["recent", "semantic", "rolling", "mask+half-window"])
def test_a_strict_server_takes_recorded_conversations_when_they_are_condensed(pipeline: str) -> None:
    condensed = [
        check(pipeline, accepted(one.messages), window)
        for one in largest_of_each_kind(at_most=100)
        for window in (1_000, 4_000)
    ]
    assert any(condensed)


# -- one thing at a time -------------------------------------------------------------------------------------------


def test_the_record_joins_the_messages_beside_it() -> None:
    view = folded(CHAT, 4, Keep(0), RECORD)
    (body,) = bodies_of(view)
    assert body["content"].startswith("one\n\n[Condensed history]")
    assert body["content"].endswith("It was planned.\n\nfive")


def test_only_seams_are_written_anew() -> None:
    view = folded(CHAT, 3, Keep(0), RECORD, form=ALTERNATING)
    sent = [message.data for message in view.messages]
    assert sent[1:] == [message.data for message in view.transcript.chain[3:]]


def test_two_messages_of_the_clients_that_were_neighbours_stay_two() -> None:
    bodies = [user("one"), assistant("two"), user("three"), user("four")]
    view = folded(bodies, 2, Keep(0), RECORD, form=ALTERNATING)
    assert [body["content"] for body in bodies_of(view)][1:] == ["four"]
    assert alternation(bodies_of(view)) != ""


def test_parts_stay_parts_when_messages_become_one() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    view = folded([user([picture]), assistant("two"), user("three")], 2, Keep(0), RECORD)
    (body,) = bodies_of(view)
    assert body["content"][0] == picture
    assert [part["type"] for part in body["content"]] == ["image_url", "text", "text"]


def test_a_record_of_the_assistants_becomes_the_users_where_roles_alternate() -> None:
    assert roles(folded(CHAT, 2, Keep(0), SUMMARY, form=ALTERNATING)) == ["user", "assistant", "user"]
    assert sides(bodies_of(folded(CHAT, 2, Keep(0), SUMMARY, form=Form()))) == ""


def test_answers_that_meet_become_one_with_its_calls() -> None:
    bodies = [user("one"), assistant("two"), user("three"), *step(1), assistant("done")]
    view = folded(bodies, 3, Keep(0), Keep(1), form=ALTERNATING)
    sent = bodies_of(view)
    assert [body["role"] for body in sent] == ["user", "assistant", "tool", "assistant"]
    assert sent[1]["content"] == "two"
    assert sent[1]["tool_calls"][0]["id"] == "c1"


def test_a_users_message_that_comes_to_stand_behind_a_result_is_bridged() -> None:
    bodies = [user("one"), *step(1), assistant("two"), user("three")]
    view = folded(bodies, 4, Keep(0), Keep(1), Keep(2), form=ALTERNATING)
    assert bodies_of(view)[3:] == [assistant(BRIDGE), user("three")]


def test_a_memory_block_joins_the_message_that_it_is_about() -> None:
    transcript = replace(transcript_of(CHAT), form=STRICT)
    view = fold(transcript, (Overlay(transcript.digests[3], 4, 0, (BLOCK,)),), 0, WORDS)
    assert [body["content"] for body in bodies_of(view)] == ["one", "two", "three", "four", "[memory]\n\nfive"]


def test_names_of_ours_go_where_they_are_refused_and_the_clients_stay() -> None:
    bodies = [user("one"), {**assistant("two"), "name": "gardener"}, user("three")]
    view = folded(bodies, 1, Keep(0), SUMMARY, form=Form(assistant_name=False))
    assert ["name" in body for body in bodies_of(view)] == [False, False, True, False]
    assert no_names(bodies_of(folded(CHAT, 2, Keep(0), SUMMARY))) == ""


@pytest.mark.parametrize("form", [Form(middle_system=False), ALTERNATING])
def test_condensed_systems_go_to_the_front_if_they_must(form: Form) -> None:
    bodies = [system("a"), user("one"), assistant("two"), system("b"), user("three"), assistant("four"), user("five")]
    view = folded(bodies, 4, Keep(0), RECORD, form=form)
    assert [body["content"] for body in bodies_of(view)][:2] == ["a", "b"]
    assert systems_first(bodies_of(view)) == ""


def test_a_form_that_takes_anything_changes_nothing() -> None:
    view = folded(CHAT, 3, Keep(0), LEAD_IN, SUMMARY, BLOCK, form=Form())
    assert view.to_json() == written(view, None).to_json()


def test_an_unchanged_list_keeps_its_bytes_in_every_form() -> None:
    broken = [user("one"), user("two"), assistant(None), tool("nobody"), {**assistant("x"), "name": "n"}, system()]
    view = view_of(broken)
    assert json.loads(written(view, STRICT).to_json()) == json.loads(view.to_json())


@given(conversations(broken=True), st.sampled_from([STRICT, ALTERNATING, Form(middle_system=False)]))
def test_nothing_of_the_clients_own_list_is_brought_into_a_form(bodies: list[Body], form: Form) -> None:
    bare = fold(transcript_of(bodies).having(form=form), (), 3, WORDS)
    items, sent = iter(bare.items), list(bare.messages)
    placed = [Placed(each, None if each.role is Role.SYSTEM else next(items).piece) for each in sent]
    assert list(shape(placed, form, WORDS)) == sent
    assert bare.tokens == 3 + sum(each.tokens for each in sent)


def test_each_demand_is_one_that_the_plain_form_can_fail() -> None:
    bodies = [user("one"), *step(1), assistant("two"), system("b"), user("three")]
    view = folded(bodies, 4, Keep(0), Keep(1), Keep(2), LEAD_IN, SUMMARY, RECORD, form=Form())
    assert all(demand(bodies_of(view)) for demand in DEMANDS if demand.__name__ != "no_user_after_tool")


def test_an_empty_assistant_message_is_left_out_or_filled() -> None:
    form = Form(empty_assistant=False)
    assert roles(folded(CHAT, 3, Keep(0), LEAD_IN, RECORD, form=form)) == ["user", "user", "assistant", "user"]
    masked = Literal(dump(assistant(None, call("c1", "bash", {"command": "[masked]"}))), PieceKind.MASKED, 1)
    view = folded([user("one"), *step(1), user("two")], 3, Keep(0), masked, Keep(2), form=form)
    assert bodies_of(view)[1]["content"] == CALLING
