"""Recognising a conversation: from a transcript to its session, in its own dialect, and back to the store."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from proxy.conversations.codec import decode_document, encode_session
from proxy.conversations.recognition import Identity
from proxy.conversations.session import Session
from proxy.protocols.chat import CHAT_ENDPOINT
from proxy.protocols.messages import MESSAGES_ENDPOINT as OTHER
from proxy.store.base import Store, StoreKey, Write
from tests.proxy.remembered import DERIVED, NAMED, Sessions, condensation, made, recognised, settled, turn


class Hanging:
    """A store on a line that says nothing."""

    def __getattr__(self, name: str) -> Any:
        async def never(*_: Any) -> None:
            await asyncio.Event().wait()

        return never


@pytest.mark.parametrize("later", ["abc", "abcde", "abXde"])
async def test_a_derived_session_is_found_by_its_head(later: str, sessions: Sessions) -> None:
    first = await settled(sessions, "abc")
    found = await recognised(sessions, later)
    assert found.key == first.key
    assert found.session is not None
    assert found.shown_id == first.key.name


async def test_another_last_message_forks_a_derived_session_only(sessions: Sessions) -> None:
    first = await settled(sessions, "abc")
    fork = await settled(sessions, "abX")
    assert (fork.session, fork.parent) == (None, first.key.name)
    assert (await recognised(sessions, "abcde")).key == first.key
    assert (await recognised(sessions, "abXYZ")).key == fork.key
    await settled(sessions, "abc", NAMED)
    found = await settled(sessions, "abX", NAMED)
    assert found.session is not None
    assert [each.name for each in found.session.branches] == ["main"]


async def test_two_conversations_that_part_at_once_never_share_a_derived_session(sessions: Sessions) -> None:
    first = await settled(sessions, "abc")
    one, two = await recognised(sessions, "abcde"), await recognised(sessions, "abcXY")
    await asyncio.gather(sessions.settle(one, turn("abcde")), sessions.settle(two, turn("abcXY")))
    now, other = await recognised(sessions, "abcdefg"), await recognised(sessions, "abcXYZ!")
    assert now.key == first.key
    assert now.session is not None
    assert [each.name for each in now.session.branches] == ["main"]
    assert other.key != first.key
    assert other.session is not None
    assert other.session.parent == first.key.name


async def test_retries_and_edits_are_forks_of_the_longest_known_prefix(sessions: Sessions) -> None:
    first = await settled(sessions, "abc")
    forks = [await settled(sessions, f"ab{letter}") for letter in "XYZ"]
    assert {fork.parent for fork in forks} == {first.key.name}
    assert len({fork.key for fork in forks}) == 3
    await settled(sessions, "abc")
    longer = await settled(sessions, "abXde")
    assert (await recognised(sessions, "abXdefg")).key == longer.key


async def test_conversations_that_begin_alike_are_forks_of_the_first(sessions: Sessions) -> None:
    first = await settled(sessions, "abcdefg")
    await sessions.keep(first, condensation("ab"))
    for letter in "QRSTUVWXYZ":
        fork = await settled(sessions, f"abcdef{letter}")
        assert fork.parent == first.key.name
        await settled(sessions, f"abcdef{letter}--")
    assert [each.id for each in (await recognised(sessions, "abcdef!")).condensations] == ["c-ab"]


async def test_a_forks_condensations_are_passed_on_to_its_forks(sessions: Sessions) -> None:
    await settled(sessions, "abcdefg")
    fork = await settled(sessions, "abcdefX")
    await sessions.keep(fork, condensation("abc"))
    again = await recognised(sessions, "abcdefY")
    assert again.parent == fork.key.name
    assert [each.id for each in again.condensations] == ["c-abc"]


async def test_an_edit_is_a_fork_of_its_own_conversation(sessions: Sessions) -> None:
    first = await settled(sessions, "abcde")
    await settled(sessions, "abX")  # the same with another third message; its reply is not known
    await settled(sessions, "abcdefg")
    edited = await recognised(sessions, "abcdefY")
    assert (edited.session, edited.parent) == (None, first.key.name)


async def test_a_conversation_that_goes_the_same_way_once_more_is_one_fork(sessions: Sessions) -> None:
    first = [(await settled(sessions, "abcdefghi"[:length])).key for length in (3, 5, 7, 9)]
    again = [(await settled(sessions, "abcdefghi"[:length])).key for length in (3, 5, 7)]
    assert len({*first}) == len({*again}) == 1
    assert first[0] != again[0]
    assert (await recognised(sessions, "abcdefgXY")).key == again[0]
    assert (await recognised(sessions, "abcdefghi")).key == first[0]


async def test_a_fork_reads_what_its_ancestors_have_condensed(sessions: Sessions) -> None:
    first = await settled(sessions, "abc")
    await sessions.keep(first, condensation("ab"))
    await settled(sessions, "abcde")
    fork = await settled(sessions, "abcXYZ!")
    assert [each.id for each in fork.condensations] == ["c-ab"]
    again = await recognised(sessions, "abcXYZ!+-")
    assert again.key == fork.key
    assert [each.id for each in again.condensations] == ["c-ab"]


async def test_an_explicit_id_is_one_session_with_all_its_branches(sessions: Sessions) -> None:
    first = await settled(sessions, "abc", NAMED)
    other = await settled(sessions, "xyz", NAMED)
    assert other.key == first.key
    found = await recognised(sessions, "xyz12", NAMED)
    assert found.session is not None
    assert [each.name for each in found.session.branches] == ["main", "b2"]


async def test_an_explicit_session_is_never_found_by_its_chain(sessions: Sessions) -> None:
    await settled(sessions, "abc", NAMED)
    assert (await recognised(sessions, "abcde")).session is None


async def test_a_weak_id_counts_only_where_the_chain_goes_on(sessions: Sessions) -> None:
    weak = Identity("prompt_cache_key", "k", weak=True)
    await settled(sessions, "abc", weak)
    assert (await recognised(sessions, "abcde", weak)).identity == weak
    other = await recognised(sessions, "xyz", weak)
    assert (other.identity, other.session) == (DERIVED, None)


async def test_an_index_entry_that_leads_nowhere_is_no_harm(sessions: Sessions, store: Store) -> None:
    first = await settled(sessions, "abc")
    await store.delete(first.key)
    assert (await recognised(sessions, "abcde")).session is None


async def test_a_store_that_hangs_costs_its_time_and_is_told() -> None:
    sessions = made(Hanging(), timeout=0.05)
    found = await recognised(sessions, "abc")
    assert (found.session, found.failure) == (None, "store-timeout")
    await sessions.settle(found, turn("abc"))


@pytest.mark.parametrize("identity", [DERIVED, NAMED])
async def test_an_unreadable_document_costs_no_reply(identity: Identity, sessions: Sessions, store: Store) -> None:
    first = await settled(sessions, "abc", identity)
    await overwrite(store, first.key, b"{broken")
    found = await recognised(sessions, "abcde", identity)
    assert found.session is None


async def test_an_unreadable_guess_is_no_failure(sessions: Sessions, store: Store) -> None:
    first = await settled(sessions, "abc")
    likely = await settled(sessions, "abX")
    await settled(made(store, prefix="other"), "abY")  # by another process: the index leads there now
    await overwrite(store, likely.key, b"{broken")
    found = await recognised(sessions, "abZ")
    assert (found.session, found.parent, found.failure) == (None, first.key.name, "")


@pytest.mark.parametrize("document", [b'{"v": 99}', b'{"v": 1, "anything": []}'])
async def test_a_document_of_a_newer_version_is_a_miss(document: bytes, sessions: Sessions, store: Store) -> None:
    first = await settled(sessions, "abc", NAMED)
    await overwrite(store, first.key, document)
    found = await recognised(sessions, "abcde", NAMED)
    assert (found.session, found.failure) == (None, "")


async def overwrite(store: Store, key: StoreKey, document: bytes) -> None:
    snapshot = await store.load(key)
    assert snapshot is not None
    assert await store.save(key, Write(document, snapshot.revision, 60))


async def test_the_same_id_in_another_dialect_is_another_session(sessions: Sessions) -> None:
    first = await settled(sessions, "abc", NAMED)
    elsewhere = replace(NAMED, dialect=OTHER.dialect.name)
    assert (await recognised(sessions, "abcde", elsewhere)).session is None
    other = await settled(sessions, "abc", elsewhere)
    found = [(await recognised(sessions, "abcde", each)).key for each in (NAMED, elsewhere)]
    assert found == [first.key, other.key]
    assert first.key != other.key


async def test_a_derived_session_is_not_continued_in_another_dialect(sessions: Sessions) -> None:
    await settled(sessions, "abc")
    found = await recognised(sessions, "abcde", replace(DERIVED, dialect=OTHER.dialect.name))
    assert (found.session, found.parent, found.condensations) == (None, None, ())


async def test_a_request_is_identified_in_its_own_dialect(sessions: Sessions) -> None:
    for endpoint in (CHAT_ENDPOINT, OTHER):
        for given in (None, "id"):
            assert sessions.identify(given, [], endpoint, {}).dialect == endpoint.dialect.name
        assert sessions.identify(None, [], endpoint, {"prompt_cache_key": "k"}).dialect == endpoint.dialect.name


def test_sessions_keep_their_dialect_and_an_unknown_one_misses() -> None:
    stored = encode_session(Session("s", "given", 0.0, dialect=OTHER.dialect.name))
    found = decode_document(stored)
    assert found is not None
    assert found.dialect == OTHER.dialect.name
    assert decode_document(stored.replace(b'"messages"', b'"newer"')) is None
