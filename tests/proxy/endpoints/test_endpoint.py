"""A protocol with other members: the same reading, caches, splicing and counting do for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from proxy.endpoints import ENDPOINTS, PATHS
from proxy.endpoints.chat import CHAT_ENDPOINT, ChatCounter, ChatEndpoint
from proxy.endpoints.endpoint import Endpoint, MalformedElement
from proxy.errors import BadRequest
from proxy.request import wire
from proxy.request.measure import Measurer
from proxy.request.message_cache import MessageCache
from proxy.tokens.counter import CountingPool, Tokenizers
from strategies.core.messages import Reader
from strategies.dialects.chat import Chat
from tests.support.chat_bodies import read_by


class _Items(Chat):
    name = "items"


class _Other(Chat):
    name = "other"


class ItemCounter(ChatCounter):
    """As chat's; only the keys of caches differ."""

    protocol = "items/"


class _ItemsEndpoint(ChatEndpoint):
    dialect = _Items()
    list_member = "input"
    list_is_optional = True
    counted_members = ("instructions", "tools")
    counter = ItemCounter
    reply_limits: tuple[str, ...] = ("max_output_tokens",)

    def look(self, value: object) -> tuple[str, bool]:
        if not isinstance(value, dict) or not isinstance(value.get("type"), str):
            raise MalformedElement("has no 'type'.", ".type")
        return str(value.get("role", "assistant")), value["type"] != "picture"

    def from_text(self, text: str) -> Mapping[str, object]:
        return {"type": "message", "role": "user", "content": text}


class _OtherEndpoint(ChatEndpoint):
    dialect = _Other()
    counted_members = ("max_tokens",)
    reply_limits = ()


ITEMS = _ItemsEndpoint()
STEP: list[dict[str, Any]] = [
    {"type": "message", "role": "user", "content": "Go on."},
    {"type": "reasoning", "id": "rs_1"},
    {"type": "call", "call_id": "c1"},
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
    assert [element.role for element in body.elements] == ["user", "assistant", "assistant"]
    assert json.loads(body.spliced(messages=b"[1]")) == {"model": "m", "input": [1], "instructions": "Be brief."}
    assert json.loads(body.spliced(model="n"))["input"] == STEP
    assert "input" not in body.values


def test_a_text_in_place_of_the_list_keeps_its_bytes() -> None:
    data = body_bytes(input="Hi é")
    body = read_by(MessageCache(), data, ITEMS)
    assert [element.value for element in body.elements] == [{"type": "message", "role": "user", "content": "Hi é"}]
    assert body.spliced() == data
    assert json.loads(body.spliced(messages=b"[%s]" % body.elements[0].data))["input"] == [body.elements[0].value]
    with pytest.raises(BadRequest, match="'messages' must be an array"):
        wire.read(body_bytes(messages="Hi"), CHAT_ENDPOINT)


@pytest.mark.parametrize("members", [{}, {"input": []}])
def test_an_optional_list_can_be_added(members: dict[str, Any]) -> None:
    data = body_bytes(**members)
    body = read_by(MessageCache(), data, ITEMS)
    assert (body.elements, body.spliced()) == ([], data)
    assert json.loads(body.spliced(messages=b"[1]")) == {"model": "m", "input": [1]}


def test_what_is_no_element_is_named_by_its_place() -> None:
    with pytest.raises(BadRequest) as raised:
        read_by(MessageCache(), body_bytes(input=[*STEP, {"role": "user"}]), ITEMS)
    assert (str(raised.value), raised.value.param) == ("input[3] has no 'type'.", "input[3].type")


def test_the_same_bytes_at_two_endpoints_have_nothing_in_common() -> None:
    cache = MessageCache()
    other = _OtherEndpoint()
    data = body_bytes(messages=[{"role": "user", "content": "x"}], max_tokens=5)
    read: list[wire.Body] = []
    for endpoint in (CHAT_ENDPOINT, other, CHAT_ENDPOINT):
        read.append(read_by(cache, data, endpoint, owner="t"))
        cache.keep(read[-1].elements)
    assert [body.envelope.reply_limit for body in read] == [5, None, 5]
    assert [body.envelope.counted_length for body in read] == [0, 1, 0]
    assert read[0].elements[0] is read[2].elements[0] is not read[1].elements[0]


async def test_counts_of_two_protocols_are_kept_apart() -> None:
    measurer, counters = Measurer(Reader(), CountingPool()), []
    for endpoint in (CHAT_ENDPOINT, ITEMS):
        counter = Tokenizers().for_model("gpt-4o", endpoint.counter)
        value = {"type": "message", "role": "user", "content": "One, two."}
        body = wire.read(body_bytes(**{endpoint.list_member: [value]}), endpoint)
        counters.append((await measurer.measure(body, counter)).counted_by)
    chat, items = counters
    assert (chat.startswith("o200k_base/"), items) == (True, f"items/{chat}")


@pytest.mark.parametrize("endpoint", ENDPOINTS.values(), ids=lambda endpoint: endpoint.dialect.name)
def test_an_endpoint_is_served_at_its_path_with_and_without_a_slash(endpoint: Endpoint) -> None:
    assert PATHS[endpoint.path] is PATHS[f"{endpoint.path}/"] is ENDPOINTS[endpoint.dialect.name] is endpoint
