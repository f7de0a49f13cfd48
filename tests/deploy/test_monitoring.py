"""Alerts and dashboard: a real Prometheus evaluates each expression on what it scrapes from the proxy."""

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from proxy.store.base import StoreError
from proxy.store.sqlite import SqliteStore
from tests.deploy import repository
from tests.support.prometheus_server import Prometheus, scraping
from tests.support.recording import Exchange
from tests.support.redis_server import await_true
from tests.support.replies import Reply, error
from tests.support.signals import BOUND
from tests.support.stage import Stage, body_of, chat, controls, is_own, is_vote, proxy_with_upstream, summary, vote

DEPLOY = repository.ROOT / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "condenser.json").read_text())
PANELS: dict[str, list[str]] = {
    panel["title"]: [target["expr"] for target in panel["targets"]]
    for panel in DASHBOARD["panels"]
    if panel["type"] != "row"
}
(GROUP,) = yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())["groups"]
ALERTS = {rule["alert"] for rule in GROUP["rules"]}
VARIABLES = {"$__rate_interval": "1m", "$__range": "5m", "$model": ".*"}  # Grafana puts these in
PRICED = [{"match": "*", "prices": {"input": 2.0, "cached_input": 0.5, "output": 8.0}}]
LATE = 0.6  # seconds of a summarizer that is too slow
TIMES = 3
"""A rate needs a counter to grow after it was first seen."""


def fail(*_: object) -> Any:
    raise StoreError("store-full")


def cannot(*_: object) -> Any:
    raise StoreError("store-unavailable")


def settled(stage: Stage, prometheus: Prometheus) -> None:
    """Waits until two scrapes have seen all requests so far."""
    stage.proxy.quiet()
    for _ in range(2):
        before = newest_scrape(prometheus)
        await_true(lambda before=before: newest_scrape(prometheus) > before, "a scrape", 2 * BOUND, 0.05)  # type: ignore[misc]


def newest_scrape(prometheus: Prometheus) -> float:
    return max((float(each["value"][1]) for each in prometheus.query("timestamp(up == 1)")), default=0.0)


def go_well(stage: Stage, turn: int) -> None:
    stage.ask(chat(12), controls(session=f"long-{turn}"))
    stage.ask(chat(6), controls(session=f"judged-{turn}", strategy="dynacontext"))
    stage.post(b"{")


def go_wrong(stage: Stage, turn: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An upstream that fails, own calls that are slow and fail, a message that is too long, a store that is full."""

    def late(exchange: Exchange) -> Reply:
        if not is_vote(exchange):
            time.sleep(LATE)
        return error(500, "no")

    stage.upstream.reply(error(500, "no"))
    stage.post(body_of(chat(1)))
    stage.upstream.answer(lambda exchange: late(exchange) if is_own(exchange) else None)
    stage.post(body_of(chat(13)), controls(session=f"slow-{turn}"))
    stage.ask(chat(6), controls(session=f"unjudged-{turn}", strategy="dynacontext"))
    stage.post(body_of([{"role": "user", "content": "word " * 6_000}]))
    stage.proxy.quiet()  # a verdict that is still stored would be a write that works
    with monkeypatch.context() as out:
        out.setattr(SqliteStore, "save", fail)
        stage.ask(chat(4), controls(session=f"unwritten-{turn}"))
        out.setattr(SqliteStore, "load", cannot)
        out.setattr(SqliteStore, "find", cannot)
        stage.ask(chat(4), controls(session=f"unread-{turn}"))


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with proxy_with_upstream(
        models=PRICED, answers=lambda exchange: vote("NO") if is_vote(exchange) else summary()
    ) as built:
        yield built


def test_every_panel_shows_something_and_each_alert_tells_the_bad_days_from_the_good_ones(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = stage.proxy.url.removeprefix("http://")
    with scraping(target, DEPLOY / "prometheus" / "prometheus.yml") as prometheus:
        for turn in range(TIMES):
            go_well(stage, turn)
            settled(stage, prometheus)
        for title, expressions in PANELS.items():
            for expression in map(concrete, expressions):
                await_true(lambda asked=expression: bool(prometheus.query(asked)), f"{title}: {expression}", BOUND, 0.1)  # type: ignore[misc]
        await_true(lambda: set(prometheus.alerts().values()) == {"inactive"}, "all is well", 2 * BOUND, 0.1)
        assert set(prometheus.alerts()) == ALERTS
        for turn in range(TIMES):
            go_wrong(stage, turn, monkeypatch)
            settled(stage, prometheus)
        await_true(lambda: set(prometheus.alerts().values()) == {"pending"}, str(prometheus.alerts()), BOUND, 0.1)


def concrete(expression: str) -> str:
    """An expression with Grafana's variables replaced by what it would put in."""
    whole = re.sub("|".join(map(re.escape, VARIABLES)), lambda found: VARIABLES[found[0]], expression)
    assert "$" not in whole
    return whole
