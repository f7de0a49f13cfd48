"""Append mode through the real proxy: the client sends what is new, the upstream gets the whole history."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from proxy.protocols.watching import MAX_HELD
from tests.support.proxy import Proxy, running_proxy
from tests.support.recording import CHAT
from tests.support.replies import (
    Reply,
    ToolCall,
    completion,
    error,
    stream,
    stream_error,
    text_chunks,
    tool_call_chunks,
)
from tests.support.signals import Signal
from tests.support.transcripts import user
from tests.support.upstream import ScriptedUpstream

USER = {"role": "user", "content": "one"}


@pytest.fixture
def client(proxy: Proxy) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=proxy.url, headers={"authorization": "Bearer k"}, timeout=10) as made:
        yield made


def append(client: httpx.Client, *messages: dict[str, Any], **more: Any) -> httpx.Response:
    headers = {"X-Condenser-History": "append", "X-Condenser-Session": "s", **more.pop("headers", {})}
    return client.post(CHAT, json={"model": "gpt-4o", "messages": list(messages), **more}, headers=headers)


def forwarded(upstream: ScriptedUpstream) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = upstream.journal.to(CHAT)[-1].json()["messages"]
    return messages


@pytest.mark.parametrize("streamed", [False, True])
def test_a_tool_call_is_stored_as_sent_back(client: httpx.Client, upstream: ScriptedUpstream, streamed: bool) -> None:
    call = ToolCall("look", '{"at": "x"}', "call_1")
    upstream.reply(stream(*tool_call_chunks(call)) if streamed else completion(tool_calls=[call]))
    append(client, USER, stream=streamed)
    append(client, {"role": "tool", "tool_call_id": "call_1", "content": "seen"})
    reply = forwarded(upstream)[1]
    assert reply["role"] == "assistant"
    assert reply["content"] is None
    assert [(each["id"], each["function"]["name"]) for each in reply["tool_calls"]] == [("call_1", "look")]
    assert json.loads(reply["tool_calls"][0]["function"]["arguments"]) == {"at": "x"}


def test_a_wrong_guard_is_refused_and_nothing_sent(client: httpx.Client, upstream: ScriptedUpstream) -> None:
    head = append(client, USER).headers["x-condenser-head"]
    refused = append(client, user("two"), headers={"X-Condenser-If-Head": "9-00"})
    assert refused.status_code == 409
    assert refused.headers["x-condenser-head"] == head
    assert refused.json()["error"]["param"] == "X-Condenser-If-Head"
    assert head in refused.json()["error"]["message"]
    assert len(upstream.journal.to(CHAT)) == 1


def test_a_repeated_guarded_append_never_doubles(client: httpx.Client, upstream: ScriptedUpstream) -> None:
    upstream.reply(completion("a"), completion("b"), completion("b again"), completion("c"))
    guard = {"X-Condenser-If-Head": append(client, USER).headers["x-condenser-head"]}
    once = append(client, user("two"), headers=guard)
    again = append(client, user("two"), headers=guard)
    assert again.headers["x-condenser-head"] == once.headers["x-condenser-head"]
    append(client, user("three"))
    assert [each["content"] for each in forwarded(upstream)] == ["one", "a", "two", "b again", "three"]


def test_an_error_and_a_dry_run_carry_the_head_that_stands(client: httpx.Client, upstream: ScriptedUpstream) -> None:
    head = append(client, USER).headers["x-condenser-head"]
    guard = {"X-Condenser-If-Head": head}
    upstream.reply(error(500))
    failed = append(client, user("two"), headers=guard)
    dry = append(client, user("two"), headers={"X-Condenser-Dry-Run": "true"})
    assert (failed.status_code, failed.headers["x-condenser-head"]) == (500, head)
    assert (dry.status_code, dry.headers["x-condenser-head"]) == (200, head)
    second = append(client, user("two"), headers=guard)
    upstream.reply(error(500))
    again = append(client, user("two"), headers=guard)
    assert (second.status_code, again.headers["x-condenser-head"]) == (200, second.headers["x-condenser-head"])


BROKEN = {
    "an error": error(500),
    "a cut stream": stream(text_chunks("half")[0], cut=True),
    "an error event": stream(text_chunks("half")[0], stream_error()),
}


@pytest.mark.parametrize("reply", BROKEN.values(), ids=BROKEN.keys())
def test_an_incomplete_reply_commits_nothing(client: httpx.Client, upstream: ScriptedUpstream, reply: Reply) -> None:
    append(client, USER)
    upstream.reply(reply)
    append(client, user("lost"), stream=True)
    append(client, user("two"))
    assert "lost" not in [each["content"] for each in forwarded(upstream)]


@pytest.mark.parametrize(
    ("more", "headers", "says"),
    [
        ({}, {"X-Condenser-No-Store": "true"}, "cannot be combined with X-Condenser-No-Store"),
        ({"n": 2}, {}, "supports n = 1 only"),
    ],
)
def test_an_append_refusal_names_the_header(
    more: dict[str, int], headers: dict[str, str], says: str, client: httpx.Client
) -> None:
    named = {"X-Condenser-History": "append", "X-Condenser-Session": "s", **headers}
    refused = client.post(CHAT, json={"model": "m", "messages": [USER], **more}, headers=named)
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == f"X-Condenser-History: append {says}."


def test_append_needs_an_explicit_session(client: httpx.Client) -> None:
    refused = client.post(CHAT, json={"model": "m", "messages": [USER]}, headers={"X-Condenser-History": "append"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "X-Condenser-Session")


def test_a_reply_too_large_to_keep_refuses_the_turn(client: httpx.Client, upstream: ScriptedUpstream) -> None:
    upstream.reply(completion("x" * (MAX_HELD + 1)), completion("second"))
    refused = append(client, USER)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "history_unavailable")
    assert refused.headers["x-condenser-head"].startswith("0-")
    append(client, user("two"))
    assert forwarded(upstream) == [user("two")]


def test_a_whole_reply_that_breaks_off_has_an_error_status(client: httpx.Client, upstream: ScriptedUpstream) -> None:
    upstream.reply(replace(completion("half"), steps=(b'{"choices": [',), cut=True))
    refused = append(client, USER)
    assert (refused.status_code, refused.json()["error"]["type"]) == (502, "upstream_error")


@pytest.fixture
def replicas(upstream: ScriptedUpstream, tmp_path: Path) -> Iterator[list[httpx.Client]]:
    """Two proxies that share a store."""
    with ExitStack() as stack:
        store = {"url": f"sqlite:///{tmp_path}/s.db"}
        proxies = [stack.enter_context(running_proxy(upstream.url, store=store)) for _ in range(2)]
        made = [httpx.Client(base_url=each.url, headers={"authorization": "Bearer k"}, timeout=10) for each in proxies]
        yield [stack.enter_context(each) for each in made]


@pytest.mark.parametrize("streamed", [False, True])
def test_an_overtaken_append_says_so(replicas: list[httpx.Client], upstream: ScriptedUpstream, streamed: bool) -> None:
    # The upstream has not accepted the caller before, so nothing is written for it, not even a claim.
    gate, slow = Signal("the slow reply"), completion("too late")
    upstream.reply((stream(*text_chunks("too late")) if streamed else slow).after(gate), completion("in time"))
    one, other = replicas
    with ThreadPoolExecutor() as pool:
        overtaken = pool.submit(append, one, user("overtaken"), stream=streamed)
        upstream.journal.await_arrival()
        assert append(other, user("first")).status_code == 200
        gate.set()
        answer = overtaken.result()
    error = answer.json()["error"] if not streamed else json.loads(answer.text.split("data: ")[-1])["error"]
    assert error["code"] == "history_unavailable"
    assert "[DONE]" not in answer.text
    assert answer.status_code == (200 if streamed else 503)
    append(one, user("second"))
    assert [each["content"] for each in forwarded(upstream)] == ["first", "in time", "second"]


def test_an_append_waits_for_the_one_before_it(client: httpx.Client, upstream: ScriptedUpstream) -> None:
    gate = Signal("the slow reply")
    upstream.reply(completion("a").after(gate), *(completion(letter) for letter in "bcd"))
    with ThreadPoolExecutor() as pool:
        first = pool.submit(append, client, user("one"))
        upstream.journal.await_arrival()
        others = [pool.submit(append, client, user(text)) for text in ("two", "three")]
        guarded = pool.submit(append, client, user("four"), headers={"X-Condenser-If-Head": "0-x"})
        gate.set()
        answers = [each.result() for each in (first, *others)]
    assert [each.status_code for each in answers] == [200, 200, 200]
    assert guarded.result().status_code == 409
    assert len(upstream.journal.to(CHAT)) == 3
    append(client, user("five"))
    said = [each["content"] for each in forwarded(upstream)]
    assert {"one", "two", "three", "a", "b", "c"} < set(said)
    assert said[:2] == ["one", "a"]


def test_the_replica_that_may_not_append_pays_nothing(replicas: list[httpx.Client], upstream: ScriptedUpstream) -> None:
    one, other = replicas
    upstream.reply(completion("a"))
    head = append(one, USER).headers["x-condenser-head"]
    gate = Signal("the slow reply")
    upstream.reply(error(500), completion("b").after(gate), completion("c"), completion("d"))
    assert append(one, user("failed")).status_code == 500
    with ThreadPoolExecutor() as pool:
        arrived = len(upstream.journal.to(CHAT))
        slow = pool.submit(append, other, user("two"))
        upstream.journal.await_arrival(arrived + 1)
        lost = append(one, user("three"))
        assert (lost.status_code, lost.headers["x-condenser-head"]) == (409, head)
        assert "under way" in lost.json()["error"]["message"]
        assert len(upstream.journal.to(CHAT)) == arrived + 1
        gate.set()
        assert slow.result().status_code == 200
    assert append(one, user("three")).status_code == 200
    assert [each["content"] for each in forwarded(upstream)] == ["one", "a", "two", "b", "three"]
