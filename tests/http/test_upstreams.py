"""Several upstreams: each request goes to one by its protocol, and what one knows or is given reaches no other."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from proxy.errors import NoUpstream
from proxy.settings import Settings
from proxy.settings.tables import PROTOCOLS
from proxy.upstream.choice import DEFAULTS, Destination, destination_of, destinations
from tests.http.test_trust import Doorman
from tests.support import replies, wire
from tests.support.logins import login
from tests.support.messages_upstream import StrictMessages
from tests.support.proxy import Proxy, running_proxy
from tests.support.recording import CHAT
from tests.support.stage import WINDOW, Stage, body_of, chat, controls
from tests.support.upstream import ScriptedUpstream

VERSION = ("anthropic-version", "2023-06-01")
KEY = ("authorization", "Bearer sk-caller")
MESSAGES_BODY = {"model": "claude-x", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}


@contextmanager
def two(
    keys: Mapping[str, str] | None = None, **settings: Any
) -> Iterator[tuple[ScriptedUpstream, StrictMessages, Proxy]]:
    """A proxy before an upstream of OpenAI's protocols and one of Anthropic's, maybe with keys of the operator."""
    keys = keys or {}
    with ScriptedUpstream() as openai, StrictMessages(lambda body: "Hello.") as anthropic:
        named: list[dict[str, Any]] = [
            {"name": "openai", "base_url": openai.url, "protocols": ["chat", "responses"]},
            {"name": "anthropic", "base_url": anthropic.url, "protocols": ["messages"]},
        ]
        named = [{**entry, "api_key": keys[entry["name"]]} if keys else entry for entry in named]
        with running_proxy("", upstream={"base_url": None}, upstreams=named, window=WINDOW, **settings) as proxy:
            yield openai, anthropic, proxy


def named(settings: Settings) -> tuple[Destination, ...]:
    return destinations(settings.upstream, settings.upstreams)


def test_out_of_the_box_there_are_two_and_an_address_or_a_list_replaces_both() -> None:
    assert named(Settings()) == DEFAULTS
    assert [(each.base_url, *each.protocols) for each in DEFAULTS] == [
        ("https://api.openai.com/v1", "chat", "responses"),
        ("https://api.anthropic.com/v1", "messages"),
    ]
    one = Settings.model_validate({"upstream": {"base_url": "http://one:1", "api_key": "sk-1"}})
    assert named(one) == (Destination("upstream", "http://one:1/v1", "sk-1"),)
    more = [{"name": "a", "base_url": "http://a", "protocols": ["messages"]}]
    both = Settings.model_validate({"upstream": {"base_url": "http://one:1"}, "upstreams": more})
    assert [destination_of(named(both), each, []).name for each in PROTOCOLS] == ["upstream", "a", "upstream"]


@pytest.mark.parametrize(
    ("protocol", "headers", "name"),
    [
        ("chat", [], "openai"), ("responses", [], "openai"), ("messages", [], "anthropic"), ("", [], "openai"),
        ("chat", [(b"anthropic-version", b"2023-06-01")], "anthropic"),
        ("", [(b"anthropic-version", b"")], "anthropic"),
    ],
)  # fmt: skip
def test_a_request_goes_where_its_protocol_goes(protocol: str, headers: list[tuple[bytes, bytes]], name: str) -> None:
    assert destination_of(DEFAULTS, protocol, headers).name == name


def test_other_paths_go_to_the_first_upstream_and_a_protocol_without_one_is_refused() -> None:
    assert destination_of(DEFAULTS[1:], "", []) is DEFAULTS[1]
    with pytest.raises(NoUpstream, match="chat"):
        destination_of(DEFAULTS[1:], "chat", [])


def test_each_upstream_gets_its_own_requests_with_its_own_key() -> None:
    with two({"openai": "sk-o", "anthropic": "sk-a"}, server={"paths": ["* *"]}) as (openai, anthropic, proxy):
        assert wire.request(proxy.url, "POST", CHAT, body_of(chat(1)), [*wire.JSON, KEY]).status == 200
        assert wire.post_json(proxy.url, "/v1/messages", MESSAGES_BODY, [VERSION, KEY]).status == 200
        wire.request(proxy.url, "GET", "/v1/models", None, [VERSION, ("x-api-key", "sk-caller")])
        wire.request(proxy.url, "GET", "/v1/models", None, [KEY])
        wire.request(proxy.url, "GET", "/v1/messages/batches", None, [KEY])
        assert [(each.path, each.header("authorization")) for each in openai.journal] == [
            (CHAT, "Bearer sk-o"),
            ("/v1/models", "Bearer sk-o"),
        ]
        assert [each.path for each in anthropic.journal] == ["/v1/messages", "/v1/models", "/v1/messages/batches"]
        assert {each.header("x-api-key") or each.header("authorization") for each in anthropic.journal} <= {
            "sk-a",
            "Bearer sk-a",
        }


def test_a_protocol_that_no_upstream_takes_is_refused_in_its_own_form() -> None:
    with ScriptedUpstream() as only:
        named = [{"name": "openai", "base_url": only.url, "protocols": ["chat"]}]
        with running_proxy("", upstream={"base_url": None}, upstreams=named) as proxy:
            refused = wire.post_json(proxy.url, "/v1/messages", MESSAGES_BODY, [VERSION])
            assert (refused.status, refused.json()["type"]) == (404, "error")
            assert "messages" in refused.json()["error"]["message"]
            assert len(only.journal) == 0


def test_an_own_call_goes_to_the_requests_upstream_with_its_credential() -> None:
    with two(strategy="summary", inline_timeout=30) as (openai, anthropic, proxy):
        said = [(role, f"{role} {n} {'frost ' * 200}") for n in range(12) for role in ("user", "assistant")]
        history = [{"role": role, "content": text} for role, text in [*said, ("user", "And now?")]]
        body = {**MESSAGES_BODY, "messages": history}
        headers = [VERSION, ("x-api-key", "sk-mine"), *controls(session="s", force="true")]
        assert wire.post_json(proxy.url, "/v1/messages", body, headers).status == 200
        proxy.quiet()
        assert len(anthropic.journal) > 1
        assert {each.header("x-api-key") for each in anthropic.journal} == {"sk-mine"}
        assert len(openai.journal) == 0


def test_a_window_that_one_upstream_states_says_nothing_of_the_other() -> None:
    said = "This model's maximum context length is 3000 tokens. However, your messages resulted in 9000 tokens."
    with ScriptedUpstream() as one, ScriptedUpstream() as other:
        named = [
            {"name": "one", "base_url": one.url, "protocols": ["chat"]},
            {"name": "other", "base_url": other.url, "protocols": ["messages", "responses"]},
        ]
        one.reply(replies.error(400, said, code="context_length_exceeded"), replies.error(400, said))
        with running_proxy("", upstream={"base_url": None}, upstreams=named, admin={"token": "t"}) as proxy:
            wire.request(proxy.url, "POST", CHAT, body_of(chat(12)), [*wire.JSON, KEY])
            asked = wire.request(proxy.url, "POST", CHAT, body_of(chat(1)), [*wire.JSON, KEY])
            assert asked.header("x-condenser-window") == "3000"
            elsewhere = {"model": "scripted-1", "input": "Hi"}
            answer = wire.post_json(proxy.url, "/v1/responses", elsewhere, [KEY])
            assert answer.header("x-condenser-window") == "unknown"


def test_what_one_upstream_accepts_is_no_proof_for_another(tmp_path: Path) -> None:
    """The other one accepts anybody, and the bearer of a forged login sees nothing there of the first one's."""
    mine, forged = login("ann"), login("ann", signature="forged")
    with ScriptedUpstream() as strict, ScriptedUpstream() as lax:
        named = [
            {"name": "strict", "base_url": strict.url, "protocols": ["chat"]},
            {"name": "lax", "base_url": lax.url, "protocols": ["messages"]},
        ]
        strict.answer(Doorman(mine))
        store = {"url": f"sqlite:///{tmp_path / 's.db'}"}
        with running_proxy("", upstream={"base_url": None}, upstreams=named, window=WINDOW, store=store) as proxy:
            stage = Stage(proxy, strict, key=mine)
            appended = controls(session="s", history="append")
            assert stage.ask([{"role": "user", "content": "The code is 4711."}], appended).status == 200
            more = body_of([{"role": "user", "content": "And now?"}])
            headers = [*wire.JSON, ("authorization", f"Bearer {forged}"), VERSION, *appended]
            assert wire.request(proxy.url, "POST", CHAT, more, headers).status == 200
            assert not any(b"4711" in each.body for each in lax.journal)
            assert wire.request(proxy.url, "POST", CHAT, more, [*headers[:-3], *appended]).status == 401
