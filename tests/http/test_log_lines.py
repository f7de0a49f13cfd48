"""The log: one line for each changed request, with numbers, and never content or credentials."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator

import pytest

from tests.http.talking import Stage, asked, body_of, garden, staged, summary
from tests.support import wire
from tests.support.replies import error

SECRET = "sk-live-0123456789abcdef"


@pytest.fixture
def stage(caplog: pytest.LogCaptureFixture) -> Iterator[Stage]:
    caplog.set_level(logging.DEBUG)
    with staged(answers=lambda _: summary("Goal: gooseberries in every bed. Done: the first of them is dug.")) as built:
        built.key = SECRET
        yield built


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "condenser"]


def test_a_condensed_request_is_one_line_of_numbers(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.ask(garden(12), asked(session="conversation-4f2a"))
    [line] = lines(caplog)
    assert re.fullmatch(
        r"4f2a main\+ mask\+half-window 3\.\dk→\d\.?\dk? of 4\.1k \(tools \d+\) "
        r"context_limit, \+\d+ ms, own 940 tok",
        line,
    ), line


def test_a_request_that_passes_is_no_line(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.ask(garden(1))
    assert lines(caplog) == []


def test_a_replayed_request_is_a_line_without_own_tokens(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.ask(garden(12))
    stage.ask(garden(12))
    assert "replayed" in lines(caplog)[1]
    assert "own" not in lines(caplog)[1]


def test_nothing_that_was_said_and_no_credential_is_ever_logged(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.ask(garden(12), asked(session="s"))
    stage.ask(garden(12), asked(session="s", strategy="observe:extract"))
    stage.ask(garden(12), asked(dry_run="true"))
    stage.upstream.reply(error(500, "gooseberries are out"))
    stage.post(body_of(garden(13)), asked(session="s"))
    stage.post(b'{"messages":[{"role":"user","content":"gooseberries"},7]}')
    stage.post(body_of([{"role": "user", "content": "gooseberries " * 9_000}]))
    own = [record.getMessage() for record in caplog.records if record.name.startswith(("condenser", "proxy"))]
    assert own
    for word in (SECRET, "gooseberr", "garden", "seed1x", "noon"):
        assert not [line for line in own if word in line]
    assert SECRET not in caplog.text


def test_metrics_count_what_was_done_and_name_no_session(stage: Stage) -> None:
    stage.ask(garden(12), asked(session="secret-name"))
    stage.ask(garden(1))
    for each in stage.proxy.journal:
        each.finished.wait()
    text = wire.request(stage.proxy.url, "GET", "/metrics").body.decode()
    assert 'condenser_requests_total{action="condensed"} 1.0' in text
    assert 'condenser_requests_total{action="passed"} 1.0' in text
    assert 'condenser_condensations_total{trigger="context_limit"} 1.0' in text
    assert 'condenser_tokens_total{stage="summarizer"} 940.0' in text
    assert "condenser_in_flight 0.0" in text
    assert "secret-name" not in text
