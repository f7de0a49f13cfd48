"""Several upstreams: each request goes to one by its protocol, and what one knows or is given reaches no other."""

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proxy.errors import NoUpstream, SettingsError
from proxy.servers.upstream.choice import DEFAULTS, Destination, destination_of, destinations, taking_credentials
from proxy.settings import Settings, load_settings
from proxy.settings.tables import PROTOCOLS
from tests.http.test_messages import HEADERS, Agent, reader
from tests.http.test_native import head_of, lists, until_condensed
from tests.http.test_overflow import numberless
from tests.http.test_trust import Doorman
from tests.support import replies, wire
from tests.support.logins import login
from tests.support.messages_upstream import MESSAGES, StrictMessages
from tests.support.proxy import Proxy, running_proxy
from tests.support.recording import CHAT
from tests.support.signals import Signal
from tests.support.stage import WINDOW, Stage, body_of, chat, controls, count, is_own
from tests.support.upstream import Counting, ScriptedUpstream

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
    return destinations(settings)


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


MANY = (
    Destination("a", "http://a", models=("claude-*", "opus"), protocols=("messages", "chat")),
    Destination("b", "http://b", models=("gpt-*",)),
    Destination("c", "http://c", protocols=("chat",)),
)


@pytest.mark.parametrize(
    ("protocol", "model", "name"),
    [
        ("messages", "claude-x", "a"), ("chat", "opus", "a"), ("responses", "gpt-4o", "b"), ("messages", "gpt-4o", "b"),
        ("chat", "qwen3", "c"), ("chat", "CLAUDE-x", "c"), ("", "gpt-embed", "b"), ("", "bge", "c"),
        ("chat", "", "c"), ("", "", "c"), ("messages", "", "a"), ("responses", "", "b"),
    ],
)  # fmt: skip
def test_the_first_upstream_for_the_model_takes_it_and_the_first_for_all_what_names_none(
    protocol: str, model: str, name: str
) -> None:
    assert destination_of(MANY, protocol, [], model).name == name


