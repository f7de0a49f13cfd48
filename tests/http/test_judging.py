"""Judges vote after the reply; what follows from a YES is ready for a later request, and nobody waits for it."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proxy.commands.sessions import lines_of
from proxy.settings import Settings
from proxy.settings.tables import StoreSettings
from proxy.settings.token import known_token
from tests.support.admin_api import only_session
from tests.support.recording import Exchange
from tests.support.replies import Reply, error
from tests.support.signals import Signal
from tests.support.stage import (
    SUMMARY,
    Message,
    Stage,
    chat,
    controls,
    count,
    is_vote,
    proxy_with_sqlite,
    proxy_with_upstream,
    summary,
    vote,
)
from tests.support.wire import Answer

WINDOW = 16_384
TAGGED = f"<summary>{SUMMARY}\n{'Each bed has its own seed. ' * 1}</summary>"
TURNS = 12  # far below all marks of this window


def yes(exchange: Exchange) -> Reply:
    return vote("YES") if is_vote(exchange) else summary(TAGGED)


@contextmanager
def judging_proxy(answers: Any = yes, window: int = WINDOW, **settings: Any) -> Iterator[Stage]:
    with proxy_with_upstream(strategy="dynacontext", window=window, answers=answers, **settings) as stage:
        yield stage


def ask_rounds(stage: Stage, rounds: int, *headers: tuple[str, str], words: int = 75) -> Answer:
    return stage.ask(chat(rounds, words=words), [*controls(session="s"), *headers])


def is_condensed(stage: Stage) -> bool:
    return any(SUMMARY in str(each["content"]) for each in stage.last_view)


def options(text: str) -> tuple[str, str]:
    return ("X-Condenser-Options", text)


def test_a_yes_condenses_the_next_turn_and_nobody_waits() -> None:
    with judging_proxy() as stage:
        first = ask_rounds(stage, TURNS)
        assert first.action == "passed"
        stage.proxy.quiet()
        assert 3 <= len(stage.votes) <= 5
        assert len(stage.summaries) == 1
        second = ask_rounds(stage, TURNS + 1)
        assert (second.action, second.trigger) == ("condensed", "judge")
        assert is_condensed(stage)
        third = ask_rounds(stage, TURNS + 2)
        assert third.action == "replayed"


@pytest.mark.parametrize(("words", "window"), [(20, 8_192), (200, 8_192), (75, 32_768), (200, 131_072)])
def test_every_yes_condenses_one_of_the_next_two_requests(words: int, window: int) -> None:
    # No request has any time for a model.
    with judging_proxy(window=window, inline_timeout=0.001) as stage:
        waiting, seen = 0, 0
        for turn in range(1, 9):
            answer = ask_rounds(stage, turn, words=words)
            if waiting and answer.action == "condensed":
                assert answer.trigger == "judge"
                waiting = 0
            assert waiting < 2
            stage.proxy.quiet()
            waiting += bool(waiting or len(stage.votes) > seen)
            seen = len(stage.votes)
        assert 1 <= len(stage.summaries) <= seen / 3


@pytest.mark.parametrize(("turns", "words"), [(4, 20), (3, 75), (2, 200), (TURNS, 75)])
def test_a_late_verdict_is_used_and_newer_turns_are_carried(turns: int, words: int) -> None:
    gate = Signal("the judges may vote")

    def slow(exchange: Exchange) -> Reply:
        return replace(vote("YES"), before=gate) if is_vote(exchange) else summary(TAGGED)

    with judging_proxy(slow) as stage:
        for turn in (turns, turns + 1, turns + 2):
            assert ask_rounds(stage, turn, words=words).action == "passed"
        gate.set()
        stage.proxy.quiet()
        assert 3 <= len(stage.votes) <= 5
        late = ask_rounds(stage, turns + 3, words=words)
        assert (late.action, late.trigger) == ("condensed", "judge")
        carried = chat(turns + 3, words=words)[-2 * 3 :]
        assert stage.last_view[-len(carried) :] == carried


def test_what_judges_decide_is_counted_exactly(tmp_path: Path) -> None:
    with proxy_with_sqlite(tmp_path / "c.db", strategy="dynacontext", window=WINDOW, answers=yes) as stage:
        assert ask_rounds(stage, 4).header("x-condenser-count") == "estimate"
        tokens = count(stage.forwarded[-1].json())
        stage.proxy.quiet()
        session = shown(stage, tmp_path)
        (verdict,), (record,) = session["verdicts"], session["condensations"]
        assert verdict["tokens"] == record["tokens_before"] == tokens
        condensed = ask_rounds(stage, 5)
        assert condensed.header("x-condenser-count") == "exact"
        assert condensed.header("x-condenser-tokens-after") == str(count(stage.forwarded[-1].json()))


def test_votes_are_not_repeated_before_something_is_new() -> None:
    with judging_proxy(lambda exchange: vote("NO") if is_vote(exchange) else error(500)) as stage:
        ask_rounds(stage, TURNS)
        stage.proxy.quiet()
        assert len(stage.votes) >= 3
        assert ask_rounds(stage, TURNS + 1).action == "passed"
        stage.proxy.quiet()
        # A vote that was cancelled may still arrive, but all of them judge the first request.
        assert len({json.dumps(each.json()["messages"]) for each in stage.votes}) == 1
        assert not stage.summaries


def test_the_trigger_mark_condenses_nothing_under_a_judge_and_says_so() -> None:
    with judging_proxy(lambda exchange: vote("NO") if is_vote(exchange) else summary(TAGGED)) as stage:
        rounds = WINDOW * 7 // 8 * 9 // 10 // 320
        ask_rounds(stage, rounds)
        stage.proxy.quiet()
        assert stage.summaries  # one is prepared for the hard limit, and is not taken before
        answer = ask_rounds(stage, rounds)
        assert answer.tokens_before > WINDOW * 7 // 8 * 0.85
        assert (answer.action, answer.reason) == ("passed", "awaiting-verdict")


PAST_TRIGGER = WINDOW * 7 // 8 * 9 // 10 // 320


def garbage(exchange: Exchange) -> Reply:
    return summary("I think so, yes.") if is_vote(exchange) else error(500)


@pytest.mark.parametrize(
    ("answers", "failure", "rounds", "reason"),
    [
        (garbage, "judge-no-decision", PAST_TRIGGER, "no-verdict"),
        # Below `prepare`: after a 429 a preparation would wait for half a minute.
        (lambda _exchange: error(429), "judge-rate-limited", TURNS, "below-marks"),
    ],
)
def test_three_unreadable_answers_end_a_round_without_a_verdict(
    answers: Any, failure: str, rounds: int, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with proxy_with_sqlite(tmp_path / "c.db", strategy="dynacontext", window=WINDOW, answers=answers) as stage:
        ask_rounds(stage, rounds)
        stage.proxy.quiet()
        assert 3 <= len(stage.votes) <= 5
        session = shown(stage, tmp_path)
        assert session["judging"]["last_skip_reason"] == failure
        assert [(each["yes"], each["failure"]) for each in session["verdicts"]] == [(None, failure)]
        assert any(line.startswith("no verdict (0 of 3 votes readable) on ") for line in lines_of(session))
        assert not any("verdict NO" in line for line in lines_of(session))
        assert f"judges gave no verdict: {failure}" in caplog.text
        assert ask_rounds(stage, rounds).reason == reason


def test_no_verdict_is_awaited_where_none_can_come() -> None:
    with judging_proxy(background={"mode": "off"}) as stage:
        answer = ask_rounds(stage, PAST_TRIGGER)
        assert answer.reason == "no-verdict"


def test_a_record_taken_at_the_hard_limit_keeps_its_metadata(tmp_path: Path) -> None:
    for name, text, stages in (("a", TAGGED, ["dynacontext"]), ("b", VACUOUS, ["extract"])):
        folder = tmp_path / name
        folder.mkdir()

        def no(exchange: Exchange, text: str = text) -> Reply:
            return vote("NO") if is_vote(exchange) else summary(text)

        with proxy_with_sqlite(folder / "c.db", strategy="dynacontext", window=WINDOW, answers=no) as stage:
            ask_rounds(stage, WINDOW * 7 // 8 * 9 // 10 // 320)
            stage.proxy.quiet()
            assert ask_rounds(stage, WINDOW // 320).trigger == "context_limit"
            (record,) = shown(stage, folder)["condensations"]
            assert (record["trigger"], record["metadata"]["stages"]) == ("context_limit", stages)
            told = record["metadata"]["dynacontext"]
            assert (told["trigger"], told["hard_trigger"], told["voting_k"]) == ("condensation_request", True, 5)


def test_what_waits_for_the_hard_limit_is_no_base_for_another_one() -> None:
    with judging_proxy(lambda exchange: vote("NO") if is_vote(exchange) else summary(TAGGED), window=4_096) as stage:
        for rounds in (8, 10):
            assert ask_rounds(stage, rounds).action == "passed"
            stage.proxy.quiet()
        first = ask_rounds(stage, 11)
        assert (first.trigger, first.branch) == ("context_limit", "main+")
        assert len(stage.summaries) == 1


@pytest.mark.parametrize("turns", [3, TURNS])
def test_inline_votes_are_held_before_forwarding(turns: int) -> None:
    with judging_proxy() as stage:
        answer = ask_rounds(stage, turns, options("judge=inline"))
        assert (answer.action, answer.trigger) == ("condensed", "judge")
        assert is_condensed(stage)


def test_inline_votes_that_take_too_long_cost_their_time_and_no_more() -> None:
    gate = Signal("the judges may vote")
    with judging_proxy(lambda _: replace(vote("YES"), before=gate), inline_timeout=0.2) as stage:
        assert ask_rounds(stage, TURNS, options("judge=inline")).action == "passed"
        gate.set()


def steps(rounds: int) -> list[Message]:
    """An agent's list: one task, then rounds of one call and its result."""
    messages: list[Message] = [{"role": "user", "content": "Mend the parser."}]
    for i in range(rounds):
        function = {"name": "bash", "arguments": json.dumps({"command": f"run {i}"})}
        calls = [{"id": f"c{i}", "type": "function", "function": function}]
        messages.append({"role": "assistant", "content": None, "tool_calls": calls})
        messages.append({"role": "tool", "tool_call_id": f"c{i}", "content": f"Result {i}: " + "it ran. " * 60})
    return messages


