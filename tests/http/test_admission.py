"""Requests beyond what the proxy serves wait, or are refused in time, and are counted."""

import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from proxy.http.admission import KEPT, PEAK
from tests.http.strict import assert_openai_error
from tests.support.proxy import running_proxy
from tests.support.recording import CHAT
from tests.support.replies import completion, hang
from tests.support.signals import Signal
from tests.support.upstream import ScriptedUpstream
from tests.support.wire import JSON, post_json, request

HI = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings"])
@pytest.mark.parametrize(
    "settings",
    [
        {"limits": {"in_flight": 1, "queue": 0}},
        {"limits": {"per_tenant": 1, "queue": 0}},
        {"limits": {"queue": 0}, "upstream": {"max_connections": 1}},
        {"limits": {"in_flight": 1, "queue_timeout": 0.05}},
    ],
    ids=["full", "a tenant's share is taken", "no connection to the upstream", "too long in the queue"],
)
def test_a_request_not_served_in_time_is_503(path: str, settings: dict[str, Any]) -> None:
    answered = Signal("the test has seen the refusal")
    with (
        ScriptedUpstream() as upstream,
        running_proxy(upstream.url, **settings) as proxy,
        ThreadPoolExecutor(1) as pool,
    ):
        upstream.reply(hang(answered))
        pool.submit(post_json, proxy.url, CHAT, HI)
        upstream.journal.await_arrival()
        answer = post_json(proxy.url, path, {**HI, "input": "x"})
        assert (answer.status, answer.header("retry-after")) == (503, "1")
        assert assert_openai_error(answer.body)["code"] == "overloaded"
        assert len(upstream.journal) == 1
        metrics = request(proxy.url, "GET", "/metrics").body.decode()
        assert "condenser_refusals_total{" in metrics
        assert request(proxy.url, "GET", "/livez").status == 200
        answered.set()


@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings"])
def test_a_body_takes_its_peak_of_memory_only_until_it_is_sent(path: str) -> None:
    body = {**HI, "input": "word " * 40_000}
    limits = {"queue": 0, "bodies": (KEPT + PEAK + 1) * len(json.dumps(body))}
    answered = Signal("the test has seen the other answer")
    with (
        ScriptedUpstream() as upstream,
        running_proxy(upstream.url, limits=limits) as proxy,
        ThreadPoolExecutor(1) as pool,
    ):
        upstream.reply(hang(answered), completion("second"))
        pool.submit(post_json, proxy.url, path, body)
        upstream.journal.await_arrival(path=path)
        assert post_json(proxy.url, path, body).status == 200
        answered.set()


def test_a_packed_body_takes_memory_for_what_is_in_it() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "word " * 40_000}]}
    plain = json.dumps(body).encode()
    headers = [*JSON, ("Content-Encoding", "gzip")]
    limits = {"queue": 0, "bodies": (KEPT + PEAK - 1) * len(plain)}
    answered = Signal("the test has seen the refusal")
    with (
        ScriptedUpstream() as upstream,
        running_proxy(upstream.url, limits=limits) as proxy,
        ThreadPoolExecutor(1) as pool,
    ):
        upstream.reply(hang(answered), completion("second"))
        pool.submit(request, proxy.url, "POST", CHAT, gzip.compress(plain), headers)
        upstream.journal.await_arrival()
        assert request(proxy.url, "POST", CHAT, gzip.compress(plain), headers).status == 503
        answered.set()
