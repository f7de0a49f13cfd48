"""Recognising a conversation: from a transcript to its session, and back to the store."""

from __future__ import annotations

import asyncio
import json
import string
import time
from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest

from proxy.append import NO_LINE, Append, History, Line
from proxy.histories import StoredHistory
from proxy.identity import Identity
from proxy.keeping import Keeper, Turn, is_small
from proxy.recognition import Recognised, Recogniser
from proxy.seen import Element
from proxy.store import open_store
from proxy.store.base import SessionKey, SessionStore, Write
from proxy.stored import StoredSessions
from proxy.tokens.counter import Tokenizers
from strategies.core.condensation import Condensation, Keep, Kind, Literal
from strategies.core.transcript import Reader, Transcript
from strategies.core.view import fold

pytestmark = pytest.mark.anyio
DERIVED = Identity()
NAMED = Identity("X-Condenser-Session", "named")


class Sessions:
    """Both ways between a conversation and its session."""

    def __init__(self, stored: StoredSessions, recogniser: Recogniser, keeper: Keeper) -> None:
        self._stored = stored
        self.identify = recogniser.identify
        self._recogniser = recogniser
        self.keep = keeper.keep
        self.settle = keeper.settle

    async def recognise(self, tenant: str, identity: Identity, transcript: Transcript) -> Recognised:
        """As a request of its own."""
        return await self._recogniser.recognise(tenant, identity, transcript, self._recogniser.patience())

    async def texts(self, key: SessionKey, *, whole: bool = False) -> list[str]:
        """The contents that its blocks have, in order; `whole`, with those that it inherits."""
        session = await self._stored.load(key)
        assert session is not None
        blocks = await (self._stored.blocks(key, session) if whole else self._stored.store.blocks(key))
        stored = StoredHistory.of(blocks)
        line = stored.tree.line(session.branches[0].head)
        kept = line or list(stored.tree.messages.values())
        return [json.loads(each.raw or "")["content"] for each in kept]

    async def history(self, tenant: str, identity: Identity) -> History:
        """As a request of its own."""
        return await self._recogniser.history(tenant, identity, self._recogniser.patience())


class Hanging:
    """A store on a line that says nothing."""

    def __getattr__(self, name: str) -> Any:
        async def never(*_: Any) -> None:
            await asyncio.Event().wait()

        return never


def transcript(text: str) -> Transcript:
    """A history with one message for each letter; even ones are the user's."""
    bodies = [{"role": "user" if i % 2 == 0 else "assistant", "content": letter} for i, letter in enumerate(text)]
    return Transcript.of(Reader().read(json.dumps(each), each, 10) for each in bodies)


def turn(text: str, applied: str = "") -> Turn:
    return Turn(transcript(text), {}, 100, 100, 0, applied)


def condensation(text: str, depth: int = 1) -> Condensation:
    """One that covers all of `text`."""
    digest = transcript(text).digests[-1]
    return Condensation(
        f"c-{text}", digest, len(text), depth, (Keep(0),), 0, "mask", "hard", "context_limit", 9, 5, 0.0
    )


@pytest.fixture
def sessions(store: SessionStore) -> Sessions:
    return made(store)


def made(store: Any, timeout: float = 5.0) -> Sessions:
    numbers = count(1)
    stored = StoredSessions(store, timeout)
    return Sessions(
        stored, Recogniser(stored, (), lambda: f"d{next(numbers)}"), Keeper(stored, ttl=60, clock=time.time)
    )


async def settled(sessions: Sessions, text: str, identity: Identity = DERIVED, tenant: str = "t") -> Recognised:
    found = await sessions.recognise(tenant, identity, transcript(text))
    await sessions.settle(found, turn(text))
    return found


async def recognised(sessions: Sessions, text: str, identity: Identity = DERIVED, tenant: str = "t") -> Recognised:
    return await sessions.recognise(tenant, identity, transcript(text))


async def test_what_was_never_seen_is_new(sessions: Sessions) -> None:
    found = await recognised(sessions, "abc")
    assert (found.session, found.parent, found.condensations, found.failure) == (None, None, (), "")
    assert found.shown.startswith("p")


@pytest.mark.parametrize("later", ["abc", "abcde", "abXde"])
async def test_a_derived_session_is_found_by_its_head_or_a_rewritten_one_that_was_answered(
    later: str, sessions: Sessions
) -> None:
    first = await settled(sessions, "abc")
    found = await recognised(sessions, later)
    assert found.key == first.key
    assert found.session is not None
    assert found.shown == first.key.session


async def test_another_last_message_that_nothing_follows_is_a_fork_of_a_derived_session(sessions: Sessions) -> None:
    first = await settled(sessions, "abc")
    fork = await settled(sessions, "abX")
    assert (fork.session, fork.parent) == (None, first.key.session)
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
    assert other.session.parent == first.key.session


