"""A store that is out: replies come, `degraded` says so, nothing wrong is remembered, and it heals by itself."""

import logging
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.http.strict import assert_view
from tests.support import wire
from tests.support.redis_server import RedisServer, await_true
from tests.support.stage import (
    SUMMARY,
    WINDOW,
    Stage,
    agent,
    body_of,
    chat,
    controls,
    count,
    proxy_with_sqlite,
    proxy_with_upstream,
)


@pytest.fixture
def stage(redis: RedisServer) -> Iterator[Stage]:
    with proxy_with_upstream(store={"url": redis.url}) as built:
        yield built


def test_a_store_that_dies_between_two_turns_costs_no_reply(redis: RedisServer, stage: Stage) -> None:
    stage.ask(chat(12), controls(session="s"))
    redis.kill()
    answer = stage.ask(chat(13), controls(session="s"))
    assert answer.action == "degraded"
    assert (answer.reason or "").startswith("store-")
    assert answer.session == "s"
    assert count(stage.forwarded[-1].json()) <= WINDOW - WINDOW // 8
    assert_view(stage.last_view, chat(13))


@pytest.mark.parametrize(
    ("rounds", "strategy", "trigger"), [(1, None, "none"), (12, "off", "none"), (60, None, "context_limit")]
)
def test_a_request_is_served_while_the_store_is_out_and_says_so(
    rounds: int, strategy: str | None, trigger: str, redis: RedisServer, stage: Stage
) -> None:
    redis.kill()
    answer = stage.ask(chat(rounds), controls(session="s", strategy=strategy))
    assert (answer.action, answer.trigger) == ("degraded", trigger)
    assert (answer.reason or "").startswith("store-")
    assert (stage.forwarded[-1].body == stage.sent[-1]) is (trigger == "none")


def test_without_a_store_no_model_is_asked_and_each_view_fits(redis: RedisServer, stage: Stage) -> None:
    redis.kill()
    for rounds in (26, 27, 28, 90):
        answer = stage.ask(agent(rounds), controls(session="s"))
        assert answer.action == "degraded"
        assert count(stage.forwarded[-1].json()) <= WINDOW - WINDOW // 8
        assert_view(stage.last_view, agent(rounds))
    assert stage.summaries == []


def test_a_store_that_comes_back_is_used_again(stage: Stage, redis: RedisServer) -> None:
    stage.ask(chat(1), controls(session="s", strategy="half-window"))
    redis.stop()
    try:
        assert stage.ask(chat(12), controls(session="s")).action == "degraded"
    finally:
        redis.cont()
    wait_until_ready(stage)
    answer = stage.ask(chat(12), controls(session="s"))
    assert (answer.action, answer.strategy) == ("condensed", "half-window")
    assert any(SUMMARY in str(each["content"]) for each in stage.last_view)


def test_a_store_that_lost_everything_starts_anew(stage: Stage, redis: RedisServer) -> None:
    stage.ask(chat(12), controls(session="s"))
    redis.restart()
    wait_until_ready(stage)
    assert stage.ask(chat(12), controls(session="s")).action == "condensed"
    assert stage.ask(chat(12), controls(session="s")).action == "replayed"


def test_a_store_that_is_out_when_the_proxy_starts_costs_no_reply() -> None:
    with proxy_with_upstream(store={"url": "redis://127.0.0.1:9/0"}) as stage:
        assert stage.ask(chat(1)).action == "degraded"
        assert wire.request(stage.proxy.url, "GET", "/readyz").json()["status"] == "degraded"
        assert wire.request(stage.proxy.url, "GET", "/livez").status == 200


def wait_until_ready(stage: Stage) -> None:
    """Asks the store's state until it answers: a client that lost its connections makes new ones when asked."""
    for _ in range(200):
        if state_of_store(stage) == "ok":
            return
    raise AssertionError("the store did not come back")


def state_of_store(stage: Stage) -> str:
    state: str = wire.request(stage.proxy.url, "GET", "/readyz").json()["store"]["state"]
    return state


@pytest.mark.parametrize("column", ["meta", "record"])
def test_a_stored_document_that_is_damaged_costs_no_reply(column: str, tmp_path: Path) -> None:
    table = {"meta": "sessions", "record": "records"}[column]
    with proxy_with_sqlite(tmp_path / "s.db") as stage:
        stage.ask(chat(12), controls(session="s"))
        with closing(sqlite3.connect(tmp_path / "s.db", timeout=10)) as connection, connection:
            connection.execute(f"UPDATE {table} SET {column} = ?", (b"{damaged",))
        answer = stage.ask(chat(13), controls(session="s"))
        assert answer.action in ("condensed", "degraded")
        assert_view(stage.last_view, chat(13))


def test_an_outage_is_two_log_lines(stage: Stage, redis: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    stage.ask(chat(1), controls(session="s"))
    redis.kill()
    for rounds in (2, 3, 12):
        stage.ask(chat(rounds), controls(session="s"))
        stage.proxy.quiet()
    for _ in range(2):
        assert stage.post(body_of(chat(1)), controls(session="a", history="append")).status == 503
    redis.restart()
    await_true(lambda: state_of_store(stage) == "ok", "the breaker lets a call through, which is answered")
    stage.ask(chat(2), controls(session="s"))
    stage.proxy.quiet()
    began, ended = (record.getMessage() for record in caplog.records if record.name.startswith("proxy."))
    assert began.startswith("the store fails, and requests are served without it: store-unavailable: redis://")
    assert re.fullmatch(r"the store works again after \d+\.\d s; requests served without it: 3, refused: 2", ended)


def test_a_strategy_that_only_observes_tells_of_a_store_that_fails() -> None:
    with proxy_with_upstream(store={"url": "redis://127.0.0.1:9/0"}, strategy="observe:extract") as stage:
        answer = stage.ask(chat(40), controls(session="s"))
        assert answer.action == "degraded"
        assert (answer.reason or "").startswith("store-")
        assert answer.tokens_after < answer.tokens_before
        assert stage.last_view == chat(40)
