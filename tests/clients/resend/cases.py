"""Replies whose way back is recorded: one assistant message per case, whole and streamed.

A client names its case by the model it asks for and its way of resending by a header, so one scripted upstream
serves them all without a queue: the first request of a conversation gets the reply, any later one a plain `DONE`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tests.support import replies
from tests.support.recording import Exchange
from tests.support.replies import Json, Reply, ToolCall

WAY = "x-resend-way"  # the request header that tells one way of resending from another
QUESTION = "How warm is it? 🌡"
FOLLOW_UP = "And tomorrow?"
DONE = "Done."  # the upstream's second reply
RESULT = "21 °C"  # what every tool returns, whatever it is asked
TOOL_NAME = "weather"
TOOL_SCHEMA: Json = {"type": "object", "properties": {}, "additionalProperties": True}
TOOL: Json = {
    "type": "function",
    "function": {"name": TOOL_NAME, "description": "The weather.", "parameters": TOOL_SCHEMA},
}
_SPOKEN = ("reasoning", "reasoning_content", "content", "refusal")  # members that stream word by word


@dataclass(frozen=True)
class Case:
    """One reply: `message` is `choices[0].message` as the upstream writes it."""

    name: str
    message: Json

    def reply(self, streamed: bool) -> Reply:
        """The reply as one body or as a stream; both mean the same message."""
        finish = "tool_calls" if "tool_calls" in self.message else "stop"
        if streamed:
            return replies.stream(*map(replies.chunk, _deltas(self.message)), replies.chunk({}, finish=finish))
        choice = {"index": 0, "message": self.message, "logprobs": None, "finish_reason": finish}
        head = {"id": replies.ID, "object": "chat.completion", "created": replies.CREATED, "model": self.name}
        return replies.json_reply({**head, "choices": [choice], "usage": replies.usage(7, 3)})


def answer(exchange: Exchange) -> Reply:
    """What the upstream says: the case's reply first, then the end of the conversation."""
    body = exchange.json()
    streamed = bool(body.get("stream"))
    if not continues(body):
        return CASES[body["model"]].reply(streamed)
    return replies.stream(*replies.text_chunks(DONE)) if streamed else replies.completion(DONE)


def continues(body: Json) -> bool:
    """Whether this is a later request of its conversation; a client may have resent nothing of the reply."""
    return len(body["messages"]) > 1


def resent(body: Json) -> list[Json]:
    """What a later request holds besides the question, the follow-up and the second reply."""
    rest = [("user", QUESTION), ("user", FOLLOW_UP), ("assistant", DONE)]
    return [message for message in body["messages"] if (message["role"], message.get("content")) not in rest]


def _deltas(message: Json) -> Iterator[Json]:
    yield {"role": "assistant", "content": message["content"] and ""}
    for member in _SPOKEN:
        yield from ({member: word} for word in _words(message.get(member)))
    if "annotations" in message:
        yield {"annotations": message["annotations"]}
    for position, call in enumerate(message.get("tool_calls", [])):
        yield from ({"tool_calls": [{"index": position, **piece}]} for piece in _call_pieces(call))


def _words(text: str | None) -> list[str]:
    """Words with the blanks before them; a think tag is a piece of its own, as it is one token to a model."""
    return re.findall(r"</?think>|\s*[^\s<]+|\s+", text or "")


def _call_pieces(call: Json) -> Iterator[Json]:
    """The name first, then the arguments in two halves."""
    arguments = call["function"]["arguments"]
    yield {**call, "function": {**call["function"], "arguments": ""}}
    half = len(arguments) // 2
    for piece in filter(None, (arguments[:half], arguments[half:])):
        yield {"function": {"arguments": piece}}


def _calls(*arguments: str, start: int) -> list[Json]:
    return [ToolCall(TOOL_NAME, text, f"call_{start + i}").as_json() for i, text in enumerate(arguments)]


def _said(content: str | None, **more: object) -> Json:
    return {"role": "assistant", "content": content, **more}


def _called(*arguments: str, start: int, content: str | None = None, **more: object) -> Json:
    return _said(content, tool_calls=_calls(*arguments, start=start), **more)


NESTED = '{"city": "Zürich", "days": [1, 2, {"from": "08:00"}],  "units": {"wind": null, "heat": "°C"}, "emoji": "👋"}'
NUMBERS = '{"half": 0.5, "one": 1.0, "thousand": 1e3, "huge": 1e21, "nil": -0.0, "id": 9007199254740991}'
CITATION = {
    "type": "url_citation",
    "url_citation": {"start_index": 0, "end_index": 4, "url": "https://example.org/", "title": "Example"},
}

CASES = {
    case.name: case
    for case in (
        Case("text", _said("Warm, 21 °C.\n\n- Zürich 👋\n- 東京", refusal=None)),
        Case("padded-text", _said("\n\n  Padded on both sides. \n", refusal=None)),
        Case("tool-call", _called(NESTED, start=10, refusal=None)),
        Case("compact-tool-call", _called('{"city":"Oslo","b":1,"a":2}', start=20)),
        Case("numbers-in-a-call", _called(NUMBERS, start=30)),
        Case("big-number-in-a-call", _called('{"id": 12345678901234567890}', start=40)),
        Case("no-arguments", _called("", start=50)),
        Case("broken-arguments", _called('{"city": "Zür', start=60)),
        Case("parallel-tool-calls", _called('{"city": "Zürich"}', '{"city": "Oslo"}', start=70)),
        Case("text-and-tool-call", _called('{"city": "Bern"}', start=80, content="Let me look.")),
        Case("empty-content-and-tool-call", _called('{"city": "Rome"}', start=90, content="")),
        Case("refusal", _said(None, refusal="I can't help with that.")),
        Case("reasoning-content", _said("Answer one.", reasoning_content="First I think.")),
        Case("reasoning", _said("Answer two.", reasoning="First I think.")),
        Case("reasoning-and-tool-call", _called('{"city": "Köln"}', start=100, reasoning_content="I should look.")),
        Case("think-tags", _said("<think>\nFirst I think.\n</think>\n\nAnswer three.")),
        Case("annotations", _said("Text with a source.", refusal=None, annotations=[CITATION])),
    )
}
