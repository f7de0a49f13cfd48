"""The client: the official `openai` package, streaming, with nothing of ours but the `base_url`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import openai

from proxy.demo.conversation import Message
from proxy.demo.recorder import NUMBER
from proxy.demo.server import LOOPBACK

_TOO_LONG = "context_length_exceeded"
_WORDS = ("context length", "context window", "context size", "maximum context", "too long", "too many tokens")


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back: a message and the response headers, or why there is none."""

    message: Message = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""
    overflow: bool = False


class Client:
    """One way to a model; close it at the end."""

    def __init__(self, base_url: str, api_key: str, model: str, *, numbered: bool) -> None:
        """`numbered` tells the recorder, where there is one, which request is which."""
        self.base_url = base_url
        # The demo's own servers must not be looked for behind a proxy of the environment's.
        http = openai.DefaultHttpxClient(trust_env=LOOPBACK not in base_url)
        self._openai = openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0, http_client=http)
        self._model = model
        self._numbered = numbered

    def close(self) -> None:
        """Closes its connections."""
        self._openai.close()

    def ask(self, number: int, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Reply:
        """One streamed chat completion."""
        create: Any = self._openai.chat.completions.with_raw_response.create
        headers = {NUMBER: str(number)} if self._numbered else {}
        try:
            response = create(
                model=self._model, messages=list(messages), tools=list(tools), stream=True, extra_headers=headers
            )
            return Reply(gathered(response.parse()), dict(response.headers))
        except openai.APIStatusError as error:
            return Reply(problem=said(error), overflow=is_overflow(error.code, error.message))
        except Exception as error:  # noqa: BLE001
            # A stream that breaks off raises what the HTTP client raises, which only `proxy.upstream` may know.
            return Reply(problem=f"{type(error).__name__}: {error}")


def said(error: openai.APIStatusError) -> str:
    """An error as its server put it."""
    body = error.body if isinstance(error.body, Mapping) else {}
    return f"{error.status_code} {body.get('code') or ''}: {body.get('message') or error.message}".replace(" :", ":")


def is_overflow(code: str | None, message: str) -> bool:
    """Whether an error says that the prompt is longer than the window; servers put it in many ways."""
    return code == _TOO_LONG or any(word in message.lower() for word in _WORDS)


def gathered(chunks: Iterable[Any]) -> Message:
    """The message that a stream of chunks amounts to."""
    content = ""
    calls: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for choice in chunk.choices[:1]:
            content += choice.delta.content or ""
            for delta in choice.delta.tool_calls or []:
                _add(calls, delta)
    message: dict[str, Any] = {"role": "assistant", "content": content or None}
    return {**message, "tool_calls": list(calls.values())} if calls else message


def _add(calls: dict[int, dict[str, Any]], delta: Any) -> None:
    call = calls.setdefault(delta.index, {"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
    call["id"] = delta.id or call["id"]
    call["function"]["name"] += delta.function.name or ""
    call["function"]["arguments"] += delta.function.arguments or ""
