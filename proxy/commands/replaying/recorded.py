"""Reads recorded conversations from a file: JSON or JSON lines, with or without gzip.

A conversation is an object with `messages` (and `tools`, and `qa` with evidence), or a bare list of messages. A file
holds one conversation, a list of them, or one per line. The body of a request is a conversation too, in any protocol:
one with `input` is of the Responses API, one with `system`, or with blocks that only that has, of the Messages API.
Files in which agents keep their sessions, and exported sessions, are read by `session_files`.

`in_protocol` writes a conversation of the chat protocol in another one, so that one recording shows all of them. System
messages at its beginning become the member that the protocol has for them. Results that follow one another are one
message where the protocol has it so.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from proxy.commands.replaying.session_files import SESSION, WINDOW, bodies_in
from proxy.protocols import endpoint_named
from proxy.protocols.chat import CHAT_ENDPOINT
from proxy.protocols.endpoint import Endpoint, MalformedElement
from proxy.protocols.messages import MESSAGES_ENDPOINT
from proxy.protocols.responses import RESPONSES_ENDPOINT
from proxy.quoting import one_line
from proxy.values import count_at, json_or_none, word_at
from strategies.dialects.chat import CHAT, SYSTEM_ROLES, call_fields, content_text
from strategies.dialects.responses import RESPONSES

_GZIP = b"\x1f\x8b"
_UNPACKED, _GROWTH = 64 * 1024 * 1024, 20
"""The bytes to which a file may be unpacked, whatever its size, and how many times its size in any case."""
_TEMPERATURE = "temperature"
_BLOCKS = ("tool_use", "tool_result", "thinking", "redacted_thinking", "server_tool_use")
READ = (
    "read are a list of messages, the body of a request (with 'messages' or 'input'), a file that `condenser sessions"
    " export` wrote, a session file of Claude Code, and a rollout file of Codex"
)
_SYSTEM = {"messages": "system", "responses": "instructions"}

Message = Mapping[str, Any]


class Unreadable(Exception):
    """A file cannot be read as conversations; the message says where the problem is."""


class Empty(Unreadable):
    """A file of a known form holds no conversation."""


class Question(NamedTuple):
    """A question, the texts that together answer it, and the indices of the messages that hold these texts."""

    text: str
    evidence: Sequence[str]
    places: Sequence[int]

    def reaches(self, view: str) -> bool:
        """Whether a view holds all the evidence word for word."""
        return all(text in view for text in self.evidence)


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation, the tools that were offered in it, and questions about it; `endpoint` is its protocol."""

    id: str
    messages: Sequence[Message]
    tools: Sequence[Any] = ()
    questions: Sequence[Question] = ()
    language: str = ""
    endpoint: Endpoint = CHAT_ENDPOINT
    members: Mapping[str, Any] = field(default_factory=dict)
    """Members of a request besides messages and tools that cost prompt tokens, and its temperature."""
    model: str = ""  # that the client named, where that is recorded
    window: int = 0  # in tokens, that the client took the model to have, where that is recorded
    session: str = ""  # that it is part of, where that is recorded


def load(path: Path, limit: int | None = None) -> list[Conversation]:
    """The first `limit` conversations of a file; raises `Unreadable`."""
    documents = list(_documents(_text(path), path))
    bodies = bodies_in([document for _, document in documents])
    if bodies is not None:
        documents = [(str(path), body) for body in bodies]
    if not documents:
        raise Empty(f"{path}: holds no conversation")
    return [_conversation(place, document) for place, document in documents[:limit]]


def _text(path: Path) -> str:
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise Unreadable(f"{path}: is no file")  # a pipe or a device may never end
        data = path.read_bytes()
        if data.startswith(_GZIP):
            most = max(_UNPACKED, _GROWTH * len(data))
            with gzip.open(BytesIO(data)) as packed:
                data = packed.read(most + 1)
            if len(data) > most:
                raise Unreadable(f"{path}: has more than {most:,} bytes unpacked; unpack it first")
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Unreadable(f"{path}: is not UTF-8 text (byte {error.start})") from None
    except (OSError, EOFError, zlib.error) as error:
        raise Unreadable(f"{path}: {getattr(error, 'strerror', None) or error}") from None


