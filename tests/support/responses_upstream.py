"""An upstream of OpenAI's Responses API on a real socket that refuses what the vendor refuses.

    def script(body):                        # the request decides the next step; its input is whole
        return [reasoning("Look."), message("I look."), function_call("read", {"path": "a"})] if ... else "Done."

    with StrictResponses(script, window=32_000) as upstream:
        client = OpenAI(base_url=upstream.base_url, api_key="k")

Rules are those of `strict_responses.refused`. It has the three forms of compaction, except those in `lacks`: the page
"Compaction" of developers.openai.com describes the endpoint, the trigger and `context_management`. Replies are kept
unless `store` is false, for `previous_response_id` and references. Reasoning behind another prefix is dropped and told
of. `refusals` holds every refusal.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count as counting
from typing import Any, Literal

from tests.support import replies
from tests.support.prefixes import Cache, event, name_of, pieces, tokens
from tests.support.recording import Exchange
from tests.support.replies import CREATED, Json, Reply
from tests.support.strict_responses import (
    Known,
    Refusal,
    boundaries,
    compacted,
    kind_of,
    mismatched,
    produced,
    refusal_of,
)
from tests.support.upstream import ScriptedUpstream

RESPONSES = "/v1/responses"
COUNT = "/v1/responses/input_tokens"
COMPACT = "/v1/responses/compact"
OVERFLOW = "Your input exceeds the context window of this model. Please adjust your input and try again."
TRIGGER = "compaction_trigger"
Overflow = Literal["status", "failed", "error"]
Lack = Literal["endpoint", "trigger", "context_management"]
Body = Mapping[str, Any]


@dataclass(frozen=True)
class ScriptedAnswer:
    """A reply: its items, and what it lacks where it is `incomplete`."""

    output: Sequence[Json]
    incomplete: str | None = None


Script = Callable[[Body], "ScriptedAnswer | Sequence[Json] | str"]


def message(said: str) -> Json:
    part = {"type": "output_text", "text": said, "annotations": [], "logprobs": []}
    return {"type": "message", "role": "assistant", "status": "completed", "content": [part]}


def reasoning(thought: str) -> Json:
    return {"type": "reasoning", "summary": [{"type": "summary_text", "text": thought}]}


def function_call(name: str, arguments: Json) -> Json:
    written = json.dumps(arguments, ensure_ascii=False)
    return {"type": "function_call", "status": "completed", "name": name, "arguments": written}


def custom_tool_call(name: str, given: str) -> Json:
    return {"type": "custom_tool_call", "status": "completed", "name": name, "input": given}


def web_search_call(query: str) -> Json:
    action = {"type": "search", "query": query, "queries": [query]}
    return {"type": "web_search_call", "status": "completed", "action": action}


_IDS = {"reasoning": "rs", "message": "msg", "function_call": "fc", "custom_tool_call": "ctc", "web_search_call": "ws"}


class StrictResponses(ScriptedUpstream):
    """Beyond `window` it refuses by `overflow`: a 400, `response.failed` or `error` behind `response.created`."""

    def __init__(
        self,
        script: Script = lambda body: "Done.",
        *,
        window: int | None = None,
        overflow: Overflow = "status",
        lacks: Collection[Lack] = (),
    ) -> None:
        super().__init__()
        self.script = script
        self.window = window
        self.overflow = overflow
        self.lacks = lacks
        self.refusals: list[str] = []
        self.cache = Cache()
        self.known: dict[str, Known] = {}
        self.chains: dict[str, list[Json]] = {}  # a stored reply: all items up to its end
        self.answer(self.answering)

    def answering(self, exchange: Exchange) -> Reply | None:
        if exchange.method != "POST" or not exchange.path.endswith((RESPONSES, COUNT, COMPACT)):
            return None
        if not (exchange.header("authorization") or "").startswith("Bearer "):
            return self._bad(Refusal("Missing bearer authentication in header", param=None), 401)
        if exchange.path.endswith(COMPACT) and "endpoint" in self.lacks:
            return replies.json_reply({"detail": "Not Found"}, status=404)  # as FastAPI answers an unknown path
        body = exchange.json()
        if wrong := self._lacking(body):
            return self._bad(wrong)
        whole = self._whole(body)
        wrong = whole if isinstance(whole, Refusal) else refusal_of(whole, self.known)
        if wrong is not None:
            return self._bad(wrong)
        assert not isinstance(whole, Refusal)
        found = list(boundaries(whole, self.known))
        used = sum(size for _, size, _ in found)
        if exchange.path.endswith(COUNT):
            return replies.json_reply({"object": "response.input_tokens", "input_tokens": used})
        if self.window is not None and used > self.window:
            return self._overflowing(whole)
        is_compacted = exchange.path.endswith(COMPACT)
        return _compacted(whole, used, compacted(whole, self.known)) if is_compacted else self._said(body, whole, found)

    def _lacking(self, body: Json) -> Refusal | None:
        """The refusal of a form of compaction that the server does not know, in the words of CLIProxyAPI#3414."""
        if "context_management" in body and "context_management" in self.lacks:
            return Refusal("Unknown parameter: 'context_management'.", "unknown_parameter", "context_management")
        given = body.get("input")
        items = given if isinstance(given, list) else []
        place = next((i for i, item in enumerate(items) if kind_of(item) == TRIGGER), None)
        if place is None or "trigger" not in self.lacks:
            return None
        said = f"Invalid value: '{TRIGGER}'. Supported values are: 'message', 'reasoning', and 'function_call'."
        return Refusal(said, "invalid_value", f"input[{place}]")

    def _whole(self, body: Json) -> Json | Refusal:
        """The body with all of its input: as a list, behind what `previous_response_id` names."""
        given, previous = body.get("input"), body.get("previous_response_id")
        if given is None and previous is None:
            return Refusal("Missing required parameter: 'input'.", "missing_required_parameter")
        if previous is not None and previous not in self.chains:
            said = f"Previous response with id '{previous}' not found."
            return Refusal(said, "previous_response_not_found", "previous_response_id")
        listed = [{"role": "user", "content": given}] if isinstance(given, str) else list(given or ())
        return {**body, "input": [*self.chains.get(previous or "", ()), *listed]}

    def _bad(self, refusal: Refusal, status: int = 400) -> Reply:
        self.refusals.append(refusal.message)
        return replies.error(status, refusal.message, code=refusal.code, param=refusal.param)

    def _overflowing(self, body: Body) -> Reply:
        refusal = Refusal(OVERFLOW, "context_length_exceeded")
        if self.overflow == "status" or not body.get("stream"):
            return self._bad(refusal)
        self.refusals.append(refusal.message)
        begun = _response(body, [], "in_progress")
        told = {"code": refusal.code, "message": refusal.message}
        ending: Json = {"type": "error", **told, "param": refusal.param}
        if self.overflow == "failed":
            ending = {"type": "response.failed", "response": {**begun, "status": "failed", "error": told}}
        return replies.stream(*map(event, _numbered([*_opening(begun), ending])), done=False)

    def _said(self, asked: Body, body: Body, found: Sequence[tuple[str, int, bool]]) -> Reply:
        is_trigger = kind_of(body["input"][-1]) == TRIGGER
        said = [_opaque(compacted(body, self.known))] if is_trigger else self.script(body)
        if not isinstance(said, ScriptedAnswer):
            said = ScriptedAnswer([message(said)] if isinstance(said, str) else list(said))
        reply = name_of(json.dumps([body["input"], asked.get("instructions")], sort_keys=True))
        output = produced([_named(item, f"{reply}{i}") for i, item in enumerate(said.output)], body, self.known)
        response = _response(body, output, "incomplete" if said.incomplete else "completed", said.incomplete)
        response["id"] = f"resp_{reply}"
        response["usage"] = self._usage(found, output)
        if removed := mismatched(body, self.known):
            response["input_transformations"] = removed
        if body.get("store") is not False:
            self._keep(response["id"], body, output)
        if body.get("stream"):
            return replies.stream(*map(event, _numbered(events(response))), done=False)
        return replies.json_reply(response)

    def _usage(self, found: Sequence[tuple[str, int, bool]], output: Sequence[Json]) -> Json:
        cached = self.cache.serve(found)
        thought = sum(tokens(item["summary"]) for item in output if kind_of(item) == "reasoning")
        written = thought + sum(tokens(item) for item in output if kind_of(item) != "reasoning")
        return {
            "input_tokens": cached.total,
            "input_tokens_details": {"cached_tokens": cached.read, "cache_write_tokens": cached.written},
            "output_tokens": written,
            "output_tokens_details": {"reasoning_tokens": thought},
            "total_tokens": cached.total + written,
        }

    def _keep(self, one: str, body: Body, output: Sequence[Json]) -> None:
        self.chains[one] = [*body["input"], *output]
        before = ""
        for item in output:
            self.known[item["id"]] = Known(item, before)
            before = item["id"] if kind_of(item) == "reasoning" else before


