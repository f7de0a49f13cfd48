"""Entries and indexes for the tests of memory."""

from collections.abc import Iterable

from strategies.core.messages import Role
from strategies.memory.ranking import Entry, Hit, Index, text_entries

Said = tuple[str, str]


def entries(said: Iterable[Said | str]) -> list[Entry]:
    """Entries of messages in order, the key `m` and the place; a bare text is said by user and assistant in turn."""
    told = ((("user", "assistant")[at % 2], each) if isinstance(each, str) else each for at, each in enumerate(said))
    return [entry for at, (role, text) in enumerate(told) for entry in text_entries(f"m{at}", Role(role), text, at)]


def index(said: Iterable[Said | str]) -> Index:
    """The index of messages."""
    return Index(entries(said))


def places(hits: Iterable[Hit]) -> list[int]:
    """The places of hits, best first."""
    return [hit.entry.place for hit in hits]
