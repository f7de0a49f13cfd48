"""What arrives of real clients where the operator's key goes out: all they need, and nothing that leads it away."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import anthropic
import litellm
import openai
import pytest
from backports import zstd

from tests.clients.cases import MODEL, OURS, user
from tests.clients.litellm_state import litellm_tidied
from tests.support import wire
from tests.support.messages_upstream import StrictMessages
from tests.support.proxy import PER_HOP, Proxy, running_proxy
from tests.support.recording import CHAT, Exchange, Journal
from tests.support.replies import completion
from tests.support.stage import body_of, chat
from tests.support.upstream import ScriptedUpstream

HI: list[Any] = [user("Grüezi 👋")]
DEPLOYED = f"/openai/deployments/{MODEL}/chat/completions"
THEIRS, OPERATORS = "sk-theirs", "sk-operators"
LEADING = {  # where gateways and vendors find another server, another account, or who pays
    "Helicone-Target-URL": "https://evil.example", "x-portkey-custom-host": "https://evil.example",
    "x-portkey-config": "pc-mine", "x-portkey-provider": "openai", "x-portkey-virtual-key": "v", "x-lunar-host": "h",
    "OpenAI-Organization": "org-1", "OpenAI-Project": "proj_1", "X-Goog-User-Project": "p", "x-litellm-tags": "t",
    "X-HTTP-Method-Override": "DELETE", "X-Original-URL": "/v1/files", "cf-aig-custom-cost": "0", "Cookie": "a=b",
}  # fmt: skip
SETS: Mapping[str, Mapping[str, str]] = {
    "codex": {
        "originator": "codex_exec", "session-id": "0199-a", "thread-id": "0199-a", "x-client-request-id": "0199-a",
        "x-codex-window-id": "0199-a:0", "x-codex-turn-metadata": '{"session_id":"0199-a"}', "accept": "*/*",
        "x-openai-subagent": "review", "user-agent": "codex_exec/0.120.0", "openai-beta": "responses=experimental",
    },
    "claude code": {
        "x-app": "cli", "anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219,oauth-1",
        "anthropic-dangerous-direct-browser-access": "true", "x-claude-code-session-id": "s-1", "x-stainless-os": "a",
        "x-claude-code-agent-id": "agent-1", "x-stainless-retry-count": "0", "user-agent": "claude-cli/2.1.0",
    },
    "openrouter": {"HTTP-Referer": "https://garden.example", "X-Title": "Garden", "x-session-affinity": "s-1"},
    "azure": {"x-ms-client-request-id": "1", "x-request-id": "req-1", "accept-language": "de"},
    "bedrock": {"X-Amzn-Bedrock-GuardrailIdentifier": "g-1", "X-Amzn-Bedrock-GuardrailVersion": "1"},
    "tracing": {"traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01", "tracestate": "a=b", "idempotency-key": "i"},
}  # fmt: skip
ADDED = ("x-ms-client-request-id", "X-Amzn-Bedrock-GuardrailIdentifier", "X-Amzn-Bedrock-GuardrailVersion")


@pytest.fixture
def upstream() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream() as upstream:
        yield upstream


@pytest.fixture
def proxy(upstream: ScriptedUpstream) -> Iterator[Proxy]:
    one = {"name": "one", "base_url": upstream.url, "api_key": OPERATORS, "pass_headers": ADDED}
    server = {"prefixes": ["/openai/deployments/*"]}
    with running_proxy("", upstream={"base_url": None}, upstreams=[one], server=server) as proxy:
        yield proxy


def went(proxy: Proxy, upstream: Journal, path: str = CHAT, key_header: str = "authorization") -> Exchange:
    """The only request as the upstream got it: with all of the client's own headers, and the operator's key alone."""
    sent, arrived = proxy.journal.only(path), upstream.only(path)
    ours = {name.lower() for name in (*LEADING, *OURS)}
    expected = [(name.lower(), value) for name, value in sent.headers]
    expected = [pair for pair in expected if pair[0] not in {*ours, *PER_HOP, "authorization", "x-api-key", "api-key"}]
    key = f"Bearer {OPERATORS}" if key_header == "authorization" else OPERATORS
    assert sorted(pair for pair in arrived.headers if pair[0] not in PER_HOP) == sorted([*expected, (key_header, key)])
    assert THEIRS not in str(arrived.headers)
    return arrived


def by_openai(address: str) -> None:
    with openai.OpenAI(base_url=address, api_key=THEIRS, default_headers=LEADING | OURS) as client:
        client.chat.completions.create(model=MODEL, messages=HI)


def by_azure(address: str) -> None:
    options: Any = {"api_version": "2024-10-21", "default_headers": LEADING, "default_query": {"project": "p"}}
    with openai.AzureOpenAI(azure_endpoint=address.removesuffix("/v1"), api_key=THEIRS, **options) as client:
        client.chat.completions.create(model=MODEL, messages=HI)


def by_litellm(address: str) -> None:
    with litellm_tidied():
        options: Any = {"api_base": address, "api_key": THEIRS, "extra_headers": LEADING}
        litellm.completion(model=f"openai/{MODEL}", messages=HI, max_retries=0, **options)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # litellm's own use of pydantic
@pytest.mark.parametrize("client", [by_openai, by_azure, by_litellm], ids=["openai", "azure", "litellm"])
def test_what_a_client_says_of_itself_arrives(
    client: Callable[[str], None], proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    upstream.reply(completion("Hello."))
    client(proxy.base_url)
    path, query = (DEPLOYED, "?api-version=2024-10-21") if client is by_azure else (CHAT, "")
    assert went(proxy, upstream.journal, path).target == path + query


def test_what_the_anthropic_package_says_of_itself_arrives() -> None:
    options: Any = {"default_headers": LEADING, "default_query": {"beta": "true", "workspace": "w"}}
    with (
        StrictMessages(lambda body: "Hello.") as upstream,
        running_proxy(upstream.url, upstream={"api_key": OPERATORS}) as proxy,
    ):
        with anthropic.Anthropic(base_url=proxy.url, api_key=THEIRS, **options) as client:
            client.messages.create(model="claude-x", max_tokens=9, messages=HI)
        assert went(proxy, upstream.journal, "/v1/messages", "x-api-key").target == "/v1/messages?beta=true"


@pytest.mark.parametrize("name", SETS)
def test_the_headers_of_other_clients_arrive(name: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    own = {**LEADING, **SETS[name], "Authorization": f"Bearer {THEIRS}"}
    for path in (CHAT, "/v1/embeddings"):
        body = body_of(chat(1), input="Hi")
        assert wire.request(proxy.url, "POST", path, body, [*wire.JSON, *own.items()]).status == 200
        found = upstream.journal.to(path)[-1].headers
        assert {(key.lower(), value) for key, value in SETS[name].items()} <= set(found)
        assert {key for key, _ in found}.isdisjoint(map(str.lower, LEADING))
        assert ("authorization", f"Bearer {OPERATORS}") in found


def test_a_packed_body_keeps_its_encoding(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    packed = zstd.compress(body_of(chat(1)))
    headers = [*wire.JSON, ("Content-Encoding", "zstd"), *LEADING.items()]
    upstream.reply(completion("Hello."))
    assert wire.request(proxy.url, "POST", CHAT, packed, headers).status == 200
    (arrived,) = upstream.journal.to()
    assert (arrived.header("content-encoding"), arrived.body) == ("zstd", packed)


def test_fixed_headers_go_with_each_request_and_no_client_changes_them() -> None:
    fixed = {"Helicone-Auth": "Bearer ours", "x-portkey-config": "pc-ours"}
    with ScriptedUpstream() as upstream:
        one = {"name": "one", "base_url": upstream.url, "api_key": OPERATORS, "headers": fixed}
        with running_proxy("", upstream={"base_url": None}, upstreams=[one]) as proxy:
            for path in (CHAT, "/v1/embeddings"):
                body = body_of(chat(1), input="Hi")
                theirs = [*wire.JSON, ("helicone-auth", "Bearer theirs"), ("X-Portkey-Config", "pc-theirs")]
                assert wire.request(proxy.url, "POST", path, body, theirs).status == 200
                found = upstream.journal.to(path)[-1].headers
                assert {pair for pair in found if pair[0].startswith(("helicone", "x-portkey"))} == {
                    ("helicone-auth", "Bearer ours"),
                    ("x-portkey-config", "pc-ours"),
                }
