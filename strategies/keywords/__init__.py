"""Keyword lists as data, English and Chinese.

`keywords.toml` has the words that `semantic` looks for in messages and the tags of clients, `cues.toml` the words of
rules.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files


@cache
def keywords(name: str, file: str = "keywords.toml") -> tuple[str, ...]:
    """The words of the table `name`, all its lists together, in the order of the file."""
    data = tomllib.loads(files(__package__).joinpath(file).read_text("utf-8"))
    return tuple(word for words in data[name].values() for word in words)
