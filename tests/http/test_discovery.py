"""The upstream's server is asked in the background which windows its models have, and believed until it says other."""

import gzip
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.proxy.servers import pages
from tests.support import wire
from tests.support.logins import login
from tests.support.proxy import Proxy, running_proxy
from tests.support.recording import CHAT, Exchange
from tests.support.replies import Reply, hang_up, json_reply, overflow, raw
from tests.support.signals import Signal
from tests.support.stage import body_of, controls
from tests.support.upstream import ScriptedUpstream
from tests.support.wire import Answer

OWN = "caller-s-own"
LIST = "/v1/models"
LISTED_BUT_SILENT = {"/v1/models": {"object": "list", "data": []}}


@dataclass
class Scene:
    """A proxy before a server that answers GETs from `pages`, and 404 where there is none.

    A page may be one credential's own: its key is then the target and the credential.
    """

    proxy: Proxy
    upstream: ScriptedUpstream
    pages: dict[str, Any]
    now: list[float] = field(default_factory=lambda: [1_000_000.0])

    def chat(
        self, model: str = "m", *headers: tuple[str, str], credential: str = OWN, status: int = 200, said: str = "Hello"
    ) -> Answer:
        given = [*wire.JSON, ("Authorization", f"Bearer {credential}"), *headers]
        body = body_of([{"role": "user", "content": said}], model)
        answer = wire.request(self.proxy.url, "POST", CHAT, body, given)
        assert answer.status == status, answer.body
        return answer

    def window(self, model: str = "m", *headers: tuple[str, str], credential: str = OWN) -> str | None:
        """The window that a request is decided with; returns when what it has started is over."""
        answer = self.chat(model, *headers, credential=credential)
        self.proxy.quiet()
        return answer.window

    def list_models(self, credential: str = OWN, target: str = LIST) -> Answer:
        """Has a caller list the models, through the proxy; returns when the list is read."""
        answer = wire.request(self.proxy.url, "GET", target, headers=[("Authorization", f"Bearer {credential}")])
        self.proxy.quiet()
        return answer

    @property
    def asked(self) -> list[str]:
        """The pages that were asked for, once nothing is under way."""
        self.proxy.quiet()
        return [each.target for each in self.upstream.journal if each.method == "GET"]

    def answer(self, exchange: Exchange) -> Reply | None:
        if exchange.method != "GET":
            return None
        credential = (exchange.header("authorization") or "").removeprefix("Bearer ")
        page = self.pages.get(f"{exchange.target} {credential}", self.pages.get(exchange.target))
        if isinstance(page, Reply):
            return page
        return json_reply({"error": "no such page"}, status=404) if page is None else json_reply(page)


@contextmanager
def scene(said: Mapping[str, Any], *, upstream: Mapping[str, Any] | None = None, **settings: Any) -> Iterator[Scene]:
    now = [1_000_000.0]
    with ScriptedUpstream() as server:
        given = {"base_url": server.base_url, "discover": True, **(upstream or {})}
        with running_proxy(server.url, clock=lambda: now[0], upstream=given, **settings) as proxy:
            playing = Scene(proxy, server, dict(said), now)
            server.answer(playing.answer)
            yield playing


def test_the_first_request_starts_the_asking_and_the_second_has_the_window() -> None:
    model = "meta-llama/Meta-Llama-3.1-8B-Instruct"
    with scene({LIST: pages.VLLM}) as playing:
        assert playing.window(model) == "131072"  # of the bundled table
        assert playing.window(model) == "8096"
        assert playing.asked == [LIST]


@pytest.mark.parametrize(
    ("said", "model", "window"),
    [
        ({LIST: pages.LLAMA_CPP_OLDER, "/props": pages.LLAMA_CPP_PROPS}, "any", "1024"),
        ({LIST: pages.LLAMA_CPP_OLDER, "/slots": pages.LLAMA_CPP_SLOTS}, "any", "65536"),
        ({LIST: pages.OLLAMA, "/api/ps": pages.OLLAMA_PS}, "gemma4", "4096"),
        ({LIST: pages.LM_STUDIO, "/api/v0/models": pages.LM_STUDIO_V0}, "qwen3-8b", "4096"),
        ({LIST: pages.TGI, "/info": pages.TGI_INFO}, "tgi", "2048"),
        ({LIST: pages.LITELLM, "/model/info": pages.LITELLM_INFO}, "work-laptop-smart", "32768"),
        ({"/props": pages.LLAMA_CPP_PROPS}, "any", "1024"),
    ],
)
def test_each_server_is_asked_where_it_states_what_it_has_loaded(said: Any, model: str, window: str) -> None:
    with scene(said) as playing:
        playing.window(model)
        assert playing.window(model) == window


