"""Request records over HTTP: they say what each reply's headers said, and a page never knows more than that."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.admin_api import TOKEN, admin, only_session
from tests.support.replies import error
from tests.support.stage import body_of, chat, controls, proxy_with_upstream
from tests.support.wire import Answer

STRATEGIES = ["mask+extract", "rolling", "recent", "observe:mask+extract", "off"]


def as_answered(answer: Answer) -> dict[str, Any]:
    """What the headers of a reply say, as its record has it."""
    told = {name.lower(): value for name, value in answer.headers}
    return {
        "status": answer.status,
        "action": told["x-condenser-action"],
        "trigger": told["x-condenser-trigger"],
        "condensation": told.get("x-condenser-condensation", ""),
        "before": int(told["x-condenser-tokens-before"]),
        "after": int(told["x-condenser-tokens-after"]),
        "precision": told["x-condenser-count"],
    }


def as_recorded(record: Mapping[str, Any], told: Mapping[str, Any]) -> dict[str, Any]:
    return {name: record[name] for name in told}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_record_says_what_the_headers_of_its_reply_said(strategy: str) -> None:
    with proxy_with_upstream(strategy=strategy, window=4_096, admin={"token": TOKEN}) as stage:
        told = []
        for rounds in range(2, 44, 3):
            told.append(as_answered(stage.ask(chat(rounds), controls(session="s"))))
            stage.proxy.quiet()
        session = only_session(stage.proxy.url)
    found = session["requests"]
    assert [as_recorded(record, each) for record, each in zip(found, told, strict=True)] == told
    assert [record["number"] for record in found] == list(range(1, len(told) + 1))
    assert {record["model"] for record in found} == {stage.model}
    totals = session["totals"]
    assert totals["client_tokens"] == sum(each["before"] for each in told)
    assert totals.get("rescued", 0) == sum(record["rescued"] for record in found)
    assert totals.get("saved_tokens", 0) == sum(record["saved"] for record in found)
    if strategy.startswith("observe:"):
        assert totals["forwarded_tokens"] == totals["client_tokens"]
        assert any(each["after"] < each["before"] for each in told)
    shortens = strategy in STRATEGIES[:3]
    # 4,096 tokens are full after about 24 rounds: what was sent shorter after that did not fit before.
    assert any(record["rescued"] for record in found) is shortens
    assert any(record["saved"] > 0 for record in found) is shortens


def test_a_request_that_fails_is_recorded_in_its_session_and_counted() -> None:
    with proxy_with_upstream(strategy="recent", window=4_096, admin={"token": TOKEN}) as stage:
        stage.ask(chat(4), controls(session="s"))
        stage.upstream.answer(lambda _exchange: error(500))
        assert stage.post(b'{"model": "m", "messages": [{"role": "user", "content": "x"}]}').status == 500
        assert stage.post(body_of(chat(5)), controls(session="s")).status == 500
        stage.proxy.quiet()
        session = only_session(stage.proxy.url)
        sums = admin(stage, "/_condenser/sums").json()["replica"]
    assert [(record["number"], record["status"]) for record in session["requests"]] == [(1, 200), (2, 500)]
    assert (session["totals"]["requests"], session["totals"]["failed"]) == (2, 1)
    assert (sums["requests"], sums["failed"]) == (3, 2)
