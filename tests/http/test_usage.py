"""What a client is shown of usage, what is asked of the upstream for it, and what prices make of it."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.support import replies, wire
from tests.support.admin_api import TOKEN, only_session
from tests.support.recording import Exchange
from tests.support.replies import Reply
from tests.support.stage import Stage, chat, controls, count, proxy_with_upstream
from tests.support.wire import Answer


def usage_of(answer: Answer) -> dict[str, int]:
    found: dict[str, int] = json.loads(answer.body)["usage"]
    return found


def events(answer: Answer) -> list[dict[str, Any]]:
    lines = [line[6:] for line in answer.body.decode().splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


def condensed(stage: Stage, **members: Any) -> Answer:
    answer = stage.ask(chat(40), controls(session="s", force="true"), **members)
    assert answer.action == "condensed"
    return answer


def test_a_client_sees_what_the_upstream_has_counted() -> None:
    with proxy_with_upstream() as stage:
        answer = stage.ask(chat(1), controls(session="s"))
        assert usage_of(answer)["prompt_tokens"] == count({"messages": chat(1)})
        assert stage.upstream.journal.only().sent == answer.body
        assert usage_of(condensed(stage))["prompt_tokens"] == count(stage.forwarded[-1].json())


def test_a_changed_stream_is_asked_for_its_usage_unseen() -> None:
    with proxy_with_upstream() as stage:
        # Only once a stream has shown that the server sends none unasked.
        stage.ask(chat(1), controls(session="other"), stream=True)
        answer = condensed(stage, stream=True)
        assert stage.forwarded[-1].json()["stream_options"] == {"include_usage": True}
        assert [each for each in events(answer) if each.get("usage")] == []
        assert answer.body.endswith(b"data: [DONE]\n\n")
        later = stage.ask(chat(41), controls(session="s"), stream=True)
        sent = count(stage.forwarded[-1].json())
        usable = 4_096 - 512
        assert usable - later.headroom == pytest.approx(sent, abs=2)


def test_a_client_that_asks_for_the_usage_of_its_stream_gets_it() -> None:
    with proxy_with_upstream() as stage:
        answer = condensed(stage, stream=True, stream_options={"include_usage": True})
        assert events(answer)[-1]["usage"]["prompt_tokens"] == count(stage.forwarded[-1].json())


@pytest.mark.parametrize("asked", [{}, {"usage": {"include": True}}])
@pytest.mark.parametrize("is_unasked", [True, False])
def test_a_usage_that_the_client_gets_anyway_stays(asked: dict[str, Any], is_unasked: bool) -> None:
    def told(exchange: Exchange) -> Reply:
        body = exchange.json()
        wanted = is_unasked or "usage" in body or "stream_options" in body
        return replies.stream(*replies.text_chunks("ok"), *([replies.usage_chunk(90, 1)] if wanted else []))

    is_told = bool(is_unasked or asked)
    with proxy_with_upstream() as stage:
        stage.upstream.answer(told)
        first = condensed(stage, stream=True, **asked)
        stage.ask(chat(1), controls(session="other"), stream=True, **asked)
        again = stage.ask(chat(41), controls(session="s"), stream=True, **asked)
        assert [bool(events(each)[-1].get("usage")) for each in (first, again)] == [is_told] * 2
        assert ["stream_options" in each.json() for each in stage.forwarded] == [False, False, not is_told]


def test_a_stream_that_failed_does_not_show_that_a_server_sends_no_usage() -> None:
    with proxy_with_upstream() as stage:
        stage.upstream.answer(
            lambda _: replies.stream(*replies.text_chunks("ok"), {"error": {"message": "overloaded"}})
        )
        stage.ask(chat(1), controls(session="other"), stream=True)
        condensed(stage, stream=True)
        assert "stream_options" not in stage.forwarded[-1].json()


def test_an_unchanged_stream_is_asked_for_no_usage() -> None:
    with proxy_with_upstream() as stage:
        stage.ask(chat(1), controls(session="s"), stream=True)
        assert stage.upstream.journal.only().body == stage.sent[-1]
    with proxy_with_upstream(usage_probe=False) as stage:
        condensed(stage, stream=True)
        assert "stream_options" not in stage.forwarded[-1].json()


def test_a_session_knows_what_the_upstream_counted() -> None:
    with proxy_with_upstream(admin={"token": TOKEN}) as stage:
        condensed(stage)
        stage.ask(chat(41), controls(session="s"))
        counted = sum(count(each.json()) for each in stage.forwarded)
        session = only_session(stage.proxy.url)
        assert session["totals"]["prompt_tokens"] == counted
        made = session["condensations"][0]
        left_out = sum(each["before"] - each["after"] for each in session["requests"])
        assert left_out > 2 * (made["tokens_before"] - made["tokens_after"]) - 200
        assert left_out == session["totals"]["client_tokens"] - session["totals"]["forwarded_tokens"]
        assert (made["requests"], made["rescued"], made["saved_tokens"]) == (2, 2, 0)


def test_prices_do_not_keep_a_view_past_the_trigger_from_being_condensed() -> None:
    prices = {"input": 3.0, "cached_input": 0.3, "output": 15.0}
    with proxy_with_upstream(models=[{"match": "*", "prices": prices}]) as stage:
        stage.ask(chat(9), controls(session="s"))
        answer = stage.ask(chat(10), controls(session="s", strategy="recent"))
        assert answer.action == "condensed"


SEARCHED = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
SEARCH = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
LISTED = [{"type": "message", "input_tokens": 3_000}, {"type": "message", "input_tokens": 3_100}]
OPEN_PROMPT = {"/v1/messages": "messages", "/v1/responses": "input"}
SUMS: list[tuple[str, list[dict[str, Any]], dict[str, Any], bool]] = [
    ("/v1/messages", [], {}, True),
    ("/v1/messages", [], {"server_tool_use": {"web_search_requests": 0}}, True),
    ("/v1/messages", [], {"server_tool_use": {"web_search_requests": 2}}, False),
    ("/v1/messages", [SEARCHED], {}, False),
    (
        "/v1/messages",
        [SEARCHED],
        {"iterations": [LISTED[1], *LISTED], "server_tool_use": {"web_fetch_requests": 1}},
        True,
    ),
    ("/v1/messages", [], {"iterations": [{**LISTED[0], "type": "compaction"}, *LISTED]}, False),
    ("/v1/responses", [SEARCH], {}, False),
    ("/v1/responses", [{**SEARCH, "type": "function_call", "name": "web_search_call"}], {}, True),
]


@pytest.mark.parametrize(("path", "said", "more", "is_learned"), SUMS)
def test_a_usage_that_adds_up_the_steps_of_a_server_tool_teaches_nothing(
    path: str, said: list[dict[str, Any]], more: Mapping[str, Any], *, is_learned: bool
) -> None:
    with proxy_with_upstream(window=20_000) as stage:
        usage = {"input_tokens": 3_100, "output_tokens": 5, **more}
        form = {"type": "message", "role": "assistant", "content": said, "stop_reason": "end_turn"}
        if path == "/v1/responses":
            form = {"id": "r", "object": "response", "status": "completed", "output": said}
        stage.upstream.answer(lambda _: replies.json_reply({**form, "usage": usage}))
        question = {"role": "user", "content": "bed " * 2_000}
        body = {"model": "m", "max_tokens": 100, OPEN_PROMPT[path]: [question]}
        headers = [*wire.JSON, ("Authorization", "Bearer k"), *controls(session="s")]
        asked = [wire.request(stage.proxy.url, "POST", path, json.dumps(body).encode(), headers)]
        body[OPEN_PROMPT[path]] = [question, {"role": "assistant", "content": "Done."}, question]
        asked.append(wire.request(stage.proxy.url, "POST", path, json.dumps(body).encode(), headers))
        first, second = (answer.headroom for answer in asked)
        assert (first - second > 2_800) is is_learned