def test_what_ollama_has_loaded_is_asked_again_after_each_reply() -> None:
    def loaded(window: int) -> dict[str, Any]:
        return {"models": [{"name": "qwen3:8b", "model": "qwen3:8b", "context_length": window}]}

    with scene({LIST: pages.OLLAMA, "/api/ps": {"models": []}}) as playing:
        assert playing.window("qwen3:8b") == "unknown"
        playing.pages["/api/ps"] = loaded(4_096)  # the first request has loaded it
        assert playing.window("qwen3:8b") == "unknown"
        assert playing.window("qwen3:8b") == "4096"
        playing.pages["/api/ps"] = loaded(32_768)  # loaded anew, with other settings
        playing.window("qwen3:8b")
        assert playing.window("qwen3:8b") == "32768"
        playing.pages["/api/ps"] = {"models": []}  # unloaded: it will be loaded again as it was
        playing.window("qwen3:8b")
        assert playing.window("qwen3:8b") == "32768"
        assert playing.asked.count(LIST) == 1


def test_a_reply_does_not_wait_for_what_the_server_states() -> None:
    gate = Signal("the model list may come")
    with scene({LIST: Reply(200, (("content-length", "0"),), before=gate)}) as playing:
        assert playing.chat().window == "unknown"
        assert playing.chat().window == "unknown"
        gate.set()
        assert playing.asked.count(LIST) == 1


@pytest.mark.parametrize(("key", "sent"), [({}, None), ({"api_key": "sk-operator"}, "Bearer sk-operator")])
def test_the_operators_key_is_used_and_never_a_callers(key: dict[str, str], sent: str | None) -> None:
    with scene({LIST: pages.OLLAMA, "/api/ps": pages.OLLAMA_PS}, upstream=key) as playing:
        playing.chat("gemma4")
        playing.proxy.quiet()
        gets = [each for each in playing.upstream.journal if each.method == "GET"]
        assert len(gets) >= 2
        assert {each.header("authorization") for each in gets} == {sent}


def test_a_server_that_wants_a_credential_is_asked_nothing_more() -> None:
    with scene({LIST: json_reply({"error": {}}, status=401)}) as playing:
        playing.chat()
        playing.chat()
        assert playing.asked == [LIST]


def test_what_was_said_is_kept_for_ten_minutes_whatever_models_are_named() -> None:
    with scene({LIST: pages.VLLM}) as playing:
        for number in range(5):
            playing.window(f"model-{number}")
        assert playing.asked == [LIST]
        playing.now[0] += 599
        playing.window()
        assert playing.asked == [LIST]
        playing.now[0] += 2
        playing.window()
        assert playing.asked == [LIST] * 2


def test_silence_is_kept_too_and_a_failure_for_half_a_minute() -> None:
    with scene(LISTED_BUT_SILENT) as playing:
        playing.window()
        once = len(playing.asked)
        playing.now[0] += 899
        playing.window()
        assert len(playing.asked) == once
        playing.now[0] += 2
        playing.pages[LIST] = hang_up()
        playing.window()
        assert len(playing.asked) == once + 1
        playing.now[0] += 29
        playing.window()
        assert len(playing.asked) == once + 1
        playing.now[0] += 2
        playing.window()
        assert len(playing.asked) == once + 2


def test_what_was_known_stays_known_while_the_server_cannot_say_it() -> None:
    model = "Qwen/Qwen3.5-4B"
    with scene({LIST: pages.SGLANG}) as playing:
        playing.window(model)
        playing.pages[LIST] = hang_up()
        playing.now[0] += 601
        playing.window(model)
        assert playing.window(model) == "16384"
        assert len(playing.asked) == 2


def test_a_request_or_a_setting_that_names_the_window_asks_nobody() -> None:
    with scene({LIST: pages.VLLM}) as playing:
        assert playing.window("m", *controls(window=5_000)) == "5000"
        assert playing.asked == []
    for settings in ({"window": 6_000}, {"models": [{"match": "m", "window": 6_000}]}):
        with scene({LIST: pages.VLLM}, **settings) as playing:
            assert playing.window() == "6000"
            assert playing.asked == []


@pytest.mark.parametrize(
    ("header", "discover"),
    [(("X-Condenser-Strategy", "off"), True), (("X-Condenser-Dry-Run", "true"), True), (("X-Request-Id", "1"), False)],
    ids=["off", "dry run", "settings"],
)
def test_a_request_that_needs_no_window_asks_nobody(header: tuple[str, str], discover: bool) -> None:
    with scene({LIST: pages.VLLM}, upstream={"discover": discover}) as playing:
        playing.chat("m", header)
        assert playing.asked == []


NEEDS_A_KEY = json_reply({"error": {}}, status=401)
CODEX = {"models": [{"slug": "gpt-5.5", "context_window": 272_000, "visibility": "list"}]}
CLAUDE = {"data": [{"type": "model", "id": "claude-sonnet-4-5", "max_input_tokens": 1_000_000, "max_tokens": 64_000}]}
SMALL = {"data": [{"id": "m", "context_window": 8_192, "active": True}]}
LARGER = {"data": [{"id": "m", "context_window": 16_384, "active": True}]}


def packed(document: Any) -> Reply:
    return raw(gzip.compress(json.dumps(document).encode(), mtime=0), headers=[("content-encoding", "gzip")])


