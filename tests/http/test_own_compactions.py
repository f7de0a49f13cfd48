"""Compactions that the proxy makes in place of an upstream that has none, and its items when they come back."""

import json
import zlib
from base64 import urlsafe_b64encode
from hashlib import blake2b
from pathlib import Path
from typing import Any

import openai
import pytest

from proxy.bodies.compaction_items import PREFIX
from tests.http.test_responses import KEY, MODEL, RULE, SUMMARY, WINDOW, Agent, client_bodies, reader, response_in
from tests.support import wire
from tests.support.admin_api import TOKEN, operator
from tests.support.proxy import proxy_before, running_proxy
from tests.support.redis_server import RedisServer
from tests.support.responses_upstream import COMPACT, RESPONSES, Lack, StrictResponses

Json = dict[str, Any]

GO_ON = {"role": "user", "content": "Go on, please."}
TRIGGER = {"type": "compaction_trigger"}


def before(lacks: Lack, **settings: Any) -> Any:
    return proxy_before(
        StrictResponses(reader, lacks=[lacks]), **{"strategy": "mask+half-window", "window": WINDOW, **settings}
    )


def played(url: str, turns: int = 10, **more: Any) -> Agent:
    agent = Agent(url, **more)
    for _ in range(turns):
        agent.turn()
    return agent


def ask(agent: Agent, items: list[Json], *more: tuple[str, str], **members: Any) -> wire.Answer:
    return wire.post_json(agent.url, RESPONSES, {**agent.body(), "input": items, **members}, [*agent.headers, *more])


def items_of(kind: str, items: list[Json]) -> list[Json]:
    return [item for item in items if item.get("type") == kind]


def test_an_sdk_compacts_at_an_upstream_without_the_endpoint() -> None:
    with before("endpoint", strategy="half-window") as (upstream, proxy):
        agent = played(proxy.url)
        client = openai.OpenAI(base_url=proxy.base_url, api_key="k", max_retries=0)
        for asked in (1, 1):  # it is learned once
            answered = client.responses.with_raw_response.compact(model=MODEL, input=agent.items)  # type: ignore[arg-type]
            assert len(upstream.journal.to(COMPACT)) == asked
        made, output = answered.parse(), answered.http_response.json()["output"]
        assert [item.type for item in made.output] == [item["type"] for item in output]
        assert (made.object, output[0]["content"][0]["text"], output[-1]["type"]) == (
            "response.compaction",
            RULE,
            "compaction",
        )
        assert len(items_of("compaction", output)) == 1
        answer = ask(agent, [*output, GO_ON])
        view = client_bodies(upstream)[-1]["input"]
        assert (answer.branch, answer.action) == ("main", "passed")
        assert items_of("compaction", view) == []
        assert SUMMARY in json.dumps(view)
        assert view[-1] == GO_ON
        agent.items = [*output, GO_ON, *response_in(answer)["output"]]
        assert ask(agent, [*agent.items, *results(agent.items), GO_ON]).branch == "main"
        assert client_bodies(upstream)[-1]["input"][: len(view)] == view
        assert ask(agent, [*output, GO_ON], ("x-condenser-strategy", "off")).reason == "strategy-off"
        assert client_bodies(upstream)[-1]["input"] == view
        assert upstream.refusals == []


def results(items: list[Json]) -> list[Json]:
    calls = [item for item in items if item.get("type") in ("function_call", "custom_tool_call")]
    return [{"type": f"{call['type']}_output", "call_id": call["call_id"], "output": "Nothing."} for call in calls]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("strategy", ["mask+half-window", "mask"])
def test_a_trigger_that_the_upstream_refuses_gets_exactly_one_item(stream: bool, strategy: str) -> None:
    with before("trigger", strategy=strategy) as (upstream, proxy):
        agent = played(proxy.url, stream=stream)
        compacted, again = (ask(agent, [*agent.items, TRIGGER]) for _ in range(2))
        assert (compacted.status, compacted.action, compacted.trigger) == (200, "condensed", "forced")
        assert again.condensation == compacted.condensation
        assert len(upstream.refusals) == 1
        (item,) = response_in(compacted)["output"]
        if stream:
            kinds = [json.loads(data)["type"] for data in wire.events(compacted.body)]
            assert kinds[2:] == [
                "response.output_item.added",
                "response.compaction.compacting",
                "response.output_item.done",
                "response.completed",
            ]
        users = [each for each in agent.items if each.get("role") == "user"]
        answer = ask(agent, [*users, item, GO_ON])
        view = client_bodies(upstream)[-1]["input"]
        assert (answer.status, answer.branch) == (200, "main")
        assert [each for each in view if each.get("role") == "user" and each in users] == users
        assert items_of("reasoning", view) == []
        assert len(upstream.refusals) == 1


