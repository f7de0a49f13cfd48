"""Keyword lists as data: `keywords.toml` has the English and Chinese words that `semantic` looks for in messages."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files


@cache
def keywords(name: str) -> tuple[str, ...]:
    """The words of the list `name`, all languages together, in the order of the file."""
    data = tomllib.loads(files(__package__).joinpath("keywords.toml").read_text("utf-8"))
    return tuple(word for words in data[name].values() for word in words)
