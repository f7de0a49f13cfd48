"""Concurrent requests at the same chain share one condensation."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from strategies.prompts import prompt
from tests.support.proxy import proxying
from tests.support.recording import CHAT, Exchange
from tests.support.replies import Reply, completion
from tests.support.signals import Signal
from tests.support.upstream import ScriptedUpstream

OPENING = prompt("summary")[:40]
LONG = [
    {"role": role, "content": f"{role} {i}" + " word" * 180} for i in range(12) for role in ("user", "assistant")
] + [{"role": "user", "content": "and now?"}]


def is_summary(exchange: Exchange) -> bool:
    return exchange.path == CHAT and exchange.json()["messages"][0]["content"].startswith(OPENING)


def test_many_at_once_cost_one_summary_and_forward_the_same_bytes(upstream: ScriptedUpstream) -> None:
    asked, go_on = Signal("the summarizer was asked"), Signal("the summary may come")

    def answer(exchange: Exchange) -> Reply | None:
        if not is_summary(exchange):
            return None
        asked.set()
        return completion("Goal: words. Done: many of them.").after(go_on)

    upstream.answer(answer)
    body: dict[str, Any] = {"model": "gpt-4o", "messages": LONG}
    headers = {"x-condenser-session": "s", "x-condenser-window": "4096", "x-condenser-strategy": "half-window"}
    with proxying(upstream.url) as proxy, ThreadPoolExecutor(8) as pool, httpx.Client(timeout=20) as client:
        sent = [pool.submit(client.post, proxy.url + CHAT, json=body, headers=headers) for _ in range(8)]
        asked.wait()
        proxy.journal.await_arrival(8)
        go_on.set()
        answers = [each.result() for each in sent]
    assert {each.status_code for each in answers} == {200}
    exchanges = upstream.journal.to(CHAT)
    assert sum(is_summary(each) for each in exchanges) == 1
    assert len({each.body for each in exchanges if not is_summary(each)}) == 1
