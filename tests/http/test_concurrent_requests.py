"""Concurrent requests at the same chain share one condensation, within a process and across replicas."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from strategies.prompts import prompt
from tests.support.proxy import running_proxy
from tests.support.recording import CHAT, Exchange
from tests.support.redis_server import await_true
from tests.support.replies import Reply, completion
from tests.support.signals import Signal
from tests.support.stage import MORE
from tests.support.upstream import ScriptedUpstream

OPENING = prompt("summary")[:40]
SUMMARY = "Goal: words, as many as it takes. Done: many of them, one after the other. " + MORE.strip()
LONG = [
    {"role": role, "content": f"{role} {i}" + " word" * 180} for i in range(12) for role in ("user", "assistant")
] + [{"role": "user", "content": "and now?"}]
BODY: dict[str, Any] = {"model": "gpt-4o", "messages": LONG}
WINDOW, STRATEGY = 4_096, "half-window"
NAMED = {"x-condenser-session": "s"}


class HeldSummarizer:
    """Answers no question of the proxy before `go_on`."""

    def __init__(self, upstream: ScriptedUpstream) -> None:
        self.asked, self.go_on = Signal("the summarizer was asked"), Signal("the summary may come")
        self._journal = upstream.journal
        upstream.answer(self._answer)

    def _answer(self, exchange: Exchange) -> Reply | None:
        if not is_summary(exchange):
            return None
        self.asked.set()
        return completion(f"<summary>{SUMMARY}</summary>").after(self.go_on)

    @property
    def questions(self) -> Counter[bytes]:
        """How often it was asked what."""
        return Counter(each.body for each in self._journal.to(CHAT) if is_summary(each))

    @property
    def forwarded(self) -> list[bytes]:
        """The clients' requests as they reached the upstream."""
        return [each.body for each in self._journal.to(CHAT) if not is_summary(each)]


def is_summary(exchange: Exchange) -> bool:
    return exchange.path == CHAT and exchange.json()["messages"][0]["content"].startswith(OPENING)


@pytest.fixture
def summarizer(upstream: ScriptedUpstream) -> HeldSummarizer:
    return HeldSummarizer(upstream)


class Clients:
    """Many who send the same at the same time."""

    def __init__(self, client: httpx.Client, pool: ThreadPoolExecutor) -> None:
        self._client = client
        self._pool = pool

    def send(self, url: str, headers: dict[str, str]) -> Future[httpx.Response]:
        """Sends the long conversation."""
        return self._pool.submit(self._client.post, url + CHAT, json=BODY, headers=headers)


@pytest.fixture
def clients() -> Iterator[Clients]:
    with httpx.Client(timeout=20) as client, ThreadPoolExecutor(8) as pool:
        yield Clients(client, pool)


def test_equal_requests_at_once_ask_a_question_once(
    upstream: ScriptedUpstream, summarizer: HeldSummarizer, clients: Clients
) -> None:
    with running_proxy(upstream.url, strategy=STRATEGY, window=WINDOW) as proxy:
        sent = [clients.send(proxy.url, NAMED) for _ in range(8)]
        summarizer.asked.wait()
        proxy.journal.await_arrival(8)
        summarizer.go_on.set()
        answers = [each.result() for each in sent]
    assert {each.status_code for each in answers} == {200}
    assert set(summarizer.questions.values()) == {1}
    assert len(set(summarizer.forwarded)) == 1


def test_no_replica_waits_for_another(
    upstream: ScriptedUpstream, summarizer: HeldSummarizer, clients: Clients, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"strategy": STRATEGY, "window": WINDOW, "store": {"url": f"sqlite:///{tmp_path}/s.db"}}
    with running_proxy(upstream.url, **settings) as one, running_proxy(upstream.url, **settings) as another:
        for proxy in (one, another):  # the upstream accepts the caller, so that replicas may share what is its own
            short = {**BODY, "messages": [{"role": "user", "content": "Hello."}]}
            assert httpx.post(proxy.url + CHAT, json=short).is_success
        upstream.journal.clear()
        sent = [clients.send(one.url, NAMED)]
        summarizer.asked.wait()
        sent.append(clients.send(another.url, NAMED))
        await_true(lambda: 2 in summarizer.questions.values(), "the other replica asks too")
        summarizer.go_on.set()
        answers = [each.result() for each in sent]
    assert {each.headers["x-condenser-action"] for each in answers} <= {"condensed", "replayed"}
    assert len({each.headers["x-condenser-condensation"] for each in answers}) == 1
    assert len(summarizer.forwarded) == len(sent)
    assert len(set(summarizer.forwarded)) == 1
    assert SUMMARY.encode() in summarizer.forwarded[0]
