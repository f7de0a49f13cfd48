"""The metrics: each request is counted once, when it has ended, as the log and the dashboard count it."""

import os
from collections.abc import Mapping
from dataclasses import replace
from http.client import IncompleteRead
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from proxy.log import RequestLine
from proxy.reasons import Action, Reason
from proxy.telemetry import MAX_KINDS, MAX_MODELS, OTHER, SHARED, Telemetry
from tests.support import wire
from tests.support.admin_api import TOKEN, admin
from tests.support.ports import free_port
from tests.support.replies import error, json_reply, stream, text_chunks
from tests.support.scraping import Figures
from tests.support.stage import Stage, body_of, chat, controls, is_vote, proxy_with_upstream, summary, vote

PRICED = [{"match": "*", "prices": {"input": 2.0, "cached_input": 0.5, "output": 8.0}}]


def figures_of(stage: Stage) -> Figures:
    stage.proxy.served()
    return Figures.of(stage.proxy.url)


def test_metrics_say_what_was_done_what_it_cost_and_name_no_session() -> None:
    with proxy_with_upstream(models=PRICED, admin={"token": TOKEN}, answers=lambda _: summary()) as stage:
        stage.ask(chat(12), controls(session="secret-name"))
        stage.ask(chat(1))
        figures, stats = figures_of(stage), admin(stage, "/_condenser/sums").json()["replica"]
        text = wire.request(stage.proxy.url, "GET", "/metrics").body.decode()
    which = {"protocol": "chat", "model": "scripted-1", "tenant": OTHER, "strategy": "mask+half-window"}
    assert figures.sum("requests_total", action="condensed", **which) == 1
    assert figures.sum("requests_total", action="passed", **which) == 1
    assert figures.sum("condensations_total", trigger="context_limit") == 1
    assert figures.sum("replies_total", by="upstream", protocol="chat", upstream="upstream", status="200") == 2
    assert figures.sum("call_tokens_total", role="summarizer") == 940
    assert figures.sum("call_seconds_count", role="summarizer") == figures.sum("calls_total", outcome="answered") == 1
    assert figures.sum("in_flight") == 0
    for name in ("request_seconds", "first_byte_seconds"):
        assert figures.sum(f"{name}_count", upstream="upstream", model="scripted-1") == 2
    assert figures.sum("overhead_seconds_count", strategy="mask+half-window") == 2
    assert 0 < figures.sum("first_byte_seconds_sum") <= figures.sum("request_seconds_sum")
    assert figures.sum("store_seconds_count", operation="save") >= 1
    sums = {"requests_total": "requests", "rescued_total": "rescued", "saved_tokens_total": "saved_tokens"}
    assert {name: figures.sum(name) for name in sums} == {name: stats.get(each, 0) for name, each in sums.items()}
    for kind, each in (("prompt", "prompt_tokens"), ("cached", "cached_tokens"), ("reply", "completion_tokens")):
        assert figures.sum("usage_tokens_total", kind=kind) == stats.get(each, 0)
    assert round(figures.sum("cost_total", currency="USD") * 1e6) == stats["cost"] > 0
    assert round(figures.sum("call_cost_total", currency="USD") * 1e6) == stats["own_cost"] > 0
    assert {"process_cpu_seconds_total", "process_resident_memory_bytes", "condenser_build_info"} <= figures.names
    assert not any(name.endswith("_created") for name in figures.names)
    assert "secret-name" not in text


