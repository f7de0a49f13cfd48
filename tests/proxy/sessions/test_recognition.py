"""Recognising a conversation: from a transcript to its session, and back to the store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from proxy.sessions.recognition import Identity
from proxy.store.base import Store, StoreKey, Write
from tests.proxy.remembered import DERIVED, NAMED, Sessions, condensation, made, recognised, settled, turn

pytestmark = pytest.mark.anyio


class Hanging:
    """A store on a line that says nothing."""

    def __getattr__(self, name: str) -> Any:
        async def never(*_: Any) -> None:
            await asyncio.Event().wait()

        return never


async def test_what_was_never_seen_is_new(sessions: Sessions) -> None:
    found = await recognised(sessions, "abc")
    assert (found.session, found.parent, found.condensations, found.failure) == (None, None, (), "")
    assert found.shown_id.startswith("p")


@pytest.mark.parametrize("later", ["abc", "abcde", "abXde"])
async def test_a_derived_session_is_found_by_its_head(later: str, sessions: Sessions) -> None:
    first = await settled(sessions, "abc")
    found = await recognised(sessions, later)
    assert found.key == first.key
    assert found.session is not None
    assert found.shown_id == first.key.name


async def test_another_last_message_forks_a_derived_session(sessions: Sessions) -> None:
    first = await settled(sessions, "abc")
    fork = await settled(sessions, "abX")
    assert (fork.session, fork.parent) == (None, first.key.name)
    assert (await recognised(sessions, "abcde")).key == first.key
    assert (await recognised(sessions, "abXYZ")).key == fork.key


async def test_another_last_message_is_the_same_branch_of_a_named_session(sessions: Sessions) -> None:
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


async def test_retries_are_forks_of_the_conversation_not_of_each_other(sessions: Sessions) -> None:
    first = await settled(sessions, "abc")
    forks = [await settled(sessions, f"ab{letter}") for letter in "XYZ"]
    assert {fork.parent for fork in forks} == {first.key.name}
    assert len({fork.key for fork in forks}) == 3


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


async def test_a_fork_of_a_fork_has_it_as_parent(sessions: Sessions) -> None:
    await settled(sessions, "abc")
    fork = await settled(sessions, "abXYZ")
    assert (await settled(sessions, "abXYQ")).parent == fork.key.name


async def test_an_edit_is_a_fork_of_its_own_conversation(sessions: Sessions) -> None:
    first = await settled(sessions, "abcde")
    await settled(sessions, "abX")  # the same with another third message; its reply is not known
    await settled(sessions, "abcdefg")
    edited = await recognised(sessions, "abcdefY")
    assert (edited.session, edited.parent) == (None, first.key.name)


async def test_the_longest_known_prefix_counts(sessions: Sessions) -> None:
    await settled(sessions, "abc")
    longer = await settled(sessions, "abXde")
    assert (await recognised(sessions, "abXdefg")).key == longer.key


async def test_a_history_that_parts_earlier_is_a_fork_with_its_parent(sessions: Sessions) -> None:
    first = await settled(sessions, "abc")
    await settled(sessions, "abcde")
    fork = await recognised(sessions, "abcXYZ!")
    assert fork.session is None
    assert fork.key != first.key
    assert fork.parent == first.key.name


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


async def test_tenants_share_no_session(sessions: Sessions) -> None:
    for identity in (DERIVED, NAMED):
        await settled(sessions, "abc", identity, "t")
        assert (await recognised(sessions, "abcde", identity, "u")).session is None


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


async def test_the_ids_of_forks_and_sessions_are_never_those_of_others(sessions: Sessions) -> None:
    shown: Sequence[str] = [(await settled(sessions, text)).key.name for text in ("abc", "xyz", "123")]
    assert len(set(shown)) == 3
