"""Paths with a provider's prefix: what a path ends in says which protocol it is, and it stays below the base URL."""

import json
from typing import Any

import pytest

from tests.http import test_messages, test_responses
from tests.support import wire
from tests.support.messages_upstream import StrictMessages
from tests.support.proxy import proxy_before, running_proxy
from tests.support.responses_upstream import StrictResponses
from tests.support.upstream import ScriptedUpstream

MESSAGES = "/api/coding/v1/messages"
RESPONSES = "/backend-api/codex/responses"
AZURE = "/openai/deployments/a%2Fb/chat/completions"


def test_a_prefixed_path_is_condensed_and_the_proxys_own_calls_go_there_too() -> None:
    with proxy_before(StrictMessages(test_messages.reader), strategy="summary") as (upstream, proxy):
        agent = test_messages.Agent(proxy.url)
        agent.messages += test_messages.long_turns(12)
        headers = [*test_messages.HEADERS, ("x-condenser-force", "true"), ("x-condenser-window", "32000")]
        answer = wire.post_json(proxy.url, f"{MESSAGES}?beta=true", agent.body(), headers)
        assert (answer.action, answer.header("x-condenser-stages")) == ("condensed", "summary")
        assert {exchange.path for exchange in upstream.journal} == {MESSAGES}
        assert len(upstream.journal) == 2
        assert list(upstream.journal)[-1].target == f"{MESSAGES}?beta=true"


def test_the_other_protocols_and_counts_have_prefixes_too() -> None:
    with StrictResponses() as upstream, running_proxy(upstream.url, strategy="recent") as proxy:
        body: Any = {"model": "m", "input": "hi"}
        answers = [
            wire.post_json(proxy.url, path, body, test_responses.KEY)
            for path in (RESPONSES, f"{RESPONSES}/input_tokens")
        ]
        assert [answer.status for answer in answers] == [200, 200]
        assert [exchange.path for exchange in upstream.journal] == [RESPONSES, f"{RESPONSES}/input_tokens"]
    with ScriptedUpstream() as chat, running_proxy(chat.url, strategy="recent") as proxy:
        wire.post_json(proxy.url, AZURE, {"model": "m", "messages": [{"role": "user", "content": "hi"}]})
        assert [exchange.target for exchange in chat.journal] == [AZURE]


def test_an_error_at_a_prefixed_path_has_the_form_of_its_protocol_and_others_are_not_found() -> None:
    with proxy_before(StrictMessages()) as (upstream, proxy):
        answer = wire.request(proxy.url, "POST", MESSAGES, b"{", [*wire.JSON, *test_messages.HEADERS])
        climbing = wire.request(proxy.url, "POST", "/api/../v1/messages", b"{}", wire.JSON)
        for path in ("/chat/completions", "/responses", "/v1beta/chat", "/api/threads/t/messages"):
            assert wire.post_json(proxy.url, path, {"model": "m", "messages": []}).status == 404
    assert (answer.status, answer.json()["type"]) == (400, "error")
    assert climbing.status in (400, 404)
    assert len(upstream.journal) == 0


KEYED: dict[str, Any] = {"api_key": "sk-operator"}
HI = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v%31/acct-evil/anything", 400),
        ("DELETE", "/%76%31/acct-evil/anything", 400),
        ("POST", "//v1/acct-evil/chat/completions", 400),
        ("POST", "/v1-evil/chat/completions", 400),
        ("POST", "/v1@evil/chat/completions", 400),
        ("GET", "/v1/..;/..;/x", 400),
        ("GET", "/v1/..%252f..%252fx", 400),
        ("POST", "/x/y/chat/completions", 403),
        ("POST", "/v1beta/openai/chat/completions", 403),
        ("GET", "/v1/files", 403),
        ("DELETE", "/v1/models/m", 403),
    ],
)
def test_the_operators_key_goes_only_where_it_should(method: str, path: str, status: int) -> None:
    with ScriptedUpstream() as upstream, running_proxy(upstream.url, upstream=KEYED) as proxy:
        answer = wire.request(proxy.url, method, path, json.dumps(HI).encode(), wire.JSON)
        error = answer.json()["error"]
        assert (answer.status, error["code"]) == (status, "bad_path" if status == 400 else "path_not_allowed")
        assert len(upstream.journal) == 0


def test_all_below_a_listed_prefix_is_served_with_the_operators_key() -> None:
    server = {"prefixes": ["/openai/deployments/*", "/v1beta/openai"], "paths": ["POST chat/completions", "GET models"]}
    with ScriptedUpstream() as upstream, running_proxy(upstream.url, upstream=KEYED, server=server) as proxy:
        seen = ["/openai/deployments/a/chat/completions?api-version=1", "/v1beta/openai/models"]
        assert wire.post_json(proxy.url, seen[0], HI).action == "passed"
        assert wire.request(proxy.url, "GET", seen[1]).status == 200
        assert wire.request(proxy.url, "GET", "/v1beta/openai/files").status == 403
        assert [exchange.target for exchange in upstream.journal] == seen
        assert {exchange.header("authorization") for exchange in upstream.journal} == {"Bearer sk-operator"}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/any/chat/completions"])
def test_what_is_condensed_obeys_the_operators_list_of_paths_too(path: str) -> None:
    with ScriptedUpstream() as upstream, running_proxy(upstream.url, server={"paths": ["GET models"]}) as proxy:
        answer = wire.request(proxy.url, "POST", path, json.dumps(HI).encode(), wire.JSON)
        assert (answer.status, answer.json()["error"]["code"]) == (403, "path_not_allowed")
        assert wire.request(proxy.url, "GET", "/v1/models").status == 200
        assert [exchange.method for exchange in upstream.journal] == ["GET"]


def test_a_path_that_is_encoded_is_condensed_as_what_it_is() -> None:
    with ScriptedUpstream() as upstream, running_proxy(upstream.url) as proxy:
        answer = wire.post_json(proxy.url, "/v1/%63hat/completions", HI)
        assert answer.action == "passed"
        assert [exchange.target for exchange in upstream.journal] == ["/v1/chat/completions"]
