"""What holds for several protocols: reading, caches, splicing, replies in whatever pieces they come."""

import json
from typing import Any

import pytest

from proxy.bodies import wire
from proxy.bodies.measure import Measurer
from proxy.bodies.message_cache import MessageCache
from proxy.errors import BadRequest
from proxy.protocols import ENDPOINTS, PATHS, endpoint_at
from proxy.protocols.chat import CHAT_ENDPOINT
from proxy.protocols.endpoint import Endpoint
from proxy.protocols.messages import MESSAGES_ENDPOINT
from proxy.protocols.responses import RESPONSES_ENDPOINT
from proxy.protocols.responses import RESPONSES_ENDPOINT as ITEMS
from proxy.tokens.counter import CountingPool, Tokenizers
from strategies.core.messages import Reader
from tests.proxy.protocols import test_messages_endpoint as messages
from tests.proxy.protocols import test_responses_endpoint as responses
from tests.support.chat_bodies import read_by

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


STEP: list[dict[str, Any]] = [
    {"type": "message", "role": "user", "content": "Go on."},
    {"type": "reasoning", "id": "rs_1"},
    {"type": "function_call", "call_id": "c1"},
]


def body_bytes(**members: object) -> bytes:
    return json.dumps({"model": "m", **members}).encode()


@pytest.mark.parametrize("turn", ["first", "again"])
def test_items_are_read_and_spliced_whether_they_are_known_or_not(turn: str) -> None:
    cache, data = MessageCache(), body_bytes(input=STEP, instructions="Be brief.", condenser={"force": True})
    for _ in range(1 if turn == "first" else 3):
        body = read_by(cache, data, ITEMS)
        cache.keep(body.elements)
    assert [element.value for element in body.elements] == STEP
    assert [element.role for element in body.elements] == ["user", "reasoning", "function_call"]
    assert json.loads(body.spliced(messages=b"[1]")) == {"model": "m", "input": [1], "instructions": "Be brief."}
    assert json.loads(body.spliced(model="n"))["input"] == STEP
    assert "input" not in body.values


def test_a_text_in_place_of_the_list_keeps_its_bytes() -> None:
    data = body_bytes(input="Hi é")
    body = read_by(MessageCache(), data, ITEMS)
    assert [element.value for element in body.elements] == [{"role": "user", "content": "Hi é"}]
    assert body.spliced() == data
    assert json.loads(body.spliced(messages=b"[%s]" % body.elements[0].data))["input"] == [body.elements[0].value]
    with pytest.raises(BadRequest, match="'messages' must be an array"):
        wire.read(body_bytes(messages="Hi"), CHAT_ENDPOINT)
    with pytest.raises(BadRequest) as raised:
        read_by(MessageCache(), body_bytes(input=[*STEP, 7]), ITEMS)
    assert str(raised.value).startswith("input[3]")


@pytest.mark.parametrize("members", [{}, {"input": []}])
def test_an_optional_list_can_be_added(members: dict[str, Any]) -> None:
    data = body_bytes(**members)
    body = read_by(MessageCache(), data, ITEMS)
    assert (body.elements, body.spliced()) == ([], data)
    assert json.loads(body.spliced(messages=b"[1]")) == {"model": "m", "input": [1]}


def test_the_same_bytes_at_two_endpoints_have_nothing_in_common() -> None:
    cache = MessageCache()
    data = body_bytes(messages=[{"role": "user", "content": "x"}], max_completion_tokens=5, system="Be brief.")
    read: list[wire.Body] = []
    for endpoint in (CHAT_ENDPOINT, MESSAGES_ENDPOINT, CHAT_ENDPOINT):
        read.append(read_by(cache, data, endpoint, owner="t"))
        cache.keep(read[-1].elements)
    assert [body.envelope.reply_limit for body in read] == [5, None, 5]
    assert [body.envelope.counted_length > 0 for body in read] == [False, True, False]
    assert read[0].elements[0] is read[2].elements[0] is not read[1].elements[0]


async def test_counts_of_two_protocols_are_kept_apart() -> None:
    measurer, counters = Measurer(Reader(), CountingPool()), []
    for endpoint in (CHAT_ENDPOINT, ITEMS):
        counter = Tokenizers().for_model("gpt-4o", endpoint.counter)
        value = {"type": "message", "role": "user", "content": "One, two."}
        body = wire.read(body_bytes(**{endpoint.list_member: [value]}), endpoint)
        counters.append((await measurer.measure(body, counter)).counted_by)
    chat, items = counters
    assert (chat.startswith("o200k_base/"), items.endswith(chat), chat == items) == (True, True, False)


@pytest.mark.parametrize("endpoint", ENDPOINTS.values(), ids=lambda endpoint: endpoint.dialect.name)
def test_an_endpoint_is_served_at_its_path_with_and_without_a_slash(endpoint: Endpoint) -> None:
    assert PATHS[endpoint.path] is PATHS[f"{endpoint.path}/"] is ENDPOINTS[endpoint.dialect.name] is endpoint
