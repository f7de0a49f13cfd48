"""Prompt templates: one Markdown file each. Every record stores the digest of its template, as provenance."""

from __future__ import annotations

from functools import cache
from hashlib import blake2b
from importlib.resources import files


@cache
def prompt(name: str) -> str:
    """The text of the template `name`, without the line break at its end."""
    return files(__package__).joinpath(f"{name}.md").read_text("utf-8").rstrip("\n")


@cache
def prompt_digest(*names: str) -> str:
    """Eight hex digits that change when one of the templates does."""
    return blake2b("\n".join(map(prompt, names)).encode(), digest_size=4).hexdigest()
