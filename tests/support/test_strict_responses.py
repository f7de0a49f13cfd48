"""The strict upstream of the Responses API, asked directly: the bodies that it refuses."""

from collections.abc import Iterator
from typing import Any

import pytest

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
APPROVED: Json = {"type": "mcp_approval_response", "approval_request_id": "ar_1", "approve": True}
CUSTOM: Json = {"call_id": "a", **custom_tool_call("patch", "x")}
PROGRAM: Json = {"type": "program", "call_id": "p", "id": "pr_1", "fingerprint": "f", "code": "x"}

REFUSED: list[tuple[str, Json]] = [
    ("No tool output found for function call a.", body(TASK, call("a"), call("b"), output("b"))),
    ("No tool call found for function call output with call_id a.", body(TASK, output("a"), call("a"))),
    (
        "No tool call found for function call output with call_id a.",
        body(TASK, {"call_id": "a", **custom_tool_call("patch", "x")}, output("a")),
    ),
    ("No tool output found for custom tool call a.", body(TASK, CUSTOM)),
    (
        "No tool call found for local shell call output with call_id other.",
        body(TASK, SHELL, {"type": "local_shell_call_output", "id": "other", "output": "ok"}),
    ),
    ("No tool output found for program p.", body(TASK, PROGRAM)),
    ("No tool call found for mcp approval request output with call_id ar_1.", body(TASK, APPROVED)),
    (
        "Item 'rs_1' of type 'reasoning' was provided without its required following item.",
        body(TASK, thought("1"), TASK),
    ),
    ("Item 'rs_1' of type 'reasoning' was provided without its required following item.", body(TASK, thought("1"))),
    (
        "The encrypted content gAAA...eign could not be verified.",
        body(TASK, thought("1", encrypted_content="gAAAAABforeign"), message("Done.")),
    ),
    (
        "Duplicate item found with id fc_a. Remove duplicate items from your input and try again.",
        body(TASK, call("a"), output("a"), {**call("b"), "id": "fc_a"}, output("b")),
    ),
    (
        "Item with id 'msg_1' not found. Items are not persisted when `store` is set to false.",
        body(TASK, {"type": "item_reference", "id": "msg_1"}),
    ),
    (
        "Item with id 'rs_1' not found. Items are not persisted when `store` is set to false.",
        body(TASK, thought("1", encrypted_content=None), message("Done.")),
    ),
    (
        "Invalid value: 'text'. Supported values are: 'input_text', 'input_image', 'input_file', and 'input_audio'.",
        body({"role": "user", "content": [{"type": "text", "text": "x"}]}),
    ),
    (
        "Invalid value: 'input_text'. Supported values are: 'output_text', and 'refusal'.",
        body(TASK, {"role": "assistant", "content": [{"type": "input_text", "text": "x"}]}),
    ),
    (
        "Invalid type for 'input[1].arguments': expected a string, but got an object instead.",
        body(TASK, {**call("a"), "arguments": {}}, output("a")),
    ),
    ("The 'compaction_trigger' item must be the final input item.", body({"type": "compaction_trigger"}, TASK)),
    ("Missing required parameter: 'input[0].content'.", body({"role": "user"})),
]


@pytest.mark.parametrize(("said", "wrong"), REFUSED)
def test_a_wrong_body_is_refused_in_the_vendors_words(said: str, wrong: Json) -> None:
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


def test_credentials_are_wanted(upstream: StrictResponses) -> None:
    assert wire.post_json(upstream.url, RESPONSES, body(TASK)).status == 401
