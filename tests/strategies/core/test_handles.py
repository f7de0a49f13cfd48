import pytest

from strategies.core.handles import handle_in, handle_of
from strategies.memory.ranking import expanded
from tests.support.transcripts import Body, agent, tool, transcript_of, user


@pytest.mark.parametrize("query", ["3f9a2c1b", "handle 3f9a2c1b", " [handle: 3F9A2C1B] ", "句柄 3f9a2c1b"])
def test_a_query_may_be_a_handle(query: str) -> None:
    assert handle_in(query) == "3f9a2c1b"


@pytest.mark.parametrize("query", ["", "3f9a2c1", "the key 3f9a2c1b and more", "3f9a2c1b 3f9a2c1c", "greenhouse key"])
def test_other_queries_are_searched_for(query: str) -> None:
    assert handle_in(query) is None


def test_equal_messages_have_one_handle_and_others_another() -> None:
    bodies: list[Body] = [user("a"), tool("x", "one"), tool("x", "one"), tool("x", "two")]
    handles = [handle_of(message) for message in transcript_of(bodies).chain]

    assert len(set(handles)) == 3


def test_a_handle_finds_all_of_its_message_among_the_places_given() -> None:
    transcript = transcript_of(agent(6, size=400))
    handle = handle_of(transcript.chain[2])

    hits = expanded(handle, transcript, range(6))

    assert {hit.entry.place for hit in hits} == {2}
    assert "".join(hit.entry.text for hit in hits) == transcript.chain[2].text
    assert expanded(handle, transcript, range(3, 6)) == []
