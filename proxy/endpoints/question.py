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
    form it is a view, byte for byte, with one more user message and with the request's other members of the prompt, so
    that the upstream's prompt cache of the view is used.
    """

    model: str
    system: str
    """The system message; left out if there is a view."""
    user: str
    max_tokens: int
    """The maximum number of tokens of one answer."""
    view: str | None = None
    """The message list to continue, as JSON text."""
    members: Mapping[str, str] = field(default_factory=dict)
    """The members that precede the list in the prompt (`Endpoint.prompt_members`), as JSON text."""
    alternates: bool = False
    """Whether the server refuses two messages of one role in a row."""
    n: int = 1
    """The number of answers."""
    temperature: float | None = None

    @property
    def has_tools(self) -> bool:
        """Whether its members offer tools, none of which may be called."""
        return _NO_TOOLS.fullmatch(self.members.get("tools", "null")) is None
