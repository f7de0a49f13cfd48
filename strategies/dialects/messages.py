"""The dialect of Anthropic's Messages API: `{"role": …, "content": […]}`, calls and results as blocks.

A message has content blocks, or a text in place of one text block. Calls are blocks of an assistant message. The user
message after it must begin with the results of all these calls; the user's words may follow. The call and result of a
server tool are never touched. They are in one assistant message, or in two if a client's tool is called beside it or
inside of it: that call names the one that it is inside of (`caller`). Thinking blocks are signed: they are kept byte
for byte or left out (`unbound`), never rewritten.

Some clients leave out the thinking of older turns, and cache markers move with every request. So neither is part of a
digest. A rewritten message loses its markers: it is stored, and each request that it is sent with has its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from strategies.core.client_context import users_words
from strategies.core.messages import (
    ACKNOWLEDGED,
    Dialect,
    Reading,
    Role,
    ToolCall,
    Value,
    canonical_arguments,
    canonical_json,
)
from strategies.core.parsing import objects_in, word

THINKING = ("thinking", "redacted_thinking")
_UNSEEN = ("cache_control", "citations", "caller")
_ROLES = {"system": Role.SYSTEM, "assistant": Role.ASSISTANT}


class Messages(Dialect):
    """Reads and writes messages of Anthropic's API."""

    name = "messages"
    system_roles = ("system",)
    systems_follow_users = True
    joins_ours = True
    binds_reasoning = True
    mixes_results = True

    def read(self, value: Value) -> Reading:
        """A user message that has results counts as the tools'; the user's words in it are its `words_beside`."""
        written = word(value.get("role"))
        blocks = _blocks(value)
        if written == "assistant":
            calls = tuple(_call(block) for block in blocks if _is(block, "tool_use"))
            stays = any(_is(block, "tool_search_tool_result") for block in blocks)
            is_signed = any(map(_is_thinking, blocks))
            return Reading(Role.ASSISTANT, written, calls, (), False, is_signed, stays, *_ends(blocks))
        answers = tuple(word(block.get("tool_use_id")) for block in blocks if _is(block, "tool_result"))
        role = _ROLES.get(written) or (Role.TOOL if answers else Role.USER)
        return Reading(role, written, (), answers, bool(answers), stays=any(map(_loads_tools, blocks)))

    def text(self, value: Value) -> str:
        """Calls and thinking are left out."""
        return _text(_blocks(value))

    def results_text(self, value: Value) -> str:
        blocks = _blocks(value)
        has_results = any(_is(block, "tool_result") for block in blocks)
        return _text([block for block in blocks if not (has_results and _is(block, "text"))])

    def has_failed(self, value: Value) -> bool:
        return any(_is(block, "tool_result") and block.get("is_error") is True for block in _blocks(value))

    def words_beside(self, value: Value) -> str:
        said = (users_words(word(block.get("text"))) for block in _blocks(value) if _is(block, "text"))
        return "\n".join(filter(None, said))

    def pictures(self, value: Value) -> int:
        return _pictures(_blocks(value))

    def digest_fields(self, value: Value) -> Iterable[str]:
        yield word(value.get("role"))
        yield from _fields(_blocks(value))

    def user(self, text: str) -> Value:
        return {"role": "user", "content": [{"type": "text", "text": text}]}

    def assistant(self, text: str, name: str = "") -> Value:
        if name:
            return self.user(text)
        return {"role": "assistant", "content": [{"type": "text", "text": text or ACKNOWLEDGED}]}

    def texts(self, value: Value) -> Sequence[str]:
        blocks = _blocks(value)
        results = [_text(_parts(block.get("content"))) for block in blocks if _is(block, "tool_result")]
        return results or [_text(blocks)]

    def with_texts(self, value: Value, texts: Sequence[str]) -> Value:
        """A result whose text changes loses all its other parts; a message without results becomes one text block."""
        blocks = _blocks(value)
        if not any(_is(block, "tool_result") for block in blocks):
            return {**value, "content": [{"type": "text", "text": texts[0]}] if texts[0] else ""}
        given = iter(texts)
        return _with_blocks(
            value, [_with_text(block, next(given)) if _is(block, "tool_result") else block for block in blocks]
        )

    def is_plain(self, value: Value) -> bool:
        blocks = _blocks(value)
        if len(blocks) == 1 and _is(blocks[0], "tool_result"):
            blocks = _parts(blocks[0].get("content"))
        return len(blocks) == 1 and _is(blocks[0], "text")

    def with_arguments(self, value: Value, rewrite: Callable[[ToolCall], Value | None]) -> Value:
        """Calls of server tools are never rewritten."""
        blocks = _blocks(value)
        inputs = [rewrite(_call(block)) if _is(block, "tool_use") else None for block in blocks]
        if all(given is None for given in inputs):
            return value
        pairs = zip(blocks, inputs, strict=True)
        return _with_blocks(value, [block if given is None else {**block, "input": given} for block, given in pairs])

    def unbound(self, value: Value) -> Value:
        """Without thinking; a message that has nothing else becomes "Understood."."""
        blocks = _blocks(value)
        left = [block for block in blocks if not _is_thinking(block)]
        if len(left) == len(blocks):
            return value
        return {**value, "content": left} if left else self.assistant("")

    def merged(self, first: Value, second: Value) -> Value:
        """The blocks of both, results first."""
        both = [*_blocks(first), *_blocks(second)]
        return {**first, **second, "content": sorted(both, key=lambda block: not _is(block, "tool_result"))}


