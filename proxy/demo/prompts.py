"""Counts the tokens of prompts, each message once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from proxy.tokens.counter import Counter


class PromptCounter:
    """Counts prompts as the sum of their parts, and caches the count of each part."""

    def __init__(self, counter: Counter) -> None:
        self.counter = counter
        self._messages: dict[str, int] = {}
        self._overheads: dict[str, int] = {}

    def message(self, message: Mapping[str, Any]) -> int:
        """Tokens of one message."""
        key = json.dumps(message)
        if key not in self._messages:
            self._messages[key] = self.counter.message(message)
        return self._messages[key]

    def messages(self, messages: Sequence[Mapping[str, Any]]) -> int:
        """Tokens of several messages."""
        return sum(map(self.message, messages))

    def prompt(self, body: Mapping[str, Any]) -> int:
        """Tokens of a request, its tools included."""
        rest = {**body, "messages": [each for each in body["messages"] if each.get("role") == "system"]}
        key = json.dumps(rest)
        if key not in self._overheads:
            self._overheads[key] = self.counter.overhead(rest)
        return self.messages(body["messages"]) + self._overheads[key]