def _named(item: Json, one: str) -> Json:
    kind = kind_of(item)
    called = {"call_id": f"call_{one}"} if kind in ("function_call", "custom_tool_call") else {}
    return {"id": f"{_IDS.get(kind, kind)}_{one}", **called, **item}


def _response(body: Body, output: Sequence[Json], status: str, incomplete: str | None = None) -> Json:
    return {
        "id": "resp_strict",
        "object": "response",
        "created_at": CREATED,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": incomplete} if incomplete else None,
        "instructions": body.get("instructions"),
        "model": body["model"],
        "output": list(output),
        "parallel_tool_calls": True,
        "previous_response_id": body.get("previous_response_id"),
        "store": body.get("store", True),
        "tool_choice": body.get("tool_choice", "auto"),
        "tools": body.get("tools") or [],
        "usage": None,
    }


def _compacted(body: Body, used: int, sealed: str) -> Reply:
    """What `/responses/compact` answers: the user's messages and one opaque item."""
    users = [item for item in body["input"] if kind_of(item) == "message" and item.get("role") == "user"]
    blob, opaque = name_of(json.dumps(body["input"])), _opaque(sealed)
    spent = {"cached_tokens": 0, "cache_write_tokens": 0}
    usage = {"input_tokens": used, "input_tokens_details": spent, "output_tokens": 9, "total_tokens": used + 9}
    usage["output_tokens_details"] = {"reasoning_tokens": 0}
    head = {"id": f"resp_{blob}", "object": "response.compaction", "created_at": CREATED}
    kept = [{"type": "message", "id": f"msg_{blob}{i}", "status": "completed", **item} for i, item in enumerate(users)]
    return replies.json_reply({**head, "output": [*map(_listed, kept), opaque], "usage": usage})


