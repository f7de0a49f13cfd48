"""A summarizer that fails, hangs or lies: the reply still comes, and history is not replaced by rubbish."""

import json
from collections.abc import Callable, Sequence

import pytest

from proxy.reasons import REASONS
from tests.http.strict import assert_view, is_replacement
from tests.support.recording import Exchange
from tests.support.replies import Reply, ToolCall, error, hang, hang_up, raw, redirect
from tests.support.signals import Signal
from tests.support.stage import (
    SUMMARY,
    WINDOW,
    Message,
    Stage,
    chat,
    controls,
    count,
    is_summary_call,
    proxy_with_upstream,
    summary,
)

Answers = Callable[[Exchange], Reply]
CALL = ToolCall("rm", '{"path":"/"}').as_json()


def always(reply: Reply) -> Answers:
    return lambda exchange: reply


def echo(exchange: Exchange) -> Reply:
    return summary(exchange.json()["messages"][1]["content"][:600])


def instructions(exchange: Exchange) -> Reply:
    return summary(exchange.json()["messages"][0]["content"][:900])


FAILURES: dict[str, tuple[Answers, str]] = {
    "429": (always(error(429, "slow down", headers=[("retry-after", "9")])), "summary-rate-limited"),
    "500": (always(error(500)), "summary-http-error"),
    "redirect": (always(redirect("http://127.0.0.1:1/")), "summary-http-error"),
    "hangs up": (always(hang_up()), "summary-unreachable"),
    "no json": (always(raw(b"<html>")), "summary-unreadable"),
    "deep": (always(raw(b'{"choices":' + b"[" * 50_000)), "summary-unreadable"),
    "bad utf-8": (always(raw(b'{"choices":[{"message":{"content":"\xff"}}]}')), "summary-unreadable"),
    "refusal": (always(summary("I'm sorry, but I can't help with that.")), "summary-refused"),
    "empty": (always(summary("")), "summary-empty"),
    "tool calls": (always(summary("", finish="tool_calls", tool_calls=[CALL])), "summary-called-tools"),
    "tool calls with text": (always(summary(SUMMARY, tool_calls=[CALL])), "summary-called-tools"),
    "length": (always(summary(SUMMARY, finish="length")), "summary-cut-short"),
    "content filter": (always(summary(SUMMARY, finish="content_filter")), "summary-not-finished"),
    "echo of the history": (echo, "summary-echo"),
    "echo of the instructions": (instructions, "summary-echo"),
    "too long": (always(summary("word " * 3_000)), "summary-too-long"),
}  # fmt: skip


NO_NAMES = {"names_max_tokens": 0}
"""Where names take none of the room, an echo is not too long besides."""


@pytest.mark.parametrize("name", FAILURES)
def test_the_reason_says_what_was_wrong_with_the_summary(name: str) -> None:
    answers, reason = FAILURES[name]
    with proxy_with_upstream(strategy="half-window", answers=answers, ledger=NO_NAMES) as stage:
        answer = stage.ask(chat(12), controls(session="s"))
        assert answer.reason == reason
        assert reason in REASONS
        # Some servers say nothing unless they are asked for a stream.
        assert len(stage.summaries) == (2 if name == "empty" else 1)
        assert_fell_back(stage, chat(12))


def assert_fell_back(stage: Stage, transcript: Sequence[Message]) -> None:
    """The rules condensed in the model's place: no word of its answer stands in the view, and it fits."""
    assert count(stage.forwarded[-1].json()) <= WINDOW - WINDOW // 8
    assert_view(stage.last_view, transcript)
    records = [str(each["content"]) for each in stage.last_view if is_replacement(each)]
    assert not any(word in record for record in records for word in ("sorry", "抱歉", "<message", "You write the"))


def test_a_summarizer_that_hangs_costs_its_time_and_no_more() -> None:
    never = Signal("the end of the test")
    with proxy_with_upstream(strategy="half-window", answers=always(hang(never)), inline_timeout=1.0) as stage:
        answer = stage.ask(chat(12), controls(session="s"))
        assert answer.reason == "summary-timeout"
        assert_fell_back(stage, chat(12))
        call = stage.summaries[0]
    # It may still say something worth keeping, until the proxy ends.
    call.disconnected.wait()
    never.set()


def test_a_summary_that_is_larger_than_what_it_stands_for_is_refused() -> None:
    with proxy_with_upstream(
        window=40_000, strategy="half-window", answers=always(summary("much said of little " * 60))
    ) as stage:
        answer = stage.ask(chat(4, words=2), controls(session="s", force="true"))
        assert answer.reason == "summary-not-smaller"
        assert answer.header("x-condenser-stages") != "half-window"
        assert b"much said of little" not in stage.forwarded[-1].body


def test_what_was_condensed_stands_when_a_later_summary_fails() -> None:
    good = [True]
    with proxy_with_upstream(strategy="half-window", answers=lambda _: summary() if good else error(500)) as stage:
        stage.ask(chat(12), controls(session="s"))
        assert stage.ask(chat(13), controls(session="s")).action == "replayed"
        good.clear()
        later = stage.ask(chat(24), controls(session="s"))
        assert later.action == "condensed"
        assert "never water at noon" in json.dumps(stage.last_view)
        assert_fell_back(stage, chat(24))


# -- what the summarizer is sent ---------------------------------------------------------------------------


def test_a_summary_call_has_the_callers_credential_and_model() -> None:
    with proxy_with_upstream() as stage:
        stage.model = "m@half-window"
        stage.ask(
            chat(12),
            [("OpenAI-Organization", "org"), ("OpenAI-Project", "p"), ("X-Private", "no"), ("Cookie", "a=b")],
            tools=[{"type": "function", "function": {"name": "f"}}],
            temperature=0.5,
            stream=False,
        )
        call = stage.summaries[0]
        assert call.header("authorization") == "Bearer sk-first"
        chooses_account = ("openai-organization", "openai-project")
        assert {call.header(name) for name in (*chooses_account, "x-private", "cookie")} == {None}
        assert set(call.json()) == {"model", "messages", "max_completion_tokens"}
        assert call.json()["model"] == "m"
        assert [each["role"] for each in call.json()["messages"]] == ["system", "user"]


def test_a_summarizer_of_its_own_never_sees_the_callers_credential() -> None:
    with (
        proxy_with_upstream() as helper,
        proxy_with_upstream(summarizer={"base_url": helper.upstream.base_url, "model": "small"}) as stage,
    ):
        assert stage.ask(chat(12)).action == "condensed"
        assert stage.summaries == []
        call = helper.upstream.journal.only()
        assert is_summary_call(call)
        assert call.json()["model"] == "small"
        assert not any("sk-first" in value for _, value in call.headers)
