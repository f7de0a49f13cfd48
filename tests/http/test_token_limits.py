"""Tokens per minute: each tenant has its own, all replicas count them together, and a broken store refuses nobody."""

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.http.strict import assert_openai_error
from tests.http.test_search_memory import asks, question, remembering
from tests.support import wire
from tests.support.logins import login
from tests.support.messages_upstream import MESSAGES
from tests.support.proxy import Proxy, running_proxy
from tests.support.recording import CHAT
from tests.support.redis_server import RedisServer, await_true
from tests.support.replies import completion, json_reply, stream, text_chunks, usage_chunk
from tests.support.searching import reply_of, search
from tests.support.signals import BOUND, Signal
from tests.support.stage import body_of, chat, controls, proxy_with_upstream
from tests.support.upstream import ScriptedUpstream
from tests.support.virtual_time import Clock

RESPONSES = "/v1/responses"
HI: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def ask(proxy: Proxy, path: str = CHAT, key: str = "sk-anna", **headers: str) -> wire.Answer:
    body = {**HI, "max_tokens": 9} if path == MESSAGES else HI
    if path == RESPONSES:
        body = {"model": "m", "input": [{"role": "user", "content": "hi"}]}
    given = [("Authorization", f"Bearer {key}"), *headers.items()]
    answer = wire.post_json(proxy.url, path, body, given)
    proxy.quiet()
    return answer


@pytest.fixture(params=["sqlite", "redis"])
def replicas(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[ScriptedUpstream, Proxy, Proxy, Clock]]:
    """Two replicas on one store, with 600 tokens a minute for each tenant."""
    with ExitStack() as stack:
        url = f"sqlite:///{tmp_path}/s.db"
        if request.param == "redis":
            url = stack.enter_context(RedisServer()).url
        upstream, clock = stack.enter_context(ScriptedUpstream()), Clock(1_700_000_000.0)
        settings: dict[str, Any] = {"store": {"url": url}, "limits": {"tokens_per_minute": 600}}
        one, other = (stack.enter_context(running_proxy(upstream.url, clock=clock, **settings)) for _ in range(2))
        yield upstream, one, other, clock


def test_a_tenant_that_has_spent_its_tokens_waits_at_every_replica(
    replicas: tuple[ScriptedUpstream, Proxy, Proxy, Clock], request: pytest.FixtureRequest
) -> None:
    upstream, one, other, clock = replicas
    upstream.reply(completion("Hello.", tokens=(640, 60)))
    assert ask(one).status == 200
    for path in (CHAT, RESPONSES, MESSAGES):
        refused = ask(other, path)
        # A minute's tokens and 100 more are gone; ten of them come back in a second.
        assert (refused.status, refused.header("retry-after")) in ((429, "10"), (429, "11"))
        error = refused.json()["error"]
        assert "Please try again in 1" in error["message"]
        if path == MESSAGES:
            assert (refused.json()["type"], error["type"]) == ("error", "rate_limit_error")
        else:
            assert assert_openai_error(refused.body)["code"] == "rate_limit_exceeded"
    assert len(upstream.journal) == 1
    assert ask(other, key="sk-bert").status == 200
    assert ask(other, **{"X-Condenser-Dry-Run": "true"}).status == 200
    assert 'condenser_refusals_total{reason="tokens"} 3.0' in wire.request(other.url, "GET", "/metrics").body.decode()
    if "sqlite" in request.node.name:
        clock.now += 11
        assert ask(other).status == 200


@pytest.mark.parametrize(
    "reported", [2**31, 10**12, 10**19, int("9" * 4_000)], ids=["large", "larger", "of-no-store", "long"]
)
def test_an_absurd_usage_locks_nobody(
    reported: int, replicas: tuple[ScriptedUpstream, Proxy, Proxy, Clock], capfd: pytest.CaptureFixture[str]
) -> None:
    upstream, one, other, _ = replicas
    upstream.reply(completion("Hello.", tokens=(reported, 3)))
    assert ask(one).status == 200
    refused = ask(other)
    assert refused.status == 200 or 0 < int(refused.header("retry-after") or 0) <= 600
    assert ask(one, key="sk-bert").status == 200
    figures = wire.request(one.url, "GET", "/metrics")
    assert (figures.status, b"condenser_requests_total" in figures.body) == (200, True)
    assert "Traceback" not in capfd.readouterr().err


def test_what_the_upstream_reports_counts_and_what_it_refuses_does_not(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"store": {"url": "memory://"}, "limits": {"tokens_per_minute": 600}}
    with ScriptedUpstream() as upstream, running_proxy(upstream.url, **settings) as proxy:
        for _ in range(3):
            upstream.reply(json_reply({"error": {"message": "x" * 9_000}}, status=500))
            assert ask(proxy).status == 500
        upstream.reply(stream(*text_chunks("Hello."), usage_chunk(400, 300)))
        assert ask(proxy).status == 200
        assert ask(proxy).status == 429