@pytest.mark.parametrize(("mode", "dropped"), [("chat", []), ("openhands", [21, 22])])
def test_the_mode_decides_which_tail_is_dropped(mode: str, dropped: list[int], tmp_path: Path) -> None:
    with proxy_with_sqlite(tmp_path / "c.db", strategy="dynacontext", window=WINDOW, answers=yes) as stage:
        headers = [*controls(session="s"), options(f"mode={mode}, early_turns=0, min_growth=0")]
        stage.ask(steps(11), headers)
        stage.proxy.quiet()
        answer = stage.ask(steps(12), headers)
        assert answer.action == "condensed"
        kept = [each for each in steps(12) if each in stage.last_view]
        assert kept == [each for i, each in enumerate(steps(12)) if i in (0, 21, 22, 23, 24) and i not in dropped]
        stage.ask(steps(13), headers)
        assert [each for each in steps(12) if each in stage.last_view] == kept
        (told,) = [
            each["metadata"]["dynacontext"]
            for each in shown(stage, tmp_path)["condensations"]
            if each["standing"] and each["covered"] == (23 if dropped else 21)
        ]
        assert (told["tail_exclusion_count"], told["dropped_judged_event_ids"]) == (2, dropped)


def test_votes_are_shown_with_their_cost(tmp_path: Path) -> None:
    with proxy_with_sqlite(tmp_path / "c.db", strategy="dynacontext", window=WINDOW, answers=yes) as stage:
        ask_rounds(stage, 0)
        stage.proxy.quiet()
        early = shown(stage, tmp_path)
        assert early["judging"]["last_skip_reason"] == "early-turns"
        ask_rounds(stage, TURNS)
        stage.proxy.quiet()
        session = shown(stage, tmp_path)
        (verdict,) = session["verdicts"]
        assert verdict["yes"]
        votes = verdict["metadata"]["judge_votes"]
        assert {each["decision"] for each in votes} == {"YES"}
        assert all(each["reasoning"] for each in votes)
        totals = session["totals"]
        # Two losers at most are booked by an estimate, if they were cancelled before they told their usage.
        assert 940 * 3 <= totals["judge_tokens"] <= 940 * 3 + 2 * 3_000
        assert totals["own_tokens"] == totals["judge_tokens"] + 940 * len(stage.summaries)
        (condensation,) = session["condensations"]
        assert not condensation["standing"]
        told = condensation["metadata"]["dynacontext"]
        assert (told["trigger"], told["hard_trigger"], told["voting_k"]) == ("judge", False, 5)


