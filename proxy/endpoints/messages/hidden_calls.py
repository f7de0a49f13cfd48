"""Messages: how the memory tool is offered, and one reply with the calls of it that the client must not see. Pure.

In the last request the tool stays and no tool may be called, not even the client's: a shorter list of tools would
change the prompt before everything else, so that the cache were lost and thinking invalid that is bound to it.

A model that searches answers in several replies; the client sees one message. Events pass as they come, byte for byte
where nothing in them must change. The blocks of hidden calls are taken out, and so is the end of a reply that another
one follows: its reason to stop, its usage, its `message_stop`. The next reply goes on without a `message_start`, its
blocks numbered after those that the client has; the last usage counts the output tokens of all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proxy.endpoints.endpoint import Values
from proxy.endpoints.hidden_calls import (
    FREE_CHOICES,
    NAME,
    NO_ANSWER,
    HiddenCall,
    HiddenRound,
    Said,
    Splicer,
    ToolUse,
    rewritten,
)
from proxy.endpoints.messages.replies import ANSWER, StreamedMessage, blocks_of, index_of, text_of
from proxy.endpoints.replies import Items, Json, named_event
from proxy.values import count_at, json_or_none
from strategies.core.messages import dump
from strategies.dialects.messages import THINKING


@dataclass(frozen=True, slots=True)
class SaidMessage(Said):
    """A message by its blocks."""

    complete = (None, "end_turn", "stop_sequence", "tool_use")
    blocks: Items

    @property
    def text(self) -> str:
        return text_of({"content": self.blocks})

    @property
    def memory_calls(self) -> Items:
        return [block for block in self.blocks if is_hidden(block)]

    @property
    def has_client_calls(self) -> bool:
        return any(block.get("type") == "tool_use" and not is_hidden(block) for block in self.blocks)

    def hidden_round(self, prefix: str) -> HiddenRound:
        """The message of a hidden round: as the model gave it, or only its thinking and memory calls.

        The latter if the client's tools are called too: what else was said stands in the client's own message.
        """
        names = iter(f"{prefix}_{place}" for place in range(len(self.blocks)))
        sent = [_sendable(block, next(names)) if is_hidden(block) else block for block in self.blocks]
        calls = [HiddenCall(block["id"], block["input"]) for block in sent if is_hidden(block)]
        if self.has_client_calls:
            kept = [block for block in sent if is_hidden(block) or block.get("type") in THINKING]
            return HiddenRound([{"role": "assistant", "content": kept}], "", calls)
        kept = [block for block in sent if not is_empty_text(block)]
        return HiddenRound([{"role": "assistant", "content": kept}], self.text, calls)


def results(found: Sequence[tuple[str, str]]) -> Items:
    """The user message that answers calls, given by their ids, with these texts."""
    return [{"role": "user", "content": [_result(id, text) for id, text in found]}]


def _result(id: str, text: str) -> Json:
    return {"type": "tool_result", "tool_use_id": id, "content": text}


def _sendable(call: Mapping[str, Any], name: str) -> Json:
    """A call in the form that an upstream accepts back: with an id and an input that is an object."""
    given = call.get("input")
    return {**call, "id": call.get("id") or name, "input": given if isinstance(given, dict) else {}}


def is_hidden(block: Mapping[str, Any]) -> bool:
    """Whether a block is a call of the memory tool."""
    return block.get("type") == "tool_use" and block.get("name") == NAME


def is_empty_text(block: Mapping[str, Any]) -> bool:
    """Whether a block is a text without any, which servers do not take back."""
    return block.get("type") == "text" and not str(block.get("text") or "").strip()


def stop_for_client(reason: object, *, has_calls: bool) -> object:
    """The reason to stop without the hidden calls; `has_calls` says that the client still sees other calls."""
    return "end_turn" if reason == "tool_use" and not has_calls else reason


def usage_for_client(usage: Mapping[str, Any], earlier: Iterable[Mapping[str, Any]]) -> Json:
    """The usage of the last reply with the output tokens of the `earlier` ones added; the prompt is the last's."""
    added = sum(count_at(each, "output_tokens") for each in earlier)
    return {**usage, "output_tokens": count_at(usage, "output_tokens") + added} if added else dict(usage)


# -- a reply in one piece ----------------------------------------------------------------------------------------


def said_in(data: bytes) -> SaidMessage | None:
    """What the model said in a JSON reply; None where the reply is no message."""
    body = json_or_none(data)
    if not isinstance(body, dict) or not isinstance(body.get("content"), list):
        return None
    reason, usage = body.get("stop_reason"), body.get("usage")
    reason = reason if isinstance(reason, str) else None
    return SaidMessage(blocks_of(body), finish=reason, usage=usage if isinstance(usage, dict) else None)


def reply_for_client(data: bytes, earlier: Sequence[Said], *, keeps_text: bool = True) -> bytes:
    """The JSON reply as the client gets it, as `JoinReplies` says."""
    body = json_or_none(data)
    said = SaidMessage(blocks_of(body))
    if not (earlier or said.memory_calls):
        return data
    text = "".join(each.text for each in earlier) if keeps_text else ""
    before = [{"type": "text", "text": text}] if text.strip() else []
    content = [*before, *(block for block in said.blocks if not is_hidden(block))]
    if all(is_empty_text(block) or block.get("type") in THINKING for block in content):
        content.append({"type": "text", "text": NO_ANSWER})
    body["content"] = content
    body["stop_reason"] = stop_for_client(body.get("stop_reason"), has_calls=said.has_client_calls)
    usages = [each.usage for each in earlier if each.usage]
    if isinstance(body.get("usage"), dict) and usages:
        body["usage"] = usage_for_client(body["usage"], usages)
    return dump(body).encode()


