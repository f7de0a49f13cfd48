"""Keys of callers: who gets in, what a key may ask, and that none is forwarded or shared."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest

from proxy.errors import SettingsError
from proxy.settings import load_settings
from tests.support import wire
from tests.support.admin_api import TOKEN, admin
from tests.support.recording import CHAT
from tests.support.scraping import Figures
from tests.support.stage import MODEL, Stage, body_of, chat, controls, proxy_with_upstream

OPERATOR = "sk-operator"
ANNA, BEN, OLD = "condenser-anna", "condenser-ben", "condenser-old"


def entry(name: str, key: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "sha256": sha256(key.encode()).hexdigest(), **more}


@contextmanager
def keyed(*entries: dict[str, Any], **settings: Any) -> Iterator[Stage]:
    """A proxy whose callers need one of these keys; by default Anna's, Ben's, and one that has expired."""
    keys = entries or (entry("anna", ANNA), entry("ben", BEN), entry("old", OLD, expires="2020-01-01"))
    auth = {"mode": "keys", "keys": list(keys)}
    with proxy_with_upstream(auth=auth, upstream={"api_key": OPERATOR}, **settings) as stage:
        yield replace(stage, key=ANNA)


def asked(stage: Stage, *headers: tuple[str, str], path: str = CHAT) -> wire.Answer:
    return wire.request(stage.proxy.url, "POST", path, body_of(chat(1), input="hi"), [*wire.JSON, *headers])


def test_only_a_key_that_holds_gets_in_and_none_reaches_the_upstream() -> None:
    with keyed() as stage:
        wrong: list[list[tuple[str, str]]] = [
            [],
            [("Authorization", f"Basic {ANNA}")],
            [("Authorization", "Bearer condenser-ann")],
            [("Authorization", f"Bearer {OPERATOR}")],
            [("x-api-key", OLD)],
            [("Authorization", f"Bearer {ANNA}"), ("x-api-key", BEN)],
        ]
        for path in (CHAT, "/v1/messages", "/v1/embeddings", "/_condenser/own/search"):
            for headers in wrong:
                refused = asked(stage, *headers, path=path)
                assert (refused.status, refused.json()["error"]["code"]) == (401, "invalid_api_key"), (path, headers)
        assert refused.header("www-authenticate") == "Bearer"
        assert asked(stage, path="/v1/messages").json()["error"]["type"] == "authentication_error"
        assert wire.request(stage.proxy.url, "GET", "/v1/models").status == 401
        assert not stage.upstream.journal
        others = [(name, BEN) for name in ("api-key", "X-Goog-Api-Key", "x-litellm-api-key")]
        for header in (("Authorization", f"bearer {ANNA}"), ("x-api-key", ANNA)):
            for path in (CHAT, "/v1/embeddings"):
                assert asked(stage, header, *others, path=path).status == 200
        for exchange in stage.upstream.journal:
            assert ("authorization", f"Bearer {OPERATOR}") in exchange.headers
            assert not any(key in str(exchange.headers) for key in (ANNA, BEN))


def test_sessions_belong_to_the_tenant_of_the_key(capfd: pytest.CaptureFixture[str]) -> None:
    with keyed(
        entry("anna", ANNA), entry("ben", BEN), entry("anna-2", OLD, tenant="anna"), admin={"token": TOKEN}
    ) as stage:
        assert stage.ask(chat(12), controls(session="s")).action == "condensed"
        assert replace(stage, key=BEN, sent=[]).ask(chat(12), controls(session="s")).action == "condensed"
        assert replace(stage, key=OLD, sent=[]).ask(chat(12), controls(session="s")).action == "replayed"
        stage.proxy.quiet()
        rows = admin(stage, "/_condenser/sessions").json()["data"]
        assert sorted(row["tenant_name"] for row in rows) == ["anna", "ben"]
        listed = admin(stage, "/_condenser/sessions?tenant=ben").json()["data"]
        assert [row["tenant_name"] for row in listed] == ["ben"]
        figures = Figures.of(stage.proxy.url, ("Authorization", f"Bearer {TOKEN}"))
        assert figures.sum("requests_total", action="replayed", tenant="anna") == 1
        assert admin(stage, "/_condenser/sessions/ben", "DELETE").json()["sessions"] == 1
        rows = admin(stage, "/_condenser/sessions").json()["data"]
        assert [row["tenant_name"] for row in rows] == ["anna"]
    assert ANNA not in capfd.readouterr().err


def test_a_key_asks_its_models_and_strategies_only_however_the_request_comes() -> None:
    bound = entry("anna", ANNA, models=["scripted-*"], strategies=["recent"])
    azure, coding, key = "/openai/deployments", "/api/coding", ("x-api-key", ANNA)
    prefixes = {"prefixes": [f"{azure}/*", coding]}
    with keyed(bound, entry("none", BEN, models=[]), server=prefixes) as stage:
        assert stage.post(body_of(chat(1), MODEL)).status == 200
        assert asked(stage, key, path=f"{coding}/v1/chat/completions").status == 200
        assert stage.post(body_of(chat(1), f"{MODEL}@recent")).status == 200
        assert wire.request(stage.proxy.url, "GET", "/v1/models", None, [("x-api-key", ANNA)]).status == 200
        count = len(stage.upstream.journal)
        refusals = [
            (stage.post(body_of(chat(1), "other-1")), "model"),
            (stage.post(body_of(chat(1), "other-1@recent")), "model"),
            (stage.post(body_of(chat(1), f"{MODEL},other-1")), "model"),
            (stage.post(body_of(chat(1), MODEL, models=["other-1"])), "models"),
            (stage.post(body_of(chat(1), MODEL, Model="other-1")), "Model"),
            (stage.post(body_of(chat(1), MODEL, tools=[{"type": "advisor", "model": "other-1"}])), "tools"),
            (stage.post(body_of(chat(1), MODEL, context_window_fallbacks=["other-1"])), "context_window_fallbacks"),
            (asked(stage, key, path=f"{azure}/other-1/chat/completions"), "path"),
            (stage.post(body_of(chat(1), MODEL), [("Content-Encoding", "compress")]), "model"),
            (stage.post(b"{", [("X-Condenser-Strategy", "off")]), "model"),
            (stage.post(b'{"model": "other-1", ' + body_of(chat(1))[1:], [("X-Condenser-Strategy", "off")]), "model"),
            (asked(stage, key, path="/v1/embeddings"), "model"),
            (replace(stage, key=BEN).post(body_of(chat(1), MODEL)), "model"),
        ]
        for refused, param in refusals:
            error = refused.json()["error"]
            assert (refused.status, error["code"], error["param"]) == (403, "model_not_allowed", param)
        for headers in ([("X-Condenser-Strategy", "recent+summary")], [("X-Condenser-Strategy", "off")]):
            error = stage.post(body_of(chat(1), MODEL), headers).json()["error"]
            assert (error["code"], error["param"]) == ("strategy_not_allowed", "X-Condenser-Strategy")
        assert len(stage.upstream.journal) == count


@pytest.mark.parametrize(
    "members",
    [
        {"engine": "other-1"}, {"Deployment": "other-1"}, {"fallbacks": [{"scripted-1": ["other-1"]}]},
        {"extra_body": {"model": "other-1"}}, {"plugins": [{"id": "web", "model": "other-1"}]},
        {"metadata": {"judge_model": ["other-1"]}}, {"litellm_params": {}}, {"extra_body": {"API_Base": "http://x"}},
        {"base_url": "http://x"}, {"user_config": {}}, {"provider": {"order": ["x"]}}, {"models": {"a": ["other-1"]}},
        {"tools": [{"type": "function", "function": {"name": "f", "model": "other-1", "parameters": {}}}]},
    ],
)  # fmt: skip
def test_no_member_of_a_body_leads_a_bound_key_to_another_model_or_server(members: dict[str, Any]) -> None:
    with keyed(entry("anna", ANNA, models=["scripted-*"])) as stage:
        refused = stage.post(body_of(chat(1), MODEL, **members)).json()["error"]
        assert (refused["code"], refused["param"]) == ("model_not_allowed", next(iter(members)))
        assert not stage.upstream.journal


def test_a_bound_key_may_name_its_models_and_speak_of_others() -> None:
    schema = {"type": "object", "properties": {"model": {"type": "string", "enum": ["other-1"]}, "provider": {}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    members = {"tools": tools, "models": ["scripted-2"], "metadata": {"model": "scripted-3"}}
    members["response_format"] = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    said = [{"role": "user", "content": [{"type": "text", "text": "Hi", "model": "other-1"}]}]
    with keyed(entry("anna", ANNA, models=["scripted-*"])) as stage:
        assert stage.post(body_of(said, MODEL, **members)).status == 200


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"auth": {"mode": "keys"}}, "upstream.api_key"),
        (
            {
                "auth": {"mode": "keys"},
                "upstreams": [{"name": "one", "base_url": "http://a"}],
            },
            "upstreams.one.api_key",
        ),
        ({"auth": {"keys": [entry("anna", ANNA)]}}, 'mode = "keys"'),
        ({"auth": {"mode": "keys", "keys": [entry("anna", ANNA), entry("anna", BEN)]}}, "one name"),
        ({"auth": {"mode": "keys", "keys": [{"name": "anna", "sha256": ANNA}]}}, "64 hexadecimal"),
        (
            {
                "auth": {"mode": "keys"},
                "single_user": True,
                "upstream": {"base_url": "http://a", "api_key": "k"},
            },
            "single_user",
        ),
    ],
)
def test_settings_that_forward_or_share_a_key_start_nothing(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words) as raised:
        load_settings(**settings)
    assert ANNA not in str(raised.value)
