"""Spans and metrics in OpenTelemetry's form, read by a real receiver once the proxy has stopped."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from proxy.services import OTLP
from tests.support.otlp_receiver import Receiver, attributes
from tests.support.replies import error
from tests.support.stage import Stage, body_of, chat, controls, proxy_with_upstream, summary

TRACE, CLIENTS = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAID = "Goal: gooseberries in every bed."


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    with Receiver() as built:
        monkeypatch.setenv(OTLP, built.url)
        yield built


@contextmanager
def traced() -> Iterator[Stage]:
    with proxy_with_upstream(answers=lambda _: summary(SAID)) as stage:
        stage.key = "sk-live-0123456789abcdef"
        yield stage
        stage.proxy.served()


def traceparent(stage: Stage) -> str:
    (found,) = [value for name, value in stage.forwarded[-1].headers if name == "traceparent"]
    return found


def test_a_request_and_its_own_calls_are_spans_of_the_clients_trace_and_the_upstream_goes_on(
    receiver: Receiver,
) -> None:
    with traced() as stage:
        stage.ask(chat(12), [*controls(session="s"), ("traceparent", f"00-{TRACE}-{CLIENTS}-01")])
        upstreams = traceparent(stage)
        stage.upstream.reply(error(429, "slow down"))
        assert stage.post(body_of(chat(1))).status == 429
        assert traceparent(stage) != upstreams
    own, asked, refused = receiver.spans()
    assert [each.trace_id.hex() for each in (own, asked)] == [TRACE, TRACE]
    assert asked.parent_span_id.hex() == CLIENTS
    assert upstreams == f"00-{TRACE}-{asked.span_id.hex()}-01"
    assert own.parent_span_id == asked.span_id
    assert asked.start_time_unix_nano <= own.start_time_unix_nano < own.end_time_unix_nano <= asked.end_time_unix_nano
    found = attributes(asked)
    assert (asked.name, found["gen_ai.operation.name"]) == ("chat scripted-1", "chat")
    assert found["gen_ai.provider.name"] == "openai"
    assert found["http.response.status_code"] == 200
    assert found["gen_ai.request.model"] == "scripted-1"
    assert found["gen_ai.usage.input_tokens"] > 0 < found["gen_ai.usage.output_tokens"]
    assert (found["condenser.action"], found["condenser.trigger"]) == ("condensed", "context_limit")
    assert (attributes(own)["condenser.role"], attributes(own)["condenser.tokens"]) == ("summarizer", 940)
    assert (refused.trace_id.hex() != TRACE, attributes(refused)["error.type"]) == (True, "429")
    for body in (body for bodies in receiver.bodies.values() for body in bodies):
        assert not [word for word in (stage.key, SAID, "garden", "seed1x") if word.encode() in body]


def test_metrics_have_durations_and_tokens_by_model(receiver: Receiver) -> None:
    with traced() as stage:
        answer = stage.ask(chat(1))
    found = receiver.metrics()
    (duration,) = found["gen_ai.client.operation.duration"].histogram.data_points
    assert (duration.count, attributes(duration)["gen_ai.request.model"]) == (1, "scripted-1")
    tokens = found["gen_ai.client.token.usage"].histogram.data_points
    usage = answer.json()["usage"]
    assert {attributes(each)["gen_ai.token.type"]: each.sum for each in tokens} == {
        "input": usage["prompt_tokens"],
        "output": usage["completion_tokens"],
    }


def test_without_the_extra_the_proxy_serves_and_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(OTLP, "http://127.0.0.1:9")  # nobody listens
    monkeypatch.setitem(sys.modules, "proxy.tracing", None)
    with proxy_with_upstream() as stage:
        stage.ask(chat(1))
    assert "condenser-proxy[otel]" in caplog.text
