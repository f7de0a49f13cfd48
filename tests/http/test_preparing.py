"""What is done for the next request once this one has its reply: nobody waits for a model below the hard limit."""

import logging
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.recording import Exchange
from tests.support.replies import Reply, completion, error
from tests.support.signals import BOUND, Signal
from tests.support.stage import (
    SUMMARY,
    Stage,
    agent,
    chat,
    controls,
    count,
    is_summary_call,
    proxy_with_sqlite,
    proxy_with_upstream,
    store_rows,
    summary,
)
from tests.support.wire import Answer

USABLE = 4_096 - 512
FORCE = ("X-Condenser-Force", "true")
TARGET, PREPARE, TRIGGER = (int(USABLE * mark) for mark in (0.50, 0.70, 0.85))


def rounds_above(mark: int) -> int:
    """The fewest rounds of a garden that have this many tokens."""
    return next(n for n in range(1, 100) if count({"messages": chat(n), "model": "m"}) >= mark)


ELSEWHERE = [{"role": "user", "content": "Dig my garden."}]
PAST_PREPARE, PAST_TRIGGER = rounds_above(PREPARE), rounds_above(TRIGGER)


@contextmanager
def gated(**settings: Any) -> Iterator[tuple[Stage, Signal]]:
    """A stage whose summarizer answers when the signal is set."""
    gate = Signal("the summarizer may answer")
    with proxy_with_upstream(
        answers=lambda _exchange: replace(summary(), before=gate), strategy="half-window", **settings
    ) as stage:
        try:
            yield stage, gate
        finally:
            gate.set()


def ask_rounds(stage: Stage, rounds: int, session: str = "s", *more: tuple[str, str]) -> Answer:
    return stage.ask(chat(rounds), [*controls(session=session), *more])


