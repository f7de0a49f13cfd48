"""What replies have in common in all protocols: the usage that they report, and the ending of their text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

from proxy.values import count_at

ENDING_LENGTH = 64  # characters
_THOUGHT = re.compile(r"</think(?:ing)?>")


class Usage(NamedTuple):
    """Tokens as an upstream counts them: of the prompt, of the reply, and those of the prompt that a cache gave."""

    prompt: int
    completion: int = 0
    cached: int = 0


def usage_in(value: Any) -> Usage | None:
    """Reads a usage in the form of OpenAI's or Anthropic's APIs; None if it gives no prompt tokens.

    Anthropic's prompt tokens do not include those read from a cache or written to one; OpenAI's do.
    """
    if not isinstance(value, Mapping):
        return None
    cached = (
        count_at(value.get("prompt_tokens_details"), "cached_tokens")
        or count_at(value.get("input_tokens_details"), "cached_tokens")
        or count_at(value, "prompt_cache_hit_tokens")
    )
    completion = count_at(value, "completion_tokens") or count_at(value, "output_tokens")
    if prompt := count_at(value, "prompt_tokens"):
        return Usage(prompt, completion, cached)
    read, written = count_at(value, "cache_read_input_tokens"), count_at(value, "cache_creation_input_tokens")
    prompt = count_at(value, "input_tokens") + read + written
    return Usage(prompt, completion, read or cached) if prompt else None


def ending(text: str) -> str:
    """The digest of the end of a text, in hex, by which a later request is recognised; "" for white space only."""
    end = "".join(_THOUGHT.split(text)[-1].split())[-ENDING_LENGTH:]
    return blake2b(end.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest() if end else ""
