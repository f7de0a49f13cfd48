"""The strict upstream of the Messages API, asked directly: the bodies that it refuses."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from tests.support import wire
from tests.support.messages_upstream import MESSAGES, StrictMessages, text, thinking, tool_use, web_search
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

REFUSED: list[tuple[str, Json]] = [
    (
        "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: b. Each `tool_use`",
        body(TASK, assistant(call("a"), call("b")), user(result("a"))),
    ),
    (
        "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: a.",
        body(TASK, assistant(call("a")), user(text("See:"), result("a"))),
    ),
    ("messages.1: `tool_use` ids were found", body(TASK, assistant(call("a")), user(text("See.")), user(result("a")))),
    ("messages.1: `tool_use` ids were found", body(TASK, assistant(call("a")))),
    (
        "messages.2.content.0: unexpected `tool_use_id` found in `tool_result` blocks: a. Each `tool_result` block",
        body(TASK, assistant(text("Hm.")), user(result("a"))),
    ),
    (
        "messages.2.content.1: each tool_use must have a single result.",
        body(TASK, assistant(call("a")), user(result("a"), result("a"))),
    ),
    (
        "messages.1.content.1: `tool_use` ids must be unique",
        body(TASK, assistant(call("a"), call("a")), user(result("a"))),
    ),
    (
        "messages.1.content.0: unexpected `tool_use_id` found in `web_search_tool_result` blocks: srvtoolu_",
        body(TASK, assistant(SEARCH[1], SEARCH[0])),
    ),
    ("messages.1: `web_search` tool use with id `srvtoolu_", body(TASK, assistant(SEARCH[0]), user(text("Well?")))),
    (
        "messages.1: `web_search` tool use with id `srvtoolu_",
        body(TASK, assistant(SEARCH[0], call("a")), user(result("a"), text("Well?")), assistant(SEARCH[1])),
    ),
    (
        "messages.1.content.0.caller.tool_id: no `server_tool_use` with id s is running",
        body(
            TASK,
            assistant({**call("a"), "caller": {"type": "code_execution_20260120", "tool_id": "s"}}),
            user(result("a")),
        ),
    ),
    (
        "messages.1.content.0.tool_use.input: Input should be a valid dictionary",
        body(TASK, assistant({**call("a"), "input": "{}"}), user(result("a"))),
    ),
    ("messages.2: role 'system' must immediately follow a user message", body(TASK, assistant(text("Hm.")), SYSTEM)),
    (
        "messages.2: role 'system' must immediately follow a user message",
        body(TASK, assistant(call("a")), SYSTEM, user(result("a"))),
    ),
    ('messages: first message must use the "user" role', body(assistant(text("Hm.")), TASK)),
    ("messages.1: all messages must have non-empty content", body(TASK, assistant(), TASK)),
    ("messages: text content blocks must be non-empty", body(user(text("")))),
    ("messages.0: `tool_use` blocks can only be in `assistant` messages", body(user(call("a")), user(result("a")))),
    (
        "A maximum of 4 blocks with cache_control may be provided. Found 5.",
        body(
            user(*[marked(text("x"))] * 2),
            tools=[marked(TOOL)],
            system=[marked(text("s"))],
            cache_control={"type": "e"},
        ),
    ),
    (
        "messages.0.content.0.cache_control.ttl: a ttl='1h' cache_control block must not come after a ttl='5m'",
        body(user(marked(text("x"), "1h")), system=[marked(text("s"))]),
    ),
    (
        "A maximum of 4 blocks",
        body(TASK, assistant(call("a")), user(marked(result("a", content=[marked(text("r"))] * 4)))),
    ),
    (
        "messages.1.content.0.thinking.cache_control: Extra inputs are not permitted",
        body(TASK, assistant(marked(thinking("Hm.")))),
    ),
    ("messages.0.name: Extra inputs are not permitted", body({**TASK, "name": "x"})),
]


@pytest.mark.parametrize(("said", "wrong"), REFUSED)
def test_a_wrong_body_is_refused_in_the_vendors_words(said: str, wrong: Json) -> None:
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


def test_an_open_loop_of_manual_thinking_begins_with_thinking() -> None:
    asked = conversation(2, thinking={"type": "enabled", "budget_tokens": 1024})
    assert refusal_of(asked) == ""
    wanted = refusal_of(edited(edited(asked, 1, bare), 3, bare))
    assert wanted.startswith("messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `text`.")
    ended = [*edited(edited(asked, 1, bare), 3, bare)["messages"], user(text("And now?"))]
    assert refusal_of({**asked, "messages": ended}) == ""


# -- the upstream ------------------------------------------------------------------------------------------


@pytest.fixture
def upstream() -> Iterator[StrictMessages]:
    with StrictMessages() as strict:
        yield strict


def test_credentials_and_a_version_are_wanted(upstream: StrictMessages) -> None:
    assert wire.post_json(upstream.url, MESSAGES, body(TASK)).json()["error"]["message"].startswith("anthropic-version")
    assert wire.post_json(upstream.url, MESSAGES, body(TASK), HEADERS[1:]).status == 401
    assert wire.post_json(upstream.url, MESSAGES, body(TASK), HEADERS).status == 200


def test_to_drop_blocks_takes_a_beta_header(upstream: StrictMessages) -> None:
    dropping = body(TASK, thinking={"type": "adaptive", "block_binding": DROP})
    assert wire.post_json(upstream.url, MESSAGES, dropping, HEADERS).status == 400
    beta = ("anthropic-beta", "thinking-binding-controls-2026-08-01")
    assert wire.post_json(upstream.url, MESSAGES, dropping, [*HEADERS, beta]).status == 200
