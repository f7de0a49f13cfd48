"""Counts the prompt tokens of a Messages request.

Theory of operation. Anthropic publishes no tokenizer, so texts are counted with one of OpenAI's, times a factor for the
family of the model; others have measured that there are two tokenizers. The result is right to within about a fifth,
until calibration has seen some replies. Nothing was published about framing either. It is assumed to be three tokens
for each message, as in chat, and the end and the beginning of a block for each call and each result. The model sees
tools as JSON, after a system prompt of the vendor's own.

Thinking counts if its text came back; otherwise only the vendor knows its length. Tools whose loading is deferred cost
nothing until a `tool_reference` in the transcript has loaded them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from proxy.endpoints.counter import PER_MESSAGE, REPLY_PRIMING, PartsCounter, loaded_tools
from proxy.tokens.counter import Opaque
from proxy.tokens.names import claude_version
from proxy.values import list_at, object_at
from strategies.dialects.messages import MESSAGES

PER_CALL = 12
"""Tokens of a call besides its name and its input: the name of the block, its ids and its tags."""
TOOLS_PROMPT = 340
"""The system prompt for tools; documented as 290 to 350 tokens, depending on the model."""
_FACTOR, _NEWER_FACTOR, _NEWER = 1.18, 1.53, (4, 7)
"""Tokens for each token of o200k: in models up to 4.6, and in those since 4.7, which have another tokenizer."""


class MessagesCounter(PartsCounter):
    """Counts messages of Anthropic's API."""

    dialect = MESSAGES
    protocol = "messages/"

    @classmethod
    def factor_of(cls, plain: str) -> float:
        """1 for models of other vendors; a Claude model without a version is assumed to be new."""
        version = claude_version(plain)
        if version is None:
            return 1.0
        return _FACTOR if version < _NEWER else _NEWER_FACTOR

    def count(self, body: Mapping[str, object], opaque: Opaque) -> int:
        return PER_MESSAGE + self._content(body.get("content"), opaque)

    def count_outside(
        self, values: Mapping[str, object], opaque: Opaque, *, has_system: bool = False, loaded: Collection[str] = ()
    ) -> int:
        """The system prompt, tools, a schema, priming."""
        total = REPLY_PRIMING + self._content(values.get("system"), opaque)
        if tools := list(loaded_tools(list_at(values, "tools"), loaded)):
            total += TOOLS_PROMPT + sum(self.json(_shown(tool)) for tool in tools)
            opaque.unpriced |= any(isinstance(tool, Mapping) and tool.get("type") == "mcp_toolset" for tool in tools)
        form = object_at(values, "output_config").get("format")
        return total + (self.json(form) if isinstance(form, Mapping) else 0)

    def _part(self, block: object, opaque: Opaque) -> int:
        if not isinstance(block, Mapping):
            return self.string(block)
        match block.get("type"):
            case "tool_use" | "server_tool_use" | "mcp_tool_use":
                return PER_CALL + self.string(block.get("name")) + self.json(block.get("input"))
            case "tool_result" | "mcp_tool_result":
                return PER_CALL + self._content(block.get("content"), opaque)
            case "document":
                return self._document(block, opaque)
            case "web_fetch_tool_result" if document := object_at(object_at(block, "content"), "content"):
                return PER_CALL + self._document(document, opaque)
            case str(kind) if kind.endswith(_TEXTS):
                return PER_CALL + self.loose({name: block[name] for name in block.keys() - _UNSEEN}, opaque)
            case _:
                return super()._part(block, opaque)

    def _document(self, block: Mapping[str, object], opaque: Opaque) -> int:
        fields = object_at(block, "source")
        named = self.string(block.get("title")) + self.string(block.get("context"))
        if fields.get("type") in ("text", "content"):
            return named + self._content(fields.get("data", fields.get("content")), opaque)
        return named + self.file(fields.get("data"), opaque)


_TEXTS = ("_tool_result", "search_result", "tool_reference", "compaction")
"""Ends of the types of blocks that are text: what the vendor's own tools have found, and its own summaries."""
_UNSEEN = ("type", "cache_control", "tool_use_id")


def _shown(tool: object) -> object:
    """The members of a tool that the model sees."""
    if not isinstance(tool, Mapping):
        return tool
    return {key: tool[key] for key in ("name", "description", "input_schema", "type") if key in tool}
