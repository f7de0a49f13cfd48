"""Names of models, as clients, gateways and clouds spell them."""

from __future__ import annotations

import re

_CLAUDE = re.compile(r"claude-(?:[a-z]+-)*(\d{1,2})(?:[-.](\d{1,2}))?(?!\d)")
_NEWEST = (99, 0)
_OPENAI = re.compile(r"(ft:)?(gpt|chatgpt|codex|computer-use|o\d)")


def plain_name(model: str) -> str:
    """The model's name in lower case without vendor prefixes (`openrouter/openai/gpt-4o`)."""
    return model.strip().lower().rsplit("/", 1)[-1]


def claude_version(model: str) -> tuple[int, int] | None:
    """The version of a Claude model; one whose name has none is taken for the newest. None for other models."""
    if "claude" not in model:
        return None
    found = _CLAUDE.search(model)
    return (int(found[1]), int(found[2] or 0)) if found else _NEWEST


def is_openais(plain: str) -> bool:
    """Whether a model, by its plain name, is OpenAI's, so that its tokenizer is one that we have."""
    return _OPENAI.match(plain) is not None
