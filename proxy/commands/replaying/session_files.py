"""Reads the files in which agents keep their sessions, and exported sessions, as bodies of requests. Pure.

Claude Code    a JSON object on each line. A reply is spread over lines, one for each block, which its id joins. Results
               of calls that run side by side stand between them. Each subagent is a conversation of its own.
Codex          a rollout file: a JSON object on each line, whose `payload` is an item of the Responses API, or news.
exports        the document of `condenser sessions export`; each branch is a conversation.

Where the agent has compacted its history, it went on with a shorter one: that is another conversation. What was taken
back (a rewind) is left out. Lines of other types, of which every version writes new ones, are left out too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from proxy.values import count_at, list_at, object_at, objects_at, word_at

Body = dict[str, Any]
WINDOW = "model_context_window"
"""The member of a body, as of Codex' news, for the window in tokens that the client took its model to have."""
SESSION = "session"
"""The member of a body for the session that a conversation is part of: a branch, a subagent, what a compaction left."""
_SAID = ("user", "assistant")
_ITEMS = ("session_meta", "response_item", "turn_context", "event_msg", "compacted")
_CODEX_ONLY = ("ghost_snapshot", "other")  # items that Codex keeps for itself
_PLAIN = ("message", "")  # types of items that other protocols have too
_SYNTHETIC = "<synthetic>"  # the model of replies that Claude Code writes itself


def bodies_in(documents: Sequence[Any]) -> list[Body] | None:
    """The conversations in the documents of a file; None if it is no session file or export."""
    lines = [document for document in documents if isinstance(document, Mapping)]
    if not lines or len(lines) < len(documents):
        return None
    found: Iterator[Body]
    if all(isinstance(each.get("branches"), list) for each in lines):
        found = (body for each in lines for body in _exported(each))
    elif any(word_at(each, "type") in _ITEMS and isinstance(each.get("payload"), Mapping) for each in lines):
        found = _rollout(lines)
    elif any(_is_claude(each) for each in lines):
        found = _claude(lines)
    else:
        return None
    return [body for body in found if body.get("messages") or body.get("input")]


def _exported(document: Mapping[str, Any]) -> Iterator[Body]:
    for branch in objects_at(document, "branches"):
        messages = objects_at(branch, "messages")
        is_items = any(word_at(each, "type") not in _PLAIN for each in messages)
        name = f"{document.get('id')} {branch.get('name')}"
        named = {"id": name, SESSION: document.get("id"), "model": word_at(document, "model")}
        yield {**named, "input" if is_items else "messages": messages}


# -- Codex ----------------------------------------------------------------------------------------------------------


def _rollout(lines: Sequence[Mapping[str, Any]]) -> Iterator[Body]:
    items: list[Mapping[str, Any]] = []
    turns: list[int] = []  # where each turn began
    meta: Mapping[str, Any] = {}
    model, part, window = "", 1, 0
    for line in lines:
        kind, payload = word_at(line, "type"), object_at(line, "payload")
        news = word_at(payload, "type")
        if kind == "event_msg":  # a turn begins with it; older versions have it with the usage
            window = count_at({**object_at(payload, "info"), **payload}, WINDOW) or window
        if kind == "session_meta":
            meta = meta or payload  # a fork begins with the lines of what it was forked from
        elif kind == "turn_context":
            model = word_at(payload, "model") or model
        elif kind == "response_item" and news not in _CODEX_ONLY:
            items.append({name: value for name, value in payload.items() if not name.startswith("internal_")})
        elif kind == "event_msg" and news == "task_started":
            turns.append(len(items))
        elif kind == "event_msg" and news == "thread_rolled_back" and turns:
            first = max(len(turns) - max(count_at(payload, "num_turns"), 1), 0)
            del items[turns[first] :], turns[first:]
        elif kind == "compacted":
            yield _codex_body(meta, items, model, part, window)
            items, turns, part = _compacted(items, payload), [], part + 1
    yield _codex_body(meta, items, model, part, window)


def _codex_body(
    meta: Mapping[str, Any], items: Sequence[Mapping[str, Any]], model: str, part: int, window: int
) -> Body:
    told = word_at(object_at(meta, "base_instructions"), "text") or word_at(meta, "instructions")
    named = {"id": _part(word_at(meta, "id"), part), SESSION: word_at(meta, "id"), "model": model, WINDOW: window}
    return {**named, "instructions": told, "input": list(items)}


