"""What holds room in a cache that slots may share, and who waits for whom."""

import asyncio

from proxy.runtime.owned_tasks import OwnedTasks
from proxy.servers.shared_cache import SharedCache


async def nobody_works() -> int:
    return 0


async def is_taken(cache: SharedCache, holder: str, tokens: int, *, is_own: bool = False) -> asyncio.Task[None]:
    """A task that takes room, once it has it or waits."""
    task = asyncio.create_task(cache.take(holder, tokens, is_own=is_own))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return task


async def test_an_own_call_waits_until_it_fits_beside_all_that_is_under_way() -> None:
    cache = SharedCache(nobody_works, OwnedTasks(), size=100)
    for client in ("one", "another"):  # which may not share it, so they do not wait for each other
        assert (await is_taken(cache, client, 60)).done()
    own = await is_taken(cache, "own", 40, is_own=True)
    assert not own.done()
    cache.release("one")
    await own
    cache.release("own")
    larger = await is_taken(cache, "larger", 41, is_own=True)
    assert not larger.done()
    larger.cancel()


async def test_a_client_waits_until_it_fits_beside_own_calls() -> None:
    cache = SharedCache(nobody_works, OwnedTasks(), size=100)
    await cache.take("own", 60, is_own=True)
    assert (await is_taken(cache, "small", 40)).done()
    large = await is_taken(cache, "large", 41)
    assert not large.done()
    cache.release("own")
    await large


async def test_clients_wait_for_each_other_where_a_shared_cache_was_full() -> None:
    cache = SharedCache(nobody_works, OwnedTasks(), size=100, is_shown=True)
    await cache.take("one", 60)
    waiting = await is_taken(cache, "another", 1_000)  # alone it is sent, whatever it takes
    assert not waiting.done()
    cache.release("one")
    await waiting


async def test_a_call_that_was_hung_up_keeps_its_room_until_the_server_is_free() -> None:
    said, tasks = [1, 0], OwnedTasks()  # slots that work

    async def busy() -> int:
        return said.pop(0)

    cache = SharedCache(busy, tasks, size=100)
    await cache.take("own", 100, is_own=True)
    cache.release("own", hung_up=True)
    client = await is_taken(cache, "client", 50)
    assert not client.done()
    await client
    assert said == []
    await tasks.close()


async def test_who_waits_takes_no_more_than_a_server_that_was_started_anew_has() -> None:
    cache = SharedCache(nobody_works, OwnedTasks(), size=100, is_shown=True)
    await cache.take("one", 100)
    waiting = await is_taken(cache, "another", 90)
    cache.size = 50
    cache.release("one")
    await asyncio.wait_for(waiting, 5)
    assert (await is_taken(cache, "none beside it", 1)).cancel()


async def test_a_call_that_was_hung_up_gives_its_room_back_whatever_fails() -> None:
    async def fails() -> int:
        raise RuntimeError

    tasks = OwnedTasks()
    cache = SharedCache(fails, tasks, size=100)
    await cache.take("own", 100, is_own=True)
    cache.release("own", hung_up=True)
    await tasks.idle()
    assert (await is_taken(cache, "client", 100)).done()
