"""The ledger that one replacement hands on to the next."""

import pytest

from strategies.core.budget import Budget
from strategies.core.ledger import Ledger, LedgerCaps
from strategies.core.replacement import ledger_caps, ledger_tokens, next_ledger, previous_record, text_room
from strategies.core.summary import MIN_RECORD, Cap, Span, record_cap
from strategies.core.view import View
from tests.strategies.driving import condensed, later
from tests.support.transcripts import WORDS, Body, assistant, chat, transcript_of, user, view_of, words

BUDGET = Budget.of(4_000)
RULE = "Never push to main."


def handed_on(view: View, end: int, budget: Budget = BUDGET) -> Ledger:
    caps = ledger_caps(budget, text_room(budget.summary_cap, WORDS))
    return next_ledger(view, view.items[:end], end, budget, caps)


def test_the_last_user_message_is_not_history_yet() -> None:
    view = view_of([user("Go."), assistant("Yes."), user(f"{RULE} See A-1."), assistant("So."), assistant("Done.")])
    assert handed_on(view, 4) == Ledger()


@pytest.mark.parametrize("last", [[], [user("And?"), assistant("So.")]], ids=["as the last", "as an earlier one"])
def test_the_first_message_is_not_taken_while_it_stands_whole(last: list[Body]) -> None:
    view = view_of([user(RULE), assistant("Yes."), assistant("So."), *last])
    assert handed_on(view, 2).said == ()


def test_a_first_message_that_a_smaller_window_cuts_is_taken_then() -> None:
    bodies: list[Body] = [user(f"{words(150)}.\n{RULE}\nSo {words(150)}."), assistant("Yes."), *chat(30, size=60)[1:]]
    before = condensed("half-window", view_of(bodies), BUDGET.with_goal(1_500))
    assert RULE not in str(previous_record(before)[1])
    grown = later(before, transcript_of([*bodies, assistant("So."), *chat(30, size=60)[1:]]))
    after = condensed("half-window", grown, Budget.of(2_000))
    assert RULE not in after.items[0].message.text
    assert RULE in str(previous_record(after)[1])


def test_a_rule_in_the_middle_of_a_long_first_message_is_taken() -> None:
    view = view_of([user(f"{words(900)}.\n{RULE}\nSo {words(900)}."), *chat(30, size=60)[2:]])
    after = condensed("half-window", view, BUDGET)
    assert RULE not in after.items[0].message.text
    assert RULE in str(previous_record(after)[1])


@pytest.mark.parametrize("strategy", ["summary", "extract"])
def test_a_rule_in_a_dropped_message_is_taken_later(strategy: str) -> None:
    bodies: list[Body] = [user("Go."), assistant("Yes."), user(RULE), *chat(30, size=60)[2:]]
    dropped = condensed("recent", view_of(bodies), BUDGET.with_goal(800))
    assert all(RULE not in item.message.text for item in dropped.items)
    grown = later(dropped, transcript_of([*bodies, assistant("So."), *chat(30, size=60)[1:]]))
    assert f"- {RULE}" in previous_record(condensed(strategy, grown, BUDGET.with_goal(800)))[1].said


def test_the_users_words_have_two_thirds_of_a_small_window() -> None:
    rules = "\n".join(f"Never open door number {i}." for i in range(80))
    view = view_of([user("Go."), assistant(" ".join(f"A-{i}" for i in range(90))), user(rules), *chat(3)])
    kept = handed_on(view, 3, Budget.of(3_000))
    most = text_room(Budget.of(3_000).summary_cap, WORDS)
    assert most / 3 < ledger_tokens(Ledger(kept.said), WORDS) <= most * 2 / 3 + 1
    assert 0 < ledger_tokens(Ledger((), kept.names), WORDS) <= most / 4 + 1
    assert ledger_tokens(kept, WORDS) <= most * 0.9 + 4


def test_where_the_record_would_have_no_room_names_give_way_to_it() -> None:
    rules = "\n".join(f"Never open door number {i}." for i in range(80))
    view = view_of([user("Go."), assistant(" ".join(f"A-{i}" for i in range(90))), user(rules), *chat(3)])
    budget = Budget(2_000, 0, ledger=LedgerCaps(1_000, 1_000))
    cap = record_cap(view, budget, 2_000)._replace(text=300)
    ledger, left = Span.before(view, 3, 10_000).ledger_and_room(cap, budget)
    assert (len(ledger.said) > 9, ledger.names) == (True, ())
    assert left >= 100


def test_in_a_short_span_the_users_words_leave_room_for_a_record() -> None:
    view = view_of(
        [user("Go."), assistant("Yes."), user("\n".join(f"Never open door {i}." for i in range(90))), *chat(3)]
    )
    budget = Budget.of(16_000)
    cap = Span.before(view, 3, 400).cap(record_cap(view, budget, 2_000))
    ledger, room = Span.before(view, 3, 400).ledger_and_room(cap, budget)
    assert ledger.said
    assert room >= cap.text / 3 - 2
    least = Span.before(view, 3, 400).ledger_and_room(Cap(MIN_RECORD + 20, MIN_RECORD + 20), budget)
    assert least[1] >= MIN_RECORD
