"""Counts the prompt tokens of a Responses request.

Theory of operation. The models are those of chat, and so are the formulas: three tokens frame a message, and the model
sees tools as text of the same form (`proxy/tokens/tools.py`). A call and its output are each framed like a message.
Reasoning is encrypted: it is estimated by its length, and calibration corrects that. Items of unknown types cost what
their texts cost.
"""

from __future__ import annotations

from collections.abc import Mapping

from proxy.endpoints.counter import PER_MESSAGE, REPLY_PRIMING, SCHEMA_FRAME, PartsCounter, sealed
from proxy.values import list_at, object_at
from strategies.dialects.responses import RESPONSES

_UNSEEN = ("type", "id", "call_id", "status", "encrypted_content", "role")


class ResponsesCounter(PartsCounter):
    """Counts items of the Responses API."""

    dialect = RESPONSES
    protocol = "responses/"
    seen = ("content", "output", "arguments", "input", "instructions")

    def message(self, body: Mapping[str, object]) -> int:
        match body.get("type", "message"):
            case "message":
                return PER_MESSAGE + self._content(body.get("content"))
            case "reasoning" | "compaction":
                return PER_MESSAGE + sealed(body.get("encrypted_content"))
            case "function_call" | "custom_tool_call":
                given = body.get("arguments", body.get("input"))
                return PER_MESSAGE + self.string(body.get("name")) + self.string(given)
            case "function_call_output" | "custom_tool_call_output":
                return PER_MESSAGE + self._content(body.get("output"))
        return PER_MESSAGE + self.loose({key: value for key, value in body.items() if key not in _UNSEEN})

    def overhead(self, values: Mapping[str, object], *, has_system: bool = False) -> int:
        """Instructions, tools, a schema, priming."""
        total = REPLY_PRIMING + self._tools(list_at(values, "tools"))
        if instructions := values.get("instructions"):
            total += PER_MESSAGE + self._content(instructions)
        if isinstance(schema := object_at(object_at(values, "text"), "format").get("schema"), Mapping):
            total += SCHEMA_FRAME + self.json(schema)
        return total
