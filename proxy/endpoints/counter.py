"""What the formulas of all protocols share: frames, contents that are lists of parts, and the text of tools."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence

from proxy.tokens.counter import INLINE_CHARS, Counter
from proxy.tokens.tools import namespace

PER_MESSAGE = 3
REPLY_PRIMING = 3
TOOLS_FRAME = 9
SCHEMA_FRAME = 10
CHARS_PER_SEALED_TOKEN = 6
"""About the characters of a signature or of encrypted reasoning for each token of it: a guess."""
FRAME_CHARS = 40
MEDIA_CHARS = 4_096
"""The cost of reading a picture's size, in characters of text."""


class PartsCounter(Counter):
    """Counts messages whose content is a text or a list of parts."""

    def _content(self, content: object) -> int:
        if isinstance(content, list):
            return sum(self._part(part) for part in content)
        return self.string(content)

    @abstractmethod
    def _part(self, part: object) -> int:
        """Tokens of a part."""

    def _functions(self, functions: Sequence[Mapping[str, object]]) -> int:
        """Tokens of functions as OpenAI's models see them."""
        return TOOLS_FRAME + self.text(namespace(functions)) if functions else 0


def sealed(thought: object) -> int:
    """Tokens of what was thought, by the length of its signature or of its encrypted text."""
    return len(thought) // CHARS_PER_SEALED_TOKEN if isinstance(thought, str) else 0


def chars_of(content: object, of_part: Callable[[object], int]) -> int:
    """About how much work a content is, in characters of text; `of_part` says it of a part, or of a text."""
    if isinstance(content, list):
        return sum(map(of_part, content[:INLINE_CHARS]))
    return 0 if content is None else of_part(content)
