"""Values of the wire, read without relying on their shape: JSON, counts, usage, and the ending of a text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

ENDING_LENGTH = 64  # characters
_THOUGHT = re.compile(r"</think(?:ing)?>")


class Usage(NamedTuple):
    """Tokens as an upstream counts them: of the prompt, of the reply, and those of the prompt that a cache gave."""

    prompt: int
    completion: int = 0
    cached: int = 0


def json_or_none(text: str | bytes) -> Any:
    """The value of a JSON text; None if it is not valid JSON or too deeply nested to be parsed."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def count_at(document: Any, key: str) -> int:
    """The positive integer at a key of an object; 0 if it is anything else, or `document` is not an object."""
    # Nearly always a plain dict, which is checked much faster than a Mapping.
    found = document.get(key) if isinstance(document, (dict, Mapping)) else None
    return found if isinstance(found, int) and not isinstance(found, bool) and found > 0 else 0


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
