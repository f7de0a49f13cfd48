"""What every protocol but chat does to a reply, in whatever pieces it comes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.endpoints import endpoint_at
from proxy.endpoints.messages import MESSAGES_ENDPOINT
from proxy.endpoints.responses import RESPONSES_ENDPOINT
from tests.proxy.endpoints import test_messages_endpoint as messages
from tests.proxy.endpoints import test_responses_endpoint as responses

MESSAGES = (messages.STREAM, messages.MESSAGE, [{"role": "assistant", "content": messages.CONTENT}])
RESPONSES = (responses.STREAM, responses.RESPONSE, responses.OUTPUT)
each_protocol = pytest.mark.parametrize(
    ("endpoint", "reply"),
    [(MESSAGES_ENDPOINT, MESSAGES), (RESPONSES_ENDPOINT, RESPONSES)],
    ids=["messages", "responses"],
)
each_size = pytest.mark.parametrize("size", [1, 2, 7, 50, 10_000])


@each_protocol
@each_size
def test_a_stream_is_captured_as_a_whole_reply_is(endpoint: Any, reply: Any, size: int) -> None:
    stream, body, items = reply
    capture, whole = endpoint.capture(messages.IN_EVENTS), endpoint.capture([(b"content-type", b"application/json")])
    for chunk in responses.cut(stream, size):
        capture.feed(chunk)
    whole.feed(json.dumps(body).encode())
    assert list(capture.items()) == list(whole.items()) == items


@each_protocol
@each_size
def test_a_reply_without_hidden_calls_is_spliced_byte_for_byte(endpoint: Any, reply: Any, size: int) -> None:
    stream, _, _ = reply
    splicer = endpoint.splicer(runs_calls=True)
    assert b"".join(splicer.feed(chunk) for chunk in responses.cut(stream, size)) + splicer.rest() == stream
    assert (splicer.is_over, splicer.is_continued, splicer.said.has_client_calls) == (True, False, True)


@each_protocol
def test_all_paths_of_the_protocol_have_its_errors(endpoint: Any, reply: Any) -> None:
    more = "messages/batches" if endpoint is MESSAGES_ENDPOINT else "responses/input_tokens"
    name = more.split("/", maxsplit=1)[0]
    assert {endpoint_at(f"/v1/{path}") for path in (name, f"{name}/", more)} == {endpoint}
