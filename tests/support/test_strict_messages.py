"""The strict upstream of the Messages API, asked directly: each rule with a body it takes and one it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic

from tests.support import wire
from tests.support.messages_upstream import (
    COUNT,
    MESSAGES,
    Overflow,
    ScriptedAnswer,
    StrictMessages,
    last_results,
    redacted,
    text,
    thinking,
    tool_use,
    web_search,
)
from tests.support.replies import Json
from tests.support.strict_messages import refusal_of, signed

HEADERS = [("x-api-key", "k"), ("anthropic-version", "2023-06-01")]
TOOL: Any = {"name": "read", "description": "Reads", "input_schema": {"type": "object", "properties": {}}}
TASK: Json = {"role": "user", "content": "Review all parts."}


def body(*messages: Json, **members: Any) -> Json:
    return {"model": "claude-opus-5-5", "max_tokens": 100, "messages": list(messages), **members}


def user(*content: Json) -> Json:
    return {"role": "user", "content": list(content)}


def assistant(*content: Json) -> Json:
    return {"role": "assistant", "content": list(content)}


def call(one: str) -> Json:
    return {**tool_use("read", {"path": one}), "id": one}


def result(one: str, **more: Any) -> Json:
    return {"type": "tool_result", "tool_use_id": one, "content": "ok", **more}


def marked(block: Json, ttl: str | None = None) -> Json:
    return {**block, "cache_control": {"type": "ephemeral", **({"ttl": ttl} if ttl else {})}}


SEARCH = web_search("moss", "https://moss.example")
SYSTEM: Json = {"role": "system", "content": "Be brief."}
ROUND = (assistant(call("a"), call("b")), user(result("b"), result("a"), text("Go on.")))

RULES: dict[str, tuple[Json, Json, str]] = {
    "every call is answered": (
        body(TASK, *ROUND),
        body(TASK, assistant(call("a"), call("b")), user(result("a"))),
        "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: b. Each `tool_use`",
    ),
    "results come first": (
        body(TASK, *ROUND),
        body(TASK, assistant(call("a")), user(text("See:"), result("a"))),
        "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: a.",
    ),
    "results come first in merged messages too": (
        body(TASK, assistant(call("a")), user(result("a")), user(text("See."))),
        body(TASK, assistant(call("a")), user(text("See.")), user(result("a"))),
        "messages.1: `tool_use` ids were found",
    ),
    "the last message leaves no call open": (
        body(TASK, assistant(text("Done."))),
        body(TASK, assistant(call("a"))),
        "messages.1: `tool_use` ids were found",
    ),
    "no result without its call": (
        body(TASK, *ROUND),
        body(TASK, assistant(text("Hm.")), user(result("a"))),
        "messages.2.content.0: unexpected `tool_use_id` found in `tool_result` blocks: a. Each `tool_result` block",
    ),
    "one result for a call": (
        body(TASK, assistant(call("a")), user(result("a"))),
        body(TASK, assistant(call("a")), user(result("a"), result("a"))),
        "messages.2.content.1: each tool_use must have a single result.",
    ),
    "ids are unique": (
        body(TASK, *ROUND),
        body(TASK, assistant(call("a"), call("a")), user(result("a"))),
        "messages.1.content.1: `tool_use` ids must be unique",
    ),
    "a server's result stands behind its call": (
        body(TASK, assistant(*SEARCH, text("Found."))),
        body(TASK, assistant(SEARCH[1], SEARCH[0])),
        "messages.1.content.0: unexpected `tool_use_id` found in `web_search_tool_result` blocks: srvtoolu_",
    ),
    "only the last message waits for a server": (
        body(TASK, assistant(SEARCH[0])),
        body(TASK, assistant(SEARCH[0]), user(text("Well?"))),
        "messages.1: `web_search` tool use with id `srvtoolu_",
    ),
    "an input is an object": (
        body(TASK, *ROUND),
        body(TASK, assistant({**call("a"), "input": "{}"}), user(result("a"))),
        "messages.1.content.0.tool_use.input: Input should be a valid dictionary",
    ),
    "a system message follows a user": (
        body(TASK, SYSTEM, *ROUND, SYSTEM),
        body(TASK, assistant(text("Hm.")), SYSTEM),
        "messages.2: role 'system' must immediately follow a user message",
    ),
    "no system message between a call and its result": (
        body(TASK, assistant(call("a")), user(result("a")), SYSTEM),
        body(TASK, assistant(call("a")), SYSTEM, user(result("a"))),
        "messages.2: role 'system' must immediately follow a user message",
    ),
    "a user begins": (
        body(TASK, assistant(text("Hm."))),
        body(assistant(text("Hm.")), TASK),
        'messages: first message must use the "user" role',
    ),
    "messages have content": (
        body(TASK, assistant()),
        body(TASK, assistant(), TASK),
        "messages.1: all messages must have non-empty content",
    ),
    "texts have content": (
        body(user(text("x"))),
        body(user(text(""))),
        "messages: text content blocks must be non-empty",
    ),
    "calls are the assistant's": (
        body(TASK, *ROUND),
        body(user(call("a")), user(result("a"))),
        "messages.0: `tool_use` blocks can only be in `assistant` messages",
    ),
    "at most four markers": (
        body(user(*[marked(text("x"))] * 2), tools=[marked(TOOL)], system=[marked(text("s"))]),
        body(
            user(*[marked(text("x"))] * 2),
            tools=[marked(TOOL)],
            system=[marked(text("s"))],
            cache_control={"type": "e"},
        ),
        "A maximum of 4 blocks with cache_control may be provided. Found 5.",
    ),
    "long times to live come first": (
        body(user(marked(text("x"))), system=[marked(text("s"), "1h")]),
        body(user(marked(text("x"), "1h")), system=[marked(text("s"))]),
        "messages.0.content.0.cache_control.ttl: a ttl='1h' cache_control block must not come after a ttl='5m'",
    ),
    "markers inside results count": (
        body(TASK, assistant(call("a")), user(result("a", content=[marked(text("r"))] * 4))),
        body(TASK, assistant(call("a")), user(marked(result("a", content=[marked(text("r"))] * 4)))),
        "A maximum of 4 blocks",
    ),
    "no marker on thinking": (
        body(TASK, assistant(text("Hm."))),
        body(TASK, assistant(marked(thinking("Hm.")))),
        "messages.1.content.0.thinking.cache_control: Extra inputs are not permitted",
    ),
    "members of a message are known": (
        body(TASK),
        body({**TASK, "name": "x"}),
        "messages.0.name: Extra inputs are not permitted",
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_takes_one_body_and_refuses_the_other(rule: str) -> None:
    taken, wrong, said = RULES[rule]
    assert refusal_of(taken) == ""
    assert refusal_of(wrong).startswith(said)


def test_older_models_take_no_system_message_in_the_list() -> None:
    assert refusal_of(body(TASK, SYSTEM), systems=False) == "role 'system' is not supported on this model"


# -- thinking ----------------------------------------------------------------------------------------------


def conversation(rounds: int, **members: Any) -> Json:
    """A tool loop whose every reply thinks, as the upstream would have signed it."""
    asked = body(TASK, system="Be careful.", tools=[TOOL], **members)
    for number in range(rounds):
        content = [thinking(f"Step {number}."), text("I look."), call(f"t{number}")]
        asked = {**asked, "messages": [*asked["messages"], assistant(*signed(content, asked, f"r{number}"))]}
        asked["messages"].append(user(result(f"t{number}")))
    return asked


def edited(asked: Json, message: int, change: Callable[[list[Json]], Sequence[Json]]) -> Json:
    messages = list(asked["messages"])
    messages[message] = {**messages[message], "content": list(change(messages[message]["content"]))}
    return {**asked, "messages": messages}


def bare(content: Sequence[Json]) -> list[Json]:
    return [block for block in content if block["type"] != "thinking"]


BOUND = "The block is bound to a different conversation. Remove the block, or set"


def test_thinking_is_taken_behind_the_prefix_it_was_produced_behind() -> None:
    asked = conversation(4)
    assert refusal_of(asked) == ""
    assert refusal_of({**asked, "system": [marked(text("Be careful."))]}) == ""
    first = {"role": "user", "content": [marked(text("Review all parts."))]}
    assert refusal_of({**asked, "messages": [first, *asked["messages"][1:]]}) == ""


@pytest.mark.parametrize(
    "change",
    [
        {"system": "Be quick."},
        {"tools": [{**TOOL, "name": "write"}]},
        {"messages": [{"role": "user", "content": "Review some."}, *conversation(4)["messages"][1:]]},
        {"messages": [conversation(4)["messages"][0], *conversation(4)["messages"][3:]]},
    ],
    ids=["system", "tools", "the task", "a round left out"],
)
def test_thinking_behind_another_prefix_is_refused(change: Json) -> None:
    asked = {**conversation(4), **change}
    assert BOUND in refusal_of(asked)
    assert refusal_of(asked).startswith("messages.1.content.0: Invalid `signature` in `thinking` block. ")
    assert refusal_of(asked, bound=False) == ""
    assert refusal_of({**asked, "thinking": {"type": "adaptive", "block_binding": DROP}}) == ""


DROP = {"prefix_mismatch_behavior": "drop_block"}


def test_a_masked_result_spoils_only_what_was_thought_behind_it() -> None:
    asked = edited(conversation(4), 4, lambda content: [{**content[0], "content": "masked"}])
    assert refusal_of(asked).startswith("messages.5.content.0: Invalid")
    stripped = edited(edited(asked, 5, bare), 7, bare)
    assert refusal_of(stripped) == ""


def test_thinking_may_go_from_the_front_but_leaves_no_gap() -> None:
    asked = conversation(4)
    assert refusal_of(edited(asked, 1, bare)) == ""
    assert refusal_of(edited(edited(asked, 1, bare), 3, bare)) == ""
    assert refusal_of(edited(asked, 3, bare)).startswith("messages.5.content.0: Invalid")


def test_thinking_that_was_edited_is_refused() -> None:
    changed = lambda content: [{**content[0], "thinking": "else"}, *content[1:]]  # noqa: E731
    asked = conversation(2)
    assert refusal_of(edited(asked, 1, changed)) == "messages.1.content.0: Invalid `signature` in `thinking` block"
    assert "in the latest assistant message cannot be modified" in refusal_of(edited(asked, 3, changed))


def test_the_latest_message_keeps_all_of_its_thinking_or_none() -> None:
    asked = body(TASK)
    said = signed([thinking("One."), redacted(), call("a")], asked, "r")
    loop = body(TASK, assistant(*said), user(result("a")))
    assert refusal_of(loop) == ""
    assert "cannot be modified" in refusal_of(edited(loop, 1, lambda content: content[1:]))
    assert refusal_of(edited(loop, 1, lambda content: content[2:])) == ""


def test_an_open_loop_of_manual_thinking_begins_with_thinking() -> None:
    asked = conversation(2, thinking={"type": "enabled", "budget_tokens": 1024})
    assert refusal_of(asked) == ""
    wanted = refusal_of(edited(edited(asked, 1, bare), 3, bare))
    assert wanted.startswith("messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `text`.")
    ended = [*edited(edited(asked, 1, bare), 3, bare)["messages"], user(text("And now?"))]
    assert refusal_of({**asked, "messages": ended}) == ""


# -- the upstream ------------------------------------------------------------------------------------------


def loop(rounds: int) -> Callable[[Mapping[str, Any]], Any]:
    """A script of an agent: parallel calls, a search of the server in the middle, and an end."""

    def script(asked: Mapping[str, Any]) -> Any:
        done = sum(message["role"] == "assistant" for message in asked["messages"])
        if done == rounds:
            return [thinking("Enough."), text("All reviewed.")]
        searched = web_search(f"part {done}", "https://moss.example") if done == 1 else []
        both = [tool_use("read", {"part": done, "side": side}) for side in ("ä", "b")]
        return [thinking(f"Step {done}."), *searched, text(f"I look at part {done}."), *both]

    return script


@pytest.fixture
def upstream() -> Iterator[StrictMessages]:
    with StrictMessages(loop(4)) as strict:
        yield strict


@pytest.fixture
def client(upstream: StrictMessages) -> Iterator[Anthropic]:
    with Anthropic(base_url=upstream.url, api_key="k", max_retries=0) as client:
        yield client


def asked_by_sdk(client: Anthropic, messages: list[Any], stream: bool) -> Any:
    members: Any = {"model": "claude-opus-5-5", "max_tokens": 2_000, "tools": [TOOL], "messages": messages}
    members |= {"thinking": {"type": "enabled", "budget_tokens": 1024}, "cache_control": {"type": "ephemeral"}}
    if not stream:
        return client.messages.create(**members)
    with client.messages.stream(**members) as events:
        return events.get_final_message()


@pytest.mark.parametrize("stream", [False, True])
def test_the_sdk_runs_a_tool_loop(client: Anthropic, upstream: StrictMessages, stream: bool) -> None:
    messages: list[Any] = [{"role": "user", "content": "Review all parts."}]
    totals = []
    while (reply := asked_by_sdk(client, messages, stream)).stop_reason == "tool_use":
        results = [result(block.id) for block in reply.content if block.type == "tool_use"]
        messages += [{"role": "assistant", "content": reply.content}, user(*results)]
        totals.append((reply.usage.cache_read_input_tokens, reply.usage.cache_creation_input_tokens))
    assert reply.content[-1].text == "All reviewed."
    assert upstream.refusals == []
    assert last_results(upstream.journal.to(MESSAGES)[-1].json()) == ["ok", "ok"]
    reads = [read for read, _ in totals]
    assert reads == [0, *[sum(pair) for pair in totals[:-1]]]  # each reads what the one before wrote


def test_a_stream_and_a_whole_reply_say_the_same(client: Anthropic) -> None:
    messages: list[Any] = [{"role": "user", "content": "Review all parts."}]
    whole, streamed = (asked_by_sdk(client, messages, stream) for stream in (False, True))
    assert [block.to_dict() for block in whole.content] == [known(block) for block in streamed.content]
    assert whole.usage.output_tokens == streamed.usage.output_tokens


def known(block: Any) -> Any:
    """A block without what the SDK adds to it."""
    return {key: value for key, value in block.to_dict().items() if key != "parsed_output"}


def test_counting_agrees_with_usage(client: Anthropic) -> None:
    messages: list[Any] = [{"role": "user", "content": "Review all parts."}]
    counted = client.messages.count_tokens(model="claude-opus-5-5", messages=messages, tools=[TOOL])
    usage = asked_by_sdk(client, messages, False).usage
    assert (
        counted.input_tokens == usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens
    )


def test_a_refusal_has_the_form_that_the_sdk_knows(client: Anthropic, upstream: StrictMessages) -> None:
    with pytest.raises(anthropic.BadRequestError) as refusal:
        asked_by_sdk(client, [TASK, assistant(call("a"))], False)
    assert refusal.value.body == {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": upstream.refusals[0]},
        "request_id": "req_strict",
    }


def test_credentials_and_a_version_are_wanted(upstream: StrictMessages) -> None:
    assert wire.post_json(upstream.url, MESSAGES, body(TASK)).json()["error"]["message"].startswith("anthropic-version")
    assert wire.post_json(upstream.url, MESSAGES, body(TASK), HEADERS[1:]).status == 401
    assert wire.post_json(upstream.url, MESSAGES, body(TASK), HEADERS).status == 200


def test_to_drop_blocks_takes_a_beta_header(upstream: StrictMessages) -> None:
    dropping = body(TASK, thinking={"type": "adaptive", "block_binding": DROP})
    assert wire.post_json(upstream.url, MESSAGES, dropping, HEADERS).status == 400
    beta = ("anthropic-beta", "thinking-binding-controls-2026-08-01")
    assert wire.post_json(upstream.url, MESSAGES, dropping, [*HEADERS, beta]).status == 200


@pytest.mark.parametrize("overflow", ["status", "event", "late"])
def test_what_exceeds_the_window_is_refused_in_every_form(overflow: Overflow) -> None:
    with StrictMessages(window=100, overflow=overflow) as upstream:
        assert wire.post_json(upstream.url, MESSAGES, body(TASK, stream=True), HEADERS).status == 200
        long = body(user(text("x" * 1_000)), stream=True)
        answer = wire.post_json(upstream.url, MESSAGES, long, HEADERS)
        counted = wire.post_json(upstream.url, COUNT, long, HEADERS).json()["input_tokens"]
        with Anthropic(base_url=upstream.url, api_key="k", max_retries=0) as client, pytest.raises(anthropic.APIError):
            asked_by_sdk(client, long["messages"], stream=True)
    said = f"prompt is too long: {counted} tokens > 100 maximum"
    assert said in answer.body.decode()
    assert upstream.refusals[0] == said
    assert answer.status == (400 if overflow == "status" else 200)
    kinds = [json.loads(data)["type"] for data in wire.events(answer.body)]
    assert kinds == {"status": [], "event": ["error"], "late": ["message_start", "ping", "error"]}[overflow]


def test_a_script_may_say_why_it_stopped() -> None:
    with StrictMessages(lambda asked: ScriptedAnswer([text("I can")], "max_tokens")) as upstream:
        answer = wire.post_json(upstream.url, MESSAGES, body(TASK), HEADERS)
    assert answer.json()["stop_reason"] == "max_tokens"
