"""A request that is refused for its bytes or its pictures is sent once more without the oldest ones."""

import base64
import json
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from strategies.dialects.parts import PICTURES, PIXEL, note_of
from tests.support import replies, wire
from tests.support.recording import Exchange
from tests.support.replies import Reply
from tests.support.stage import Stage, chat, controls, count, proxy_with_upstream

Make = Callable[[int], dict[str, Any]]
TOO_LARGE = replies.json_reply(
    {"type": "error", "error": {"type": "request_too_large", "message": "Request exceeds the maximum size"}}, status=413
)
LARGE = 40_000  # bytes


def picture(number: int) -> str:
    """The beginning of a PNG of 1,000 by 1,000 pixels."""
    head = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII5B", 13, b"IHDR", 1_000, 1_000, 8, 2, 0, 0, 0)
    return base64.b64encode(head + f"picture {number} ".encode() * 200).decode()


def chat_body(pictures: int) -> dict[str, Any]:
    messages: list[Any] = [{"role": "user", "content": "Look around."}]
    for number in range(pictures):
        call = {"id": f"c{number}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        shown = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture(number)}"}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": [shown]})
    return {"model": "m", "messages": messages}


def messages_body(pictures: int) -> dict[str, Any]:
    messages: list[Any] = [{"role": "user", "content": "Look around."}]
    for number in range(pictures):
        source = {"type": "base64", "media_type": "image/png", "data": picture(number)}
        result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": [{"type": "image", "source": source}]}
        messages.append(
            {"role": "assistant", "content": [{"type": "tool_use", "id": f"t{number}", "name": "look", "input": {}}]}
        )
        messages.append({"role": "user", "content": [result]})
    return {"model": "m", "max_tokens": 100, "messages": messages}


def responses_body(pictures: int) -> dict[str, Any]:
    items: list[Any] = [{"role": "user", "content": "Look around."}]
    for number in range(pictures):
        shown = {"type": "input_image", "image_url": f"data:image/png;base64,{picture(number)}"}
        items.append({"type": "function_call", "call_id": f"c{number}", "name": "look", "arguments": "{}"})
        items.append({"type": "function_call_output", "call_id": f"c{number}", "output": [shown]})
    return {"model": "m", "input": items}


def computer_body(pictures: int) -> dict[str, Any]:
    """Screenshots, and pictures that the model has made; neither is a part of a message."""
    items: list[Any] = [{"role": "user", "content": "Look around."}]
    for number in range(pictures):
        if number % 2:
            items.append({"type": "image_generation_call", "id": f"ig_{number}", "result": picture(number)})
            continue
        screen = {"type": "computer_screenshot", "image_url": f"data:image/png;base64,{picture(number)}"}
        action = {"type": "screenshot"}
        items.append({"type": "computer_call", "id": f"cu_{number}", "call_id": f"c{number}", "action": action})
        items.append({"type": "computer_call_output", "call_id": f"c{number}", "output": screen})
    return {"model": "m", "input": items}


BODIES: Mapping[str, tuple[str, Make]] = {
    "chat": ("/v1/chat/completions", chat_body),
    "messages": ("/v1/messages", messages_body),
    "responses": ("/v1/responses", responses_body),
    "computer": ("/v1/responses", computer_body),
}


TEXT = {"type": "text", "text": "I see."}
SAID = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I see."}]}
ANSWERS = {
    "/v1/chat/completions": {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "I see."}, "finish_reason": "stop"}],
    },
    "/v1/messages": {"type": "message", "role": "assistant", "content": [TEXT], "stop_reason": "end_turn"},
    "/v1/responses": {"id": "r", "object": "response", "status": "completed", "output": [SAID]},
}


@contextmanager
def refusing(refusal: Reply, refuses: Callable[[bytes], bool]) -> Iterator[Stage]:
    with proxy_with_upstream(window=200_000, strategy="recent") as stage:

        def answer(exchange: Exchange) -> Reply | None:
            return refusal if refuses(exchange.body) else replies.json_reply(ANSWERS[exchange.path])

        stage.upstream.answer(answer)
        yield stage


