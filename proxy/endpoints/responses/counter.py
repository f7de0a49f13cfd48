"""Counts the prompt tokens of a Responses request.

Theory of operation. The models are those of chat, and so are the formulas: three tokens frame a message, and the model
sees tools as text of the same form (`endpoints/counter.py`). A call and its output are each framed like a message.
Reasoning counts if it came back as text; most is encrypted. The items of the vendor's own tools cost what their texts
cost, and the picture that a model has made is priced like one that was sent. An item of an unknown type counts 0.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from proxy.endpoints.counter import PER_MESSAGE, REPLY_PRIMING, SCHEMA_FRAME, PartsCounter, loaded_tools
from proxy.tokens.counter import Opaque
from proxy.values import list_at, object_at, objects_at
from strategies.dialects.responses import RESPONSES

_UNSEEN = ("type", "id", "call_id", "status", "role")
_TEXTS = frozenset(
    f"{name}_{kind}"
    for name in ("local_shell", "shell", "apply_patch", "computer", "web_search", "file_search", "mcp", "tool_search")
    for kind in ("call", "call_output")
) | {"mcp_list_tools", "mcp_approval_request", "mcp_approval_response", "compaction_trigger"}
"""The items of the vendor's tools that are text."""
TEXT_ITEMS = frozenset(
    ("reasoning", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"),
).union(_TEXTS, ("tool_search_output", "additional_tools"))
"""The items that cost no more tokens than they have bytes."""


class ResponsesCounter(PartsCounter):
    """Counts items of the Responses API."""

    dialect = RESPONSES
    protocol = "responses/"
    seen = ("content", "output", "arguments", "input", "instructions", "summary", "tools", "result")

    def count(self, body: Mapping[str, object], opaque: Opaque) -> int:
        match body.get("type", "message"):
            case "message":
                return PER_MESSAGE + self._content(body.get("content"), opaque)
            case "reasoning":
                # With an encrypted text the summary is for people.
                is_sealed = bool(body.get("encrypted_content"))
                opaque.unpriced |= is_sealed
                text = body.get("content") or (None if is_sealed else body.get("summary"))
                return PER_MESSAGE + self._thought(text, opaque)
            case "function_call" | "custom_tool_call":
                given = body.get("arguments", body.get("input"))
                return PER_MESSAGE + self.string(body.get("name")) + self.string(given)
            case "function_call_output" | "custom_tool_call_output" | "computer_call_output":
                return PER_MESSAGE + self._content(body.get("output"), opaque)
            case "tool_search_output" | "additional_tools":
                return PER_MESSAGE + self._tools(list_at(body, "tools"), opaque)
            case "image_generation_call" | "code_interpreter_call":
                return PER_MESSAGE + self._made(body, opaque)
            case kind if kind in _TEXTS:
                return PER_MESSAGE + self.loose({name: body[name] for name in body.keys() - _UNSEEN}, opaque)
        return PER_MESSAGE + opaque.priced(None)

    def _made(self, body: Mapping[str, object], opaque: Opaque) -> int:
        """Tokens of a picture that a model has made, or of code that it has run."""
        if body.get("type") == "image_generation_call":
            return self.image(body.get("result"), opaque)
        outputs = objects_at(body, "outputs")
        shown = sum(self.image(each.get("url"), opaque) for each in outputs if each.get("type") == "image")
        return shown + self.string(body.get("code")) + sum(self.string(each.get("logs")) for each in outputs)

    def count_outside(
        self, values: Mapping[str, object], opaque: Opaque, *, has_system: bool = False, loaded: Collection[str] = ()
    ) -> int:
        """Instructions, tools, a schema, priming."""
        total = REPLY_PRIMING + self._tools(list(loaded_tools(list_at(values, "tools"), loaded)), opaque)
        if instructions := values.get("instructions"):
            total += PER_MESSAGE + self._content(instructions, opaque)
        if isinstance(schema := object_at(object_at(values, "text"), "format").get("schema"), Mapping):
            total += SCHEMA_FRAME + self.json(schema)
        return total
