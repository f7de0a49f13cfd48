"""A scripted OpenAI-compatible server on a real socket: it records every request and answers from a script.

    with ScriptedUpstream() as upstream:
        upstream.reply(completion("first"), error(500))      # a queue, oldest first
        upstream.answer(lambda request: ...)                 # or a function: Exchange -> Reply | None
        ...
        upstream.journal.only().body                         # what arrived at /v1/chat/completions

With nothing scripted it behaves like a small model server: chat completions echo the last user message,
streamed when asked; models, embeddings, file contents, completions and responses answer in OpenAI's shapes.
"""

import asyncio
import base64
import json
import struct
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Self

from starlette.types import Receive, Scope, Send

from tests.support import replies
from tests.support.recording import CHAT, Exchange, Journal, exchange_of, tapped_send
from tests.support.replies import CREATED, MODEL, Json, Reply
from tests.support.server import serve
from tests.support.signals import Signal

Answer = Callable[[Exchange], Reply | None]
BINARY = bytes(range(256)) * 64  # what /v1/files/{id}/content serves


@dataclass(frozen=True)
class Counting:
    """Makes the upstream count: `usage` says what `count` says, and beyond `window` it refuses."""

    count: Callable[[Mapping[str, Any]], int]  # gets the whole request body
    window: int | None = None


class ScriptedUpstream:
    def __init__(self, *, counting: Counting | None = None) -> None:
        self.journal = Journal()
        self.counting = counting
        self._script: deque[Reply] = deque()
        self.answers: Answer | None = None
        self._closing = Signal("the end of the upstream")
        self._stack = ExitStack()
        self.url = ""

    def __enter__(self) -> Self:
        self.url = self._stack.enter_context(serve(self, lifespan="off"))
        return self

    def __exit__(self, *exc: object) -> None:
        self._closing.set()
        self._stack.close()

    @property
    def base_url(self) -> str:
        """What a client is given as its `base_url`."""
        return self.url + "/v1"

    def reply(self, *script: Reply) -> None:
        """Queue replies for the next POSTs, in order; GETs keep their default routes."""
        self._script.extend(script)

    def drop_queue(self) -> None:
        """Drop the replies that are still queued."""
        self._script.clear()

    def answer(self, answer: Answer | None) -> None:
        """Answer every request by a function; where it returns None, the queue and the defaults serve."""
        self.answers = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = exchange_of(scope)
        if not await _read_body(exchange, receive):
            return
        self.journal.add(exchange)
        playing = asyncio.create_task(_play(self._choose(exchange), exchange, send))
        try:
            await self._watch(exchange, playing, receive)
        finally:
            exchange.finished.set()

    async def _watch(self, exchange: Exchange, playing: asyncio.Task[None], receive: Receive) -> None:
        """Let the reply play until it ends, the client goes, or the test is over."""
        leaving = asyncio.create_task(_disconnect(receive))
        closing = asyncio.create_task(self._closing.reached())
        done, _ = await asyncio.wait({playing, leaving, closing}, return_when="FIRST_COMPLETED")
        if leaving in done and playing not in done:
            exchange.disconnected.set()
        for task in (playing, leaving, closing):
            task.cancel()
        outcomes = await asyncio.gather(playing, leaving, closing, return_exceptions=True)
        if isinstance(outcomes[0], Exception):
            raise outcomes[0]

    def _choose(self, exchange: Exchange) -> Reply:
        try:
            return self._chosen(exchange)
        except (ValueError, KeyError, TypeError) as problem:
            return replies.error(400, f"scripted upstream cannot read this body: {problem!r}")

    def _chosen(self, exchange: Exchange) -> Reply:
        refusal = self._refuse(exchange)
        if refusal is not None:
            return refusal
        answered = self.answers(exchange) if self.answers else None
        if answered is not None:
            return answered
        if self._script and exchange.method == "POST":
            return self._script.popleft()
        return self._default(exchange)

    def _refuse(self, exchange: Exchange) -> Reply | None:
        if self.counting is None or self.counting.window is None or exchange.path != CHAT:
            return None
        used = self.counting.count(exchange.json())
        return replies.overflow(self.counting.window, used) if used > self.counting.window else None

    def _default(self, exchange: Exchange) -> Reply:
        if exchange.path == CHAT and exchange.method == "POST":
            return self._chat(exchange.json())
        return default_reply(exchange)

    def _chat(self, body: Json) -> Reply:
        text = f"echo: {_last_user_text(body)}"
        prompt = self.counting.count(body) if self.counting else len(body["messages"])
        tokens = (prompt, len(text.split()))
        if not body.get("stream"):
            return replies.completion(*[text] * (body.get("n") or 1), tokens=tokens)
        wanted = (body.get("stream_options") or {}).get("include_usage")
        ending = [replies.usage_chunk(*tokens)] if wanted else []
        return replies.stream(*replies.text_chunks(text), *ending)


