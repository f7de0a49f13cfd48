"""What a scripted upstream answers: OpenAI-shaped bodies and streams, errors, and broken connections.

A `Reply` is a head and a tuple of steps. A step is bytes to write or a `Signal` to wait for, so a test holds
a stream at an exact place and opens it when it has seen what came before: no sleeps.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.support.signals import Signal

Json = dict[str, Any]
Chunk = Json
Step = bytes | Signal
Pairs = Sequence[tuple[str, str]]

MODEL = "scripted-1"
ID = "chatcmpl-scripted"
CREATED = 1_700_000_000
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class Reply:
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    steps: tuple[Step, ...] = ()
    before: Signal | None = None  # hold even the status line until this is set
    cut: bool = False  # close the connection after the last step instead of ending the response
    headless: bool = False  # with `cut`: close before the status line

    def after(self, gate: Signal) -> Reply:
        """The same reply, held back whole until `gate` is set."""
        return replace(self, before=gate)


@dataclass(frozen=True)
class ToolCall:
    name: str
    arguments: str = "{}"
    id: str = "call_1"

    def as_json(self) -> Json:
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


# -- whole bodies ------------------------------------------------------------------------------------------


def raw(body: bytes, content_type: str = "application/json", *, status: int = 200, headers: Pairs = ()) -> Reply:
    """Any bytes under any content type, framed by Content-Length."""
    head = (("content-type", content_type), ("content-length", str(len(body))), *headers)
    return Reply(status, head, (body,))


def json_reply(payload: Any, *, status: int = 200, headers: Pairs = ()) -> Reply:
    return raw(dumped(payload), status=status, headers=headers)


def dumped(payload: Any) -> bytes:
    """JSON in UTF-8, or in ASCII where a lone surrogate leaves no other way."""
    try:
        return json.dumps(payload, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return json.dumps(payload).encode()


def usage(prompt: int, completion: int) -> Json:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def assistant(text: str | None = None, *, tool_calls: Sequence[ToolCall] = (), refusal: str | None = None) -> Json:
    message: Json = {"role": "assistant", "content": text, "refusal": refusal}
    if tool_calls:
        message["tool_calls"] = [call.as_json() for call in tool_calls]
    return message


def completion(
    *texts: str | None,
    tool_calls: Sequence[ToolCall] = (),
    refusal: str | None = None,
    logprobs: bool = False,
    tokens: tuple[int, int] = (7, 3),
    headers: Pairs = (),
) -> Reply:
    """A chat completion with one choice per text."""
    choices = [
        _choice(index, assistant(text, tool_calls=tool_calls, refusal=refusal), logprobs)
        for index, text in enumerate(texts or (None,))
    ]
    body = {"id": ID, "object": "chat.completion", "created": CREATED, "model": MODEL}
    return json_reply({**body, "choices": choices, "usage": usage(*tokens)}, headers=headers)


def _choice(index: int, message: Json, logprobs: bool) -> Json:
    finish = "tool_calls" if "tool_calls" in message else "stop"
    scores = _logprobs(message["content"] or "") if logprobs else None
    return {"index": index, "message": message, "logprobs": scores, "finish_reason": finish}


def _logprobs(text: str) -> Json:
    scores = [
        {"token": word, "logprob": -0.125, "bytes": list(word.encode()), "top_logprobs": []} for word in text.split()
    ]
    return {"content": scores, "refusal": None}


# -- streams -----------------------------------------------------------------------------------------------


def chunk(delta: Json, *, finish: str | None = None, index: int = 0, logprobs: bool = False) -> Chunk:
    scores = _logprobs(delta.get("content") or "") if logprobs else None
    choice = {"index": index, "delta": delta, "logprobs": scores, "finish_reason": finish}
    return {**_chunk_head(), "choices": [choice]}


def _chunk_head() -> Json:
    return {"id": ID, "object": "chat.completion.chunk", "created": CREATED, "model": MODEL}


def text_chunks(text: str, *, index: int = 0, logprobs: bool = False) -> list[Chunk]:
    """A role chunk, one chunk per word, and a finishing chunk."""
    words = [word + " " for word in text.split(" ")]
    words[-1] = words[-1][:-1]
    return [
        chunk({"role": "assistant", "content": ""}, index=index),
        *(chunk({"content": word}, index=index, logprobs=logprobs) for word in words),
        chunk({}, finish="stop", index=index),
    ]


def tool_call_chunks(*calls: ToolCall) -> list[Chunk]:
    """Tool calls as vendors stream them: the name first, then the arguments in two pieces."""
    chunks = [chunk({"role": "assistant", "content": None})]
    for position, call in enumerate(calls):
        opening = {**ToolCall(call.name, "", call.id).as_json(), "index": position}
        chunks.append(chunk({"tool_calls": [opening]}))
        half = len(call.arguments) // 2
        chunks.extend(
            chunk({"tool_calls": [{"index": position, "function": {"arguments": piece}}]})
            for piece in (call.arguments[:half], call.arguments[half:])
        )
    return [*chunks, chunk({}, finish="tool_calls")]


def usage_chunk(prompt: int, completion_tokens: int) -> Chunk:
    """The last chunk of a stream that was asked for `include_usage`."""
    return {**_chunk_head(), "choices": [], "usage": usage(prompt, completion_tokens)}


def sse(chunk: Mapping[str, Any]) -> bytes:
    return b"data: " + dumped(chunk) + b"\n\n"


def stream(
    *steps: Chunk | Step, done: bool = True, cut: bool = False, before: Signal | None = None, headers: Pairs = ()
) -> Reply:
    """Chunks (or bytes as they are) in order; a `Signal` between them holds the rest back.

    `cut` closes the connection after the last step: no [DONE], no end of the chunked body.
    """
    written = tuple(step if isinstance(step, bytes | Signal) else sse(step) for step in steps)
    ending = (DONE,) if done and not cut else ()
    head = (("content-type", "text/event-stream; charset=utf-8"), *headers)
    return Reply(200, head, written + ending, before, cut)


def stream_error(message: str = "The server had an error.", code: str | None = "server_error") -> bytes:
    """An error event inside a stream, as vLLM and OpenAI send it."""
    return sse(error_body(message, type="server_error", code=code))


# -- errors and broken connections -------------------------------------------------------------------------


def error_body(
    message: str, *, type: str = "invalid_request_error", code: str | None = None, param: str | None = None
) -> Json:
    return {"error": {"message": message, "type": type, "param": param, "code": code}}


def error(
    status: int,
    message: str = "scripted error",
    *,
    type: str = "invalid_request_error",
    code: str | None = None,
    param: str | None = None,
    headers: Pairs = (),
) -> Reply:
    body = error_body(message, type=type, code=code, param=param)
    return json_reply(body, status=status, headers=headers)


def overflow(window: int, used: int) -> Reply:
    """OpenAI's answer to a prompt that does not fit."""
    message = (
        f"This model's maximum context length is {window} tokens. However, your messages resulted in "
        f"{used} tokens. Please reduce the length of the messages."
    )
    return error(400, message, code="context_length_exceeded", param="messages")


def redirect(location: str, status: int = 307) -> Reply:
    return raw(b"", "text/plain", status=status, headers=(("location", location),))


def hang_up() -> Reply:
    """Close the connection without a single byte of response."""
    return Reply(cut=True, headless=True)


def hang(until: Signal) -> Reply:
    """Say nothing, not even a status line, until `until` is set."""
    return completion("released").after(until)
