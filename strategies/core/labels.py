"""Labels by which a model knows what the proxy wrote. In text that the proxy quotes, they are broken."""

from __future__ import annotations

import re

_LABEL = re.compile(
    r"\[(ledger|condensed history|\d{1,9}(?:, parts? [\d -]{1,20}of \d{1,9})?(?=\] (?:user|assistant|tool)\b))\]"
    r"|(#+)(?= +(?:Relevant Memories|Context Summary)\b)",
    re.IGNORECASE,
)


def break_labels(text: str) -> str:
    """The text with round brackets in place of a label's own: `(Ledger)`, `(2) user:`, `(##) Relevant Memories`."""
    return _LABEL.sub(lambda match: f"({match[1] or match[2]})", text)
