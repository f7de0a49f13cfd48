"""The names that an agent uses next: which these are, and how views that keep them are compared."""

import asyncio
from collections import Counter

import pytest

from eval import needs
from proxy.commands.replaying.recorded import Conversation
from strategies import DEFAULT
from tests.support.transcripts import assistant, call, tool, user


def test_names_are_identifiers_paths_numbers_and_words_that_few_use() -> None:
    common = Counter({"open": 90, "the": 90, "please": 90})
    found = needs.names("please open src/parse_it.py, the Quixote for 4711: readFile 7", common)
    assert found == {"src/parse_it.py", "Quixote", "4711", "readFile"}


def test_a_name_is_needed_if_it_comes_next_and_stood_before_the_newest_messages() -> None:
    messages = [
        *(user("Mend lib/old.py and lib/new.py."), assistant("Reading."), user("Yes."), assistant("Hm.")),
        *(user("lib/new.py first."), assistant("I open lib/old.py, lib/new.py and lib/other.py.")),
    ]
    assert needs.needed(Conversation("a", messages), 5, Counter()) == ["lib/old.py"]


def test_a_session_is_played_in_three_ways_and_recent_has_views_as_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "TARGETS", (0.3, 0.5))
    monkeypatch.setattr(needs, "commonness", lambda _: Counter[str]())
    messages = [user("Mend order ORD-4711 in src/orders.py.")]
    for i in range(18):
        messages += [assistant(None, call(f"c{i}", "run", {"step": i})), tool(f"c{i}", f"out{i} " + "word " * 100)]
    messages += [assistant("Now src/orders.py and ORD-4711.")] * 2
    table = needs.rows(1, asyncio.run(needs.arms(Conversation("a", messages))))
    assert [line.split("|")[1].strip() for line in table.splitlines()[2:]] == [
        f"`{name}`" for name in (DEFAULT, needs.WITHOUT, needs.RECENT)
    ]
