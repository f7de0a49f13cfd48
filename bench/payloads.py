"""The requests of the load generator: small, medium and large ones, the same every time but for their numbers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache

from bench.history import Message, agent_history, long_history

MODEL = "gpt-4o"
MARK = "#00000000"
"""Stands wherever requests differ; a number of as many digits takes its place."""
_ASKED = "Please go on, and say in one sentence what you have found so far and what you will do next."


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
            return agent_history(40)[:59]
        case "large":
            return long_history(399)
    raise ValueError(f"there is no payload '{payload}'")


@dataclass(frozen=True, slots=True)
class Parts:
    """A request whose numbers are to be filled in."""

    head: bytes
    body: bytes

    def request(self, session: bytes, number: int) -> bytes:
        """The bytes of request `number` of a session, whose name has 13 characters."""
        return self.head.replace(b"SESSION", session) + self.body.replace(MARK.encode(), b"#%08d" % number)


@cache
def request_parts(payload: str, *, streamed: bool, cold: bool, window: int | None = None) -> Parts:
    """The parts of a payload's requests: where they are `cold` each message differs, else the last one alone."""
    said = [_marked(each) for each in messages(payload)] if cold else messages(payload)
    said = [*said, {"role": "user", "content": f"{_ASKED} {MARK}"}]
    ending = ',"stream":true}' if streamed else "}"
    body = f'{{"model":"{MODEL}","messages":{json.dumps(said, ensure_ascii=False)}{ending}'.encode()
    asked = f"x-condenser-window: {window}\r\n" if window else ""
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer sk-bench\r\n"
        f"content-type: application/json\r\nx-condenser-session: SESSION\r\n{asked}content-length: {len(body)}\r\n\r\n"
    )
    return Parts(head.encode(), body)


def _marked(message: Message) -> Message:
    return {**message, "content": f"{MARK} {message['content']}"}