COMPACT, COUNT = "/v1/responses/compact", "/v1/messages/count_tokens"
LONG = "x" * 9_000
OTHERS: dict[str, tuple[str, dict[str, Any], list[tuple[str, str]]]] = {
    "compaction": (COMPACT, {"model": "m", "input": [{"role": "user", "content": LONG}]}, []),
    "counting": (COUNT, {**HI, "messages": [{"role": "user", "content": LONG}]}, []),
    "embeddings": ("/v1/embeddings", {"model": "m", "input": LONG}, []),
    "completions": ("/v1/completions", {"model": "m", "prompt": LONG}, []),
    "images": ("/v1/images/generations", {"model": "m", "prompt": LONG}, []),
    "an unread body": (CHAT, {**HI, "messages": LONG}, [("Content-Encoding", "compress")]),
    "a history at the server": (RESPONSES, {"model": "m", "input": LONG, "previous_response_id": "resp_1"}, []),
    "a long upload": ("/v1/audio/transcriptions", {"file": LONG * 200}, []),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_what_is_not_condensed_counts_by_its_length_unless_it_is_refused(kind: str) -> None:
    path, body, headers = OTHERS[kind]
    limits = {"tokens_per_minute": 600}
    with ScriptedUpstream() as upstream, running_proxy(upstream.url, limits=limits) as proxy:

        def asked() -> int:
            key = ("Authorization", "Bearer sk-anna")
            answer = wire.post_json(proxy.url, path, body, [key, *headers])
            proxy.quiet()
            return answer.status

        upstream.reply(json_reply({"error": {"message": "no"}}, status=400))
        assert asked() == 400
        upstream.reply(json_reply({"object": "list", "data": []}))
        assert asked() == 200
        before = len(upstream.journal)
        assert asked() == 429
        assert ask(proxy).status == 429
        assert len(upstream.journal) == before
        assert ask(proxy, key="sk-bert").status == 200


@pytest.mark.parametrize("is_broken", [False, True])
def test_every_round_of_a_search_counts(is_broken: bool) -> None:
    with remembering(limits={"tokens_per_minute": 100_000}) as stage:
        first = reply_of(None, search(), streamed=True, usage=(120_000 if is_broken else 100, 10))
        last = reply_of("Found.", streamed=True, usage=(120_000, 5))
        stage.upstream.reply(first, replace(last, steps=last.steps[:2], cut=True) if is_broken else last)
        asks(stage, question(), True)
        stage.proxy.quiet()
        assert stage.post(body_of(question())).status == 429


def test_a_login_that_no_upstream_has_accepted_spends_nothing_of_whom_it_names() -> None:
    limits, gate = {"tokens_per_minute": 600}, Signal()
    with ScriptedUpstream() as upstream, running_proxy(upstream.url, limits=limits) as proxy:
        anna, forged = login("anna"), login("anna", signature="forged")
        upstream.reply(completion("Hello.", tokens=(7, 3)))
        assert ask(proxy, key=anna).status == 200
        large = {"model": "m", "messages": [{"role": "user", "content": "x" * 9_000}]}
        upstream.reply(json_reply({"error": {"message": "no"}}, status=401).after(gate))
        asking = threading.Thread(
            target=wire.post_json, args=(proxy.url, CHAT, large, [("Authorization", f"Bearer {forged}")])
        )
        asking.start()
        await_true(lambda: len(upstream.journal) == 2, "the forged login is judged", BOUND)
        headers = [*wire.JSON, ("Authorization", f"Bearer {anna}")]
        own = wire.request(proxy.url, "POST", CHAT, json.dumps(HI).encode(), headers)
        gate.set()
        asking.join(BOUND)
        assert own.status == 200


def test_a_store_that_fails_refuses_no_request(redis: RedisServer) -> None:
    settings: dict[str, Any] = {"store": {"url": redis.url}, "limits": {"tokens_per_minute": 1}}
    with ScriptedUpstream() as upstream, running_proxy(upstream.url, **settings) as proxy:
        assert [ask(proxy).status for _ in range(2)] == [200, 429]
        redis.kill()
        assert ask(proxy).status == 200


def test_no_model_is_asked_beyond_the_tokens_for_own_calls() -> None:
    with proxy_with_upstream(limits={"own_tokens_per_minute": 600}) as stage:
        first = stage.ask(chat(12), controls(session="s"))
        stage.proxy.quiet()
        assert (first.action, len(stage.summaries)) == ("condensed", 1)
        second = stage.ask(chat(26), controls(session="s"))
        assert (second.action, second.reason, len(stage.summaries)) == ("condensed", "summary-over-budget", 1)
        metrics = wire.request(stage.proxy.url, "GET", "/metrics").body.decode()
    assert 'condenser_calls_total{outcome="over-budget",role="summarizer"} 1.0' in metrics
