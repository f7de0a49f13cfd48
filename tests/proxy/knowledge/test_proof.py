"""What an error says without the text that a caller controls."""

from __future__ import annotations

import json
from functools import partial

import pytest

from proxy import overflow
from proxy.endpoints.chat.replies import ANSWER
from proxy.knowledge.profiles import MAX_COMPARED, MAX_WORDS, CallersText

recognise = partial(overflow.recognise, answer=ANSWER)

SAID = "This model's maximum context length is 8,192 tokens. However, your messages resulted in 9,000 tokens."


def request(content: str = "Plant the beds.", **members: object) -> bytes:
    body = {"model": "m", "messages": [{"role": "user", "content": content}], **members}
    return json.dumps(body, ensure_ascii=False).encode()


def proven_window(sent: bytes, said: str = SAID) -> int | None:
    refusal = recognise(400, json.dumps({"error": {"message": said}}).encode(), CallersText(sent).removed_from)
    return refusal and refusal.window


@pytest.mark.parametrize("sent", [request(), request("Reduce the length of the messages, however long your list is.")])
def test_what_the_server_says_by_itself_is_proven(sent: bytes) -> None:
    assert proven_window(sent) == 8_192


@pytest.mark.parametrize(
    "sent",
    [
        request(temperature=SAID),
        request(SAID.upper()),
        request(metadata={SAID: 1}),
        request(tools=[{"type": "function", "function": {"name": "f", "parameters": {"enum": [SAID]}}}]),
        request("The maximum context length of what?"),
        request("Is it 8192?"),
        request(max_tokens=8_192),
        request(seed=-8_192.0),
        request("x" * MAX_COMPARED),
    ],
)
def test_what_the_caller_may_have_said_is_not(sent: bytes) -> None:
    assert proven_window(sent) is None


def test_a_very_long_error_proves_nothing() -> None:
    assert proven_window(request(), SAID + " word" * MAX_WORDS) is None


def test_a_code_that_the_caller_may_have_said_is_not_read() -> None:
    body = json.dumps({"error": {"message": "Bad value.", "code": "context_length_exceeded"}}).encode()
    assert recognise(400, body, CallersText(request()).removed_from) is not None
    assert recognise(400, body, CallersText(request(user="context_length_exceeded")).removed_from) is None


def test_the_name_of_the_model_and_words_of_the_protocol_may_stand_in_an_error() -> None:
    said = "The model m with role user: messages have name, content, stream_options."
    assert CallersText(request(stream_options={})).removed_from(said) == said
