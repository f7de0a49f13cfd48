"""A question of the proxy's own to a model; each endpoint writes it in its protocol (`Endpoint.question`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_NO_TOOLS = re.compile(r"\s*(null|\[\s*\])\s*")


@dataclass(frozen=True, slots=True)
class Question:
    """What one of the proxy's own calls asks a model.

    There are two forms. In the isolated form a question is a system and a user message, without tools. In the continued
    form it is a view, byte for byte, and one more user message, with what stands around the list in the request's
    prompt, so that the upstream's prompt cache of the view is used.
    """

    model: str
    system: str
    """Left out where there is a view."""
    user: str
    max_tokens: int
    """The maximum number of tokens of one answer."""
    view: str | None = None
    """The message list that is continued, as JSON text."""
    members: Mapping[str, str] = field(default_factory=dict)
    """What stands around the list, by member (`Endpoint.prompt_members`), as JSON text. No tool may be called."""
    alternates: bool = False
    """Whether the server refuses two messages of one role in a row."""
    n: int = 1
    """The number of answers."""
    temperature: float | None = None

    @property
    def has_tools(self) -> bool:
        """Whether its members offer tools."""
        return _NO_TOOLS.fullmatch(self.members.get("tools", "null")) is None