def _compacted(items: Sequence[Mapping[str, Any]], payload: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The history with which Codex goes on; older versions do not write it, but the summary that ends it."""
    if isinstance(payload.get("replacement_history"), list):
        return list(objects_at(payload, "replacement_history"))
    said = [item for item in items if item.get("type") == "message" and item.get("role") != "assistant"]
    summary = {"type": "input_text", "text": word_at(payload, "message")}
    return [*said, {"type": "message", "role": "user", "content": [summary]}]


def _part(name: str, part: int) -> str:
    return name if part == 1 or not name else f"{name} after compaction {part - 1}"


# -- Claude Code ----------------------------------------------------------------------------------------------------


def _is_claude(line: Mapping[str, Any]) -> bool:
    if word_at(line, "type") in _SAID:
        return bool(word_at(object_at(line, "message"), "role"))
    return bool(word_at(line, "type")) and bool(word_at(line, "sessionId") or word_at(line, "leafUuid"))


class _Talk:
    """A conversation of Claude Code as it grows line by line."""

    def __init__(self, name: str) -> None:
        self.name, self.part = name, 1
        self.system = ""
        self.tools: Sequence[Any] = ()
        self.model = ""
        self.clear()

    def clear(self) -> None:
        self._messages: list[Body] = []
        self._ids: list[str] = []  # of the replies among the messages, else ""
        self._sizes: dict[str, tuple[int, int]] = {}  # how many messages, and blocks of the last, a line left behind

    def body(self) -> Body:
        session = self.name.partition(" agent ")[0]
        said = {"id": _part(self.name, self.part), SESSION: session, "model": self.model, "messages": self._messages}
        return {**said, "system": self.system, **({"tools": self.tools} if self.tools else {})}

    def say(self, role: str, content: object, id: str = "") -> None:
        """Adds what one line says: to its reply, or to a message of that role since the last reply, else anew."""
        blocks = list(content) if isinstance(content, list) else [{"type": "text", "text": str(content)}]
        place = self._place(role, id)
        if place is not None:
            self._messages[place]["content"].extend(blocks)
        else:
            self._messages.append({"role": role, "content": blocks})
            self._ids.append(id)

    def _place(self, role: str, id: str) -> int | None:
        if role == "assistant":
            return self._ids.index(id) if id in self._ids else None
        for place in reversed(range(len(self._messages))):
            if self._messages[place]["role"] in (role, "assistant"):
                return place if self._messages[place]["role"] == role else None
        return None

    def mark(self, line: str) -> None:
        if line and self._messages:
            self._sizes[line] = len(self._messages), len(self._messages[-1]["content"])

    def go_back_to(self, line: str) -> None:
        """Takes back what was said after a line, if that was a reply; results of the calls before it stay."""
        messages, blocks = self._sizes.get(line, (0, 0))
        if messages and any(each["role"] == "assistant" for each in self._messages[messages:]):
            del self._messages[messages:], self._ids[messages:]
            del self._messages[-1]["content"][blocks:]


def _claude(lines: Sequence[Mapping[str, Any]]) -> Iterator[Body]:
    talks: dict[str, _Talk] = {}
    threads: dict[str, str] = {}  # of each line of a subagent
    seen: set[str] = set()
    for line in lines:
        uuid, parent = word_at(line, "uuid"), word_at(line, "parentUuid")
        if uuid in seen:
            continue  # a resumed session repeats lines
        seen.update([uuid] if uuid else [])
        thread = ""
        if line.get("isSidechain") is True:
            thread = word_at(line, "agentId") or threads.get(parent) or uuid
            threads[uuid] = thread
        name = word_at(line, "sessionId") or word_at(line, "session_id")
        talk = talks.setdefault(thread, _Talk(f"{name} agent {thread}" if thread else name))
        talk.name = talk.name or name
        if word_at(line, "subtype") == "compact_boundary":
            yield talk.body()
            talk.clear()
            talk.part += 1
        _hear(talk, line, parent)
        talk.mark(uuid)
    yield from (talk.body() for talk in talks.values())


def _hear(talk: _Talk, line: Mapping[str, Any], parent: str) -> None:
    kind, message, attached = word_at(line, "type"), object_at(line, "message"), object_at(line, "attachment")
    content = message.get("content")
    if kind == "assistant" and word_at(message, "model") != _SYNTHETIC and isinstance(content, list):
        talk.model = word_at(message, "model") or talk.model
        talk.say("assistant", content, word_at(message, "id") or word_at(line, "uuid"))
    elif kind == "user" and content and (line.get("isCompactSummary") or not line.get("isVisibleInTranscriptOnly")):
        if not any(word_at(block, "type") == "tool_result" for block in objects_at(message, "content")):
            talk.go_back_to(parent)
        talk.say("user", content)
    elif word_at(attached, "type") == "prompt_snapshot":
        talk.system = "\n\n".join(str(text) for text in list_at(attached, "systemPrompt")) or talk.system
        schemas = [object_at(tool, "schema") for tool in objects_at(attached, "tools")]
        talk.tools = [schema for schema in schemas if schema] or talk.tools
    elif kind == "attachment":
        for said in objects_at(line, "rendered"):
            if said.get("content"):
                talk.say(word_at(line, "renderedRole") or "user", said["content"])