# -- the tool ----------------------------------------------------------------------------------------------------


def tool(name: str, description: str, parameters: Mapping[str, Any]) -> str:
    """A tool as JSON text."""
    return dump({"name": name, "description": description, "input_schema": parameters})


def tool_use(values: Values) -> ToolUse | None:
    """What a request says of tools; None if they are in no known form.

    A request without tools that wants a reply by a schema is a side call, such as for a title, and gets none.
    """
    tools, choice = values.get("tools"), values.get("tool_choice")
    if not (tools is None or isinstance(tools, list)):
        return None
    names = frozenset(str(each.get("name")) for each in tools or () if isinstance(each, Mapping))
    runs_calls = (choice.get("type") if isinstance(choice, Mapping) else choice) in FREE_CHOICES
    output = values.get("output_config")
    is_side = not tools and isinstance(output, Mapping) and bool(output.get("format"))
    return ToolUse(names, bool(tools), not is_side, runs_calls)


def tool_members(tools: str, *, has_client_tools: bool, is_last: bool) -> dict[str, str]:  # noqa: ARG001
    """The members that offer `tools`; in the last request none of them may be called."""
    return {"tools": tools, "tool_choice": '{"type":"none"}'} if is_last else {"tools": tools}


# -- a reply in events --------------------------------------------------------------------------------------------


class MessagesSplicer(Splicer[SaidMessage]):
    """Joins replies into one stream."""

    answer = ANSWER
    _sent_blocks = 0
    _has_sent_start = False
    _has_answer = False

    def _reset(self) -> None:
        super()._reset()
        self._message = StreamedMessage()
        self._numbers: dict[int, int | None] = {}

    @property
    def said(self) -> SaidMessage:
        """What the model said in the reply, as far as it has come."""
        return SaidMessage(self._message.blocks, finish=self._message.stop_reason, usage=self._message.usage or None)

    @property
    def has_searches(self) -> bool:
        """Whether hidden calls are complete and are to be run."""
        message = self._message
        ended = message.is_over or message.stop_reason is not None
        return ended and self._runs_calls and not message.is_broken and self.said.calls_memory

    def _passed(self, lines: list[bytes], data: bytes) -> bytes:
        body = json_or_none(data) if data else None
        if not isinstance(body, dict):
            return b"".join(lines)
        self._message.add(body)
        self.is_over = self._message.is_over
        passed = self._passed_body(body)
        if passed is None:
            return b""
        added = self._answer_before(body)
        return added + (b"".join(lines) if passed == body else rewritten(lines, passed))

    def _passed_body(self, body: Json) -> Json | None:
        """An event as the client gets it; None if it gets nothing of it."""
        match body.get("type"):
            case "message_start":
                is_first, self._has_sent_start = not self._has_sent_start, True
                return body if is_first else None
            case "content_block_start" | "content_block_delta" | "content_block_stop":
                return self._passed_block(body)
            case "message_delta":
                return None if self.is_continued else self._passed_end(body)
            case "message_stop":
                return None if self.is_continued else body
        return body

    def _passed_block(self, body: Json) -> Json | None:
        index = index_of(body)
        if index not in self._numbers:
            hides = is_hidden(self._message.block(index))
            self._numbers[index] = None if hides else self._sent_blocks
            self._sent_blocks += not hides
        number = self._numbers[index]
        if number is None:
            return None
        self._has_sent = True
        return body if number == body.get("index") else {**body, "index": number}

    def _passed_end(self, body: Json) -> Json:
        """The event that ends a reply, with the reason to stop and the usage that the client gets."""
        self._has_sent = True
        delta, usage = body.get("delta"), body.get("usage")
        if isinstance(delta, Mapping) and self.said.memory_calls:
            reason = stop_for_client(delta.get("stop_reason"), has_calls=self.said.has_client_calls)
            body = {**body, "delta": {**delta, "stop_reason": reason}}
        earlier = [each.usage for each in self._earlier if each.usage]
        if isinstance(usage, Mapping) and earlier:
            body = {**body, "usage": usage_for_client(usage, earlier)}
        return body

    def _answer_before(self, body: Mapping[str, Any]) -> bytes:
        """A text block that goes before the end of a message which has nothing but hidden calls and thinking."""
        is_end = body.get("type") == "message_delta" and not self._has_answer
        if not is_end or not (self._earlier or self.said.memory_calls):
            return b""
        self._has_answer = True
        blocks = [block for each in (*self._earlier, self.said) for block in each.blocks if not is_hidden(block)]
        if not all(is_empty_text(block) or block.get("type") in THINKING for block in blocks):
            return b""
        number, self._sent_blocks = self._sent_blocks, self._sent_blocks + 1
        start = {"type": "content_block_start", "index": number, "content_block": {"type": "text", "text": ""}}
        delta = {"type": "content_block_delta", "index": number, "delta": {"type": "text_delta", "text": NO_ANSWER}}
        return b"".join(map(named_event, (start, delta, {"type": "content_block_stop", "index": number})))