def test_every_reply_is_counted_by_its_status_and_by_who_made_it() -> None:
    with proxy_with_upstream() as stage:
        stage.upstream.reply(error(429, "slow down"))
        assert stage.post(body_of(chat(1))).status == 429
        assert stage.post(b"{").status == 400
        assert wire.request(stage.proxy.url, "GET", "/v1/models").status == 200
        assert wire.request(stage.proxy.url, "GET", "/nowhere").status == 404
        figures = figures_of(stage)
    gone = {"base_url": f"http://127.0.0.1:{free_port()}/v1"}
    with proxy_with_upstream(upstream=gone, models=PRICED, admin={"token": TOKEN}) as stage:
        assert stage.post(body_of(chat(1))).status == 502
        unreachable, sums = figures_of(stage), admin(stage, "/_condenser/sums").json()["replica"]
    said = {"upstream": "upstream", "protocol": "chat"}
    assert figures.sum("replies_total", by="upstream", status="429", **said) == 1
    assert figures.sum("replies_total", by="condenser", status="400", protocol="chat") == 1
    assert figures.sum("replies_total", by="upstream", status="200", protocol="other") == 1
    assert figures.sum("replies_total", by="condenser", status="404", protocol="other") == 1
    assert figures.sum("requests_total", action="refused") == 1
    assert unreachable.sum("replies_total", by="condenser", status="502", **said) == 1
    assert unreachable.sum("errors_total", error="upstream_unreachable") == 1
    assert (sums["failed"], sums["error_upstream_unreachable"]) == (1, 1)
    assert unreachable.sum("usage_tokens_total") == unreachable.sum("cost_total") == 0


def test_a_reply_that_the_upstream_breaks_off_is_an_error_though_its_status_was_sent() -> None:
    with proxy_with_upstream() as stage:
        whole, part = stream(*text_chunks("one two three")), json_reply({"choices": []})
        stage.upstream.reply(replace(whole, steps=whole.steps[:1], cut=True), replace(part, steps=(b"{",), cut=True))
        assert b"upstream_" in stage.post(body_of(chat(1), stream=True)).body
        with pytest.raises(IncompleteRead):
            stage.post(body_of(chat(1)))
        figures = figures_of(stage)
    assert figures.sum("replies_total", by="upstream", status="200", upstream="upstream") == 2
    assert figures.sum("errors_total") == 2
    assert figures.sum("broken_total", upstream="upstream") == 1  # the stream ended with an error event


def test_votes_are_counted_by_what_they_say() -> None:
    with proxy_with_upstream(strategy="dynacontext", answers=lambda _: vote("NO")) as stage:
        for rounds in (4, 5):
            stage.ask(chat(rounds), controls(session="s"))
            stage.proxy.quiet()
        figures = figures_of(stage)
    asked = [each for each in stage.upstream.journal.to() if is_vote(each)]
    assert 0 < figures.sum("votes_total", vote="no") <= len(asked)
    assert figures.sum("votes_total", vote="yes") == 0


def bypassed(model: str, tenant: str, status: int = 200) -> tuple[RequestLine, Mapping[str, int]]:
    line = RequestLine("1", "POST", "/v1/embeddings", status, model=model, tenant=tenant)
    line.outcome = Action.BYPASSED, Reason.NOT_CONDENSED_ENDPOINT
    return line, line.amounts()


def test_labels_that_clients_choose_are_bounded() -> None:
    names = {f"team-{number}" for number in range(4)}
    telemetry = Telemetry(names)
    telemetry.record(*bypassed("never-answered", "team-0", 404))
    telemetry.record(*bypassed("m0", "0123456789ab"))
    for name in names:
        for number in range(MAX_MODELS + 50):
            telemetry.record(*bypassed(f"m{number}", name))
    families = text_string_to_metric_families(telemetry.exposition().decode())
    found = [each for family in families for each in family.samples if each.name == "condenser_requests_total"]
    assert {each.labels["tenant"] for each in found} == {*names, OTHER}
    assert "never-answered" not in {each.labels["model"] for each in found}
    assert len(found) <= MAX_KINDS + len(names) + 1
    assert sum(each.value for each in found) == 2 + len(names) * (MAX_MODELS + 50)


def test_the_empty_file_of_a_worker_that_is_starting_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"counter_{os.getpid()}.db").touch()
    monkeypatch.setenv(SHARED, str(tmp_path))
    assert Telemetry({"team"}).exposition() == b""