def shown(stage: Stage, folder: Path) -> Mapping[str, Any]:
    """What an operator sees of the only session."""
    token = known_token(Settings(store=StoreSettings(url=f"sqlite:///{folder / 'c.db'}")))
    return only_session(stage.proxy.url, token=token)


VACUOUS = "<summary>Summary generation failed.</summary>"


@pytest.mark.parametrize(("min_growth", "votes_again"), [(0, True), (100_000, False)])
def test_a_record_that_failed_after_a_yes_is_tried_again(
    min_growth: int, votes_again: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written = [VACUOUS] * 3

    def vacuous(exchange: Exchange) -> Reply:
        return vote("YES") if is_vote(exchange) else summary(written.pop() if written else TAGGED)

    settings: dict[str, Any] = {"strategy": "dynacontext", "dynacontext": {"min_growth": min_growth}}
    with proxy_with_sqlite(tmp_path / "c.db", window=WINDOW, answers=vacuous, **settings) as stage:
        ask_rounds(stage, TURNS)
        stage.proxy.quiet()
        assert len(stage.summaries) == 3
        assert "preparing a condensation after a YES failed: summary-empty" in caplog.text
        votes = len(stage.votes)
        for turn in (TURNS + 1, TURNS + 2):
            answer = ask_rounds(stage, turn)
            assert (answer.action, answer.reason) == ("passed", "summary-empty")
            assert "generation failed" not in str(stage.last_view)
            stage.proxy.quiet()
        assert (len(stage.votes), len(stage.summaries)) == (votes, 3)
        session = shown(stage, tmp_path)
        assert session["judging"]["last_skip_reason"] == "record-failed"
        assert (session["failed_try"]["reason"], session["failed_try"]["judged"]) == ("summary-empty", True)
        assert any("no record after a judge's YES on branch main: summary-empty" in each for each in lines_of(session))
        ask_rounds(stage, TURNS + 9)
        stage.proxy.quiet()
        assert len(stage.summaries) == 4
        assert (len(stage.votes) > votes) is votes_again
        assert ask_rounds(stage, TURNS + 10).action == "condensed"
        assert shown(stage, tmp_path)["failed_try"] is None


def test_votes_spend_no_more_than_they_may() -> None:
    no = vote("NO")
    with judging_proxy(
        lambda exchange: no if is_vote(exchange) else error(500), background={"allowance": 0.0}
    ) as stage:
        for turn in range(4, 40, 3):
            ask_rounds(stage, turn, options("min_growth=1"))
            stage.proxy.quiet()
        rounds = len(stage.votes) // 5
        # A round begins only if all its votes fit into what is left, however many of them are counted.
        assert WINDOW // (940 * 5) - 1 <= rounds <= WINDOW // (940 * 3) + 1
