"""What is read of replies of the Messages API: their text, and the message that the events of a stream add up to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from proxy.endpoints.replies import Items, Json, StreamCapture, TextPlaces
from proxy.values import count_at, json_or_none, object_at, objects_at, word_at

ANSWER = re.compile(rb'"type"\s*:\s*"(?:message(?:_start|_delta|_stop)?|content_block_(?:start|delta|stop)|ping)"')
_GROWING = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("signature", "signature"),
    "input_json_delta": ("partial_json", "input"),
}
"""Deltas that are pieces of a text: the member that has the piece, and the member of the block that it belongs to."""


def text_of(document: Any) -> str:
    """The text blocks of a message, joined."""
    return "".join(word_at(block, "text") for block in objects_at(document, "content"))


def _text_of_event(document: Any) -> str:
    delta = object_at(document, "delta")
    return word_at(delta, "text") if delta.get("type") == "text_delta" else ""


TEXT_PLACES = TextPlaces(b"text", text_of, _text_of_event)


@dataclass(slots=True)
class StreamedMessage:
    """A message as far as its events have come."""

    stop_reason: str | None = None
    usage: Json = field(default_factory=dict)
    is_over: bool = False
    is_broken: bool = False
    _blocks: dict[int, Json] = field(default_factory=dict)
    _pieces: dict[int, dict[str, list[str]]] = field(default_factory=dict)
    """The pieces of each block's members that come in pieces."""

    def add(self, event: Mapping[str, Any]) -> None:
        """Adds an event; those of other kinds change nothing."""
        match event.get("type"):
            case "message_start":
                self._add_usage(object_at(event.get("message"), "usage"))
            case "content_block_start":
                self._blocks[count_at(event, "index")] = dict(object_at(event, "content_block"))
            case "content_block_delta":
                self._add_delta(count_at(event, "index"), object_at(event, "delta"))
            case "message_delta":
                self.stop_reason = word_at(event.get("delta"), "stop_reason") or self.stop_reason
                self._add_usage(object_at(event, "usage"))
            case "message_stop":
                self.is_over = True
            case "error":
                self.is_broken = True

    @property
    def blocks(self) -> list[Json]:
        """The blocks so far; the input of a call is empty if it is no JSON object."""
        return [self._whole(index, block) for index, block in self._blocks.items()]

    def block(self, index: int) -> Json:
        """The block of an index, as it began; empty if there is none."""
        return self._blocks.get(index, {})

    def _whole(self, index: int, block: Json) -> Json:
        texts = {member: "".join(pieces) for member, pieces in self._pieces.get(index, {}).items()}
        if "input" not in texts:
            return {**block, **{member: f"{block.get(member) or ''}{text}" for member, text in texts.items()}}
        given = json_or_none(texts["input"])
        return {**block, "input": given if isinstance(given, dict) else {}}

    def _add_delta(self, index: int, delta: Mapping[str, Any]) -> None:
        block, kind = self._blocks.setdefault(index, {"type": "text"}), str(delta.get("type"))
        if kind in _GROWING:
            came_as, member = _GROWING[kind]
            self._pieces.setdefault(index, {}).setdefault(member, []).append(str(delta.get(came_as) or ""))
        elif kind == "citations_delta":
            block["citations"] = [*(block.get("citations") or ()), delta.get("citation")]
        else:
            block.update({key: value for key, value in delta.items() if key != "type"})

    def _add_usage(self, usage: Mapping[str, Any]) -> None:
        self.usage.update({key: value for key, value in usage.items() if value is not None})


@dataclass(slots=True)
class MessagesCapture(StreamCapture):
    """A stream is complete if it says why it stopped and no error came."""

    _message: StreamedMessage = field(default_factory=StreamedMessage)

    def _add(self, data: str) -> None:
        event = json_or_none(data)
        if isinstance(event, Mapping):
            self._message.add(event)

    def items(self) -> Items:
        if self._message.is_broken or self._message.stop_reason is None:
            return ()
        return items_in({"content": self._message.blocks})


def items_in(document: Any) -> Items:
    """A message without empty texts, which are not taken back."""
    kept = [block for block in objects_at(document, "content") if block.get("type") != "text" or block.get("text")]
    return ({"role": "assistant", "content": kept},) if kept else ()