def ask(stage: Stage, protocol: str, pictures: int) -> wire.Answer:
    path, make = BODIES[protocol]
    headers = [*wire.JSON, ("Authorization", "Bearer k"), *controls(session="s")]
    return wire.request(stage.proxy.url, "POST", path, json.dumps(make(pictures)).encode(), headers)


def sent(stage: Stage) -> list[bytes]:
    return [each.body for each in stage.upstream.journal]


@pytest.mark.parametrize("protocol", BODIES)
def test_the_oldest_pictures_leave_and_later_views_begin_with_the_same_bytes(protocol: str) -> None:
    with refusing(TOO_LARGE, lambda body: len(body) > LARGE) as stage:
        assert ask(stage, protocol, 14).status == 200
        refused, mended = sent(stage)
        assert len(mended) <= len(refused) / 2 + 4_000
        assert picture(0) in refused.decode()
        assert picture(0) not in mended.decode()
        assert picture(13) in mended.decode()
        number = mended.decode().count(note_of(PICTURES)) + mended.decode().count(PIXEL)
        assert number == sum(picture(each) not in mended.decode() for each in range(14))

        answer = ask(stage, protocol, 15)
        assert (answer.status, len(sent(stage))) == (200, 3)
        before, after = (int(answer.header(f"x-condenser-tokens-{name}") or 0) for name in ("before", "after"))
        assert before - after > 30 * number
        list_of = mended[: mended.rindex(b"]")]
        assert sent(stage)[-1].startswith(list_of.rstrip())


def test_of_pictures_that_are_the_same_the_newest_stays() -> None:
    item = {"type": "image_generation_call", "id": "ig", "result": picture(0)}
    body = {"model": "m", "input": [{"role": "user", "content": "Draw."}, *[item] * 20]}
    with refusing(TOO_LARGE, lambda body: len(body) > LARGE) as stage:
        headers = [*wire.JSON, ("Authorization", "Bearer k"), *controls(session="s")]
        wire.request(stage.proxy.url, "POST", "/v1/responses", json.dumps(body).encode(), headers)
        refused, mended = sent(stage)
        assert 0 < len(mended) <= len(refused) / 2 + 4_000
        assert json.loads(mended)["input"][-1] == item


def test_a_number_of_pictures_that_an_error_states_is_kept() -> None:
    error = replies.error(400, "At most 3 image(s) may be provided in one request.")
    with refusing(error, lambda body: body.count(b"data:image") > 3) as stage:
        assert ask(stage, "chat", 9).status == 200
        assert [body.count(b"data:image") for body in sent(stage)] == [9, 3]


@pytest.mark.parametrize(("protocol", "pictures", "times"), [("messages", 6, 3), ("chat", 0, 1)])
def test_where_no_picture_that_goes_helps_the_upstreams_own_error_is_returned(
    protocol: str, pictures: int, times: int
) -> None:
    with refusing(TOO_LARGE, lambda _: True) as stage:
        answer = ask(stage, protocol, pictures)
        assert (answer.status, answer.body) == (413, TOO_LARGE.steps[0])
        assert len(sent(stage)) == times


def test_a_request_without_its_pictures_is_condensed_if_too_long() -> None:
    def refusal(exchange: Exchange) -> Reply:
        said = exchange.json()["messages"]
        if len(exchange.body) > 2 * LARGE:
            return TOO_LARGE
        words = count({"messages": [each for each in said if isinstance(each["content"], str)]})
        return replies.overflow(6_000, words) if words > 6_000 else replies.json_reply(ANSWERS[exchange.path])

    with proxy_with_upstream(window=200_000, strategy="recent") as stage:
        stage.upstream.answer(refusal)
        answer = stage.ask([*chat(60), *chat_body(30)["messages"]], controls(session="s"))
        assert (answer.status, len(sent(stage))) == (200, 3)