MESSAGES = Messages()


def _blocks(value: Value) -> Sequence[Value]:
    return _parts(value.get("content"))


def _parts(content: object) -> Sequence[Value]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return objects_in(content)


def _is(block: Value, kind: str) -> bool:
    return block.get("type") == kind


def _loads_tools(block: Value) -> bool:
    return _is(block, "tool_result") and any(_is(part, "tool_reference") for part in _parts(block.get("content")))


def _ends(blocks: Iterable[Value]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The ids of server tools that a message opens and closes, without those that both begin and end in it."""
    opens, closes = dict[str, None](), dict[str, None]()
    for block in blocks:
        kind, caller = word(block.get("type")), block.get("caller")
        inside = word(caller.get("tool_id")) if isinstance(caller, Mapping) else ""
        if inside and inside not in opens:
            opens[inside] = closes[inside] = None
        if kind.endswith("_tool_use"):
            opens[word(block.get("id"))] = None
        elif kind.endswith("_tool_result") and (ended := word(block.get("tool_use_id"))) not in opens:
            closes[ended] = None
        elif kind.endswith("_tool_result"):
            del opens[ended]
    return tuple(filter(None, opens)), tuple(filter(None, closes))


def _is_thinking(block: Value) -> bool:
    return block.get("type") in THINKING


def _call(block: Value) -> ToolCall:
    given = block.get("input")
    arguments = json.dumps(given, ensure_ascii=False) if given else "{}"
    return ToolCall(word(block.get("id")), word(block.get("name")), arguments)


def _text(parts: Iterable[Value]) -> str:
    return "\n".join(_texts(parts))


# No client sends a result within a result. There it counts as a part of an unknown type, because each level would be
# gone through once more for each level above it.


def _texts(parts: Iterable[Value], *, is_within: bool = False) -> Iterator[str]:
    for part in parts:
        match part.get("type"):
            case "text":
                yield word(part.get("text"))
            case "tool_result" if not is_within:
                yield from _texts(_parts(part.get("content")), is_within=True)
            case "thinking" | "redacted_thinking" | "tool_use":
                pass
            case "compaction" if part.get("content"):
                yield word(part["content"])
            case kind:
                yield f"[{kind or 'part'}]"


def _pictures(parts: Sequence[Value]) -> int:
    within = [inner for part in parts if _is(part, "tool_result") for inner in _parts(part.get("content"))]
    return sum(_is(part, "image") for part in (*parts, *within))


def _fields(parts: Iterable[Value], *, is_within: bool = False) -> Iterator[str]:
    for part in parts:
        match part.get("type"):
            case "text":
                if part.get("text"):
                    yield from ("text", word(part["text"]))
            case "thinking" | "redacted_thinking":
                pass
            case "tool_use":
                call = _call(part)
                yield from ("call", call.id, call.name, canonical_arguments(call.arguments))
            case "tool_result" if not is_within:
                yield from ("result", word(part.get("tool_use_id")), "error" if part.get("is_error") else "")
                yield from _fields(_parts(part.get("content")), is_within=True)
                yield "end"
            case _:
                seen = {key: member for key, member in part.items() if key not in _UNSEEN and member is not None}
                yield from ("block", canonical_json(seen))


def _with_text(result: Value, text: str) -> Value:
    """A result with this text; unchanged, with all its pictures, if it already has that text."""
    return result if text == _text(_parts(result.get("content"))) else {**result, "content": text}


def _with_blocks(value: Value, written: Sequence[Value]) -> Value:
    return {**value, "content": list(map(_unmarked, written))}


def _unmarked(block: Value) -> Value:
    """A block without cache markers, including those inside a result."""
    bare = {key: member for key, member in block.items() if key != "cache_control"}
    if isinstance(content := bare.get("content"), list):
        bare["content"] = [_unmarked(block) if isinstance(block, Mapping) else block for block in content]
    return bare
