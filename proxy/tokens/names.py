"""Names of models, as clients, gateways and clouds spell them."""

from __future__ import annotations

import re

_CLAUDE = re.compile(r"claude-(?:[a-z]+-)*(\d{1,2})(?:[-.](\d{1,2}))?(?!\d)")
_NEWEST = (99, 0)
_LONG = "[1m]"
"""The suffix by which Claude Code asks for a window of a million tokens."""
_ROUTED = re.compile(r":(free|beta|nitro|floor|extended|thinking|online|exacto)$")
"""OpenRouter's suffixes."""
_PREFIX = re.compile(r"^(databricks-|meta-(?=llama)|(?:[a-z-]+\.)+(?=[a-z]))")
"""Bedrock's: a region and a vendor; a version is no prefix, because it has digits (`gpt-4.1`)."""
_SUFFIX = re.compile(r"(-v1|-v\d+(:\d+)+k?|(?<=\d)-v\d|-\d+:\d+|-maas|-(fp8|fp4|nvfp4|bf16|awq|gptq|int4|int8))$")
"""Bedrock's version, Vertex's, and a precision."""
_DATE = re.compile(r"[-@]20\d\d-?[01]\d-?[0-3]\d$")
_POINT = re.compile(r"(?<=\d)p(?=\d)|[._@]")
_CLAUDE_LAST = re.compile(r"^claude-(\d+(?:-\d+)?)-([a-z]+)")
_LLAMA = re.compile(r"^llama-?v?(?=\d)")
_QWEN = re.compile(r"^qwen-(?=\d)")
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


def asks_for_long(model: str) -> bool:
    """Whether a model's name asks for a window of a million tokens."""
    return model.rstrip().lower().endswith(_LONG)


def without_date(model: str) -> str:
    """The name without the date of its snapshot, if it ends in one."""
    return _DATE.sub("", model)


def canonical_name(model: str) -> str:
    """One spelling for all that vendors, clouds and gateways have for a model; the date of a snapshot stays.

    `us.anthropic.claude-sonnet-4-5-20250929-v1:0`, `anthropic/claude-sonnet-4.5:free`, `llama-v3p1-70b-instruct`.
    A local server's tag (`qwen3:8b`) stays too: such a server loads a model with a window of its own.
    """
    name = _ROUTED.sub("", plain_name(model).removesuffix(_LONG))
    name = _SUFFIX.sub("", _PREFIX.sub("", name))
    date = _DATE.search(name)
    name, end = (name[: date.start()], "-" + date[0][1:]) if date else (name, "")
    name = _LLAMA.sub("llama-", _QWEN.sub("qwen", _POINT.sub("-", name)))
    return _CLAUDE_LAST.sub(r"claude-\2-\1", name) + end
