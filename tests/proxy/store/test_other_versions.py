"""What another version of the program has stored counts as missing, also to those who write."""

import pytest

from proxy.conversations.codec import record_name
from proxy.store.base import StoreKey
from tests.proxy.remembered import NAMED, condensation, made, recognised, settled, turn
from tests.proxy.store.conftest import Stage
from tests.proxy.store.saving import TTL, write


async def before_the_update(stage: Stage, data: bytes = b'{"v":1}') -> StoreKey:
    """A named session whose document and record another version has written."""
    key = (await recognised(made(stage.store), "abc", NAMED, stage.tenant)).key
    for revision in range(2):
        assert await stage.store.save(key, write(data, revision))
    made_one = condensation("ab")
    await stage.store.put_record(key, record_name(made_one.digest, made_one.depth), data, TTL)
    return key


@pytest.mark.parametrize("data", [b'{"v":1}', b"\xc1\x07whatever"], ids=["its version", "its codec"])
async def test_a_session_that_another_version_stored_is_written_anew(data: bytes, stage: Stage) -> None:
    await before_the_update(stage, data)
    sessions = made(stage.store)
    assert await sessions.settle(await recognised(sessions, "abc", NAMED, stage.tenant), turn("abc")) == ""
    await settled(sessions, "abcde", NAMED, stage.tenant)
    found = await recognised(made(stage.store), "abcde", NAMED, stage.tenant)
    assert found.session is not None
    assert found.session.totals["requests"] == 2


async def test_a_condensation_stands_beside_the_record_of_another_version(stage: Stage) -> None:
    await before_the_update(stage)
    sessions = made(stage.store)
    kept = await sessions.keep(await recognised(sessions, "abc", NAMED, stage.tenant), condensation("ab"))
    await settled(sessions, "abc", NAMED, stage.tenant)
    found = await recognised(made(stage.store), "abcde", NAMED, stage.tenant)
    assert [record.id for record in found.condensations if record.standing] == [kept.id]


async def test_of_two_that_write_first_one_goes_first(stage: Stage) -> None:
    sessions = [made(stage.store), made(await stage.another() if stage.kind != "memory" else stage.store)]
    found = [await recognised(each, "abc", NAMED, stage.tenant) for each in sessions]
    for each, one in zip(sessions, found, strict=True):
        assert await each.settle(one, turn("abc")) == ""
    last = await recognised(sessions[0], "abc", NAMED, stage.tenant)
    assert last.session is not None
    assert last.session.totals["requests"] == 2
