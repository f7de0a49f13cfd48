"""What the endpoint of the Responses API reads and writes, byte by byte."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.endpoints.endpoint import MalformedElement, Question
from proxy.endpoints.hidden_calls import NAME
from proxy.endpoints.replies import ending, ending_in
from proxy.endpoints.responses import RESPONSES_ENDPOINT as ENDPOINT
from proxy.errors import BadRequest, CredentialRefused
from proxy.http.headers import Headers
from tests.support.prefixes import event
from tests.support.responses_upstream import events, function_call, message, reasoning
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
RESPONSE: Json = {
    "id": "resp_1",
    "object": "response",
    "status": "completed",
    "error": None,
    "incomplete_details": None,
    "output": OUTPUT,
    "usage": USAGE,
}
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


# -- replies -----------------------------------------------------------------------------------------------


def test_a_stream_that_failed_or_has_not_ended_is_not_captured() -> None:
    failed = event({"type": "response.failed", "response": {**RESPONSE, "status": "failed"}})
    for data in (STREAM[:LAST], failed):
        capture = ENDPOINT.capture(IN_EVENTS)
        capture.feed(data)
        assert capture.items() == ()


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


def test_the_ending_of_a_reply_is_that_of_its_text() -> None:
    said = "A long answer to a short question. " * 20
    response = {**RESPONSE, "output": [{"id": "msg_1", **message(said)}]}
    assert ending_in(streamed(response), ENDPOINT.text_places, is_complete=True) == ending(said)
    assert ending_in(json.dumps(response).encode(), ENDPOINT.text_places, is_complete=True) == ending(said)


def test_the_last_event_is_found_only_where_a_line_begins() -> None:
    assert ENDPOINT.last_event_at(STREAM, b"") == LAST
    assert ENDPOINT.last_event_at(b'data: {"type": "response.failed"}\n\n', b"\n") == 0
    assert ENDPOINT.last_event_at(b"event: response.completed\n", b'x"') == -1
    assert ENDPOINT.last_event_at(STREAM[:LAST], b"") == -1


def test_the_last_event_is_found_where_two_chunks_divide_its_name() -> None:
    for size in range(1, 25):
        assert ENDPOINT.last_event_at(STREAM[LAST + size :], STREAM[: LAST + size]) == 0


def test_an_error_in_a_stream_has_the_next_number() -> None:
    (error,) = payloads(ENDPOINT.error_event(BadRequest("No.", param="input"), STREAM[: STREAM.index(b"event", 9)]))
    assert (error["type"], error["message"], error["param"]) == ("error", "No.", "input")
    assert (error["sequence_number"], error["error"]["type"]) == (1, "invalid_request_error")


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


# -- own calls ---------------------------------------------------------------------------------------------

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
    body = json.loads(ENDPOINT.question(question, "max_output_tokens"))
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


# -- requests ----------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("value", ["hi", {"content": "hi"}, {"role": 1}, {"type": 1}])
def test_what_is_no_item_is_refused(value: object) -> None:
    with pytest.raises(MalformedElement):
        ENDPOINT.look(value)


def test_a_side_call_for_a_title_is_offered_no_tool() -> None:
    schema = {"text": {"format": {"type": "json_schema", "schema": {}}}}
    uses = [ENDPOINT.tool_use({**schema, **more}) for more in ({}, {"tools": TOOLS})]
    assert [use is not None and use.takes_another for use in uses] == [False, True]
