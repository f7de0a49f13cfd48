"""A store that cannot write: readiness, replies and metrics say so, and no turn is lost without a word."""

import re
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support import wire
from tests.support.redis_server import RedisServer, asking, await_true
from tests.support.replicas import await_answer, replica
from tests.support.stage import WINDOW, Stage, body_of, chat, controls, count, proxy_with_upstream
from tests.support.transcripts import user
from tests.support.upstream import ScriptedUpstream
from tests.support.wire import Answer

REFUSALS: dict[str, Callable[[Any], Any]] = {
    "store-full": lambda client: client.config_set("maxmemory", "1"),
    "store-read-only": lambda client: client.replicaof("127.0.0.1", "1"),
}
MENDING: dict[str, Callable[[Any], Any]] = {
    "store-full": lambda client: client.config_set("maxmemory", "0"),
    "store-read-only": lambda client: client.replicaof("NO", "ONE"),
}


@pytest.fixture
def stage(redis: RedisServer) -> Iterator[Stage]:
    with proxy_with_upstream(store={"url": redis.url}) as built:
        yield built


def refuse(redis: RedisServer, reason: str) -> None:
    with asking(redis.port) as client:
        REFUSALS[reason](client)


def mend(redis: RedisServer, reason: str) -> None:
    with asking(redis.port) as client:
        MENDING[reason](client)


def append(stage: Stage, text: str, **members: Any) -> Answer:
    messages = [{"role": "user", "content": text}]
    return stage.post(body_of(messages, **members), controls(session="a", history="append"))


def contents(stage: Stage) -> list[str]:
    return [each["content"] for each in stage.last_view]


def test_a_session_that_is_full_goes_on_within_its_window(tmp_path: Path) -> None:
    store = {"url": f"sqlite:///{tmp_path}/s.db", "max_session_bytes": 6_000}
    with proxy_with_upstream(store=store) as stage:
        answers = []
        for rounds in range(12, 40, 4):
            answers.append(stage.ask(chat(rounds), controls(session="s")))
            assert count({"messages": stage.last_view}) < WINDOW
    assert answers[1].action == "replayed"
    assert (answers[-1].action, answers[-1].reason) == ("degraded", "store-quota")


def readiness(url: str) -> Any:
    return wire.request(url, "GET", "/readyz").json()


def metrics(stage: Stage) -> str:
    return wire.request(stage.proxy.url, "GET", "/metrics").body.decode()


@pytest.mark.parametrize("reason", REFUSALS)
def test_readiness_and_metrics_say_that_nothing_can_be_written(redis: RedisServer, stage: Stage, reason: str) -> None:
    assert readiness(stage.proxy.url)["status"] == "ok"
    refuse(redis, reason)
    stage.ask(chat(12), controls(session="s"))
    ready = readiness(stage.proxy.url)
    assert (ready["status"], ready["store"]["state"]) == ("degraded", reason)
    assert "condenser_store_writable 0.0" in metrics(stage)
    assert f'condenser_store_failed_writes_total{{reason="{reason}"}}' in metrics(stage)
    mend(redis, reason)
    await_true(lambda: readiness(stage.proxy.url)["status"] == "ok", "readiness")
    assert "condenser_store_writable 1.0" in metrics(stage)


def test_readiness_tries_a_write_though_no_request_does(redis: RedisServer, stage: Stage) -> None:
    refuse(redis, "store-full")
    assert readiness(stage.proxy.url)["store"]["state"] == "store-full"


@pytest.mark.parametrize("reason", REFUSALS)
def test_unstored_requests_are_degraded_and_see_their_records(
    redis: RedisServer, stage: Stage, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    stage.ask(chat(12), controls(session="s"))
    view = stage.last_view
    refuse(redis, reason)
    stage.ask(chat(12), controls(session="s"))
    answer = stage.ask(chat(12), controls(session="s"))
    assert (answer.action, answer.reason) == ("degraded", reason)
    assert stage.last_view == view
    mend(redis, reason)
    await_true(lambda: readiness(stage.proxy.url)["status"] == "ok", "readiness")
    assert re.search(r"the store works again after \S+ s; requests served without it: [12]$", caplog.text, re.MULTILINE)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("reason", REFUSALS)
def test_an_unstored_append_is_not_sent(redis: RedisServer, stage: Stage, reason: str, streamed: bool) -> None:
    append(stage, "first")
    refuse(redis, reason)
    for text in ("lost", "lost too"):
        refused = append(stage, text, stream=streamed)
        error = refused.json()["error"]
        assert (refused.status, error["code"]) == (503, "history_unavailable")
        assert reason in error["message"]
    assert len(stage.forwarded) == 1
    mend(redis, reason)
    await_true(lambda: append(stage, "second").status == 200, "an append that is stored")
    assert contents(stage) == ["first", "echo: first", "second"]


@contextmanager
def served_on_file(upstream: ScriptedUpstream, path: Path) -> Iterator[tuple[str, int]]:
    """A proxy in a process of its own with its store in a file, and the id of the process."""
    with replica(upstream.url, f"sqlite:////{path}", "recent", 4_096) as (url, process):
        await_answer(url, process)
        yield url, process.pid


def limit_files(pid: int, size: int) -> None:
    _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, most))


def test_a_file_that_may_not_grow_is_a_full_store(tmp_path: Path, upstream: ScriptedUpstream) -> None:
    with served_on_file(upstream, tmp_path / "s.db") as (url, pid):

        def ask(text: str) -> Answer:
            headers = [*wire.JSON, *controls(session="a", history="append")]
            return wire.request(url, "POST", "/v1/chat/completions", body_of([user(text)]), headers)

        assert ask("first").status == 200
        limit_files(pid, 4_096)
        lost = ask("lost")
        assert (lost.status, lost.json()["error"]["code"]) == (503, "history_unavailable")
        assert readiness(url)["store"]["state"] == "store-full"
        limit_files(pid, resource.RLIM_INFINITY)
        await_true(lambda: ask("second").status == 200, "an append that is stored")
    sent = [each["content"] for each in upstream.journal.to()[-1].json()["messages"]]
    assert sent == ["first", "echo: first", "second"]
