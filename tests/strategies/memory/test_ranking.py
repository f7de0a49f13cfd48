import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.core.cards import MemoryCard
from strategies.core.messages import Role
from strategies.memory.ranking import MAX_HITS, Entry, Index, card_entry
from tests.strategies.memory.building import entries, index, places

WORDS = st.sampled_from(
    ["museum", "ticket", "Ann:", "port 5433", "缓存策略", "门票", "8 May, 2023", "src/a.py", "hello"]
)
TEXTS = st.lists(st.lists(WORDS, min_size=1, max_size=6).map(" ".join), max_size=30)
FILLER = ["let us go on", "fine with me"] * 5


def test_an_answer_is_found_by_the_words_of_its_question() -> None:
    hits = index([*FILLER, "What does the maritime museum cost?", "45 yuan.", *FILLER]).search("price of the museum", 2)

    assert sorted(places(hits)) == [10, 11]


def test_surroundings_with_all_terms_rank_above_repetition() -> None:
    said = ["museum museum museum", *FILLER, "the museum in Vienna", "its ticket costs 12 euros", *FILLER]

    assert places(index(said).search("museum Vienna ticket", 2)) != []
    assert 0 not in places(index(said).search("museum Vienna ticket", 2))


def test_who_is_named_as_speaker_comes_first() -> None:
    said = ["Ann: I painted a lake", *FILLER, "Bob: I painted a lake", *FILLER, "Cid: I painted a lake"]

    assert places(index(said).search("Did Bob say what was painted?", 1)) == [11]


def test_a_date_holds_until_another_is_told() -> None:
    said = [
        each for day in ("3 March", "8 May") for each in (f"[{day}, 2024] hi", *FILLER, "we bought a tent", *FILLER)
    ]
    found = index(said)

    in_march, in_may = (places(found.search(f"which tent was bought in {month}?")) for month in ("March", "May"))

    assert in_march.index(11) < in_march.index(33)
    assert in_may.index(33) < in_may.index(11)


def test_what_is_quoted_counts_more() -> None:
    said = ["the garden gate is broken", *FILLER, "the cellar door is broken"]

    assert places(index(said).search('garden or "cellar"', 1)) == [11]


def test_the_newer_of_equals_comes_first() -> None:
    assert places(index(["tent", *FILLER, *FILLER, "tent"]).search("tent", 2))[0] == 21


def test_a_query_without_a_known_term_finds_nothing() -> None:
    found = index(["hello there", "good morning"])

    assert found.search("what is it?") == []
    assert found.search("zebra") == []
    assert Index().search("zebra") == []


def test_a_card_speaks_for_itself_only() -> None:
    cards = [card_entry(f"c{n}", MemoryCard(text)) for n, text in enumerate(["Use Postgres", "Ship on Friday"])]

    assert [hit.entry.key for hit in Index(cards).search("postgres")] == ["c0"]


@given(TEXTS, st.integers(0, 30), WORDS)
def test_what_was_said_earlier_may_be_added_later(texts: list[str], cut: int, query: str) -> None:
    all_of_it = entries(texts)

    late, at_once = (Index(each).search(query) for each in ([*all_of_it[cut:], *all_of_it[:cut]], all_of_it))

    assert {hit.position: hit.score for hit in late} == pytest.approx({hit.position: hit.score for hit in at_once})


def test_an_entry_that_is_known_is_not_added_again() -> None:
    found = index(["a tent", "a lake"])
    found.add(entries(["a tent", "a lake"]))

    assert len(found) == 2


def test_a_long_query_is_read_at_both_ends() -> None:
    found = index(["the tent", *FILLER, "the lake"])

    assert set(places(found.search("tent " + "filler " * 2_000 + "lake"))) >= {0, 11}


def test_there_are_no_more_hits_than_asked_for() -> None:
    found = index(["tent"] * (MAX_HITS + 50))

    assert len(found.search("tent", 3)) == 3
    assert len(found.search("tent")) == MAX_HITS


@given(TEXTS, st.integers(0, 30), WORDS)
def test_an_index_built_in_pieces_is_that_built_at_once(texts: list[str], cut: int, query: str) -> None:
    all_of_it = entries(texts)
    in_pieces = Index(all_of_it[:cut])
    in_pieces.add(all_of_it[cut:])

    assert in_pieces.search(query) == Index(all_of_it).search(query)


@given(TEXTS, st.sets(st.integers(0, 29)), WORDS)
def test_what_is_not_allowed_changes_nothing(texts: list[str], hidden: set[int], query: str) -> None:
    all_of_it = entries(texts)
    shown = [entry for entry in all_of_it if entry.place not in hidden]

    found = Index(all_of_it).search(query, allowed={entry.key for entry in shown})

    assert found == Index(shown).search(query)


def test_what_is_beside_in_another_line_is_no_neighbour() -> None:
    """Two branches share their beginning; the words of one do not lead to what the other says."""
    shared, one, other = (
        entries(["hello there"])[0],
        Entry("x", Role.USER, "zebra", 1),
        Entry("y", Role.USER, "lake", 1),
    )

    assert Index([shared, one, other]).search("zebra", allowed={"m0", "y"}) == []


def test_a_hit_has_the_terms_of_the_query_and_how_rare_they_are() -> None:
    said = index([*FILLER, "the code of the tool shed is 4711", *FILLER, "the code of the garage is 12"])
    shed, garage = (hit.said for hit in said.search("What is the code of the boat shed?") if hit.said)
    assert shed.keys() == {"cod", "shed"}
    assert garage.keys() == {"cod"}
    assert 0 < shed["cod"] == garage["cod"] < shed["shed"] < 1