def _opaque(sealed: str) -> Json:
    return {"type": "compaction", "id": f"cmp_{name_of(sealed)}", "encrypted_content": sealed}


def _listed(item: Json) -> Json:
    content = item["content"]
    return {**item, "content": [{"type": "input_text", "text": content}]} if isinstance(content, str) else item


# -- streams -----------------------------------------------------------------------------------------------


def _numbered(events: Sequence[Json] | Iterator[Json]) -> Iterator[Json]:
    return ({**payload, "sequence_number": number} for payload, number in zip(events, counting(), strict=False))


def _opening(begun: Json) -> list[Json]:
    return [{"type": kind, "response": begun} for kind in ("response.created", "response.in_progress")]


def events(response: Json) -> Iterator[Json]:
    """A response as its stream, without numbers."""
    begun = {**response, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    yield from _opening(begun)
    for index, item in enumerate(response["output"]):
        yield {"type": "response.output_item.added", "output_index": index, "item": _begun(item)}
        for payload in _item_events(item):
            yield {"item_id": item["id"], "output_index": index, **payload}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": f"response.{response['status']}", "response": response}


def _begun(item: Json) -> Json:
    empty: dict[str, Json] = {
        "message": {"content": []},
        "reasoning": {"summary": [], "encrypted_content": ""},
        "function_call": {"arguments": ""},
        "custom_tool_call": {"input": ""},
    }
    status = {"status": "in_progress"} if "status" in item else {}
    return {**item, **status, **empty.get(item["type"], {})}


def _item_events(item: Json) -> Iterator[Json]:
    match item["type"]:
        case "compaction":
            yield {"type": "response.compaction.compacting"}
        case "message":
            for place, part in enumerate(item["content"]):
                yield from _text_events(part, {"content_index": place})
        case "reasoning":
            for place, part in enumerate(item["summary"]):
                yield from _summary_events(part, {"summary_index": place})
        case "function_call":
            yield from _deltas("response.function_call_arguments", item["arguments"], "arguments", {})
        case "custom_tool_call":
            yield from _deltas("response.custom_tool_call_input", item["input"], "input", {})
        case "web_search_call":
            for step in ("in_progress", "searching", "completed"):
                yield {"type": f"response.web_search_call.{step}"}


def _text_events(part: Json, place: Json) -> Iterator[Json]:
    yield {"type": "response.content_part.added", **place, "part": {**part, "text": ""}}
    yield from _deltas("response.output_text", part["text"], "text", {**place, "logprobs": []})
    yield {"type": "response.content_part.done", **place, "part": part}


def _summary_events(part: Json, place: Json) -> Iterator[Json]:
    yield {"type": "response.reasoning_summary_part.added", **place, "part": {**part, "text": ""}}
    yield from _deltas("response.reasoning_summary_text", part["text"], "text", place)
    yield {"type": "response.reasoning_summary_part.done", **place, "part": part}


def _deltas(kind: str, whole: str, member: str, place: Json) -> Iterator[Json]:
    yield from ({"type": f"{kind}.delta", **place, "delta": piece} for piece in pieces(whole))
    yield {"type": f"{kind}.done", **place, member: whole}