@contextmanager
def sharing() -> Iterator[tuple[Mapping[str, ScriptedUpstream], Proxy]]:
    """A proxy before three upstreams of all protocols, each for its own models."""
    with ScriptedUpstream() as keyed, ScriptedUpstream() as callers, ScriptedUpstream() as local:
        by_name = {"keyed": keyed, "callers": callers, "local": local}
        entries = [{"name": name, "base_url": each.url, "models": [f"{name}-*"]} for name, each in by_name.items()]
        named = [entries[0] | {"api_key": "sk-keyed"}, entries[1], entries[2] | {"takes_credentials": False}]
        settings: dict[str, Any] = {"server": {"paths": ["* *"]}, "window": WINDOW, "upstreams": named}
        with running_proxy("", upstream={"base_url": None}, **settings) as proxy:
            yield by_name, proxy


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/v1/embeddings"])
def test_a_credential_in_a_query_goes_only_where_callers_are_judged(path: str) -> None:
    body = {"max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}], "input": "Hi"}
    with sharing() as (by_name, proxy):
        for name, each in by_name.items():
            asked = f"{path}?key=sk-caller&api-version=1&%6Bey=2&access_token=3"
            wire.post_json(proxy.url, asked, body | {"model": f"{name}-1"})
            query = [*each.journal][-1].target.partition("?")[2]
            assert ("key=" in query, "%6B" in query, "token" in query) == (name == "callers",) * 3
            assert "api-version=1" in query


def test_requests_go_by_model_and_by_name_and_no_credential_crosses() -> None:
    with sharing() as (by_name, proxy):

        def served(path: str, body: Mapping[str, Any] | bytes, *headers: tuple[str, str]) -> str:
            """Which upstream answered."""
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            sent = [*wire.JSON, KEY, ("x-goog-api-key", "goog"), ("cookie", "c=1"), *headers]
            before = {name: len(each.journal) for name, each in by_name.items()}
            answer = wire.request(proxy.url, "POST", path, data, sent)
            found = [name for name, each in by_name.items() if len(each.journal) > before[name]]
            return found[0] if found else f"{answer.status} {answer.body.decode()}"

        said = [{"role": "user", "content": "Hi"}]
        pick = "X-Condenser-Upstream"
        for name in by_name:
            assert served(CHAT, {"model": f"{name}-1@off", "messages": said}) == name
            assert served("/v1/messages", {"model": f"{name}-1", "max_tokens": 9, "messages": said}) == name
            assert served("/v1/responses", {"model": f"{name}-1", "input": "Hi"}) == name
            assert served("/v1/responses", {"model": f"{name}-1", "input": "Hi", "conversation": "conv_1"}) == name
            assert served("/v1/embeddings", {"model": f"{name}-1", "input": "Hi"}) == name
            assert served("/v1/embeddings", {"model": "keyed-1", "input": "Hi"}, (pick, name)) == name
            assert served(CHAT, {"model": "other", "messages": said}, (pick, name)) == name
            assert served(CHAT, {"model": "other", "messages": said, "condenser": {"upstream": name}}) == name
        assert served("/v1/embeddings", {"input": "Hi"}) == "keyed"
        for path in (CHAT, "/v1/messages", "/v1/embeddings"):
            nobodys = served(path, {"model": "other", "max_tokens": 9, "messages": said, "input": "Hi"})
            assert nobodys.startswith("404")
            assert "'other'" in nobodys
            unknown = served(path, {"model": "keyed-1", "max_tokens": 9, "messages": said}, (pick, "elsewhere"))
            assert unknown.startswith("400")
            assert all(each in unknown for each in (pick, "keyed, callers, local"))
        assert '"type": "error"' in served("/v1/messages", {"model": "other", "max_tokens": 9, "messages": said})

        secrets = {"authorization", "x-api-key", "x-goog-api-key", "cookie"}
        for name, each in by_name.items():
            got = [{key: value for key, value in request.headers if key in secrets} for request in each.journal]
            mine = {"authorization": "Bearer sk-caller", "x-goog-api-key": "goog", "cookie": "c=1"}
            keys: list[dict[str, str]] = [{"authorization": "Bearer sk-keyed"}, {"x-api-key": "sk-keyed"}]
            allowed: dict[str, list[dict[str, str]]] = {"keyed": keys, "callers": [mine], "local": [{}]}
            assert all(found in allowed[name] for found in got)
            assert not any(key.startswith("x-condenser") for request in each.journal for key, _ in request.headers)


def test_upstreams_that_get_the_same_credentials_are_known() -> None:
    keyed, local = replace(MANY[0], api_key="sk"), replace(MANY[2], takes_credentials=False)
    assert taking_credentials(MANY) == ["a", "b", "c"]
    assert taking_credentials((keyed, MANY[1], local)) == taking_credentials(DEFAULTS) == []


def test_an_own_call_may_have_an_upstream_of_its_own() -> None:
    said = [{"role": role, "content": f"{n} {'frost ' * 200}"} for n in range(12) for role in ("user", "assistant")]
    beds = " ".join(f"In row {n} the frost took the beans, and bed {n} is empty." for n in range(20))
    written = f"<summary>{beds}</summary>"
    with ScriptedUpstream() as one, StrictMessages(lambda body: written) as writer:
        entries: list[dict[str, Any]] = [
            {"name": "one", "base_url": one.url},
            {"name": "writer", "base_url": writer.url, "api_key": "sk-w", "models": ["w-*"], "protocols": ["messages"]},
        ]
        settings: dict[str, Any] = {"upstreams": entries, "summarizer": {"upstream": "writer", "model": "w-1"}}
        with running_proxy(
            "", upstream={"base_url": None}, window=WINDOW, strategy="summary", inline_timeout=30, **settings
        ) as proxy:
            for session in ("a", "b"):  # the first is condensed by rules: its credential is not proven yet
                headers = [*wire.JSON, KEY, *controls(session=session, force="true")]
                asked = body_of([*said, {"role": "user", "content": "And now?"}])
                assert wire.request(proxy.url, "POST", CHAT, asked, headers).status == 200
                proxy.quiet()
            (call,) = {each.path: each for each in writer.journal}.values()
            assert (call.path, call.header("x-api-key"), call.header("authorization")) == (MESSAGES, "sk-w", None)
            assert call.json()["model"] == "w-1"
            assert not any(is_own(each) for each in one.journal)
            assert "bed 12 is empty" in str(one.journal.to(CHAT)[-1].json())


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"summarizer": {"upstream": "nobody"}}, "summarizer.upstream must be one of openai, anthropic, not 'nobody'"),
        ({"models": [{"match": "*", "judge": {"upstream": "x"}}]}, "models[0].judge.upstream must be one of"),
        ({"judge": {"upstream": "openai", "base_url": "http://h"}}, "leave base_url and api_key unset"),
        (
            {"upstream": {"base_url": "http://h"}, "upstreams": [{"name": "upstream", "base_url": "http://i"}]},
            "the name",
        ),
    ],
)
def test_settings_that_name_no_upstream_are_refused_in_words(given: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingsError) as raised:
        load_settings(**given)
    assert says in str(raised.value)


