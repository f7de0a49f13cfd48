"""What is told of requests is true: beside what a server that keeps a prompt cache has seen and billed."""

from collections import Counter
from typing import Any

import pytest

from tests.support import replies, wire
from tests.support.admin_api import TOKEN, admin
from tests.support.stage import Stage, chat, controls, proxy_with_upstream, rounds_over
from tests.support.till import CACHED, FRESH, Till

PRICES = {"input": FRESH, "cached_input": CACHED, "output": 0.0}
LOWERED: list[dict[str, Any]] = [
    {"models": [{"match": "*", "window": 4_096, "prices": PRICES}]},
    {"window": None, "marks": {"most": 4_096}, "models": [{"match": "*", "prices": PRICES}]},
    {"window": None, "models": [{"match": "*", "prices": {**PRICES, "step": {"above": 4_096}}}]},
]


def played(stage: Stage, largest: int, step: int = 4, **given: Any) -> None:
    for rounds in range(2, rounds_over(largest), step):
        stage.ask(chat(rounds), controls(session="s", **given))
    stage.proxy.quiet()


def sums(stage: Stage) -> Counter[str]:
    return Counter(admin(stage, "/_condenser/sums").json()["replica"])


@pytest.mark.parametrize("settings", LOWERED, ids=["a lower window", "most", "a price step"])
def test_what_a_user_lowered_rescues_nothing(settings: dict[str, Any]) -> None:
    with proxy_with_upstream(**{"strategy": "extract", "admin": {"token": TOKEN}, **settings}) as stage:
        stage.model = "gpt-4o"  # 128,000 tokens
        played(stage, 8_000)
        found = sums(stage)
    assert (found["rescued"], found["saved_tokens"] > 5_000) == (0, True)


def test_a_lower_window_of_a_header_rescues_nothing() -> None:
    with proxy_with_upstream(strategy="extract", window=None, admin={"token": TOKEN}) as stage:
        stage.model = "gpt-4o"
        played(stage, 8_000, window=4_096)
        assert (sums(stage)["rescued"], sums(stage)["saved_tokens"] > 5_000) == (0, True)


def test_a_window_that_nothing_else_is_known_of_rescues() -> None:
    with proxy_with_upstream(strategy="extract", window=4_096, admin={"token": TOKEN}) as stage:
        stage.model = "somebodys-finetune"
        played(stage, 8_000)
        assert sums(stage)["rescued"] > 0


def test_net_is_what_the_bill_fell_by() -> None:
    till, direct = Till(), Till()
    with proxy_with_upstream(**{"strategy": "extract", "admin": {"token": TOKEN}, **LOWERED[1]}) as stage:
        stage.model = "gpt-4o"
        stage.upstream.answer(till)
        played(stage, 10_000)
        found = sums(stage)
    for rounds in range(2, rounds_over(10_000), 4):
        direct.read(list(chat(rounds)))
    assert found["cost"] == pytest.approx(till.bill, abs=20)
    assert found["action_condensed"] > 0
    assert found["reread_tokens"] > 0
    net = found["saved_cost"] - found["reread_cost"]
    assert net == pytest.approx(direct.bill - till.bill, rel=0.03)


@pytest.mark.parametrize("details", ["prompt_tokens_details", "input_tokens_details"])
def test_what_was_written_to_a_cache_costs_what_that_costs(details: str) -> None:
    prices = {**PRICES, "cache_write": 3.0}
    usage = {**replies.usage(1_000, 0), details: {"cached_tokens": 200, "cache_write_tokens": 700}}
    document = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}]}
    models = [{"match": "*", "prices": prices}]
    with proxy_with_upstream(admin={"token": TOKEN}, models=models) as stage:
        stage.upstream.answer(lambda _: replies.json_reply({"object": "chat.completion", **document, "usage": usage}))
        stage.ask(chat(2), controls(session="s"))
        stage.proxy.quiet()
        assert sums(stage)["cost"] == 100 * FRESH + 200 * CACHED + 700 * 3.0


def test_a_web_socket_that_is_refused_is_no_request(caplog: pytest.LogCaptureFixture) -> None:
    upgrade = [("upgrade", "websocket"), ("connection", "Upgrade"), ("sec-websocket-version", "13")]
    with proxy_with_upstream(admin={"token": TOKEN}) as stage:
        assert wire.request(stage.proxy.url, "GET", "/v1/responses", b"", upgrade).status == 426
        stage.proxy.quiet()
        assert (sums(stage)["requests"], sums(stage)["failed"]) == (0, 0)
    assert {"uvicorn.error"} & {each.name for each in caplog.records} == set()
