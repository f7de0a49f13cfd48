"""An upstream of Anthropic's Messages API on a real socket that refuses what the vendor refuses.

    def script(body):                       # the request decides the next step
        return [thinking("Look."), text("I look."), tool_use("read", {"path": "a"})] if ... else "Done."

    with StrictMessages(script, window=32_000) as upstream:
        client = Anthropic(base_url=upstream.url, api_key="k")

Rules are those of `strict_messages.refused`. Thinking is signed, calls get ids, and usage tells what a prompt cache
would have served. `refusals` holds every refusal: a client may hide one by trying again.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from tests.support import replies
from tests.support.prefixes import Cache, Cached, event, name_of, pieces, tokens
from tests.support.recording import Exchange
from tests.support.replies import Json, Reply
from tests.support.strict_compaction import refusal_of_block, refusal_of_request
from tests.support.strict_messages import Body, boundaries, compacted, drops, refusal_of, signed
from tests.support.upstream import ScriptedUpstream

MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
BINDING_BETA = "thinking-binding-controls-2026-08-01"
SUMMARY = "The parts were read one after the other, and nothing was wrong with the first ones."
PING = event({"type": "ping"})
Overflow = Literal["status", "event", "late"]


@dataclass(frozen=True)
class ScriptedAnswer:
    """A reply: its blocks, and why it stopped where they do not tell."""

    content: Sequence[Json]
    stop_reason: str | None = None


Script = Callable[[Body], "ScriptedAnswer | Sequence[Json] | str"]


def text(said: str) -> Json:
    return {"type": "text", "text": said}


def thinking(thought: str) -> Json:
    return {"type": "thinking", "thinking": thought}


def redacted() -> Json:
    return {"type": "redacted_thinking"}


def tool_use(name: str, arguments: Json) -> Json:
    return {"type": "tool_use", "name": name, "input": arguments}


def web_search(query: str, *urls: str) -> list[Json]:
    """A search that the server made: its call and, in the same message, its result."""
    one = f"srvtoolu_{name_of(query)}"
    found = [{"type": "web_search_result", "url": url, "title": url, "encrypted_content": "e"} for url in urls]
    return [
        {"type": "server_tool_use", "id": one, "name": "web_search", "input": {"query": query}},
        {"type": "web_search_tool_result", "tool_use_id": one, "content": found},
    ]


def count(body: Body) -> int:
    """The prompt tokens of a request as this upstream has them."""
    return sum(size for _, size, _ in boundaries(body))


class StrictMessages(ScriptedUpstream):
    """Has compaction on demand if it `compacts`; with None it ignores the member, as compatible servers do.

    Beyond `window` it refuses by `overflow`: a 400, the only event of a stream, or an event behind its start."""

    def __init__(
        self,
        script: Script = lambda body: "Done.",
        *,
        window: int | None = None,
        overflow: Overflow = "status",
        bound: bool = True,
        systems: bool = True,
        compacts: bool | None = False,
        account: str = "one",
    ) -> None:
        super().__init__()
        self.script = script
        self.window = window
        self.overflow = overflow
        self.bound = bound
        self.systems = systems
        self.compacts = compacts
        self.account = account  # a compaction of another one is refused
        self.compactions: list[Body] = []  # the requests for one that were taken
        self.failing: list[Reply] = []  # what the next ones get in place of a compaction
        self.refusals: list[str] = []
        self.cache = Cache()
        self.answer(self.answering)

    def answering(self, exchange: Exchange) -> Reply | None:
        if exchange.method != "POST" or not exchange.path.endswith((MESSAGES, COUNT)):
            return None
        if wrong := _unfit_headers(exchange):
            return self._bad(wrong, *_AUTHENTICATION) if "key" in wrong else self._bad(wrong)
        body = exchange.json()
        counting = exchange.path.endswith(COUNT)
        if drops(body) and BINDING_BETA not in (exchange.header("anthropic-beta") or ""):
            return self._bad("thinking.enabled.block_binding: Extra inputs are not permitted")
        beta = exchange.header("anthropic-beta") or ""
        if wrong := self._refusal_of_compaction(body, beta) or refusal_of(
            body, bound=self.bound, systems=self.systems, counting=counting
        ):
            return self._bad(wrong)
        found = list(boundaries(body))
        used = sum(size for _, size, _ in found)
        if counting:
            return replies.json_reply({"input_tokens": used})
        if self.window is not None and used > self.window:
            return self._overflowing(body, used, self.window)
        return self._compacted(body) if "compaction" in body and self.compacts else self._said(body, found)

    def _refusal_of_compaction(self, body: Body, beta: str) -> str:
        if "compaction" in body and self.compacts is False:
            return "compaction: Extra inputs are not permitted"
        wrong = refusal_of_block(body, beta, self.account)
        return wrong or ("compaction" in body and self.compacts and refusal_of_request(body, beta)) or ""

    def _compacted(self, body: Body) -> Reply:
        self.compactions.append(body)
        if self.failing:
            return self.failing.pop(0)
        return replies.json_reply(compacted(body, self.account, SUMMARY))

    def _bad(self, message: str, status: int = 400, kind: str = "invalid_request_error") -> Reply:
        self.refusals.append(message)
        return replies.json_reply(error(message, kind), status=status, headers=[("request-id", "req_strict")])

    def _overflowing(self, body: Body, used: int, window: int) -> Reply:
        message = f"prompt is too long: {used} tokens > {window} maximum"
        if self.overflow == "status" or not body.get("stream"):
            return self._bad(message)
        self.refusals.append(message)
        opening = [_start(_message(body, [], None, Cached(0, 0, used))), PING] if self.overflow == "late" else []
        return replies.stream(*opening, event(error(message)), done=False)

    def _said(self, body: Body, found: Sequence[tuple[str, int, bool]]) -> Reply:
        said = self.script(body)
        if not isinstance(said, ScriptedAnswer):
            said = ScriptedAnswer([text(said)] if isinstance(said, str) else list(said))
        reply = name_of(json.dumps([body["messages"], body.get("system")], sort_keys=True))
        content = signed([_named(block, f"{reply}{i}") for i, block in enumerate(said.content)], body, reply)
        whole = _message(body, content, said.stop_reason or _stop_reason(content), self.cache.serve(found))
        headers = [("request-id", f"req_{reply}")]
        if body.get("stream"):
            return replies.stream(*events(whole), done=False, headers=headers)
        return replies.json_reply(whole, headers=headers)


_AUTHENTICATION = (401, "authentication_error")


def _unfit_headers(exchange: Exchange) -> str:
    if not exchange.header("anthropic-version"):
        return "anthropic-version: header is required"
    return "" if exchange.header("x-api-key") or exchange.header("authorization") else "x-api-key header is required"


def error(message: str, kind: str = "invalid_request_error") -> Json:
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_strict"}


def _named(block: Json, one: str) -> Json:
    return {"type": "tool_use", "id": f"toolu_{one}", **block} if block["type"] == "tool_use" else block


def _stop_reason(content: Sequence[Json]) -> str:
    kinds = [block["type"] for block in content]
    if "tool_use" in kinds:
        return "tool_use"
    calls = kinds.count("server_tool_use") + kinds.count("mcp_tool_use")
    return "pause_turn" if calls > sum(kind.endswith("_tool_result") for kind in kinds) else "end_turn"


def _message(body: Body, content: Sequence[Json], stop_reason: str | None, cached: Cached) -> Json:
    usage = {
        "input_tokens": cached.plain,
        "cache_creation_input_tokens": cached.written,
        "cache_read_input_tokens": cached.read,
        "output_tokens": tokens(list(content)),
    }
    one = "msg_" + name_of(json.dumps([body["messages"], list(content)]))
    head: Json = {"id": one, "type": "message", "role": "assistant", "model": body["model"], "content": list(content)}
    return {**head, "stop_reason": stop_reason, "stop_sequence": None, "usage": usage}


# -- streams -----------------------------------------------------------------------------------------------


def events(message: Json) -> Iterator[bytes]:
    """A message as its stream."""
    yield _start({**message, "content": [], "stop_reason": None, "usage": {**message["usage"], "output_tokens": 1}})
    yield PING
    for index, block in enumerate(message["content"]):
        start, deltas = _streamed(block)
        yield event({"type": "content_block_start", "index": index, "content_block": start})
        for delta in deltas:
            yield event({"type": "content_block_delta", "index": index, "delta": delta})
        yield event({"type": "content_block_stop", "index": index})
    ending = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    used = {"output_tokens": message["usage"]["output_tokens"]}
    yield event({"type": "message_delta", "delta": ending, "usage": used})
    yield event({"type": "message_stop"})


def _start(message: Json) -> bytes:
    return event({"type": "message_start", "message": message})


def _streamed(block: Json) -> tuple[Json, list[Json]]:
    """How a block begins in a stream, and its deltas."""
    match block["type"]:
        case "text":
            return {**block, "text": ""}, [{"type": "text_delta", "text": piece} for piece in pieces(block["text"])]
        case "thinking":
            deltas: list[Json] = [{"type": "thinking_delta", "thinking": one} for one in pieces(block["thinking"])]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
            return {**block, "thinking": "", "signature": ""}, deltas
        case "tool_use" | "server_tool_use" | "mcp_tool_use":
            written = pieces(json.dumps(block["input"], ensure_ascii=False))
            return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": piece} for piece in written]
    return block, []