def test_a_session_goes_on_at_another_upstream_without_what_only_the_first_can_read() -> None:
    vendor: dict[str, Any] = {"window": 32_000, "compacts": True}
    with StrictMessages(reader, **vendor) as one, StrictMessages(reader, **vendor) as other:
        other.account = "another"
        entries = [{"name": "one", "base_url": one.url}, {"name": "other", "base_url": other.url, "models": ["x"]}]
        settings: dict[str, Any] = {"upstreams": entries, "strategy": "native", "window": 32_000}
        with running_proxy("", upstream={"base_url": None}, **settings) as proxy:
            agent = Agent(proxy.url)
            until_condensed(agent, one, proxy)
            elsewhere = [*HEADERS, ("X-Condenser-Upstream", "other"), *controls(strategy="mask+extract")]
            for _ in range(2):
                there = wire.post_json(proxy.url, MESSAGES, agent.body(), elsewhere)
                assert (there.status, there.header("x-condenser-action")) in ((200, "condensed"), (200, "replayed"))
                assert not head_of(lists(other)[-1])
            views = lists(other)
            assert views[0] == views[1]
            agent.turn()
            assert one.refusals == other.refusals == []


def test_a_size_that_one_upstream_refuses_bounds_no_view_of_another() -> None:
    with ScriptedUpstream() as narrow, ScriptedUpstream() as wide:
        entries = [{"name": "narrow", "base_url": narrow.url}, {"name": "wide", "base_url": wide.url}]
        narrow.answer(lambda each: numberless(used) if (used := count(each.json())) > 5_000 else None)
        with running_proxy("", upstream={"base_url": None}, upstreams=entries, strategy="recent") as proxy:
            stage = Stage(proxy, narrow)
            assert stage.ask(chat(20), controls(session="s")).status == 200
            assert len(narrow.journal) == 2
            there = [*controls(session="s"), ("X-Condenser-Upstream", "wide")]
            assert stage.ask(chat(30), there).status == 200
            assert count(wide.journal.only().json()) > 5_000
            assert stage.ask(chat(31), controls(session="s")).status == 200
            assert len(narrow.journal) == 3


