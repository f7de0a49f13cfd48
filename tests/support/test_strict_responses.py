"""The strict upstream of the Responses API, asked directly: each rule with a body it takes and one it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from tests.support import wire
from tests.support.replies import Json
from tests.support.responses_upstream import (
    RESPONSES,
    StrictResponses,
    custom_tool_call,
    function_call,
    message,
    reasoning,
)
from tests.support.strict_responses import Known, mismatched, produced, refusal_of

TOOL: Any = {"type": "function", "name": "read", "strict": False, "parameters": {"type": "object", "properties": {}}}
PATCH: Any = {"type": "custom", "name": "patch"}
TASK: Any = {"role": "user", "content": "Review all parts."}


def body(*items: Json, **members: Any) -> Json:
    return {"model": "gpt-5.6", "input": list(items), **members}


def call(one: str) -> Json:
    return {"id": f"fc_{one}", "call_id": one, **function_call("read", {"path": one})}


def output(one: str) -> Json:
    return {"type": "function_call_output", "call_id": one, "output": "ok"}


def thought(one: str, **more: Any) -> Json:
    sealed = produced([reasoning("Hm.")], body(TASK), {})[0]
    return {**sealed, "id": f"rs_{one}", **more}


SHELL: Json = {"type": "local_shell_call", "id": "lsh_1", "call_id": "c", "status": "completed", "action": {}}
APPROVAL: Json = {"type": "mcp_approval_request", "id": "ar_1", "name": "n", "arguments": "{}", "server_label": "s"}
APPROVED: Json = {"type": "mcp_approval_response", "approval_request_id": "ar_1", "approve": True}
CUSTOM: Json = {"call_id": "a", **custom_tool_call("patch", "x")}
PROGRAM: Json = {"type": "program", "call_id": "p", "id": "pr_1", "fingerprint": "f", "code": "x"}

RULES: dict[str, tuple[Json, Json, str]] = {
    "every call has an output": (
        body(TASK, call("a"), call("b"), output("b"), output("a")),
        body(TASK, call("a"), call("b"), output("b")),
        "No tool output found for function call a.",
    ),
    "every output has a call before it": (
        body(TASK, call("a"), output("a")),
        body(TASK, output("a"), call("a")),
        "No tool call found for function call output with call_id a.",
    ),
    "an output is of its call's kind": (
        body(
            TASK, {"call_id": "a", **custom_tool_call("patch", "x")}, {**output("a"), "type": "custom_tool_call_output"}
        ),
        body(TASK, {"call_id": "a", **custom_tool_call("patch", "x")}, output("a")),
        "No tool call found for function call output with call_id a.",
    ),
    "a custom call has an output": (body(TASK), body(TASK, CUSTOM), "No tool output found for custom tool call a."),
    "a local shell's output has its id": (
        body(TASK, SHELL, {"type": "local_shell_call_output", "id": "lsh_2"} | {"id": "c", "output": "ok"}),
        body(TASK, SHELL, {"type": "local_shell_call_output", "id": "other", "output": "ok"}),
        "No tool call found for local shell call output with call_id other.",
    ),
    "a program has an output": (
        body(TASK, PROGRAM, {"type": "program_output", "call_id": "p", "output": "ok"}),
        body(TASK, PROGRAM),
        "No tool output found for program p.",
    ),
    "an approval has a request, which may wait": (
        body(TASK, APPROVAL, {**APPROVED}),
        body(TASK, APPROVED),
        "No tool call found for mcp approval request output with call_id ar_1.",
    ),
    "reasoning has what it led to": (
        body(TASK, thought("1"), call("a"), output("a")),
        body(TASK, thought("1"), TASK),
        "Item 'rs_1' of type 'reasoning' was provided without its required following item.",
    ),
    "reasoning ends no list": (
        body(TASK, thought("1"), message("Done.")),
        body(TASK, thought("1")),
        "Item 'rs_1' of type 'reasoning' was provided without its required following item.",
    ),
    "encrypted content is ours": (
        body(TASK, thought("1"), message("Done.")),
        body(TASK, thought("1", encrypted_content="gAAAAABforeign"), message("Done.")),
        "The encrypted content gAAA...eign could not be verified.",
    ),
    "an item stands once": (
        body(TASK, call("a"), output("a")),
        body(TASK, call("a"), output("a"), {**call("b"), "id": "fc_a"}, output("b")),
        "Duplicate item found with id fc_a. Remove duplicate items from your input and try again.",
    ),
    "references name what is kept": (
        body(TASK, message("Done.")),
        body(TASK, {"type": "item_reference", "id": "msg_1"}),
        "Item with id 'msg_1' not found. Items are not persisted when `store` is set to false.",
    ),
    "bare reasoning is kept": (
        body(TASK, message("Done.")),
        body(TASK, thought("1", encrypted_content=None), message("Done.")),
        "Item with id 'rs_1' not found. Items are not persisted when `store` is set to false.",
    ),
    "a user's parts are input": (
        body({"role": "user", "content": [{"type": "input_text", "text": "x"}]}),
        body({"role": "user", "content": [{"type": "text", "text": "x"}]}),
        "Invalid value: 'text'. Supported values are: 'input_text', 'input_image', 'input_file', and 'input_audio'.",
    ),
    "an assistant's parts are output": (
        body(TASK, message("Done.")),
        body(TASK, {"role": "assistant", "content": [{"type": "input_text", "text": "x"}]}),
        "Invalid value: 'input_text'. Supported values are: 'output_text', and 'refusal'.",
    ),
    "arguments are a text": (
        body(TASK, call("a"), output("a")),
        body(TASK, {**call("a"), "arguments": {}}, output("a")),
        "Invalid type for 'input[1].arguments': expected a string, but got an object instead.",
    ),
    "a trigger of compaction is the last": (
        body(TASK, {"type": "compaction_trigger"}),
        body({"type": "compaction_trigger"}, TASK),
        "'compaction_trigger' must be the last input item.",
    ),
    "a message has content": (body(TASK), body({"role": "user"}), "Missing required parameter: 'input[0].content'."),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_takes_one_body_and_refuses_the_other(rule: str) -> None:
    taken, wrong, said = RULES[rule]
    assert refusal_of(taken) is None
    refusal = refusal_of(wrong)
    assert refusal is not None
    assert refusal.message.startswith(said)


def test_a_kept_item_wants_the_reasoning_it_followed() -> None:
    kept = {"fc_a": Known(call("a"), "rs_1"), "rs_1": Known(thought("1"))}
    assert refusal_of(body(TASK, thought("1"), call("a"), output("a")), kept) is None
    assert refusal_of(body(TASK, {**call("a"), "id": None}, output("a")), kept) is None
    refusal = refusal_of(body(TASK, call("a"), output("a")), kept)
    assert refusal is not None
    assert refusal.message == (
        "Item 'fc_a' of type 'function_call' was provided without its required 'reasoning' item: 'rs_1'."
    )


# -- reasoning ---------------------------------------------------------------------------------------------


def conversation(rounds: int) -> Json:
    """A tool loop whose every reply reasons, as the upstream would have sealed it."""
    asked = body(TASK, instructions="Be careful.", tools=[TOOL], store=False)
    for number in range(rounds):
        made = [{**reasoning(f"Step {number}."), "id": f"rs_{number}"}, message("I look."), call(f"t{number}")]
        asked = {**asked, "input": [*asked["input"], *produced(made, asked, {}), output(f"t{number}")]}
    return asked


def removed(asked: Json) -> list[str]:
    assert refusal_of(asked) is None
    return [one["id"] for one in mismatched(asked, {})]


def test_reasoning_stays_behind_the_prefix_it_was_produced_behind() -> None:
    asked = conversation(3)
    assert removed(asked) == []
    task = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Review all parts."}]}
    assert removed({**asked, "input": [task, *asked["input"][1:]]}) == []
    bare = [{key: value for key, value in item.items() if key != "status"} for item in asked["input"]]
    assert removed({**asked, "input": bare}) == []


def test_reasoning_behind_another_prefix_is_dropped() -> None:
    asked = conversation(3)
    assert removed({**asked, "instructions": "Be quick."}) == ["rs_0", "rs_1", "rs_2"]
    assert removed({**asked, "tools": []}) == ["rs_0", "rs_1", "rs_2"]
    assert removed({**asked, "input": [TASK, *asked["input"][5:]]}) == ["rs_1", "rs_2"]
    masked = [
        {**item, "output": "-"} if item.get("call_id") == "t1" and "output" in item else item for item in asked["input"]
    ]
    assert removed({**asked, "input": masked}) == ["rs_2"]


# -- the upstream ------------------------------------------------------------------------------------------


@pytest.fixture
def upstream() -> Iterator[StrictResponses]:
    with StrictResponses(lambda asked: [reasoning("Hm."), message("I look."), function_call("read", {})]) as strict:
        yield strict


@pytest.fixture
def client(upstream: StrictResponses) -> Iterator[OpenAI]:
    with OpenAI(base_url=upstream.base_url, api_key="k", max_retries=0) as client:
        yield client


def asked_by_sdk(client: OpenAI, items: Any, stream: bool, **members: Any) -> Any:
    members = {"model": "gpt-5.6", "tools": [TOOL, PATCH], "input": items, **members}
    if not stream:
        return client.responses.create(**members)
    with client.responses.stream(**members) as events:
        return events.get_final_response()


def answered(reply: Any) -> list[Json]:
    """The outputs of the calls of a reply."""
    kinds = {"function_call": "function_call_output", "custom_tool_call": "custom_tool_call_output"}
    return [
        {"type": kinds[item.type], "call_id": item.call_id, "output": "ok"}
        for item in reply.output
        if item.type in kinds
    ]


def test_references_stand_for_kept_items(client: OpenAI, upstream: StrictResponses) -> None:
    reply = asked_by_sdk(client, [TASK], False)
    referred = [{"type": "item_reference", "id": item.id} for item in reply.output]
    again = asked_by_sdk(client, [TASK, *referred, *answered(reply)], False)
    assert again.input_transformations is None
    whole = asked_by_sdk(client, [TASK, *reply.output, *answered(reply)], False)
    assert whole.usage.input_tokens == again.usage.input_tokens


def test_dropped_reasoning_is_told_of(client: OpenAI) -> None:
    reply = asked_by_sdk(client, [TASK], False, store=False)
    asked = [{"role": "user", "content": "Review some."}, *reply.output, *answered(reply)]
    [removal] = asked_by_sdk(client, asked, True, store=False).input_transformations
    assert (removal.id, removal.reason, removal.type) == (reply.output[0].id, "prefix_mismatch", "reasoning")


def test_credentials_are_wanted(upstream: StrictResponses) -> None:
    assert wire.post_json(upstream.url, RESPONSES, body(TASK)).status == 401