async def test_retries_of_a_last_message_are_forks_of_the_conversation_not_of_each_other(sessions: Sessions) -> None:
    first = await settled(sessions, "abc")
    forks = [await settled(sessions, f"ab{letter}") for letter in "XYZ"]
    assert {fork.parent for fork in forks} == {first.key.session}
    assert len({fork.key for fork in forks}) == 3


async def test_conversations_that_begin_alike_and_go_on_are_forks_of_the_first_not_of_each_other(
    sessions: Sessions,
) -> None:
    first = await settled(sessions, "abcdefg")
    await sessions.keep(first, condensation("ab"))
    for letter in "QRSTUVWXYZ":
        fork = await settled(sessions, f"abcdef{letter}")
        assert fork.parent == first.key.session
        await settled(sessions, f"abcdef{letter}--")
    assert [each.id for each in (await recognised(sessions, "abcdef!")).condensations] == ["c-ab"]


async def test_what_a_fork_has_condensed_of_what_it_shares_is_passed_on_to_its_forks(sessions: Sessions) -> None:
    await settled(sessions, "abcdefg")
    fork = await settled(sessions, "abcdefX")
    await sessions.keep(fork, condensation("abc"))
    again = await recognised(sessions, "abcdefY")
    assert again.parent == fork.key.session
    assert [each.id for each in again.condensations] == ["c-abc"]


async def test_what_parts_from_a_fork_behind_its_own_messages_is_a_fork_of_that(sessions: Sessions) -> None:
    await settled(sessions, "abc")
    fork = await settled(sessions, "abXYZ")
    assert (await settled(sessions, "abXYQ")).parent == fork.key.session


async def test_a_fork_stores_what_it_shares_with_its_parent_only_when_it_goes_on(sessions: Sessions) -> None:
    first = await settled(sessions, "abcdefg")
    fork = await settled(sessions, "abcdefX")
    assert await sessions.texts(fork.key) == ["X"]
    assert await sessions.texts(fork.key, whole=True) == list("abcdefX")
    again = await settled(sessions, "abcdefXYZ")
    assert again.key == fork.key
    assert await sessions.texts(fork.key) == list("abcdefXYZ")
    assert first.key != fork.key


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
    assert fork.parent == first.key.session


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


async def test_an_index_entry_that_leads_nowhere_is_no_harm(sessions: Sessions, store: SessionStore) -> None:
    first = await settled(sessions, "abc")
    await store.delete(first.key)
    assert (await recognised(sessions, "abcde")).session is None


async def test_the_first_writer_of_a_condensation_wins(sessions: Sessions) -> None:
    first, second = await recognised(sessions, "abc", NAMED), await recognised(sessions, "abc", NAMED)
    won = await sessions.keep(first, condensation("ab"))
    lost = await sessions.keep(second, Condensation(**{**fields(condensation("ab")), "pieces": (Keep(1),)}))
    assert lost.pieces == won.pieces == (Keep(0),)
    assert lost.standing


def fields(made_one: Condensation) -> dict[str, Any]:
    return {name: getattr(made_one, name) for name in Condensation.__dataclass_fields__}


@pytest.mark.parametrize("with_text", [True, False])
async def test_a_record_holds_the_first_user_message_where_no_history_does(
    with_text: bool, store: SessionStore
) -> None:
    keeper = Keeper(StoredSessions(store, 5.0), ttl=60, clock=time.time, with_text=with_text)
    view = fold(transcript("abc"), (condensation("ab").overlay,), 0, Tokenizers().for_model("gpt-4o"))
    written = Literal(transcript("a").chain[0].raw, Kind.TASK, 0)
    assert keeper.pieces(view) == ((Keep(0),) if with_text else (written,))


async def test_two_turns_at_once_are_both_kept(sessions: Sessions) -> None:
    await settled(sessions, "abc", NAMED)
    one, two = await recognised(sessions, "abcde", NAMED), await recognised(sessions, "xyz", NAMED)
    await asyncio.gather(sessions.settle(one, turn("abcde")), sessions.settle(two, turn("xyz")))
    found = await recognised(sessions, "abcdefg", NAMED)
    assert found.session is not None
    assert {each.count for each in found.session.branches} == {5, 3}
    assert found.session.totals["requests"] == 3


def appended(base: Line, text: str, reply: str) -> Turn:
    """An append of one message to the line `base`, with what was answered."""
    sent = Element.of(json.dumps({"role": "user", "content": text}))
    line, block = Append(base, (sent,), f"{base.head}/{text}").block({"role": "assistant", "content": reply})
    return turn("abc")._replace(line=line, before=base, blocks={line.block: block})