def _documents(text: str, path: Path) -> Iterator[tuple[str, Any]]:
    """Yields the JSON of each conversation, with its place in the file for error messages."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        yield from _lines(text, path)
        return
    is_list = isinstance(document, list) and bool(document)
    if is_list and not (isinstance(document[0], Mapping) and "role" in document[0]):
        yield from ((f"{path}: conversation {number}", found) for number, found in enumerate(document, 1))
    elif document != []:
        yield str(path), document


def _lines(text: str, path: Path) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(text.split("\n"), 1):
        try:
            if line.strip():
                yield f"{path}: line {number}", json.loads(line)
        except (ValueError, RecursionError) as error:
            raise Unreadable(f"{path}: line {number}: is not JSON: {error}") from None


def _conversation(place: str, document: Any) -> Conversation:
    found: Any = {"messages": document} if isinstance(document, list) else document
    endpoint = _endpoint_of(found) if isinstance(found, Mapping) else CHAT_ENDPOINT
    name = endpoint.list_member
    if not isinstance(found, Mapping) or not isinstance(found.get(name), list):
        raise Unreadable(f"{place}: is no conversation: {READ}")
    messages = found[name]
    for i, message in enumerate(messages):
        try:
            endpoint.look(message)
        except MalformedElement:
            raise Unreadable(f"{place}: {name}[{i}] is no object with a 'role'") from None
    return Conversation(
        id=one_line(str(found.get("id") or place)),
        session=one_line(word_at(found, SESSION)),
        messages=messages,
        tools=found["tools"] if isinstance(found.get("tools"), list) else (),
        questions=list(_questions(found.get("qa"), messages, endpoint)),
        language=str(found.get("lang") or ""),
        endpoint=endpoint,
        members={
            key: found[key] for key in (*endpoint.counted_members, _TEMPERATURE) if key in found and key != "tools"
        },
        model=one_line(word_at(found, "model")),
        window=count_at(found, WINDOW),
    )


def _endpoint_of(found: Mapping[str, Any]) -> Endpoint:
    if isinstance(found.get("input"), list):
        return RESPONSES_ENDPOINT
    listed = found.get("messages")
    messages = listed if isinstance(listed, list) else []
    contents = [message.get("content") for message in messages if isinstance(message, Mapping)]
    blocks = (block for content in contents if isinstance(content, list) for block in content)
    is_messages = "system" in found or any(word_at(block, "type") in _BLOCKS for block in blocks)
    return MESSAGES_ENDPOINT if is_messages else CHAT_ENDPOINT


def _questions(found: Any, messages: Sequence[Message], endpoint: Endpoint) -> Iterator[Question]:
    for asked in found if isinstance(found, list) else ():
        places = asked.get("evidence") if isinstance(asked, Mapping) else None
        if isinstance(places, list) and places and all(isinstance(i, int) and 0 <= i < len(messages) for i in places):
            evidence = [endpoint.dialect.text(messages[i]) for i in places]
            yield Question(str(asked.get("question") or ""), evidence, places)


def in_protocol(conversation: Conversation, name: str) -> Conversation:
    """A conversation of the chat protocol in the protocol `name`, without questions."""
    if name == CHAT.name:
        return replace(conversation, questions=())
    endpoint, messages = endpoint_named(name), conversation.messages
    first = next((i for i, message in enumerate(messages) if message["role"] not in SYSTEM_ROLES), len(messages))
    written: list[Message] = []
    for _, group in groupby(range(first, len(messages)), lambda i: "tool" if messages[i]["role"] == "tool" else i):
        written += _elements([messages[i] for i in group], endpoint)
    said = "\n\n".join(content_text(message.get("content")) for message in messages[:first])
    tools = [
        json_or_none(endpoint.tool(of["name"], of["description"], of["parameters"]))
        for of in (tool["function"] for tool in conversation.tools)
    ]
    members = {_SYSTEM[name]: said} if said else {}
    return Conversation(conversation.id, written, tools, endpoint=endpoint, members=members)


def _elements(group: Sequence[Message], endpoint: Endpoint) -> Sequence[Message]:
    """The elements of results that follow one another, or of a single other message."""
    message, dialect = group[0], endpoint.dialect
    text = content_text(message.get("content"))
    if message["role"] == "tool":
        return endpoint.results([(word_at(each, "tool_call_id"), content_text(each.get("content"))) for each in group])
    if message["role"] != "assistant":
        return [dialect.user(text)]
    calls: list[Message] = [
        {"type": "function_call", "call_id": id, "name": name, "arguments": arguments}
        if dialect is RESPONSES
        else {"type": "tool_use", "id": id, "name": name, "input": json_or_none(arguments) or {}}
        for id, name, arguments in call_fields(message)
    ]
    speaks = text or not calls
    if dialect is RESPONSES:
        return [*([dialect.assistant(text)] if speaks else ()), *calls]
    said = [{"type": "text", "text": text}] if speaks else []
    return [{"role": "assistant", "content": [*said, *calls]}]
