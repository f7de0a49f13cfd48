"""The endpoint of the Responses API: what it reads and writes, byte by byte, and what it counts."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given

from proxy.errors import BadRequest, CredentialRefused
from proxy.http.headers import Headers
from proxy.protocols.chat import ChatCounter
from proxy.protocols.counter import PER_MESSAGE, REPLY_PRIMING
from proxy.protocols.endpoint import MalformedElement, Question
from proxy.protocols.hidden_calls import NAME
from proxy.protocols.replies import ending, ending_in
from proxy.protocols.responses import RESPONSES_ENDPOINT as ENDPOINT
from proxy.protocols.responses import ResponsesCounter
from proxy.tokens import media
from proxy.tokens.counter import Counted
from tests.proxy.tokens.test_images import png
from tests.support.prefixes import event
from tests.support.responses_drafts import responses_conversations
from tests.support.responses_upstream import custom_tool_call, events, function_call, message, reasoning
from tests.support.strict_responses import refusal_of

Json = dict[str, Any]

TOOLS = [{"type": "function", "name": "read", "parameters": {"type": "object", "properties": {}}}]
OUTPUT: list[Json] = [
    {"id": "rs_1", **reasoning("Well. 苔"), "encrypted_content": "c2ln"},
    {"id": "msg_1", **message('Look: "苔" 🌱\n\ndata: [DONE]\nevent: response.completed')},
    {"id": "fc_1", "call_id": "call_1", **function_call("read", {"path": "ä"})},
]
HIDDEN = {"id": "fc_2", "call_id": "call_2", **function_call(NAME, {"query": "moss"})}
USAGE = {"input_tokens": 10, "output_tokens": 7, "total_tokens": 17}
ENDED = {"status": "completed", "error": None, "incomplete_details": None, "usage": USAGE}
RESPONSE: Json = {"id": "resp_1", "object": "response", "output": OUTPUT, **ENDED}
IN_EVENTS: Headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
CUTS = [1, 7, 50, 10_000]


def streamed(response: Json) -> bytes:
    return b"".join(event({**each, "sequence_number": number}) for number, each in enumerate(events(response)))


STREAM = streamed(RESPONSE)
LAST = STREAM.rindex(b"\nevent: response.completed") + 1


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def payloads(stream: bytes) -> list[Json]:
    return [json.loads(line[6:]) for line in stream.split(b"\n") if line.startswith(b"data: ")]


def test_a_failed_streams_error_has_the_next_number() -> None:
    failed = event({"type": "response.failed", "response": {**RESPONSE, "status": "failed"}})
    for data in (STREAM[:LAST], failed):
        capture = ENDPOINT.capture(IN_EVENTS)
        capture.feed(data)
        assert capture.items() == ()
    (error,) = payloads(ENDPOINT.error_event(BadRequest("No.", param="input"), STREAM[: STREAM.index(b"event", 9)]))
    assert (error["type"], error["message"], error["param"]) == ("error", "No.", "input")
    assert (error["sequence_number"], error["error"]["type"]) == (1, "invalid_request_error")


@pytest.mark.parametrize("size", CUTS)
def test_two_replies_become_one_stream_whose_numbers_have_no_gaps(size: int) -> None:
    first = streamed({**RESPONSE, "output": [OUTPUT[1], OUTPUT[0], HIDDEN]})
    second = streamed({**RESPONSE, "id": "resp_2"})
    splicer = ENDPOINT.splicer(runs_calls=True)
    passed = b"".join(splicer.feed(chunk) for chunk in cut(first, size)) + splicer.rest()
    assert splicer.is_continued
    splicer.begin(runs_calls=False)
    passed += b"".join(splicer.feed(chunk) for chunk in cut(second, size)) + splicer.rest()
    seen = payloads(passed)
    assert [each["sequence_number"] for each in seen] == list(range(len(seen)))
    done = [each for each in seen if each["type"] == "response.output_item.done"]
    assert [each["output_index"] for each in done] == [0, 1, 2, 3]
    assert [each["item"] for each in done] == seen[-1]["response"]["output"] == [OUTPUT[1], *OUTPUT]
    assert seen[-1]["response"]["usage"] == {"input_tokens": 10, "output_tokens": 14, "total_tokens": 24}
    assert [each["type"] for each in seen].count("response.created") == 1


@pytest.mark.parametrize("size", CUTS)
def test_a_response_does_not_repeat_the_proxys_tool(size: int) -> None:
    tools = [*TOOLS, {"type": "function", "name": NAME}]
    splicer = ENDPOINT.splicer(runs_calls=True)
    passed = b"".join(splicer.feed(chunk) for chunk in cut(streamed({**RESPONSE, "tools": tools}), size))
    assert [each["response"]["tools"] for each in payloads(passed) if "response" in each] == [TOOLS] * 3
    whole = json.loads(ENDPOINT.joined(json.dumps({**RESPONSE, "tools": tools}).encode(), []))
    assert whole == {**RESPONSE, "tools": TOOLS}


def test_a_reply_has_its_last_event_and_the_ending_of_its_text() -> None:
    said = "A long answer to a short question. " * 20
    response = {**RESPONSE, "output": [{"id": "msg_1", **message(said)}]}
    assert ending_in(streamed(response), ENDPOINT.text_places, is_complete=True) == ending(said)
    assert ending_in(json.dumps(response).encode(), ENDPOINT.text_places, is_complete=True) == ending(said)
    assert ENDPOINT.last_event_at(STREAM, b"") == LAST
    assert ENDPOINT.last_event_at(b'data: {"type": "response.failed"}\n\n', b"\n") == 0
    assert ENDPOINT.last_event_at(b"event: response.completed\n", b'x"') == -1
    assert ENDPOINT.last_event_at(STREAM[:LAST], b"") == -1
    for size in range(1, 25):
        assert ENDPOINT.last_event_at(STREAM[LAST + size :], STREAM[: LAST + size]) == 0


@pytest.mark.parametrize(
    ("theirs", "message"),
    [
        ({"error": {"message": "No.", "code": "no"}}, "No."),
        ({"error": "No."}, "No."),
        ({"detail": "No."}, "The upstream refuses this credential."),
        ([], "The upstream refuses this credential."),
    ],
)
def test_an_upstream_error_is_an_event_that_sdks_raise(theirs: object, message: str) -> None:
    (error,) = payloads(ENDPOINT.error_event(CredentialRefused(401, json.dumps(theirs).encode()), b""))
    assert (error["type"], error["message"], error["error"]["message"]) == ("error", message, message)


VIEW = json.dumps([{"role": "user", "content": "hi"}, OUTPUT[1]])
MEMBERS = {"instructions": '"Be."', "tools": json.dumps(TOOLS)}


@pytest.mark.parametrize(
    "question",
    [
        Question("gpt-x", "Summarize.", "The text. \ud800", 100, temperature=0.5),
        Question("gpt-x", "", "Summarize.", 100, VIEW, MEMBERS),
        Question("gpt-x", "", "Summarize.", 100, VIEW, {"tools": "[]"}),
    ],
    ids=["isolated", "continued", "bare"],
)
def test_the_vendor_takes_what_the_proxy_asks(question: Question) -> None:
    body = json.loads(ENDPOINT.question(question))
    assert refusal_of(body) is None
    assert (body["max_output_tokens"], body["store"]) == (100, False)
    assert body.get("tool_choice") == ("none" if body.get("tools") else None)
    assert body["input"][-1]["role"] == "user"
    assert body.get("instructions") == (question.system or json.loads(question.members.get("instructions", "null")))


@pytest.mark.parametrize(
    ("status", "reason", "finish"),
    [("completed", None, "stop"), ("incomplete", "max_output_tokens", "length"), ("failed", None, "failed")],
)
def test_an_answer_says_why_it_ended_in_the_words_of_chat(status: str, reason: str | None, finish: str) -> None:
    response: Json = {"output": [reasoning("Hm."), message("Yes.")], "status": status, "incomplete_details": None}
    if reason:
        response["incomplete_details"] = {"reason": reason}
    (answer,) = ENDPOINT.answers(response, 5) or ()
    assert (getattr(answer, "text", None), getattr(answer, "finish_reason", None)) == ("Yes.", finish)
    assert ENDPOINT.answers({"error": {}}, 0) is None


@pytest.mark.parametrize(
    ("item", "looks"),
    [
        ({"role": "user", "content": "a"}, ("user", True)),
        ({"type": "message", "role": "user", "content": [{"type": "input_image"}]}, ("user", False)),
        (OUTPUT[0], ("reasoning", False)),
        ({"type": "reasoning", "content": [{"type": "reasoning_text", "text": "a"}]}, ("reasoning", True)),
        ({"type": "new_thing", "text": "a"}, ("new_thing", False)),
        ({"type": "function_call_output", "call_id": "a", "output": [{"type": "input_image"}]}, None),
        (
            {"type": "computer_call_output", "call_id": "a", "output": {"type": "computer_screenshot"}},
            ("computer_call_output", False),
        ),
        ({"type": "compaction", "encrypted_content": "a"}, ("developer", False)),
        ({"type": "additional_tools", "tools": []}, ("developer", True)),
    ],
)
def test_only_items_whose_bytes_bound_their_tokens_count_as_text(item: Json, looks: tuple[str, bool] | None) -> None:
    assert ENDPOINT.look(item) == (looks or ("function_call_output", False))


def test_a_side_call_is_told_and_no_item_refused() -> None:
    schema = {"text": {"format": {"type": "json_schema", "schema": {}}}}
    uses = [ENDPOINT.tool_use({**schema, **more}) for more in ({}, {"tools": TOOLS})]
    assert [use is not None and use.takes_another for use in uses] == [False, True]
    for value in ["hi", {"content": "hi"}, {"role": 1}, {"type": 1}]:
        with pytest.raises(MalformedElement):
            ENDPOINT.look(value)


BY_WORD = ResponsesCounter("any", lambda text: len(text.split()), media.media_prices("gpt-4o"))


def tokens(item: dict[str, Any]) -> int:
    return BY_WORD.message(item) - PER_MESSAGE


def counted(item: dict[str, Any]) -> Counted:
    count = BY_WORD.counted(item)
    return count._replace(tokens=count.tokens - PER_MESSAGE)


def test_texts_calls_and_outputs_have_their_costs() -> None:
    assert tokens({"role": "user", "content": "one two"}) == 2
    assert tokens({"role": "user", "content": [{"type": "input_text", "text": "one two"}]}) == 2
    assert tokens(message("one two")) == 2
    assert tokens({"call_id": "c", **function_call("read", {"path": "a"})}) == 3
    assert tokens({"call_id": "c", **custom_tool_call("patch", "+ a")}) == 3
    assert tokens({"type": "function_call_output", "call_id": "c", "output": "one two"}) == 2


def test_reasoning_counts_as_text_unless_it_is_encrypted() -> None:
    text = [{"type": "reasoning_text", "text": "one two"}]
    assert counted({"type": "reasoning", "id": "rs_1", "summary": [], "content": text}) == (2, False)
    summary = [{"type": "summary_text", "text": "a long summary"}]
    assert counted({"type": "reasoning", "summary": summary}) == (3, False)
    assert counted({"type": "reasoning", "summary": summary, "encrypted_content": "x" * 600}) == (0, True)
    assert counted({"type": "reasoning", "id": "rs_1", "summary": []}) == (0, True)
    assert counted({"type": "compaction", "encrypted_content": "x" * 600}) == (0, True)


PICTURE = "data:image/png;base64," + base64.b64encode(png(512, 512)).decode()


@pytest.mark.parametrize(
    "item",
    [
        {"role": "user", "content": [{"type": "input_image", "image_url": PICTURE}]},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": PICTURE}]},
        {"type": "computer_call_output", "output": {"type": "computer_screenshot", "image_url": PICTURE}},
        {"type": "image_generation_call", "result": PICTURE.partition(",")[2]},
        {"type": "code_interpreter_call", "code": "", "outputs": [{"type": "image", "url": PICTURE}]},
    ],
)
def test_a_picture_has_its_price_wherever_it_stands(item: dict[str, Any]) -> None:
    assert counted(item) == (255, False)


@pytest.mark.parametrize(
    "item",
    [
        {"type": "image_generation_call", "id": "ig_1", "status": "completed"},
        {"type": "image_generation_call", "result": "A" * 90_000},
        {"type": "computer_call_output", "output": {"type": "computer_screenshot", "file_id": "f"}},
        {"role": "user", "content": [{"type": "input_file", "file_id": "f"}]},
        {"type": "new_thing", "text": "one two", "blob": "A" * 90_000},
        {"type": "item_reference", "id": "msg_1"},
    ],
)
def test_what_has_no_price_counts_nothing_and_is_told(item: dict[str, Any]) -> None:
    assert counted(item) == (0, True)


def test_calls_of_the_vendors_tools_count_as_text() -> None:
    run = {"type": "code_interpreter_call", "code": "one two", "outputs": [{"type": "logs", "logs": "three"}]}
    assert counted(run) == (3, False)
    shell = {"type": "shell_call_output", "call_id": "c", "output": [{"stdout": "one two three", "stderr": ""}]}
    assert 3 <= counted(shell).tokens < 12
    listed = {"type": "mcp_list_tools", "tools": [{"name": "find", "description": "one two"}]}
    assert not counted(listed).unpriced
    loaded = {"type": "tool_search_output", "tools": [{"type": "function", "name": "late", "description": "one two"}]}
    assert counted(loaded).tokens > 3


def test_instructions_and_tools_cost_what_they_cost_in_chat() -> None:
    shape = {"name": "read", "description": "Reads a file", "parameters": {"type": "object", "properties": {}}}
    chat = ChatCounter("any", lambda text: len(text.split()), media.media_prices("gpt-4o"))
    in_chat = chat.overhead({"tools": [{"type": "function", "function": shape}]})
    assert BY_WORD.overhead({"tools": [{"type": "function", **shape}]}) == in_chat
    assert BY_WORD.overhead({}) == REPLY_PRIMING
    assert BY_WORD.overhead({"instructions": "Be brief."}) == REPLY_PRIMING + PER_MESSAGE + 2


@given(responses_conversations(at_most=8))
def test_each_item_of_a_conversation_costs_something(items: list[dict[str, Any]]) -> None:
    assert all(BY_WORD.message(item) >= PER_MESSAGE and BY_WORD.chars(item) > 0 for item in items)
