"""Counts the prompt tokens of a chat request.

Theory of operation. OpenAI's chat format wraps each message in three tokens and primes the reply with three more:
3 + role + content + (name + 1) for each message, which is exact for the published counts of gpt-4 and gpt-4o. Tools are
counted as the text that OpenAI's models see (`endpoints/counter.py`), plus 9, less 4 if a system message comes first.
Of 27 published counts, 19 are met exactly and the rest within 3 tokens.

Other vendors frame messages in other ways, and servers whose template prints tools as JSON need about twice as much;
calibration corrects that. Reasoning that comes back as text counts, though the digest of a message ignores it, because
counts are cached by the bytes of a message. It stands in one of several members, or in two, once with its signature.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from proxy.endpoints.counter import PER_MESSAGE, REPLY_PRIMING, SCHEMA_FRAME, PartsCounter, loaded_tools
from proxy.tokens.counter import Opaque
from proxy.values import list_at, object_at
from strategies.dialects.chat import CHAT

TOOLS_AFTER_SYSTEM = -4
FUNCTION_CALL_FRAME = 3
FUNCTION_RESULT_FRAME = -2
NAMED_CHOICE_FRAME = 7
REASONING = frozenset(("reasoning_content", "reasoning", "thinking_blocks", "reasoning_details"))


class ChatCounter(PartsCounter):
    """Counts chat messages."""

    dialect = CHAT
    seen = ("role", "name", "content", "tool_calls", "function_call", *REASONING)

    def count(self, body: Mapping[str, object], opaque: Opaque) -> int:
        total = PER_MESSAGE + self.string(body.get("role")) + self._content(body.get("content"), opaque)
        if not REASONING.isdisjoint(body):
            total += self._reasoning(body, opaque)
        if name := self.string(body.get("name")):
            total += name + 1
        if body.get("role") == "function":
            total += FUNCTION_RESULT_FRAME
        total += sum(self._call(_inner(call)) for call in list_at(body, "tool_calls"))
        if isinstance(legacy := body.get("function_call"), Mapping):
            total += FUNCTION_CALL_FRAME + self._call(legacy)
        # A reply in sound, which only the server has, and pictures that a model has made.
        if body.get("audio"):
            opaque.priced(None)
        return total + self._content(list_at(body, "images"), opaque)

    def _reasoning(self, body: Mapping[str, object], opaque: Opaque) -> int:
        blocks = [*list_at(body, "thinking_blocks"), *list_at(body, "reasoning_details")]
        texts = [self.string(body.get(name)) for name in ("reasoning_content", "reasoning")]
        texts.append(sum(self.string(_text_of(block)) for block in blocks))
        opaque.unpriced |= any(_text_of(block) is None for block in blocks)
        return opaque.priced(max(texts))

    def count_outside(
        self, values: Mapping[str, object], opaque: Opaque, *, has_system: bool = False, loaded: Collection[str] = ()
    ) -> int:
        """Tools, functions, choice, response format, priming."""
        total = REPLY_PRIMING
        if isinstance(schema := object_at(values, "response_format").get("json_schema"), Mapping):
            # The model sees it as JSON. No count was published, so this errs on the high side.
            total += SCHEMA_FRAME + self.json(schema)
        offered = [*loaded_tools(list_at(values, "tools"), loaded), *list_at(values, "functions")]
        if offered:
            choice = values.get("tool_choice", values.get("function_call"))
            total += self._tools(offered, opaque) + self._choice(choice)
            total += TOOLS_AFTER_SYSTEM if has_system else 0
        return total

    def _call(self, call: object) -> int:
        """Counts name and arguments; the model does not see ids."""
        if not isinstance(call, Mapping):
            return self.string(call)
        return self.string(call.get("name")) + self.string(call.get("arguments", call.get("input")))

    def _choice(self, choice: object) -> int:
        if choice == "none":
            return 1
        named = _inner(choice)
        if not isinstance(named, Mapping) or "name" not in named:
            return 0
        return NAMED_CHOICE_FRAME + self.string(named["name"])


def _text_of(block: object) -> object:
    """The text of a block of reasoning, in LiteLLM's form or OpenRouter's; None if only the vendor can read it."""
    fields = block if isinstance(block, Mapping) else {}
    return next((fields[key] for key in ("thinking", "text", "summary") if fields.get(key)), None)


def _inner(tagged: object) -> object:
    """The function or custom tool inside `{"type": …, "function": {…}}`, or the thing itself."""
    if isinstance(tagged, Mapping):
        return tagged.get("function") or tagged.get("custom") or tagged
    return tagged
