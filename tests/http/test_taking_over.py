"""`sessions.take_over`: a request that names an earlier reply is condensed as if it had sent all of its history."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from proxy.endpoints.hidden_calls import NAME
from tests.http.test_responses import KEY, MODEL, RULE, TOOLS, WINDOW, client_bodies, reader, response_in
from tests.support import responses_upstream, wire
from tests.support.proxy import Proxy, running_proxy
from tests.support.responses_upstream import COUNT, RESPONSES, StrictResponses, function_call, message, reasoning

Json = dict[str, Any]

both = pytest.mark.parametrize("stream", [True, False])


@dataclass
class Caller:
    """A client that leaves its history to the server: it sends what is new, and names the reply before."""

    url: str
    stream: bool = True
    headers: Sequence[tuple[str, str]] = tuple(KEY)
    more: Mapping[str, Any] = field(default_factory=dict)
    new: list[Json] = field(default_factory=lambda: [{"role": "user", "content": RULE}])
    previous: str | None = None

    def body(self) -> Json:
        named = {"previous_response_id": self.previous} if self.previous else {}
        asked = {"model": MODEL, "instructions": "Be careful.", "tools": TOOLS, **self.more}
        return {**asked, "stream": self.stream, "input": self.new, **named}

    def turn(self) -> wire.Answer:
        answer = wire.post_json(self.url, RESPONSES, self.body(), self.headers)
        assert answer.status == 200, answer.body
        response = response_in(answer)
        self.new = answers_to(response["output"]) or [{"role": "user", "content": "Go on."}]
        self.previous = response["id"]
        return answer


def answers_to(output: Sequence[Json]) -> list[Json]:
    calls = [item for item in output if item["type"] in ("function_call", "custom_tool_call")]
    long = " is the name of a file with many lines." * 70
    return [
        {"type": f"{call['type']}_output", "call_id": call["call_id"], "output": call["call_id"] + long}
        for call in calls
    ]


@contextmanager
def taking_over(**settings: Any) -> Iterator[tuple[StrictResponses, Proxy]]:
    """A strict upstream, and a proxy that takes over what it stores."""
    known = {"strategy": "mask+half-window", "window": WINDOW, "sessions": {"take_over": True}, **settings}
    with StrictResponses(reader, window=WINDOW) as upstream, running_proxy(upstream.url, **known) as proxy:
        yield upstream, proxy


def actions(proxy: Proxy) -> list[str | None]:
    return [exchange.response_header("x-condenser-action") for exchange in proxy.journal.to(RESPONSES)]


@pytest.mark.parametrize(("strategy", "stream"), [("mask+half-window", True), ("recent", False), ("dynacontext", True)])
def test_forty_rounds_of_only_new_items_fit_a_window(strategy: str, stream: bool) -> None:
    with taking_over(strategy=strategy) as (upstream, proxy):
        caller = Caller(proxy.url, stream=stream)
        for _ in range(40):
            caller.turn()
            proxy.quiet()
        assert upstream.refusals == []
        assert "condensed" in actions(proxy)
        assert "bypassed" not in actions(proxy)
        view = client_bodies(upstream)[-1]
        assert view["previous_response_id"] is None
        assert view["input"][0] == {"role": "user", "content": RULE}


@both
def test_until_something_is_condensed_requests_go_on_as_they_came(stream: bool) -> None:
    with taking_over(strategy="half-window", window=500_000) as (upstream, proxy):
        caller = Caller(proxy.url, stream=stream)
        for _ in range(3):
            caller.turn()
        came, went = proxy.journal.to(RESPONSES), upstream.journal.to(RESPONSES)
        assert [each.body for each in came] == [each.body for each in went]
        assert [each.sent for each in came] == [each.sent for each in went]
        assert actions(proxy) == ["passed"] * 3


def test_the_history_is_that_of_the_named_reply() -> None:
    with taking_over() as (upstream, proxy):
        caller = Caller(proxy.url)
        caller.turn()
        first, answers = caller.previous, caller.new
        for _ in range(3):
            caller.turn()
        before = tokens_before(proxy)
        caller.previous, caller.new = first, answers
        for _ in range(12):
            caller.turn()
            assert "bypassed" not in actions(proxy)
        assert tokens_before(proxy) != before
        assert upstream.refusals == []


def tokens_before(proxy: Proxy) -> str | None:
    return proxy.journal.to(RESPONSES)[-1].response_header("x-condenser-tokens-before")


def test_a_session_that_is_named_on_the_way_has_the_whole_history() -> None:
    with taking_over() as (upstream, proxy):
        caller = Caller(proxy.url)
        caller.turn()
        caller.headers = [*KEY, ("x-condenser-session", "another")]
        for _ in range(25):
            assert caller.turn().session == "another"
        assert "condensed" in actions(proxy)
        assert client_bodies(upstream)[-1]["input"][0] == {"role": "user", "content": RULE}
        assert upstream.refusals == []


def test_a_reply_that_is_not_known_here_passes() -> None:
    with taking_over() as (upstream, proxy):
        caller = Caller(proxy.url)
        direct = Caller(upstream.url)
        direct.turn()
        caller.previous, caller.new = direct.previous, direct.new
        answer = caller.turn()
        assert answer.reason == "server-state"
        # What goes on from there is not known either.
        assert caller.turn().reason == "server-state"


def test_another_tenant_cannot_name_the_reply() -> None:
    with taking_over() as (_, proxy):
        caller = Caller(proxy.url)
        caller.turn()
        caller.headers = [("authorization", "Bearer another")]
        assert caller.turn().reason == "server-state"


@pytest.mark.parametrize("sessions", [("", ""), ("s", "s"), ("s", "t")])
def test_an_ambiguous_reply_id_names_neither(sessions: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    ids = iter(["1", "2", "1", "3", "4"])
    with taking_over() as (_, proxy):
        monkeypatch.setattr(responses_upstream, "name_of", lambda _: next(ids))
        named = ([("x-condenser-session", name)] if name else [] for name in sessions)
        one, other = (Caller(proxy.url, False, [*KEY, *headers]) for headers in named)
        other.new = [{"role": "user", "content": "Another conversation."}]
        for caller in (one, one, other):
            caller.turn()
        for caller in (one, other):
            caller.previous, caller.new = "resp_1", [{"role": "user", "content": "Go on."}]
            answer = wire.post_json(proxy.url, RESPONSES, caller.body(), caller.headers)
            assert answer.reason == "server-state"


@pytest.mark.parametrize("members", [{"store": False}, {"conversation": "c"}])
def test_a_reply_the_server_does_not_keep_is_not_stored(members: Json) -> None:
    with taking_over() as (_, proxy):
        caller = Caller(proxy.url, more=members)
        answer = wire.post_json(proxy.url, RESPONSES, caller.body(), KEY)
        caller.previous, caller.more = response_in(answer)["id"], {}
        answer = wire.post_json(proxy.url, RESPONSES, caller.body(), KEY)
        assert answer.reason == "server-state"


def test_without_the_setting_such_requests_pass() -> None:
    with taking_over(sessions={}) as (_, proxy):
        caller = Caller(proxy.url)
        for _ in range(3):
            caller.turn()
        assert actions(proxy) == ["passed", "bypassed", "bypassed"]


def test_a_count_is_of_the_view_with_which_a_restarted_proxy_goes_on(tmp_path: Path) -> None:
    with StrictResponses(reader, window=WINDOW) as upstream:
        settings: Json = {"strategy": "mask", "window": WINDOW, "sessions": {"take_over": True}}
        settings["store"] = {"url": f"sqlite:///{tmp_path / 'c.db'}"}
        with running_proxy(upstream.url, **settings) as proxy:
            caller = Caller(proxy.url)
            while caller.turn().action != "condensed":
                pass
            before = client_bodies(upstream)[-1]["input"]
        with running_proxy(upstream.url, **settings) as proxy:
            caller.url = proxy.url
            counted = {key: value for key, value in caller.body().items() if key != "stream"}
            answer = wire.post_json(proxy.url, COUNT, counted, KEY)
            assert answer.json()["input_tokens"] < WINDOW
            assert caller.turn().action == "replayed"
            assert client_bodies(upstream)[-1]["input"][: len(before)] == before
            assert upstream.journal.to(COUNT)[-1].json()["input"] == client_bodies(upstream)[-1]["input"]
        assert upstream.refusals == []


@both
def test_a_hidden_search_is_part_of_a_named_history(stream: bool) -> None:
    def searching(body: Mapping[str, Any]) -> Sequence[Json] | str:
        last = body["input"][-1]
        if last.get("type") == "function_call_output":
            return [reasoning("There it is."), message("Found.")]
        is_asked = "Where" in json.dumps(last) and body.get("tool_choice") != "none"
        return [reasoning("I search."), function_call(NAME, {"query": "parser"})] if is_asked else "Yes."

    known: Json = {"strategy": "recent", "window": 4_096, "sessions": {"take_over": True}}
    with StrictResponses(searching) as upstream, running_proxy(upstream.url, **known) as proxy:
        caller = Caller(proxy.url, stream=stream, headers=[*KEY, ("x-condenser-memory", "tool")])
        for turn in range(8):
            caller.new = [{"role": "user", "content": f"Part {turn} of the parser. " + "water " * 400}]
            caller.turn()
        for said in ("Where is it?", "Where else?", "Thanks."):
            caller.new = [{"role": "user", "content": said}]
            answer = caller.turn()
            assert NAME not in answer.body.decode()
        assert "condensed" in actions(proxy)
        assert "bypassed" not in actions(proxy)
        assert upstream.refusals == []
        last = json.dumps(upstream.journal.to(RESPONSES)[-1].json()["input"])
        assert last.count("function_call_output") == 2


def test_an_append_after_a_named_reply_leaves_nothing_for_the_server_to_add() -> None:
    with taking_over(strategy="half-window") as (upstream, proxy):
        caller = Caller(proxy.url, stream=False, headers=[*KEY, ("X-Condenser-Session", "s")])
        for _ in range(2):
            caller.turn()
        caller.headers = [*KEY, ("X-Condenser-Session", "t"), ("X-Condenser-History", "append")]
        caller.turn()
        forwarded = upstream.journal.to(RESPONSES)[-1].json()
    assert forwarded["previous_response_id"] is None
    assert len(forwarded["input"]) > len(caller.new)
    assert upstream.refusals == []