def test_an_item_is_read_by_every_replica_and_survives_later_condensations(redis: RedisServer) -> None:
    with (
        StrictResponses(reader, window=WINDOW, lacks=["endpoint"]) as upstream,
        running_proxy(upstream.url, store={"url": redis.url}, strategy="mask+half-window", window=WINDOW) as first,
        running_proxy(upstream.url, store={"url": redis.url}, strategy="mask+half-window", window=WINDOW) as second,
    ):
        agent = played(first.url, 12)
        output = wire.post_json(first.url, COMPACT, {"model": MODEL, "input": agent.items}, KEY).json()["output"]
        agent.url, agent.items = second.url, [*output, GO_ON]
        actions = [agent.turn() for _ in range(16)]
        assert {answer.branch for answer in actions} >= {"main"}
        assert {str(answer.branch).rstrip("+") for answer in actions} == {"main"}
        assert "condensed" in [answer.action for answer in actions]
        assert "ever touch main.py" in json.dumps(client_bodies(upstream)[-1]["input"])
        assert upstream.refusals == []


def test_an_item_of_another_tenant_or_one_that_was_changed_is_refused_and_nothing_is_lost() -> None:
    with before("endpoint") as (upstream, proxy):
        agent = played(proxy.url)
        output = wire.post_json(proxy.url, COMPACT, {"model": MODEL, "input": agent.items}, KEY).json()["output"]
        item, calls = output[-1], len(upstream.journal.to(RESPONSES))
        content = item["encrypted_content"]
        for hostile in (
            content[:-9],
            *(content[:at] + ("A" if content[at] != "A" else "B") + content[at + 1 :] for at in (20, 60, 64, 80)),
            PREFIX,
            PREFIX + "ä",
            PREFIX + "QUJD" * 100_000,
        ):
            refused = ask(agent, [*output[:-1], {**item, "encrypted_content": hostile}, GO_ON])
            assert refused.status == 400
            error = refused.json()["error"]
            assert (error["code"], error["param"]) == ("invalid_encrypted_content", f"input[{len(output) - 1}]")
        other = Agent(proxy.url, headers=[("authorization", "Bearer other")])
        assert ask(other, [*output, GO_ON]).json()["error"]["code"] == "invalid_encrypted_content"
        assert len(upstream.journal.to(RESPONSES)) == calls
        assert ask(agent, [*output, GO_ON]).branch == "main"
        quoted = {"role": "user", "content": f"What is {content}?"}
        assert ask(agent, [quoted]).status == 200
        assert client_bodies(upstream)[-1]["input"] == [quoted]


def test_copies_of_an_item_are_refused_at_once() -> None:
    with before("endpoint") as (upstream, proxy):
        agent = played(proxy.url)
        output = wire.post_json(proxy.url, COMPACT, {"model": MODEL, "input": agent.items}, KEY).json()["output"]
        calls = len(upstream.journal.to(RESPONSES))
        refused = ask(agent, [*output[:-1], *output[-1:] * 60, GO_ON])
        error = refused.json()["error"]
        assert (refused.status, error["code"], error["param"]) == (
            400,
            "invalid_encrypted_content",
            f"input[{len(output)}]",
        )
        assert len(upstream.journal.to(RESPONSES)) == calls


def forged(secret: bytes, *, has_length: bool) -> Json:
    """An item of 8 MB for the bearer of the key `k`, signed with what follows from a secret."""
    digest = blake2b(b"credential\0Bearer k", key=secret, digest_size=16).hexdigest().encode()
    text = json.dumps({"role": "user", "content": "x" * 8_000_000})
    signed = zlib.compress((text if has_length else json.dumps([text])).encode(), 9)
    if has_length:
        signed = len(text).to_bytes(8) + signed
    key = blake2b(secret, digest_size=32, person=b"compaction").digest()
    signature = blake2b(digest + b"\0" + signed, key=key, digest_size=32).digest()
    return {"type": "compaction", "encrypted_content": PREFIX + urlsafe_b64encode(signature + signed).decode()}