def test_a_prepared_summary_is_used_at_the_trigger(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with proxy_with_upstream(strategy="half-window") as stage:
        first = ask_rounds(stage, PAST_PREPARE)
        stage.proxy.quiet()
        assert (first.action, len(stage.summaries)) == ("passed", 1)
        taken = ask_rounds(stage, PAST_TRIGGER)
        stage.proxy.served()
        assert (taken.action, taken.trigger, len(stage.summaries)) == ("condensed", "threshold", 1)
        # What came since it was prepared stands behind it, word for word.
        (place,) = [i for i, each in enumerate(stage.last_view) if SUMMARY in str(each["content"])]
        behind = stage.last_view[place + 1 :]
        assert behind == chat(PAST_TRIGGER)[-len(behind) :]
        assert len(behind) > 2 * (PAST_TRIGGER - PAST_PREPARE)
    line = [record.getMessage() for record in caplog.records if record.name == "condenser"][-1]
    assert re.search(r" condensed by threshold, summary ready, \+\d+ ms, own 940 tok, ", line), line


@pytest.mark.parametrize(("rounds", "mode"), [(PAST_PREPARE - 1, "on"), (PAST_PREPARE, "off")])
def test_below_the_prepare_mark_or_with_background_off_no_model_is_asked(rounds: int, mode: str) -> None:
    with proxy_with_upstream(strategy="half-window", background={"mode": mode}) as stage:
        ask_rounds(stage, rounds)
        stage.proxy.quiet()
        assert not stage.summaries


def test_a_request_at_the_trigger_does_not_wait() -> None:
    with gated() as (stage, gate):
        ask_rounds(stage, PAST_PREPARE)
        early = ask_rounds(stage, PAST_TRIGGER)
        assert (early.action, early.reason) == ("passed", "not-prepared")
        gate.set()
        stage.proxy.quiet()
        assert ask_rounds(stage, PAST_TRIGGER).action == "condensed"
        assert len(stage.summaries) == 1


def test_a_forced_request_waits_for_the_preparation_under_way() -> None:
    with gated() as (stage, gate), ThreadPoolExecutor() as pool:
        ask_rounds(stage, PAST_PREPARE)
        forced = pool.submit(ask_rounds, stage, PAST_PREPARE + 1, "s", FORCE)
        stage.proxy.journal.await_arrival(2)
        gate.set()
        answer = forced.result(BOUND)
        assert (answer.action, answer.trigger) == ("condensed", "forced")
        assert len(stage.summaries) == 1


def test_idle_preparation_starts_when_a_request_must_condense() -> None:
    gate = Signal("another client's reply may come")

    def answers(exchange: Exchange) -> Reply | None:
        if is_summary_call(exchange):
            return summary()
        return replace(completion("Dug."), before=gate) if exchange.json()["messages"] == ELSEWHERE else None

    with (
        proxy_with_upstream(strategy="half-window", background={"mode": "idle"}, inline_timeout=3) as stage,
        ThreadPoolExecutor() as pool,
    ):
        stage.upstream.answer(answers)
        other = pool.submit(stage.ask, ELSEWHERE, controls(session="other"))
        stage.upstream.journal.await_arrival(1)
        ask_rounds(stage, PAST_PREPARE)
        forced = ask_rounds(stage, PAST_PREPARE + 1, "s", FORCE)
        assert (forced.action, forced.reason) == ("condensed", None)
        assert any(SUMMARY in str(each["content"]) for each in stage.last_view)
        assert len(stage.summaries) == 1
        assert not other.done()
        gate.set()
        other.result(BOUND)


def test_a_slow_preparation_is_not_asked_for_again() -> None:
    with gated(inline_timeout=0.3) as (stage, _gate):
        ask_rounds(stage, PAST_PREPARE)
        hard = ask_rounds(stage, rounds_above(USABLE))
        assert (hard.action, hard.reason) == ("condensed", "summary-timeout")
        assert len(stage.summaries) == 1


def test_a_late_summary_is_not_asked_for_again() -> None:
    with gated(inline_timeout=0.3, background={"mode": "off"}) as (stage, _gate):
        for more in (0, 1):
            late = ask_rounds(stage, rounds_above(USABLE) + more, "s", FORCE)
            assert late.reason == "summary-timeout"
        assert len(stage.summaries) == 1


def test_a_summary_that_comes_late_is_kept_for_the_next_request() -> None:
    # Rules condense little where the target is high and little is too much, so the late record covers more than theirs.
    with gated(
        inline_timeout=0.2,
        background={"mode": "off"},
        marks={"target": 0.8},
        ledger={"said_max_tokens": 0, "names_max_tokens": 0},
    ) as (stage, gate):
        rounds = rounds_above(USABLE) - 1
        hard = ask_rounds(stage, rounds)
        assert (hard.reason, hard.action) == ("summary-timeout", "condensed")
        assert not any(SUMMARY in str(each["content"]) for each in stage.last_view)
        gate.set()
        stage.proxy.quiet()
        ask_rounds(stage, rounds + 1, "s", FORCE)
        assert any(SUMMARY in str(each["content"]) for each in stage.last_view)


def test_a_preparation_that_fails_is_not_tried_again_for_many_short_messages() -> None:
    with proxy_with_upstream(answers=lambda _exchange: error(500), strategy="half-window") as stage:
        messages = chat(PAST_PREPARE)
        for _ in range(4):
            stage.ask(messages, controls(session="s"))
            stage.proxy.quiet()
            messages = [*messages, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "And?"}]
        assert len(stage.summaries) == 1


def test_what_stages_that_ask_no_model_can_prepare_is_prepared_without_one(tmp_path: Path) -> None:
    file = tmp_path / "c.db"
    with proxy_with_sqlite(file, strategy="half-window+recent") as stage:
        ask_rounds(stage, PAST_PREPARE)
        stage.proxy.quiet()
        assert not stage.summaries
        assert store_rows(file)["records"] == 1
        taken = ask_rounds(stage, PAST_TRIGGER)
        assert taken.action == "condensed"
        assert taken.tokens_after <= TARGET
        assert not stage.summaries


def test_model_summary_is_prepared_when_rules_free_too_little() -> None:
    with proxy_with_upstream(strategy="mask+half-window") as stage:
        begun, beds = agent(2, lines=20), chat(PAST_PREPARE)[2:]
        passed = stage.ask([*begun, *beds], controls(session="s"))
        stage.proxy.quiet()
        assert (passed.action, passed.reason) == ("passed", "not-prepared")
        assert len(stage.summaries) == 1


def test_too_small_a_preparation_is_followed_by_one_that_fits() -> None:
    with proxy_with_upstream(strategy="half-window") as stage:
        ask_rounds(stage, PAST_PREPARE)
        stage.proxy.quiet()
        taken = ask_rounds(stage, 3 * PAST_PREPARE)
        assert taken.trigger == "context_limit"
        assert taken.tokens_after <= USABLE
        assert len(stage.summaries) >= 2
