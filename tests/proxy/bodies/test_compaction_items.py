"""Own compaction items: nothing is unpacked before its length is known, allowed and held; all failures are one 400."""

import asyncio
import json
import random
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any

import pytest
from pydantic import SecretStr

from proxy.bodies import compaction_items, wire
from proxy.bodies.compaction_items import MAX_ITEMS, PREFIX, CompactionItems
from proxy.errors import BadRequest, HistoryUnavailable
from proxy.http.admission import Admission, Place
from proxy.http.encodings import most_unpacked
from proxy.protocols.responses import RESPONSES_ENDPOINT
from proxy.settings import LimitSettings
from proxy.store.base import StoreError
from tests.support.signals import BOUND

Json = dict[str, Any]
MB = 1024 * 1024
LIMIT = 32 * MB


async def down() -> bytes:
    raise StoreError("store-timeout")


ITEMS = CompactionItems(SecretStr("pepper"), down)


def text(content: str) -> str:
    return json.dumps({"role": "user", "content": content})


def body_of(*items: Json) -> wire.Body:
    return wire.read(
        json.dumps({"model": "m", "input": [*items, {"role": "user", "content": "go"}]}).encode(), RESPONSES_ENDPOINT
    )


async def taken(**limits: Any) -> Place:
    place = Admission(LimitSettings(**limits), 9, print).place("a")
    await place.take()
    return place


async def opened(*items: Json, most: int = LIMIT, items_of: CompactionItems = ITEMS, tenant: str = "t") -> list[Json]:
    """The list of a request with these items, after they were opened."""
    data = await items_of.opened(body_of(*items), tenant, await taken(), most)
    assert data is not None
    found: list[Json] = json.loads(data)["input"]
    return found


async def refused(*items: Json, most: int = LIMIT) -> str | None:
    with pytest.raises(BadRequest) as raised:
        await opened(*items, most=most)
    assert raised.value.code == "invalid_encrypted_content"
    return raised.value.param


def signed(packed: bytes, length: int) -> Json:
    """An item as one who knows the key would sign it."""
    content = length.to_bytes(8) + packed
    signature = compaction_items._signature(content, "t", ITEMS._key)
    return {"type": "compaction", "encrypted_content": PREFIX + urlsafe_b64encode(signature + content).decode()}


async def test_the_messages_of_an_item_stand_in_its_place() -> None:
    item = await ITEMS.item([text("one"), text("\ud800 two")], "t")
    assert [each["content"] for each in await opened(item)] == ["one", "\ud800 two", "go"]
    assert [each["content"] for each in await opened(await ITEMS.item([], "t"))] == ["go"]


@pytest.mark.parametrize(
    "item",
    [
        signed(b"no zlib", 7),
        signed(zlib.compress(b"{}"), 1),
        signed(zlib.compress(b"{}"), 3),
        signed(zlib.compress(b"x" * MB), 10),
        signed(zlib.compress(b"{}")[:-8], 2),
        signed(b"", 5),
        {"type": "compaction", "encrypted_content": PREFIX + "AAAA"},
    ],
)
async def test_an_item_that_is_not_what_it_says_is_refused(item: Json) -> None:
    assert await refused(item) == "input[0]"


async def test_what_an_item_claims_is_bounded_before_it_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    items = [await ITEMS.item([text(random.Random(seed).randbytes(MB).hex())], "t") for seed in range(3)]
    monkeypatch.delattr(zlib, "decompressobj")
    assert await refused(signed(b"", 2**64 - 1)) == "input[0]"
    assert await refused(*items, most=6 * MB) == "input[2]"
    assert await refused(items[0], items[0]) == "input[1]"
    spelled = {**items[0], "encrypted_content": items[0]["encrypted_content"] + "\n"}
    assert await refused(items[0], spelled) == "input[1]"
    many = [await ITEMS.item([text(str(number))], "t") for number in range(MAX_ITEMS + 1)]
    assert await refused(*many) == f"input[{MAX_ITEMS}]"
    monkeypatch.undo()
    assert len(await opened(*many[1:])) == MAX_ITEMS + 1


@pytest.mark.parametrize("content", ["x" * 20 * MB, "Go on. " * 100_000, "short", random.Random(1).randbytes(MB).hex()])
@pytest.mark.parametrize("number", [1, 3])
async def test_what_was_written_can_be_opened_by_the_tenfold_rule(content: str, number: int) -> None:
    items = [await ITEMS.item([text(content[: len(content) // number] + str(each))], "t") for each in range(number)]
    size = len(body_of(*items).data)
    assert len(await opened(*items, most=most_unpacked(size, LIMIT))) == number + 1


class Door(Admission):
    """Tells when somebody asks to come in."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.asked = asyncio.Event()

    async def enter(self, place: Place) -> None:
        self.asked.set()
        await super().enter(place)


async def test_memory_for_what_is_unpacked_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    item = await ITEMS.item([text(random.Random(1).randbytes(MB).hex())], "t")
    door = Door(LimitSettings(bodies=16 * 3 * MB), 9, print)
    other, place = door.place("b"), door.place("a")
    for each in (other, place):
        each.hold(MB)
        await each.take()
    unpacked: list[int] = []
    real = zlib.decompressobj

    def decompressor() -> Any:
        unpacked.append(len(door.waiting))
        return real()

    monkeypatch.setattr(zlib, "decompressobj", decompressor)
    door.asked.clear()
    opening = asyncio.ensure_future(ITEMS.opened(body_of(item), "t", place, LIMIT))
    await asyncio.wait_for(door.asked.wait(), BOUND)
    assert unpacked == []
    other.leave()
    assert await opening is not None
    assert unpacked == [0]
    place.leave()
    assert (door.memory, door.incoming, door._served) == (0, 0, 0)


async def test_without_a_pepper_the_secret_of_the_store_signs() -> None:
    async def secret() -> bytes:
        return b"drawn"

    one, other = CompactionItems(None, secret), CompactionItems(None, secret)
    item = await one.item([text("kept")], "t")
    assert (await opened(item, items_of=other))[0]["content"] == "kept"
    with pytest.raises(BadRequest):
        await opened(item, items_of=other, tenant="another")
    assert await refused(item) == "input[0]"
    without = CompactionItems(None, down)
    with pytest.raises(StoreError):
        await without.item([text("kept")], "t")
    with pytest.raises(HistoryUnavailable):
        await opened(item, items_of=without)
    quoted = body_of({"role": "user", "content": item["encrypted_content"]})
    assert await without.opened(quoted, "t", await taken(), LIMIT) is None


async def test_an_item_that_was_altered_anywhere_is_refused() -> None:
    item = await ITEMS.item([text("kept")], "t")
    data = urlsafe_b64decode(item["encrypted_content"].removeprefix(PREFIX))
    for at in range(len(data)):
        altered = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        assert await refused({**item, "encrypted_content": PREFIX + urlsafe_b64encode(altered).decode()}) == "input[0]"
