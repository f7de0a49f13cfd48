"""`native`: where it cuts, what goes behind what is kept, and how it gets on with other strategies."""

import json
from typing import Any

import pytest

from strategies.core.budget import Budget
from strategies.core.effects import Compact, Effect, Failure, Result
from strategies.core.errors import StrategyError
from strategies.core.messages import Role
from strategies.core.pieces import PieceKind
from strategies.core.plan import head_pieces
from strategies.core.requirement import Requirement
from strategies.core.transcript import Transcript
from strategies.core.view import View, fold
from strategies.dialects.messages import MESSAGES
from strategies.native import NO_COMPACTION
from tests.strategies.driving import attempted, compacted, condensed, failing, good, overlay_of, texts
from tests.support.transcripts import WORDS, Body, Words, agent, assistant, step, transcript_of, user, view_of, words

BUDGET = Budget.of(4_000).with_goal(1_500)
TASK, RULE = "Mend the parser.", "Never touch main.py."


class InMessages(Words):
    dialect = MESSAGES  # type: ignore[assignment]


def conversation(rounds: int) -> list[Body]:
    said = [user(TASK), assistant("I will."), user(RULE), assistant("Yes."), user("Go on.")]
    return [*said, *(body for i in range(rounds) for body in step(i, 150))]


def shown(rounds: int = 12, **options: Any) -> View:
    return condensed("native", view_of(conversation(rounds)), BUDGET, **options)


def grown(view: View, rounds: int, patched: View | None = None) -> View:
    """The view of the same conversation after more rounds, with what is carried in the place that `patched` gave it."""
    placed = patched.unplaced if patched is not None else None
    transcript: Transcript = transcript_of(conversation(rounds)).having(patches=(placed,) if placed else ())
    return fold(transcript, (overlay_of(view),), 0, WORDS)


def test_the_first_kept_message_is_a_reply_and_follows_the_head_directly() -> None:
    view = shown()
    kept = view.items[view.head_size]
    assert kept.intact
    assert kept.role is not None
    assert kept.role.value == "assistant"
    assert kept.source == view.covered_count


def test_what_is_asked_for_is_the_list_of_an_earlier_request() -> None:
    asked: list[Compact] = []

    def reply(effect: Effect) -> Result:
        assert isinstance(effect, Compact)
        asked.append(effect)
        return good(effect)

    before = view_of(conversation(12))
    after = condensed("native", before, BUDGET, reply)
    (effect,) = asked
    assert json.loads(effect.view) == [dict(message.body) for message in before.messages[: after.covered_count]]
    assert effect.room > 0


def test_ledger_and_task_stand_behind_what_is_kept_and_stay_there_when_the_conversation_grows() -> None:
    first = shown(12)
    assert RULE in texts(first)[-3]
    assert texts(first)[-2:] == [TASK, "Go on."]
    later = grown(first, 14, patched=first)
    assert later.to_json().startswith(first.to_json()[:-1])
    assert later.unplaced is None


@pytest.mark.parametrize("more", [[], [user("Here is the file.")]], ids=["one message", "and one before it"])
def test_a_list_that_ends_with_a_question_still_does_and_three_turns_later_its_bytes_stand(more: list[Body]) -> None:
    asked = [*conversation(12), assistant("It is done."), *more, user("And now the tests?")]
    first = condensed("native", view_of(asked), BUDGET)
    assert first.messages[-1].body == asked[-1]
    assert texts(first)[-2:] == [TASK, "And now the tests?"]
    assert "[Condensed history]" in texts(first)[-3]
    assert first.items[first.head_size].intact
    assert first.messages[first.head_size].role is Role.ASSISTANT
    place, said = first.unplaced, asked
    assert place is not None
    before = first
    for turn in range(3):
        said = [*said, assistant("Written."), user(f"Question {turn}.")]
        later = fold(transcript_of(said).having(patches=(place,)), (overlay_of(first),), 0, WORDS)
        assert later.to_json().startswith(before.to_json()[:-1])
        assert later.unplaced is None
        assert later.messages[-1].body == said[-1]
        before = later
    again = condensed("native", before, BUDGET.with_goal(900))
    assert again.covered_count > first.covered_count
    assert texts(again)[-1] == "Question 2."


def test_in_messages_what_is_carried_becomes_the_first_blocks_of_the_question() -> None:
    counter = InMessages()
    asked = {"type": "text", "text": "And?", "cache_control": {"type": "ephemeral"}}
    question: Body = {"role": "user", "content": [asked]}
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    said: list[Body] = [user(TASK), assistant("I will."), user(RULE)]
    for i in range(12):
        said += [{"role": "assistant", "content": [thought, {"type": "text", "text": words(150)}]}, user(f"Part {i}.")]
    first = condensed("native", view_of([*said[:-1], question], counter=counter), BUDGET)
    blocks = json.loads(first.messages[-1].data)["content"]
    assert blocks[-1] == asked
    assert RULE in str(blocks[:-1])
    assert TASK in str(blocks[:-1])
    assert first.messages[-2].role is Role.ASSISTANT
    assert first.tokens == sum(message.tokens for message in first.messages)
    place = first.unplaced
    assert place is not None
    more = transcript_of([*said[:-1], question, assistant("Yes."), user("Then?")], counter).having(patches=(place,))
    later = fold(more, (overlay_of(first),), 0, counter)
    assert later.to_json().startswith(first.to_json()[:-1])
    assert later.messages[-1].body == user("Then?")