@pytest.mark.parametrize("has_length", [True, False])
@pytest.mark.parametrize("kind", ["redis", "memory"])
def test_nobody_forges_an_item_where_no_pepper_is_set(
    kind: str, has_length: bool, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue("redis").url if kind == "redis" else "memory://"
    with before("endpoint", store={"url": url}) as (upstream, proxy):
        body = {"model": MODEL, "input": [forged(b"condenser", has_length=has_length), GO_ON]}
        refused = wire.post_json(proxy.url, RESPONSES, body, [("authorization", "Bearer k")])
        assert (refused.status, refused.json()["error"]["code"]) == (400, "invalid_encrypted_content")
        assert upstream.journal.to(RESPONSES) == []


def test_a_store_that_is_down_costs_headroom_and_opens_nothing(redis: RedisServer) -> None:
    with (
        StrictResponses(reader, window=WINDOW, lacks=["endpoint"]) as upstream,
        running_proxy(upstream.url, store={"url": redis.url}, strategy="mask+half-window", window=WINDOW) as first,
        running_proxy(upstream.url, store={"url": redis.url}, strategy="mask+half-window", window=WINDOW) as second,
    ):
        agent = played(first.url)
        output = wire.post_json(first.url, COMPACT, {"model": MODEL, "input": agent.items}, KEY).json()["output"]
        redis.kill()
        assert ask(agent, [*output, GO_ON]).status == 200  # it has the secret
        agent.url = second.url
        unopened = ask(agent, [*output, GO_ON])
        assert (unopened.status, unopened.json()["error"]["code"]) == (503, "history_unavailable")
        assert ask(agent, [{"role": "user", "content": f"What is {output[-1]['encrypted_content']}?"}]).status == 200
        body = {"model": MODEL, "input": agent.items}
        assert wire.post_json(second.url, COMPACT, body, KEY).status == 404  # the upstream's own error


@pytest.mark.parametrize("kind", ["redis", "sqlite"])
def test_what_signs_items_outlives_a_restart_and_is_no_session(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue("redis").url if kind == "redis" else f"sqlite:///{tmp_path}/s.db"
    with before("endpoint", store={"url": url}) as (_, proxy):
        agent = played(proxy.url)
        output = wire.post_json(proxy.url, COMPACT, {"model": MODEL, "input": agent.items}, KEY).json()["output"]
    with before("endpoint", store={"url": url}, admin={"token": TOKEN}) as (_, proxy):
        agent.url = proxy.url
        assert ask(agent, [*output, GO_ON]).branch == "main"
        listed = operator(proxy.url).json()
        assert (len(listed["data"]), listed["unreadable"]) == (1, [])


def test_under_native_an_upstream_with_the_trigger_alone_serves_the_endpoint() -> None:
    with before("endpoint", strategy="native+extract") as (upstream, proxy):
        agent = played(proxy.url)
        answer = wire.post_json(proxy.url, COMPACT, {"model": MODEL, "input": agent.items}, KEY)
        output = answer.json()["output"]
        assert (answer.header("x-condenser-stages"), len(items_of("compaction", output))) == ("native", 1)
        assert ask(agent, [*output, GO_ON]).branch == "main"
        (item,) = items_of("compaction", client_bodies(upstream)[-1]["input"])
        assert not item["encrypted_content"].startswith(PREFIX)
        assert upstream.refusals == []


def test_without_a_strategy_the_upstreams_own_error_passes() -> None:
    with before("endpoint", strategy="off") as (_, proxy):
        agent = played(proxy.url)
        refused = wire.post_json(proxy.url, COMPACT, {"model": MODEL, "input": agent.items}, KEY)
        assert (refused.status, refused.json()) == (404, {"detail": "Not Found"})


def test_a_threshold_that_the_upstream_does_not_know_is_kept_by_the_proxy() -> None:
    with before("context_management", window=200_000, strategy="mask+extract") as (upstream, proxy):
        agent = played(proxy.url, 6)
        managed = {"context_management": [{"type": "compaction", "compact_threshold": 4_000}]}
        first = ask(agent, agent.items, **managed)
        assert (first.status, first.action, upstream.refusals) == (
            200,
            "passed",
            ["Unknown parameter: 'context_management'."],
        )
        second = ask(agent, agent.items, **managed)
        assert (second.action, second.trigger, len(upstream.refusals)) == ("condensed", "threshold", 1)
        assert second.tokens_after < 4_000 < second.tokens_before
        assert not any("context_management" in body for body in client_bodies(upstream)[-2:])
        assert ask(agent, agent.items).action == "replayed"
