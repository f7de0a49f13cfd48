"""The requests of the load generator: small, medium and large ones, the same every time but for names and numbers.

They are what most clients send: an agent's tools, `temperature` and `max_tokens`, the wish for usage where the reply is
streamed, and nothing that names their session unless that is measured. All connections share what was said; the system
prompt tells the connection, the last message the request.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from bench.stub import REPLY
from proxy.replaying.recorded import Conversation, in_protocol
from strategies.dialects.chat import CHAT
from tests.support.histories import Message, agent_history, long_history

MODEL = "gpt-4o"
MARK = "#00000000"
"""Stands wherever requests differ; the number of one, of as many digits, takes its place."""
NAME = "SESSION"
"""Stands where the session is named; its name takes its place."""
_ASKED = "Please go on, and say in one sentence what you have found so far and what you will do next."
_ASKING = b'{"role": "user", "content": "%b #%%08d"}' % _ASKED.encode()
_REPLIED = b', {"role": "assistant", "content": "%b#%%08d"}, ' % REPLY.encode()
"""A reply as the client has it: with a number, for no two replies of a model are the same."""
_PARAMETERS = {
    "read_file": {"path": "Path of the file, relative to the workspace"},
    "edit_file": {"path": "Path of the file", "old_string": "Text to replace", "new_string": "Text in its place"},
    "bash": {"command": "Command line, run in the workspace"},
}


def messages(payload: str) -> list[Message]:
    """The messages of a payload: `small` has 74 tokens, `medium` 60 messages of 8k, `large` 400 of 100k tokens."""
    match payload:
        case "small":
            return [
                {"role": "system", "content": "You are a helpful assistant."},
                {"role": "user", "content": "What does the parser do when a header is missing?"},
                {"role": "assistant", "content": "It returns early, so every caller has to check for None."},
            ]
        case "medium":
            return _ended(agent_history(40)[:59])
        case "large":
            return _ended(long_history(399))
    raise ValueError(f"there is no payload '{payload}'")


def _ended(history: list[Message]) -> list[Message]:
    """A history whose last reply calls nothing: who asks on has the results of all calls."""
    *before, last = history
    return [*before, {"role": last["role"], "content": last["content"]}]


@dataclass(frozen=True, slots=True)
class Parts:
    """A request whose names and numbers are to be filled in; `said` is what lies between its numbers."""

    head: bytes
    opening: bytes
    said: tuple[bytes, ...]
    ending: bytes

    def request(self, session: bytes, number: int, earlier: Sequence[int] = ()) -> bytes:
        """The bytes of request `number` of a session; those of the numbers `earlier` were asked and answered before."""
        mark = b"#%08d" % number
        opening = self.opening.replace(NAME.encode(), session).replace(MARK.encode(), mark)
        turns = b"".join([_ASKING % each + _REPLIED % each for each in earlier])
        body = b"".join((opening, mark.join(self.said), turns, _ASKING % number, self.ending))
        return self.head.replace(NAME.encode(), session) + b"content-length: %d\r\n\r\n" % len(body) + body


@cache
def request_parts(
    payload: str,
    *,
    streamed: bool,
    cold: bool,
    named: bool = False,
    window: int | None = None,
    protocol: str = CHAT.name,
) -> Parts:
    """The parts of a payload's requests: where they are `cold` each message differs, else the last one alone.

    Where they are `named` a header tells the session. A `window` is that of the model, in tokens.
    """
    system, *said = [_marked(each) for each in messages(payload)] if cold else messages(payload)
    system = {**system, "content": f"{system['content']} You are in conversation {NAME}."}
    tools = [] if payload == "small" else [_tool(name, parameters) for name, parameters in _PARAMETERS.items()]
    conversation = in_protocol(Conversation(payload, [system, *said], tools), protocol)
    first, *rest = map(_written, conversation.messages)
    beginning = _written({"model": MODEL, **conversation.members})[:-1]
    return Parts(
        _head(conversation.endpoint.path, named=named, window=window),
        f'{beginning}, "{conversation.endpoint.list_member}": [{first}'.encode(),
        tuple(part.encode() for part in f", {', '.join(rest)}, ".split(MARK)),
        f"], {_written(_settings(conversation, streamed=streamed))[1:]}".encode(),
    )


def _head(path: str, *, named: bool, window: int | None) -> bytes:
    """The headers of a request, but for its length."""
    lines = [f"POST {path} HTTP/1.1", "host: 127.0.0.1", "authorization: Bearer sk-bench"]
    lines.append("content-type: application/json")
    lines += [f"x-condenser-session: {NAME}"] if named else []
    lines += [f"x-condenser-window: {window}"] if window else []
    return "".join(f"{line}\r\n" for line in lines).encode()


def _settings(conversation: Conversation, *, streamed: bool) -> dict[str, object]:
    """What a request says besides its messages; `stream` towards the end, where the stub looks for it."""
    is_chat = conversation.endpoint.dialect is CHAT
    return {
        "temperature": 0.2,
        conversation.endpoint.reply_limits[-1]: 512,
        **({"tools": conversation.tools} if conversation.tools else {}),
        **({"stream": True} if streamed else {}),
        **({"stream_options": {"include_usage": True}} if streamed and is_chat else {}),
    }


def _tool(name: str, parameters: Mapping[str, str]) -> dict[str, object]:
    properties = {key: {"type": "string", "description": said} for key, said in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    said = f"The tool {name} of the workspace; its result is text, cut where it is longer than 1,000 words"
    return {"type": "function", "function": {"name": name, "description": said, "parameters": schema}}


def _marked(message: Message) -> Message:
    return {**message, "content": f"{MARK} {message['content']}"}


def _written(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
