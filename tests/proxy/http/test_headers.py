"""Which headers are passed on, in either direction."""

from typing import Any

import pytest

from proxy.http.headers import BEARER, encode_headers, first, to_client, to_upstream
from proxy.servers.upstream.choice import Destination, destinations
from proxy.settings import Settings

HOP_BY_HOP = [
    *(b"Connection", b"Keep-Alive", b"Proxy-Authenticate", b"Proxy-Authorization", b"Proxy-Connection"),
    *(b"TE", b"Trailer", b"Transfer-Encoding", b"Upgrade"),
]
OURS = [b"X-Condenser-Session", b"x-condenser-unheard-of", b"X-CONDENSER-", b"X_Condenser_Window", b"x-condenser_a"]
PLAIN = [(b"accept", b"*/*"), (b"x-twice", b"1"), (b"x-twice", b"2"), (b"authorization", b"Bearer k")]


@pytest.mark.parametrize("name", [*HOP_BY_HOP, *OURS])
def test_private_headers_are_passed_on_in_neither_direction(name: bytes) -> None:
    assert to_upstream([(name, b"x"), *PLAIN]) == PLAIN
    assert to_client([(name, b"x"), *PLAIN]) == PLAIN


def test_headers_of_one_connection_are_not_forwarded() -> None:
    given = [(b"Connection", b"close, X-Mine ,x-other"), (b"connection", b"X-More")]
    given += [(b"x-mine", b"1"), (b"X-OTHER", b"2"), (b"x-more", b"3")]
    assert to_upstream([*given, *PLAIN]) == PLAIN
    assert to_client([*given, *PLAIN]) == PLAIN
    for name in [b"Host", b"Content-Length", b"Expect"]:
        assert to_upstream([(name, b"x"), *PLAIN]) == PLAIN
        assert to_client([(b"Content-Length", b"5")]) == [(b"content-length", b"5")]


PASSED_ON = (
    *(b"Content-Type", b"content-encoding", b"accept", b"accept-language", b"user-agent", b"if-none-match"),
    *(b"idempotency-key", b"anthropic-version", b"anthropic-beta", b"anthropic-dangerous-direct-browser-access"),
    *(b"openai-beta", b"originator", b"x-app", b"x-request-id", b"x-client-request-id", b"traceparent", b"tracestate"),
    *(b"x-stainless-retry-count", b"x-codex-turn-metadata", b"x-openai-subagent", b"x-session-affinity"),
    *(b"x-grok-conv-id", b"HTTP-Referer", b"X-Title", b"thread-id", b"x-claude-code-session-id", b"x-pinned"),
)
KEPT_BACK = (
    *(b"authorization", b"API-Key", b"x-api-key", b"cookie", b"x-auth-token", b"x-portal-key"),
    *(b"X-HTTP-Method-Override", b"X-Original-URL", b"X-Rewrite-URL", b"x-forwarded-host", b"forwarded"),
    *(b"helicone-target-url", b"x-portkey-config", b"x-portkey-custom-host", b"x-portkey-provider", b"x-lunar-host"),
    *(b"openai-organization", b"OpenAI-Project", b"openai_project", b"x-goog-user-project", b"x-litellm-tags"),
    *(b"cf-aig-custom-cost", b"x-amz-security-token", b"x-unheard-of", b"x-titled", b"accept-"),
)


def test_beside_a_key_of_the_operator_goes_what_is_on_the_list_and_nothing_else() -> None:
    (guarded,) = upstreams(api_key="own", pass_headers=["X-Pinned"], headers={"Helicone-Auth": "ours", "X-Title": "we"})
    given = [(name, b"1") for name in (*KEPT_BACK, *PASSED_ON, b"helicone-auth")]
    passed = [(name.lower(), b"1") for name in PASSED_ON if name != b"X-Title"]
    fixed = [(b"helicone-auth", b"ours"), (b"x-title", b"we")]
    assert guarded.forwarded(given, BEARER) == [*passed, *fixed, (b"authorization", b"Bearer own")]
    assert guarded.forwarded([], (b"x-api-key", b"")) == [*fixed, (b"x-api-key", b"own")]
    query = b"api-version=2024-10-21&beta=true&project=other&include%5B%5D=a&limit=3&after=x&key=k&beta=1;model=dear"
    assert guarded.query(query) == b"api-version=2024-10-21&beta=true&include%5B%5D=a&limit=3&after=x"


def test_a_server_that_takes_no_credentials_gets_none_and_all_else() -> None:
    (local,) = upstreams(takes_credentials=False)
    given = [(name.lower(), b"1") for name in (*KEPT_BACK, *PASSED_ON)]
    assert local.forwarded(given, BEARER) == given[6:]
    assert local.query(b"project=other&monkey=1") == b"project=other&monkey=1"
    assert local.query(b"key=1&API_KEY=2&a.subscription-key=3&access%5ftoken=4&page=5") == b"page=5"
    (open_to_all,) = upstreams()
    assert open_to_all.forwarded(given, BEARER) == given


def test_a_credential_of_the_operators_in_a_fixed_header_has_the_list_beside_it_too() -> None:
    (gateway,) = upstreams(headers={"Helicone-Auth": "ours"})
    given = [(b"authorization", b"mine"), (b"helicone-auth", b"mine"), (b"helicone-target-url", b"elsewhere")]
    assert gateway.forwarded(given, BEARER) == [given[0], (b"helicone-auth", b"ours")]
    (named,) = upstreams(headers={"X-Title": "we"})
    assert named.forwarded([*given, (b"x-title", b"I")], BEARER) == [*given, (b"x-title", b"we")]


def upstreams(**entry: Any) -> tuple[Destination, ...]:
    settings = {"upstreams": [{"name": "one", "base_url": "http://one", **entry}]}
    return destinations(Settings.model_validate({**settings, "tenant": {"headers": ["X-Portal-Key"]}}))


def test_order_duplicates_and_odd_bytes_stay() -> None:
    odd = [(b"x-b", b"\xe9\xff"), (b"x-a", b""), (b"x-b", b" spaces "), (b"x-condense", b"not ours")]
    assert to_upstream(odd) == odd
    assert to_client(odd) == odd


def test_first_values_and_our_own_headers_are_read_and_written() -> None:
    assert first([(b"A", b"0"), (b"X-Id", b"1"), (b"x-id", b"2")], b"x-id") == "1"
    assert first([], b"x-id") is None
    assert encode_headers([("X-Condenser-Session", "é→")]) == [(b"x-condenser-session", b"\xe9?")]
