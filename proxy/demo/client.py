"""The demo's client: the official `openai` package, streaming; only its `base_url` is ours."""

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
    """A reply: a message and the response headers, or the error in `problem`.

    `overflow` says whether the error is that the prompt is longer than the window.
    """

    message: Message = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""
    overflow: bool = False


class Client:
    """A client of one model server. It must be closed."""

    def __init__(self, base_url: str, api_key: str, model: str, *, numbered: bool) -> None:
        """With `numbered`, each request carries its number in a header, for the recorder."""
        self.base_url = base_url
        # The demo's own servers must not be reached through an HTTP proxy that the environment names.
        http = openai.DefaultHttpxClient(trust_env=LOOPBACK not in base_url)
        self._openai = openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0, http_client=http)
        self._model = model
        self._numbered = numbered

    def close(self) -> None:
        """Closes its connections."""
        self._openai.close()

    def ask(self, number: int, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Reply:
        """Sends one streamed chat completion."""
        create: Any = self._openai.chat.completions.with_raw_response.create
        headers = {NUMBER: str(number)} if self._numbered else {}
        try:
            response = create(
                model=self._model, messages=list(messages), tools=list(tools), stream=True, extra_headers=headers
            )
            return Reply(assemble(response.parse()), dict(response.headers))
        except openai.APIStatusError as error:
            return Reply(problem=error_text(error), overflow=is_overflow(error.code, error.message))
        except Exception as error:  # noqa: BLE001
            # A broken stream raises errors of the HTTP client, which only `proxy.upstream` may import.
            return Reply(problem=f"{type(error).__name__}: {error}")


def error_text(error: openai.APIStatusError) -> str:
    """The text of an error as the server wrote it."""
    body = error.body if isinstance(error.body, Mapping) else {}
    return f"{error.status_code} {body.get('code') or ''}: {body.get('message') or error.message}".replace(" :", ":")


def is_overflow(code: str | None, message: str) -> bool:
    """Whether an error says that the prompt is longer than the window, by its code or one of many usual phrases."""
    return code == _TOO_LONG or any(word in message.lower() for word in _WORDS)


def assemble(chunks: Iterable[Any]) -> Message:
    """The message that is assembled from a stream of chunks."""
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
