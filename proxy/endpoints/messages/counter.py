"""Counts the prompt tokens of a Messages request.

Theory of operation. Anthropic publishes no tokenizer, so texts are counted with one of OpenAI's, times a factor for the
family of the model; others have measured that there are two tokenizers. The result is right to within about a fifth,
until calibration has seen some replies. Nothing was published about framing either. It is assumed to be three tokens
for each message, as in chat, and the end and the beginning of a block for each call and each result. The model sees
tools as JSON, after a system prompt of the vendor's own.

Thinking costs its full length, which the client may never see: if a block has no text, the length of its signature is
used. Pictures cost a token for every 750 pixels after scaling, as the vendor documents.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from proxy.endpoints.counter import PER_MESSAGE, REPLY_PRIMING, PartsCounter, sealed
from proxy.tokens import images
from proxy.values import list_at, object_at
from strategies.dialects.messages import MESSAGES

PER_CALL = 12
"""Tokens of a call besides its name and its input: the name of the block, its ids and its tags."""
TOOLS_PROMPT = 340
"""The system prompt for tools; documented as 290 to 350 tokens, depending on the model."""
PIXELS_PER_TOKEN = 750
LONGEST_EDGE = 1_568
UNKNOWN_PICTURE = 1_600
_FACTOR, _NEWER_FACTOR, _NEWER = 1.18, 1.53, (4, 7)
"""Tokens for each token of o200k: in models up to 4.6, and in those since 4.7, which have another tokenizer."""
_VERSION = re.compile(r"claude-(?:[a-z]+-)*(\d{1,2})(?:[-.](\d{1,2}))?(?!\d)")


class MessagesCounter(PartsCounter):
    """Counts messages of Anthropic's API."""

    dialect = MESSAGES
    protocol = "messages/"

    @classmethod
    def factor_of(cls, plain: str) -> float:
        """1 for models of other vendors; a Claude model without a version is assumed to be new."""
        if "claude" not in plain:
            return 1.0
        found = _VERSION.search(plain)
        is_older = found is not None and (int(found[1]), int(found[2] or 0)) < _NEWER
        return _FACTOR if is_older else _NEWER_FACTOR

    def message(self, body: Mapping[str, object]) -> int:
        return PER_MESSAGE + self._content(body.get("content"))

    def overhead(self, values: Mapping[str, object], *, has_system: bool = False) -> int:
        """The system prompt, tools, a schema, priming."""
        total = REPLY_PRIMING + self._content(values.get("system"))
        if tools := list_at(values, "tools"):
            total += TOOLS_PROMPT + sum(self.json(_shown(tool)) for tool in tools)
        form = object_at(values, "output_config").get("format")
        return total + (self.json(form) if isinstance(form, Mapping) else 0)

    def _part(self, block: object) -> int:
        if not isinstance(block, Mapping):
            return self.string(block)
        match block.get("type"):
            case "text":
                return self.string(block.get("text"))
            case "thinking" | "redacted_thinking":
                return self.string(block.get("thinking")) or sealed(block.get("signature", block.get("data")))
            case "tool_use" | "server_tool_use" | "mcp_tool_use":
                return PER_CALL + self.string(block.get("name")) + self.json(block.get("input"))
            case "tool_result":
                return PER_CALL + self._content(block.get("content"))
            case "image":
                return _picture(object_at(block, "source").get("data"))
            case "document":
                return self._document(block)
            case _:
                return self.loose({key: value for key, value in block.items() if key not in _SEALED})

    def _document(self, block: Mapping[str, object]) -> int:
        fields = object_at(block, "source")
        named = self.string(block.get("title")) + self.string(block.get("context"))
        if fields.get("type") in ("text", "content"):
            return named + self._content(fields.get("data", fields.get("content")))
        return named + self.file(fields.get("data"), None)


_SEALED = ("type", "cache_control", "signature", "encrypted_content")


def _shown(tool: object) -> object:
    """The members of a tool that the model sees."""
    if not isinstance(tool, Mapping):
        return tool
    return {key: tool[key] for key in ("name", "description", "input_schema", "type") if key in tool}


def _picture(data: object) -> int:
    size = images.size_of_base64(data) if isinstance(data, str) else None
    if size is None:
        return UNKNOWN_PICTURE
    scale = min(1.0, LONGEST_EDGE / max(size))
    return min(UNKNOWN_PICTURE, math.ceil(size[0] * scale * size[1] * scale / PIXELS_PER_TOKEN))