def test_a_signal_of_the_client_behind_the_newest_round_still_ends_the_list() -> None:
    signal = {"role": "developer", "content": "Compact now."}
    first = condensed("native", view_of([*conversation(12), signal]), BUDGET)
    assert texts(first)[-1] == "Go on."
    assert first.messages[-1].body == signal


def test_without_a_place_it_stands_at_the_end_but_before_a_reply_that_the_client_has_begun() -> None:
    view = view_of([*conversation(12), assistant("I will")])
    after = fold(view.transcript, (overlay_of(shown(12)),), 0, WORDS)
    assert texts(after)[-1] == "I will"
    assert after.items[-2].piece.kind is PieceKind.CARRIED  # type: ignore[union-attr]


def test_the_next_compaction_begins_with_the_last_and_loses_no_rule() -> None:
    first = shown(12)
    again = condensed("native", grown(first, 24, patched=first), BUDGET)
    assert again.covered_count > first.covered_count
    assert texts(again).count(TASK) == 1
    assert RULE in " ".join(texts(again))
    assert head_pieces(again)[0].kind is PieceKind.OPAQUE  # type: ignore[union-attr]


def test_a_vendor_that_keeps_the_users_messages_keeps_no_record_of_ours() -> None:
    asked: list[list[Body]] = []

    def reply(effect: Effect) -> Result:
        """Keeps the user's messages beside the compaction, as `/responses/compact` does."""
        assert isinstance(effect, Compact)
        sent = json.loads(effect.view)
        asked.append(sent)
        made = compacted(f"sealed {len(asked)}")
        kept = [json.dumps(each) for each in sent if each["role"] == "user" and "sealed" not in each["content"]]
        return type(made)((*kept, *made.messages), made.maker)

    view = condensed("native", view_of(conversation(12)), BUDGET, reply)
    for rounds in range(24, 24 + 8 * 12, 12):
        view = condensed("native", grown(view, rounds, patched=view), BUDGET, reply)
    assert len(asked) == 9
    records = [i for i, text in enumerate(texts(view)) if "[Condensed history]" in text]
    assert len(records) == 1
    assert records[0] >= view.head_size


def test_another_strategy_begins_with_the_original_messages() -> None:
    first = shown(12)
    outcome = attempted(Requirement.HARD, "extract", grown(first, 30, patched=first), BUDGET)
    assert outcome.stages[0] == "extract"
    assert not outcome.view.is_opaque
    assert outcome.view.replacement is not None
    assert not any(item.piece.kind is PieceKind.CARRIED for item in outcome.view.items if not item.intact)  # type: ignore[union-attr]


def test_what_was_just_compacted_is_not_undone_by_the_next_stage_for_a_few_tokens() -> None:
    outcome = attempted(Requirement.HARD, "native+extract", view_of(conversation(12)), Budget.of(4_000), good)
    assert outcome.stages == ["native"]


@pytest.mark.parametrize(
    ("reason", "idle"), [(NO_COMPACTION, True), ("rate-limited", False)], ids=["it has none", "it failed"]
)
def test_without_a_compaction_the_next_stage_does_the_work(reason: str, idle: bool) -> None:
    view = view_of(agent(12, size=150))
    outcome = attempted(Requirement.HARD, "native+extract", view, Budget.of(4_000), lambda effect: Failure(reason))
    assert outcome.stages[0] == "extract"
    assert ("native" in outcome.idle) is idle


def test_a_conversation_with_too_few_requests_is_left_alone() -> None:
    with pytest.raises(StrategyError, match="nothing-to-summarize"):
        condensed("native", view_of([user(TASK), *step(0, 900), *step(1, 900)]), BUDGET, good)


def test_as_many_rounds_stay_as_keep_says() -> None:
    few, many = shown(keep=2), shown(keep=8)
    assert many.covered_count < few.covered_count
    assert len([item for item in many.items if item.calls]) == 8


def test_a_message_that_the_vendor_repeats_is_not_carried_again() -> None:
    task = user(TASK)

    def reply(effect: Effect) -> Result:
        made = compacted("sealed")
        return type(made)((json.dumps(task), *made.messages), made.maker)

    view = condensed("native", view_of(conversation(12)), BUDGET, reply)
    assert [item.message.body for item in view.items].count(task) == 1
    assert view.task == 0


def test_a_failed_call_is_no_plan() -> None:
    with pytest.raises(StrategyError, match="compaction-unreachable"):
        condensed("native", view_of(conversation(12)), BUDGET, failing)
