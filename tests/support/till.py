"""A server with a prompt cache, and what it bills: an independent count beside what the proxy tells."""

from itertools import takewhile
from typing import Any

from tests.support import replies
from tests.support.recording import Exchange
from tests.support.replies import Reply
from tests.support.stage import count

FRESH, CACHED = 2.0, 0.5  # millionths for a token


class Till:
    """A server that has every prompt in its cache that it has read, and its bill."""

    def __init__(self) -> None:
        self.before: list[Any] = []
        self.bill = 0

    def __call__(self, exchange: Exchange) -> Reply:
        return self.read(exchange.json()["messages"])

    def read(self, messages: list[Any]) -> Reply:
        pairs = takewhile(lambda pair: pair[0] == pair[1], zip(self.before, messages, strict=False))
        shared = [each for each, _ in pairs]
        prompt, cached = count({"messages": messages}), count({"messages": shared}) if shared else 0
        self.before = messages
        self.bill += round((prompt - cached) * FRESH + cached * CACHED)
        document = {
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}]
        }
        usage = {**replies.usage(prompt, 0), "prompt_tokens_details": {"cached_tokens": cached}}
        return replies.json_reply({"object": "chat.completion", **document, "usage": usage})