async def settle_append(sessions: Sessions, *turns: Turn) -> list[str]:
    """Stores what was decided at the same time, in this order; the texts of the history that stands then."""
    found = [await recognised(sessions, "abc", NAMED) for _ in turns]
    for each, made_one in zip(found, turns, strict=True):
        await sessions.settle(each, made_one)
    return [element.value["content"] for element in (await sessions.history("t", NAMED)).elements]


async def test_an_append_that_was_overtaken_leaves_what_was_stored_before_it(sessions: Sessions) -> None:
    first = appended(NO_LINE, "one", "1")
    assert await settle_append(sessions, first) == ["one", "1"]
    assert first.line is not None
    won, lost = appended(first.line, "two", "2"), appended(first.line, "other", "3")
    assert await settle_append(sessions, won, lost) == ["one", "1", "two", "2"]


async def test_the_same_append_at_once_is_stored_once_with_the_newer_reply(sessions: Sessions) -> None:
    texts = await settle_append(sessions, appended(NO_LINE, "one", "1"), appended(NO_LINE, "one", "1 again"))
    assert texts == ["one", "1 again"]


async def test_an_append_to_a_history_that_is_gone_is_not_stored(sessions: Sessions, store: SessionStore) -> None:
    first = appended(NO_LINE, "one", "1")
    await settle_append(sessions, first)
    assert first.line is not None
    await store.delete((await recognised(sessions, "abc", NAMED)).key)
    assert await settle_append(sessions, appended(first.line, "two", "2")) == []


async def test_a_store_that_hangs_costs_its_time_and_is_told() -> None:
    sessions = made(Hanging(), timeout=0.05)
    found = await recognised(sessions, "abc")
    assert (found.session, found.failure) == (None, "store-timeout")
    await sessions.settle(found, turn("abc"))


@pytest.mark.parametrize("identity", [DERIVED, NAMED])
async def test_a_document_that_cannot_be_read_is_told_and_costs_no_reply(
    identity: Identity, sessions: Sessions, store: SessionStore
) -> None:
    first = await settled(sessions, "abc", identity)
    await overwrite(store, first.key, b"{broken")
    found = await recognised(sessions, "abcde", identity)
    assert found.session is None


@pytest.mark.parametrize("document", [b'{"v": 99}', b'{"v": 2, "anything": []}'])
async def test_a_document_of_a_newer_version_is_a_miss(
    document: bytes, sessions: Sessions, store: SessionStore
) -> None:
    first = await settled(sessions, "abc", NAMED)
    await overwrite(store, first.key, document)
    found = await recognised(sessions, "abcde", NAMED)
    assert (found.session, found.failure) == (None, "")


async def overwrite(store: SessionStore, key: SessionKey, document: bytes) -> None:
    snapshot = await store.load(key)
    assert snapshot is not None
    assert await store.save(key, Write(document, snapshot.revision, 60))


@pytest.mark.parametrize(
    ("tokens", "window", "small"),
    [(1_023, 4_096, True), (1_024, 4_096, False), (2_047, None, True), (2_048, None, False), (0, 256, True)],
)
async def test_small_is_below_a_quarter_of_the_window(tokens: int, window: int | None, small: bool) -> None:
    assert is_small(tokens, window) is small


async def test_the_ids_of_forks_and_sessions_are_never_those_of_others(sessions: Sessions) -> None:
    shown: Sequence[str] = [(await settled(sessions, text)).key.session for text in ("abc", "xyz", "123")]
    assert len(set(shown)) == 3


async def test_a_fork_that_may_not_store_what_it_shares_goes_on_to_inherit_it() -> None:
    shared = string.ascii_letters[:40]
    store = await open_store("memory://", max_tenant_bytes=3_200)
    sessions = made(store)
    await settled(sessions, shared)
    fork = await settled(sessions, f"{shared[:-1]}1")
    await settled(sessions, f"{shared[:-1]}123")
    await settled(sessions, f"{shared[:-1]}12345")
    assert sorted(await sessions.texts(fork.key)) == [*"12345"]
    assert await sessions.texts(fork.key, whole=True) == [*shared[:-1], *"12345"]
    await store.close()


async def test_a_fork_that_may_store_nothing_still_inherits_what_it_shares() -> None:
    shared = string.ascii_letters[:40]
    store = await open_store("memory://", max_tenant_bytes=2_300)
    sessions = made(store)
    await settled(sessions, shared)
    fork = await settled(sessions, f"{shared[:-1]}1")
    await settled(sessions, f"{shared[:-1]}1{string.digits[2:] * 5}")
    found = await recognised(sessions, f"{shared[:-1]}1{string.digits[2:] * 5}x")
    assert found.key == fork.key
    assert found.session is not None
    assert found.session.inherited == len(shared) - 1
    await store.close()
