"""The log: one line for each request, with numbers, and never content or credentials."""

import io
import json
import logging
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from proxy.log import JsonLines, TextLines
from tests.support import replies, wire
from tests.support.recording import CHAT
from tests.support.replies import error
from tests.support.signals import Signal
from tests.support.stage import MORE, Stage, body_of, chat, controls, proxy_with_upstream, summary

SECRET = "sk-live-0123456789abcdef"


@pytest.fixture
def stage(caplog: pytest.LogCaptureFixture) -> Iterator[Stage]:
    caplog.set_level(logging.DEBUG)
    with proxy_with_upstream(
        models=[{"match": "*", "prices": {"input": 2.0, "output": 8.0}}],
        answers=lambda _: summary(f"Goal: gooseberries in every bed. Done: the first of them is dug. {MORE}"),
    ) as built:
        built.key = SECRET
        yield built


def records(stage: Stage, caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """The records of all requests so far, whose replies have ended."""
    stage.proxy.served()
    return [record for record in caplog.records if record.name == "condenser"]


def lines(stage: Stage, caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in records(stage, caplog)]


def members(stage: Stage, caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [json.loads(JsonLines().format(record)) for record in records(stage, caplog)]


def test_a_condensed_request_is_one_line_of_numbers(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.ask(chat(12), [*controls(session="conversation-4f2a"), ("X-Request-Id", "client-17")])
    [line] = lines(stage, caplog)
    assert re.fullmatch(
        r"200 scripted-1 conversation-4f2a main\+ mask\+half-window 3\.\dk→\d\.?\dk? of 4\.1k condensed "
        r"by context_limit, \+\d+ ms, own 940 tok, tip: economy=auto would condense from \S+ to \S+ tokens and cut "
        r"prompt cost by \d+%, upstream \d+ ms, \d+ ms in all, tenant [0-9a-f]{12}, request client-17",
        line,
    ), line


def test_a_session_is_told_once_where_condensing_is_cheapest(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    for session, rounds in (("one", 12), ("one", 13), ("one", 14), ("another", 12)):
        stage.ask(chat(rounds), controls(session=session))
    assert ["tip: economy=auto" in line for line in lines(stage, caplog)] == [True, False, False, True]


def test_only_tools_are_called_tools(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    tool = {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}
    stage.ask(chat(1))
    stage.ask(chat(1), tools=[tool])
    first, second = lines(stage, caplog)
    assert "(tools" not in first
    assert re.search(r"\(tools \d+\)", second)


def test_a_stream_left_after_its_last_event_is_complete(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    gate, whole = Signal("the stream may end"), replies.stream(*replies.text_chunks("Fine."))
    stage.upstream.reply(replace(whole, steps=(*whole.steps, gate)))
    body = body_of(chat(1), stream=True)
    with wire.opened(stage.proxy.url, "POST", CHAT, body, wire.JSON) as response:
        wire.until(response, replies.DONE)
    [line] = lines(stage, caplog)
    gate.set()
    assert "broken off" not in line


@pytest.mark.parametrize("turns", [1, 12], ids=["passed", "condensed"])
def test_numbers_are_numbers_and_durations_are_true(turns: int, stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    trace = ("traceparent", f"00-{'ab' * 16}-{'cd' * 8}-01")
    answer = stage.ask(chat(turns), [*controls(session="17"), trace])
    [line] = members(stage, caplog)
    for name in ("tokens-before", "tokens-after", "window", "headroom"):
        assert line[name.replace("-", "_")] == int(answer.header(f"x-condenser-{name}") or "")
    assert (line["status"], line["model"], line["session"]) == (200, "scripted-1", "17")
    assert line["strategy"] == "mask+half-window"
    assert line["action"] == answer.action
    assert line["request_id"] == answer.header("x-condenser-request-id")
    assert 0 < line["upstream_ms"] <= line["first_byte_ms"] <= line["total_ms"]
    usage = answer.json()["usage"]
    assert [line[f"tokens_{kind}"] for kind in ("prompt", "cached", "reply")] == [
        *(usage["prompt_tokens"], 0, usage["completion_tokens"])
    ]
    assert line["cost"] == pytest.approx((2 * usage["prompt_tokens"] + 8 * usage["completion_tokens"]) / 1e6, abs=1e-6)
    assert (line["upstream"], line["trace_id"]) == ("upstream", "ab" * 16)
    assert trace in stage.forwarded[0].headers
    assert line["level"] == "info"


def test_what_is_passed_on_refused_or_unknown_is_a_line_too(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    wire.post_json(stage.proxy.url, "/v1/embeddings", {"model": "m", "input": "hello"})
    stage.post(b"{")
    wire.request(stage.proxy.url, "GET", "/nowhere")
    stage.upstream.reply(error(500, "no"))
    stage.post(body_of(chat(1)))
    wanted = [
        r"200 POST /v1/embeddings bypassed, not-condensed-endpoint, upstream \d+ ms.*, tenant \w{12}, request \w{16}",
        r"400 POST /v1/chat/completions, error invalid_request_error, \d+ ms in all, tenant \w{12}, request \w{16}",
        r"404 GET /nowhere, \d+ ms in all, request [0-9a-f]{16}",
        r"500 scripted-1 p[0-9a-f]{16} main .* passed.*, request [0-9a-f]{16}",
    ]
    for line, pattern in zip(lines(stage, caplog), wanted, strict=True):
        assert re.fullmatch(pattern, line), line
    assert [record.levelname for record in records(stage, caplog)] == ["INFO", "INFO", "INFO", "WARNING"]


def test_health_probes_are_logged_for_debugging_only(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    for path in ("/livez", "/readyz", "/metrics"):
        assert wire.request(stage.proxy.url, "GET", path).status == 200
    assert [record.levelname for record in records(stage, caplog)] == ["DEBUG"] * 3


@pytest.mark.parametrize(("sent", "is_taken"), [("a" * 128, True), ("a" * 129, False), ("a b", False), ("ä", False)])
def test_an_id_of_the_client_is_taken_where_it_can_be_shown(sent: str, is_taken: bool, stage: Stage) -> None:
    answer = stage.post(body_of(chat(1)), [("X-Request-Id", sent)])
    given = answer.header("x-condenser-request-id")
    assert given == sent if is_taken else re.fullmatch("[0-9a-f]{16}", given or "")


def test_a_name_can_neither_end_a_line_nor_colour_it(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.model = "evil\nWARNING forged \x1b[31m" + "m" * 400
    stage.ask(chat(1))
    wire.request(stage.proxy.url, "GET", "/" + "%0A%1B" * 200)
    first, second = (TextLines().format(record) for record in records(stage, caplog))
    assert " 200 'evil?WARNING forged ?[31mmmm" in first
    assert (first + second).isprintable()
    assert max(len(first), len(second)) < 500


def test_nothing_that_was_said_and_no_credential_is_ever_logged(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.ask(chat(12), controls(session="s"))
    stage.ask(chat(12), controls(session="s", strategy="observe:extract"))
    stage.ask(chat(12), controls(dry_run="true"))
    stage.upstream.reply(error(500, "gooseberries are out"))
    stage.post(body_of(chat(13)), controls(session="s"))
    stage.post(b'{"messages":[{"role":"user","content":"gooseberries"},7]}')
    stage.post(body_of([{"role": "user", "content": "gooseberries " * 9_000}]))
    stage.proxy.served()
    own = [record for record in caplog.records if record.name.startswith(("condenser", "proxy"))]
    assert len([record for record in own if record.name == "condenser"]) == 6
    for word in (SECRET, "gooseberr", "garden", "seed1x", "noon"):
        assert not [record for record in own if word in JsonLines().format(record)]
    assert SECRET not in caplog.text


@pytest.mark.parametrize("form", [TextLines, JsonLines])
@pytest.mark.parametrize("part", ["condensing.deciding.Decider._decide_by_mode", "turn.drive.take_in"])
def test_a_traceback_names_a_request(part: str, form: type[logging.Formatter], monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(f"proxy.{part}", fails)
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(form())
    logging.getLogger("proxy").addHandler(handler)
    try:
        with proxy_with_upstream() as stage:
            assert stage.ask(chat(12), [("X-Request-Id", "client-17")]).status == 200
            stage.proxy.served()
    finally:
        logging.getLogger("proxy").removeHandler(handler)
    assert "request client-17: " in written.getvalue()
    assert "failed; it is forwarded unchanged" in written.getvalue()
    assert "ZeroDivisionError" in written.getvalue()
    if form is JsonLines:
        assert json.loads(written.getvalue().splitlines()[0])["request_id"] == "client-17"
