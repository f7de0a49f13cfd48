"""The cache of stored histories: cached blocks are not read again, and the cache is bounded."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from proxy.conversations.codec import new_block
from proxy.conversations.histories import READS_BY_NAME, Histories, StoredHistory
from proxy.conversations.session import Session, Tip
from proxy.conversations.stored import StoredSessions
from proxy.conversations.supply import Append
from proxy.store.base import Store, StoreError, StoreKey, Write
from tests.proxy.remembered import transcript, ungated
from tests.support.chat_bodies import element

KEY = StoreKey("t", "s")
SESSION = Session("s", "test", created_at=1.0)


class Noting:
    """A store, and which blocks were asked for: names, or None for all."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self.asked: list[Sequence[str] | None] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def blocks(self, key: StoreKey, names: Sequence[str] | None = None) -> dict[str, bytes]:
        self.asked.append(names)
        return await self._inner.blocks(key, names)


class Stage:
    """A session that grows in a store, and the histories that a process reads of it."""

    def __init__(self, store: Store, most_bytes: int = 1_000_000) -> None:
        self.store = Noting(store)
        self.histories = Histories(StoredSessions(self.store, 5.0), most_bytes)

    async def write(self, blocks: dict[str, bytes], key: StoreKey = KEY) -> None:
        found = await self.store.load(key)
        assert await self.store.save(key, Write(b"{}", found.revision if found else 0, 60, blocks))

    async def grow(self, text: str, start: int, key: StoreKey = KEY) -> None:
        """Stores the block of the letters from `start` on."""
        await self.write(new_block(transcript(text), start), key)

    async def read(self, text: str, key: StoreKey = KEY, session: Session = SESSION) -> str:
        """The stored line to the end of `text`."""
        end = transcript(text).digests[-1]
        history = await self.histories.history(key, session, [end.hex()], ungated)
        return "".join(json.loads(each.raw or "")["content"] for each in history.tree.line(end))


@pytest.fixture
def stage(store: Store) -> Stage:
    return Stage(store)


async def test_a_block_that_goes_on_from_inside_another_is_found(stage: Stage) -> None:
    await stage.grow("abc", 0)
    await stage.read("abc")
    await stage.grow("abXde", 2)
    assert await stage.read("abXde") == "abXde"
    assert len(stage.store.asked) == 2


async def test_turns_of_other_replicas_are_read_one_behind_the_other(stage: Stage) -> None:
    await stage.grow("abc", 0)
    await stage.read("abc")
    await stage.grow("abcde", 3)
    await stage.grow("abcdefg", 5)
    assert await stage.read("abcdefg") == "abcdefg"
    assert [names and len(names) for names in stage.store.asked] == [None, 1, 1]


async def test_where_many_turns_are_missing_all_are_read_at_once(stage: Stage) -> None:
    await stage.grow("a", 0)
    await stage.read("a")
    letters = "abcdefghijk"
    for i in range(1, len(letters)):
        await stage.grow(letters[: i + 1], i)
    assert await stage.read(letters) == letters
    assert [names and len(names) for names in stage.store.asked] == [None, *[1] * READS_BY_NAME, None]


async def test_a_line_that_was_never_stored_is_looked_for_once(stage: Stage) -> None:
    await stage.grow("abc", 0)
    await stage.grow("abcdefg", 5)
    assert [await stage.read("abcdefg") for _ in range(3)] == ["", "", ""]
    assert stage.store.asked == [None]


async def test_a_session_that_began_anew_has_nothing_of_the_old_one(stage: Stage) -> None:
    await stage.grow("abc", 0)
    await stage.read("abc")
    await stage.store.delete(KEY)
    await stage.grow("abcde", 3)
    assert await stage.read("abcde", session=SESSION._replace(created_at=2.0)) == ""


async def test_what_is_forgotten_is_read_again(stage: Stage) -> None:
    await stage.grow("abc", 0)
    await stage.read("abc")
    stage.histories.forget(KEY)
    assert await stage.read("abc") == "abc"
    assert stage.store.asked == [None, None]


async def test_sessions_used_least_are_forgotten_for_others(store: Store) -> None:
    stage = Stage(store, most_bytes=2 * StoredHistory.of(new_block(transcript("abc"), 0)).size)
    keys = [StoreKey("t", f"s{i}") for i in range(3)]
    for key in keys:
        await stage.grow("abc", 0, key)
    for key in (keys[0], keys[1], keys[0], keys[2], keys[0]):
        assert await stage.read("abc", key) == "abc"
    assert len(stage.store.asked) == 3
    await stage.read("abc", keys[1])
    assert len(stage.store.asked) == 4


async def test_a_session_larger_than_all_may_be_is_read_and_not_kept(store: Store) -> None:
    stage = Stage(store, most_bytes=10)
    await stage.grow("abc", 0)
    assert await stage.read("abc") == await stage.read("abc") == "abc"
    assert stage.store.asked == [None, None]


async def test_what_is_too_large_or_newer_is_read_or_missed(stage: Stage) -> None:
    letters = "".join(chr(0x4E00 + i) for i in range(2_000))
    await stage.grow(letters, 0)
    assert await stage.read(letters) == letters
    await stage.write({transcript("abc").digests[-1].hex(): b'{"v": 3, "digests": 7}'})
    assert await stage.read("abc") == ""


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b'{"digests": ["a"]}', b'{"before": 3}'])
async def test_a_broken_block_is_the_stores_failure(data: bytes, stage: Stage) -> None:
    await stage.write({"aa": data})
    with pytest.raises(StoreError) as error:
        await stage.read("abc")
    assert error.value.reason == "store-corrupt"


async def test_appends_are_followed_by_the_names_of_their_blocks(stage: Stage) -> None:
    line = Tip()
    for i in range(3):
        body = {"role": "user", "content": f"ask {i}"}
        append = Append(line, (element(json.dumps(body)),), f"{i + 1}-aa")
        line, data = append.block([{"role": "assistant", "content": f"answer {i}"}])
        await stage.write({line.block: data})
        history = await stage.histories.history(KEY, SESSION, [line.block], ungated)
    assert [names and len(names) for names in stage.store.asked] == [None, 1, 1]
    assert [len(each.elements) for each in history.appended.values()] == [2, 2, 2]