def test_what_one_upstream_counts_is_no_count_of_another() -> None:
    def doubled(body: Mapping[str, Any]) -> int:
        return 2 * count(body)

    with ScriptedUpstream(counting=Counting(count)) as one, ScriptedUpstream(counting=Counting(doubled)) as other:
        entries = [{"name": "one", "base_url": one.url}, {"name": "other", "base_url": other.url}]
        settings: dict[str, Any] = {"upstreams": entries, "strategy": "recent", "window": 100_000}
        with running_proxy("", upstream={"base_url": None}, **settings) as proxy:
            stage = Stage(proxy, one)
            left = []
            for name, rounds in (("other", 8), ("one", 9)):
                named = [*controls(session="s"), ("X-Condenser-Upstream", name)]
                left.append(int(stage.ask(chat(rounds), named).header("x-condenser-headroom") or 0))
                proxy.quiet()
            assert 0 < left[0] - left[1] < 500


def test_a_login_finds_its_sessions_at_the_upstream_that_sees_it() -> None:
    with ScriptedUpstream() as keyed, ScriptedUpstream() as callers:
        entries = [
            {"name": "keyed", "base_url": keyed.url, "api_key": "sk-k", "models": ["k-*"]},
            {"name": "callers", "base_url": callers.url},
        ]
        with running_proxy("", upstream={"base_url": None}, upstreams=entries, strategy="mask", window=WINDOW) as proxy:
            stage = Stage(proxy, callers, key=login("ann"))
            assert stage.ask(chat(12), controls(session="s", force="true")).action == "condensed"
            proxy.quiet()
            headers = [("Authorization", f"Bearer {stage.key}")]
            found = wire.post_json(proxy.url, "/_condenser/own/search", {"query": "garden", "session": "s"}, headers)
            assert found.status == 200


def test_each_upstream_has_a_state_and_a_bound_of_its_own() -> None:
    answered = Signal("the test has seen the refusals")
    with ScriptedUpstream() as slow, ScriptedUpstream() as quick, ThreadPoolExecutor(1) as pool:
        entries: list[dict[str, Any]] = [
            {"name": "slow", "base_url": slow.url, "models": ["s-*"], "in_flight": 1},
            {"name": "gone", "base_url": "http://127.0.0.1:9", "models": ["g-*"]},
            {"name": "quick", "base_url": quick.url},
        ]
        with running_proxy("", upstream={"base_url": None}, upstreams=entries, admin={"token": "t"}) as proxy:

            def ask(model: str, path: str = CHAT) -> wire.Answer:
                return wire.post_json(proxy.url, path, {"model": model, "messages": chat(1), "input": "Hi"}, [KEY])

            def states() -> dict[str, Any]:
                found: dict[str, Any] = wire.request(proxy.url, "GET", "/readyz").json()["upstreams"]
                return found

            assert states() == {name: {"state": "ok"} for name in ("slow", "gone", "quick")}
            slow.reply(replies.hang(answered))
            held = pool.submit(ask, "s-1")
            slow.journal.await_arrival()
            for path in (CHAT, "/v1/embeddings"):
                refused = ask("s-2", path)
                assert (refused.status, refused.header("retry-after")) == (503, "1")
                assert refused.json()["error"]["code"] == "overloaded"
                assert ask("q-1", path).status == 200
            assert ask("g-1").status == 502
            answered.set()
            assert held.result().status == 200
            proxy.quiet()
            assert ask("s-3").status == 200
            assert states() == {
                "slow": {"state": "ok"},
                "gone": {"state": "upstream_unreachable"},
                "quick": {"state": "ok"},
            }
            known = wire.request(proxy.url, "GET", "/readyz", None, [("Authorization", "Bearer t")]).json()
            assert known["upstreams"]["quick"]["url"] == f"{quick.url}/v1"


def test_clients_choose_no_upstream_where_they_may_not() -> None:
    with ScriptedUpstream() as only, running_proxy(only.url, controls={"allow": []}) as proxy:
        for path in (CHAT, "/v1/embeddings"):
            asked = [*wire.JSON, ("X-Condenser-Upstream", "upstream")]
            assert wire.request(proxy.url, "POST", path, body_of(chat(1)), asked).status == 400
        assert len(only.journal) == 0


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
