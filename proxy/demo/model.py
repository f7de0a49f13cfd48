"""The scripted model server of the demo, which knows the replies of one conversation.

It looks up the reply to a prompt by the prompt's last message, which the proxy never condenses away. It refuses prompts
that are longer than its window, as OpenAI does, and answers a summarizer's prompt with a scripted summary.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from itertools import count
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from proxy.demo.conversation import Conversation, Message
from proxy.demo.prompts import PromptCounter
from proxy.errors import error_body
from proxy.replaying.scripted import scripted_answer
from strategies.core.effects import Ask
from strategies.prompts import prompt

MODEL = "scripted-model"
UNKNOWN = "(A scripted model knows no answer.)"
_PIECE = 400
_SUMMARY_LENGTH = 1_000


class ScriptedModel:
    """A model server with a `window` in tokens that replies as in `conversation`."""

    def __init__(self, conversation: Conversation, window: int, counter: PromptCounter) -> None:
        self._replies = {_key(step.messages[-1]): step.reply for step in conversation.steps()}
        self._window = window
        self._counter = counter
        self._ids = count(1)
        routes = [
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
            Route("/v1/models", self._models),
        ]
        self.app = Starlette(routes=routes)

    async def _models(self, _request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    async def _chat(self, request: Request) -> Response:
        body = json.loads(await request.body())
        tokens = self._counter.prompt(body)
        if tokens > self._window:
            return self._too_long(tokens)
        reply = self._reply(body)
        usage = self._usage(tokens, reply)
        head = {"id": f"chatcmpl-{next(self._ids)}", "created": 0, "model": body["model"]}
        if not body.get("stream"):
            return JSONResponse(completion(head, reply, usage))
        options = body.get("stream_options") or {}
        chunks = stream(head, reply, usage if options.get("include_usage") else None)
        return StreamingResponse(_events(chunks), media_type="text/event-stream")

    def _too_long(self, tokens: int) -> Response:
        message = (
            f"This model's maximum context length is {self._window} tokens. However, your messages resulted in"
            f" {tokens} tokens. Please reduce the length of the messages."
        )
        error = error_body(message, "invalid_request_error", "messages", "context_length_exceeded")
        return Response(error, 400, media_type="application/json")

    def _reply(self, body: Mapping[str, Any]) -> Message:
        ask = summarizer_prompt(body)
        if ask is not None:
            return {"role": "assistant", "content": scripted_answer(ask, self._counter.counter).text}
        reply = self._replies.get(_key(body["messages"][-1]))
        return reply or {"role": "assistant", "content": UNKNOWN}

    def _usage(self, tokens: int, reply: Message) -> dict[str, int]:
        written = self._counter.message(reply)
        return {"prompt_tokens": tokens, "completion_tokens": written, "total_tokens": tokens + written}


def summarizer_prompt(body: Mapping[str, Any]) -> Ask | None:
    """The question that a strategy asked, if the prompt is one for a summary; else None."""
    system, *rest = body["messages"]
    opening = prompt("summary").partition("{max_words}")[0]
    if not rest or not str(system.get("content")).startswith(opening):
        return None
    length = body.get("max_completion_tokens") or body.get("max_tokens") or _SUMMARY_LENGTH
    return Ask(system["content"], rest[-1]["content"], length)


def _key(message: Message) -> str:
    """What identifies the last message of a prompt: for a tool result its call's id, else the content."""
    return str(message.get("tool_call_id") or message.get("content"))


def completion(head: Mapping[str, Any], reply: Message, usage: Mapping[str, int]) -> dict[str, Any]:
    """The answer to a request that is not streamed."""
    choice = {"index": 0, "message": dict(reply), "finish_reason": _finish(reply)}
    return {**head, "object": "chat.completion", "choices": [choice], "usage": usage}


def stream(head: Mapping[str, Any], reply: Message, usage: Mapping[str, int] | None) -> Iterator[dict[str, Any]]:
    """The chunks of a streamed answer."""
    frame = {**head, "object": "chat.completion.chunk"}
    for delta in _deltas(reply):
        yield {**frame, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield {**frame, "choices": [{"index": 0, "delta": {}, "finish_reason": _finish(reply)}]}
    if usage is not None:
        yield {**frame, "choices": [], "usage": usage}


def _deltas(reply: Message) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": None}
    for piece in _pieces(reply.get("content") or ""):
        yield {"content": piece}
    for index, call in enumerate(reply.get("tool_calls") or []):
        function = {"name": call["function"]["name"], "arguments": ""}
        yield {"tool_calls": [{"index": index, "id": call["id"], "type": "function", "function": function}]}
        for piece in _pieces(call["function"]["arguments"]):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _pieces(text: str) -> Iterator[str]:
    return (text[i : i + _PIECE] for i in range(0, len(text), _PIECE))


def _finish(reply: Message) -> str:
    return "tool_calls" if reply.get("tool_calls") else "stop"


async def _events(chunks: Iterator[dict[str, Any]]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield b"data: " + json.dumps(chunk).encode() + b"\n\n"
    yield b"data: [DONE]\n\n"
