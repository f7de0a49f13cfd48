"""What holds for agents of the Messages API and of the Responses API alike, before upstreams as strict as vendors."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest

from tests.http import test_messages, test_responses
from tests.support import messages_upstream, responses_upstream, wire
from tests.support.proxy import assert_relayed, proxy_before, running_proxy
from tests.support.replies import json_reply

Json = dict[str, Any]


def _tokens_of_message(events: list[Json]) -> int:
    usage = next(event for event in events if event["type"] == "message_start")["message"]["usage"]
    return int(usage["input_tokens"] + usage["cache_creation_input_tokens"] + usage["cache_read_input_tokens"])


@dataclass(frozen=True)
class Api:
    """One of the two APIs: its agent and upstream, where its list is, and what its streams report as prompt tokens."""

    tests: Any
    upstream: Any
    path: str
    count: str
    listed: str
    key: list[tuple[str, str]]
    reported: Callable[[list[Json]], int]

    def views(self, upstream: Any) -> list[list[Json]]:
        """The lists that the upstream got."""
        return [body[self.listed] for body in self.tests.client_bodies(upstream)]


MESSAGES = Api(
    test_messages,
    messages_upstream.StrictMessages,
    messages_upstream.MESSAGES,
    messages_upstream.COUNT,
    "messages",
    test_messages.HEADERS,
    _tokens_of_message,
)
RESPONSES = Api(
    test_responses,
    responses_upstream.StrictResponses,
    responses_upstream.RESPONSES,
    responses_upstream.COUNT,
    "input",
    test_responses.KEY,
    lambda events: int(events[-1]["response"]["usage"]["input_tokens"]),
)
each_api = pytest.mark.parametrize("api", [MESSAGES, RESPONSES], ids=["messages", "responses"])


@each_api
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("strategy", ["off", "half-window"])
def test_below_the_marks_bytes_cross_unchanged_both_ways(api: Api, strategy: str, stream: bool) -> None:
    with proxy_before(api.upstream(api.tests.reader), strategy=strategy, window=200_000) as (upstream, proxy):
        agent = api.tests.Agent(proxy.url, stream=stream)
        for _ in range(3):
            agent.turn()
        assert_relayed(proxy, upstream, api.path, action="passed")


ODD = '{"zeta": 1e400, "type": "from-next-year", "a": 12345678901234567890123, "lone": "\\ud800"}'
ODD_BODIES = {
    "messages": f'{{"max_tokens":9,"messages":[{{"role":"user","content":[{ODD}]}}],"model":"claude-x","z":0}}',
    "input": f'{{"store":false,"input":[{{"role":"user","content":"hi"}},{ODD}],"model":"gpt-x","z":0}}',
}


@each_api
def test_unknown_parts_odd_numbers_and_key_order_survive(api: Api) -> None:
    body = ODD_BODIES[api.listed].encode()
    with api.upstream() as upstream, running_proxy(upstream.url, strategy="half-window", window=200_000) as proxy:
        wire.request(proxy.url, "POST", f"{api.path}?beta=true", body, [*wire.JSON, *api.key])
        assert upstream.journal.only(api.path).body == body
        assert upstream.journal.only(api.path).target == f"{api.path}?beta=true"


@pytest.mark.parametrize(
    ("api", "window", "strategy", "stream"),
    [
        *((MESSAGES, 16_000, *row) for row in (("half-window", True), ("mask", False), ("recent", True))),
        (MESSAGES, 16_000, "dynacontext", False),
        *((RESPONSES, 32_000, *row) for row in (("mask+half-window", True), ("mask", False), ("recent", True))),
        *((RESPONSES, 32_000, *row) for row in (("rolling", False), ("dynacontext", True))),
    ],
    ids=lambda each: getattr(each, "listed", str(each)),
)
def test_many_rounds_of_a_thinking_agent_are_never_refused(api: Api, window: int, strategy: str, stream: bool) -> None:
    with (
        api.upstream(api.tests.reader, window=window) as upstream,
        running_proxy(upstream.url, strategy=strategy, window=window) as proxy,
    ):
        agent = api.tests.Agent(proxy.url, stream=stream)
        for _ in range(24):
            agent.turn()
            proxy.quiet()
        assert upstream.refusals == []
        actions = [exchange.response_header("x-condenser-action") for exchange in proxy.journal.to(api.path)]
        assert actions.count("condensed") >= 2
        for action, (before, after) in zip(actions[1:], pairwise(api.views(upstream)), strict=True):
            assert after[0]["content"] == api.tests.RULE
            assert action == "condensed" or after[: len(before)] == before


@pytest.mark.parametrize(
    ("api", "headers", "session"),
    [
        (MESSAGES, {"x-claude-code-session-id": "one"}, "one"),
        (MESSAGES, {"x-claude-code-session-id": "one", "x-claude-code-agent-id": "a2"}, "one/a2"),
        (RESPONSES, {"session-id": "one", "thread-id": "one"}, "one"),
        (RESPONSES, {"session-id": "one", "thread-id": "two"}, "two"),
    ],
    ids=["Claude Code", "its subagent", "Codex", "its subagent"],
)
def test_a_subagent_is_another_session_than_its_parent(api: Api, headers: dict[str, str], session: str) -> None:
    with api.upstream() as upstream, running_proxy(upstream.url) as proxy:
        agent = api.tests.Agent(proxy.url)
        answer = wire.post_json(proxy.url, api.path, agent.body(), [*api.key, *headers.items()])
    assert answer.session == session


@each_api
def test_a_count_is_of_the_view_that_would_be_sent(api: Api) -> None:
    with (
        api.upstream(api.tests.reader, window=32_000) as upstream,
        running_proxy(upstream.url, strategy="mask", window=32_000) as proxy,
    ):
        agent = api.tests.Agent(proxy.url)
        while agent.turn().action != "condensed":
            pass
        counted = {key: value for key, value in agent.body().items() if key not in ("stream", "max_tokens", "store")}
        answers = [wire.post_json(proxy.url, api.count, counted, api.key) for _ in range(2)]
        view = upstream.journal.to(api.count)[-1].json()[api.listed]
        agent.turn()
        assert [answer.status for answer in answers] == [200, 200]
        assert answers[0].json() == answers[1].json()
        assert view == api.views(upstream)[-1]
        events = list(map(json.loads, wire.events(proxy.journal.to(api.path)[-1].sent)))
        assert answers[0].json()["input_tokens"] == api.reported(events)


@each_api
def test_an_upstream_that_cannot_count_leaves_it_to_the_proxy(api: Api) -> None:
    body = {"model": api.tests.MODEL, api.listed: [{"role": "user", "content": "hi"}]}
    with api.upstream() as upstream, running_proxy(upstream.url, window=32_000) as proxy:
        upstream.answer(lambda exchange: json_reply({"error": "no"}, status=404))
        answer = wire.post_json(proxy.url, api.count, body, api.key)
    assert answer.status == 200
    assert answer.json().get("object", "response.input_tokens") == "response.input_tokens"
    assert 0 < answer.json()["input_tokens"] < 50