@pytest.mark.parametrize("reply", [json_reply, packed], ids=["plain", "gzip"])
def test_a_list_that_passes_by_counts_for_whom_it_was_sent_to(reply: Callable[[Any], Reply]) -> None:
    """A login to ChatGPT has another window than the bundled table, which has that of a key."""
    target = LIST + "?client_version=1"
    with scene({LIST: NEEDS_A_KEY, target: reply(CODEX)}) as playing:
        assert playing.window("gpt-5.5") == "1050000"
        assert playing.list_models(target=target).body == reply(CODEX).steps[0]
        assert playing.window("gpt-5.5") == "272000"
        assert playing.window("gpt-5.5", credential="another") == "1050000"
        assert playing.asked == [LIST, target]


def test_each_upstream_has_lists_of_its_own() -> None:
    with ScriptedUpstream() as other:
        upstreams = [{"name": "one", "base_url": other.base_url}, {"name": "two", "base_url": other.base_url + "/two"}]
        settings = {"upstreams": upstreams, "single_user": True}
        with scene({}, upstream={"base_url": None}, **settings) as playing:
            other.answer(lambda each: json_reply(SMALL) if each.target == LIST else None)
            playing.list_models()
            assert playing.window("m", ("X-Condenser-Upstream", "one")) == "8192"
            assert playing.window("m", ("X-Condenser-Upstream", "two")) == "unknown"


def test_of_list_and_table_the_smaller_counts_for_the_headers_of_the_request() -> None:
    """Anthropic's list states a million also where that needs a header."""
    with scene({LIST: NEEDS_A_KEY, f"{LIST} {OWN}": CLAUDE}) as playing:
        playing.list_models()
        assert playing.window("claude-sonnet-4-5") == "200000"
        assert playing.window("claude-sonnet-4-5", ("anthropic-beta", "context-1m-2025-08-07")) == "1000000"


def test_a_list_that_is_too_long_passes_whole_and_says_nothing() -> None:
    filler = [{"id": f"filler-{number}", "note": "x" * 1_000} for number in range(2_100)]
    too_long = {"data": [*SMALL["data"], *filler]}
    for reply in (json_reply(too_long), packed(too_long)):
        with scene({LIST: NEEDS_A_KEY, f"{LIST} {OWN}": reply}) as playing:
            assert playing.list_models().body == reply.steps[0]
            assert playing.window() == "unknown"


def test_a_login_has_a_list_only_once_it_was_accepted() -> None:
    """Anybody can say whose login it is."""
    mine, forged = login("me"), login("me", signature="forged")
    with scene({LIST: NEEDS_A_KEY, f"{LIST} {mine}": LARGER, f"{LIST} {forged}": SMALL}) as playing:
        playing.window(credential=mine)
        playing.list_models(forged)
        assert playing.window(credential=mine) == "unknown"
        playing.list_models(mine)
        assert playing.window(credential=mine) == "16384"


def test_one_person_s_server_is_asked_once_a_day_with_the_credential_that_it_accepts() -> None:
    with scene({LIST: NEEDS_A_KEY, f"{LIST} {OWN}": SMALL}, single_user=True) as playing:
        assert playing.window() == "unknown"
        assert playing.window() == "8192"
        assert playing.asked == [LIST, LIST]
        sent = [each.header("authorization") for each in playing.upstream.journal if each.method == "GET"]
        assert sent == [None, f"Bearer {OWN}"]
        playing.pages[f"{LIST} {OWN}"] = LARGER
        playing.now[0] += 86_401
        playing.window()
        assert playing.window() == "16384"


@pytest.mark.parametrize("settings", [{}, {"single_user": True, "upstream": {"api_key": "operator"}}])
def test_where_several_people_ask_or_a_key_is_the_operators_no_caller_s_credential_is_used(settings: Any) -> None:
    with scene({LIST: NEEDS_A_KEY, f"{LIST} {OWN}": SMALL}, **settings) as playing:
        playing.window()
        assert playing.window() == "unknown"
        gets = [each for each in playing.upstream.journal if each.method == "GET"]
        assert f"Bearer {OWN}" not in {each.header("authorization") for each in gets}


def test_a_credential_that_is_refused_lists_nothing() -> None:
    with scene({LIST: NEEDS_A_KEY, f"{LIST} {OWN}": SMALL}, single_user=True) as playing:
        playing.upstream.reply(json_reply({"error": {"message": "who are you?"}}, status=401))
        playing.chat(status=401)
        assert playing.asked == [LIST]


def test_a_newer_list_ends_what_an_older_refusal_taught() -> None:
    with scene({LIST: NEEDS_A_KEY, f"{LIST} {OWN}": LARGER}) as playing:
        playing.list_models()
        playing.upstream.reply(overflow(4_096, 4_804))
        playing.chat(status=400, said="Plant the beds. " * 1_200)
        assert playing.window() == "4096"
        playing.pages[f"{LIST} {OWN}"] = {"data": [{"id": "m", "context_window": 32_768, "active": True}]}
        playing.list_models()
        assert playing.window() == "32768"
