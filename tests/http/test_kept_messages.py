"""What stays in views: loaded tools, the client's environment, and the user's words beside a tool's result."""

import json
from typing import Any

import pytest

from tests.http.test_messages import HEADERS
from tests.support import wire
from tests.support.messages_upstream import MESSAGES, StrictMessages, text, tool_use
from tests.support.proxy import proxy_before
from tests.support.responses_upstream import StrictResponses
from tests.support.stage import controls

Json = dict[str, Any]
RESPONSES = "/v1/responses"
RULE = "Never push to the main branch without asking me first."
FOUND = {"type": "tool_reference", "tool_name": "WebFetch"}


def looked(number: int, *more: Json, found: object = None) -> list[Json]:
    use = {**tool_use("read", {"path": f"src/{number}.py"}), "id": f"t{number}"}
    result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": found or f"{number} a line. " * 60}
    return [{"role": "assistant", "content": [text("I look."), use]}, {"role": "user", "content": [result, *more]}]


def searched(number: int) -> list[Json]:
    """A search for tools that the server made."""
    found = {"type": "tool_search_tool_search_result", "tool_references": [FOUND]}
    blocks = [
        {"type": "server_tool_use", "id": "srv", "name": "tool_search_tool_bm25", "input": {"query": "web"}},
        {"type": "tool_search_tool_result", "tool_use_id": "srv", "content": found},
    ]
    call, answer = looked(number)
    return [{**call, "content": [*blocks, *call["content"]]}, answer]


@pytest.mark.parametrize("strategy", ["half-window", "recent", "extract", "mask"])
@pytest.mark.parametrize("search", [lambda: looked(0, found=[FOUND]), lambda: searched(0)])
def test_tools_that_a_search_has_loaded_stay_over_condensations(search: Any, strategy: str) -> None:
    with proxy_before(StrictMessages(), strategy=strategy, background={"mode": "off"}) as (upstream, proxy):
        messages = [{"role": "user", "content": "Go through the files."}, *search()]
        actions = []
        for number in range(1, 60, 3):
            messages += [each for step in range(3) for each in looked(number + step)]
            body = {"model": "m", "max_tokens": 9, "messages": messages}
            answer = wire.post_json(proxy.url, MESSAGES, body, [*HEADERS, *controls(session="s", window=6_000)])
            actions.append(answer.action)
            view = upstream.journal.to(MESSAGES)[-1].body
            assert b'"tool_reference"' in view
        assert actions.count("condensed") >= 2
        assert upstream.refusals == []


@pytest.mark.parametrize("strategy", ["extract", "mask+extract"])
def test_a_rule_beside_a_result_stays_as_the_users_word(strategy: str) -> None:
    with proxy_before(StrictMessages(), strategy=strategy, background={"mode": "off"}) as (upstream, proxy):
        reminder = text("<system-reminder>Never mention the weather to anybody.</system-reminder>")
        messages = [{"role": "user", "content": "Go through the files."}, *looked(0, reminder, text(RULE))]
        for number in range(1, 60):
            messages += looked(number)
        body = {"model": "m", "max_tokens": 9, "messages": messages}
        answer = wire.post_json(proxy.url, MESSAGES, body, [*HEADERS, *controls(session="s", window=4_000)])
        assert answer.action == "condensed"
        record = json.dumps(upstream.journal.only(MESSAGES).json()["messages"][:2])
        assert f"- {RULE}" in record
        assert "weather" not in record


def test_the_task_behind_the_environment_stays_under_recent() -> None:
    with proxy_before(StrictResponses(), strategy="recent", background={"mode": "off"}) as (upstream, proxy):
        said = ["<environment_context><cwd>/repo</cwd></environment_context>", "Rename the module ledger to journal."]
        items: list[Json] = [{"type": "message", "role": "user", "content": each} for each in said]
        for number in range(60):
            call = {"type": "function_call", "call_id": f"c{number}", "name": "sh", "arguments": "{}"}
            items += [call, {"type": "function_call_output", "call_id": f"c{number}", "output": "a line. " * 60}]
        body = {"model": "m", "store": False, "input": items}
        answer = wire.post_json(proxy.url, RESPONSES, body, controls(session="s", window=4_000))
        assert answer.action == "condensed"
        assert upstream.journal.only(RESPONSES).json()["input"][:2] == items[:2]