async def _read_body(exchange: Exchange, receive: Receive) -> bool:
    """Read the request's body; False when the client went before its end."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return False
        exchange.body += message.get("body", b"")
        if not message.get("more_body", False):
            return True


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _play(reply: Reply, exchange: Exchange, send: Send) -> None:
    if reply.before is not None:
        await reply.before.reached()
    if reply.headless:
        _hang_up(send)
        return
    await _write(reply, tapped_send(exchange, send))


async def _write(reply: Reply, send: Send) -> None:
    head = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in reply.headers]
    await send({"type": "http.response.start", "status": reply.status, "headers": head})
    for step in reply.steps:
        if isinstance(step, Signal):
            await step.reached()
        else:
            await send({"type": "http.response.body", "body": step, "more_body": True})
    if not reply.cut:  # uvicorn closes the connection of a response that was not completed
        await send({"type": "http.response.body"})


def _hang_up(send: Any) -> None:
    """Close the socket under the response: ASGI has no word for it, uvicorn's `send` is bound to it."""
    send.__self__.transport.close()


def _last_user_text(body: Json) -> str:
    users = [message for message in body["messages"] if message.get("role") == "user"]
    content = users[-1].get("content") if users else ""
    if isinstance(content, list):
        return " ".join(part.get("text", "") for part in content if isinstance(part, dict))
    return str(content)


# -- default routes ----------------------------------------------------------------------------------------


def default_reply(exchange: Exchange) -> Reply:
    """The answer outside chat completions: by path, else an echo of what was asked."""
    if exchange.path.startswith("/v1/files/") and exchange.path.endswith("/content"):
        return replies.raw(BINARY, "application/octet-stream")
    if exchange.path in POSTS and exchange.method == "POST":
        return POSTS[exchange.path](exchange.json())
    if exchange.path == "/v1/models":
        return replies.json_reply({"object": "list", "data": [_model()]})
    if exchange.path.startswith("/v1/models/"):
        return replies.json_reply(_model(exchange.path.removeprefix("/v1/models/")))
    return replies.json_reply({"method": exchange.method, "target": exchange.target})


def _model(name: str = MODEL) -> Json:
    return {"id": name, "object": "model", "created": CREATED, "owned_by": "tests"}


def _embeddings(body: Json) -> Reply:
    inputs = body["input"] if isinstance(body["input"], list) else [body["input"]]
    encoded = body.get("encoding_format") == "base64"
    data = [
        {"object": "embedding", "index": index, "embedding": _vector(len(inputs), encoded)}
        for index in range(len(inputs))
    ]
    used = {"prompt_tokens": len(inputs), "total_tokens": len(inputs)}
    return replies.json_reply({"object": "list", "data": data, "model": MODEL, "usage": used})


def _vector(count: int, encoded: bool) -> str | list[float]:
    values = [0.5, -0.25, float(count)]
    return base64.b64encode(struct.pack("<3f", *values)).decode() if encoded else values


def _completions(body: Json) -> Reply:
    head = {"id": "cmpl-scripted", "object": "text_completion", "created": CREATED, "model": MODEL}
    choice = {"index": 0, "text": "completed", "logprobs": None, "finish_reason": "stop"}
    payload = {**head, "choices": [choice]}
    if body.get("stream"):
        return replies.stream(payload)
    return replies.json_reply({**payload, "usage": replies.usage(2, 1)})


def _responses(body: Json) -> Reply:
    if body.get("stream"):
        return replies.stream(*map(_event, _response_events()), done=False)
    return replies.json_reply(_response("completed"))


def _response_events() -> list[Json]:
    created = {"type": "response.created", "sequence_number": 0, "response": _response("in_progress")}
    ended = {"type": "response.completed", "sequence_number": 1, "response": _response("completed")}
    return [created, ended]


def _event(payload: Json) -> bytes:
    return f"event: {payload['type']}\ndata: {json.dumps(payload)}\n\n".encode()


def _response(status: str) -> Json:
    text = {"type": "output_text", "text": "responded", "annotations": []}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "status": status, "content": [text]}
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": CREATED,
        "model": MODEL,
        "status": status,
        "output": [message] if status == "completed" else [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }


def _messages(body: Json) -> Reply:
    return replies.json_reply(
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": MODEL,
            "content": [{"type": "text", "text": "hello"}],
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }
    )


POSTS: Mapping[str, Callable[[Json], Reply]] = {
    "/v1/embeddings": _embeddings,
    "/v1/completions": _completions,
    "/v1/responses": _responses,
    "/v1/messages": _messages,
}
