"""A process: a bounded map of what it keeps, tasks that end as they must, and an event loop that stays free."""

import asyncio
import threading
from typing import Any

import pytest

from proxy.runtime.lru import Lru
from proxy.runtime.owned_tasks import LARGE, MESSAGE_TOKENS, OwnedTasks, message_load, next_step, offload
from tests.support.signals import BOUND

pytestmark = pytest.mark.timeout(BOUND)


class Steps:
    """Work that waits for a gate, and says how far it has come."""

    def __init__(self) -> None:
        self.begun, self.gate = asyncio.Event(), asyncio.Event()
        self.is_done = False

    async def work(self) -> str:
        self.begun.set()
        await self.gate.wait()
        self.is_done = True
        return "done"


async def test_what_must_be_finished_is_though_its_caller_is_cancelled() -> None:
    tasks: OwnedTasks = OwnedTasks()
    steps = Steps()
    caller = asyncio.create_task(waiting(tasks.own(steps.work(), to_its_end=True)))
    await steps.begun.wait()
    caller.cancel()
    await asyncio.wait({caller})
    assert caller.cancelled()
    steps.gate.set()
    await tasks.idle()
    assert steps.is_done


async def waiting(task: asyncio.Task[Any]) -> None:
    """Waits for what others have begun, and may leave it alone."""
    await asyncio.wait({task})


async def test_closing_waits_for_what_must_be_finished() -> None:
    tasks: OwnedTasks = OwnedTasks()
    finished, ended = Steps(), Steps()
    tasks.own(finished.work(), to_its_end=True)
    tasks.start(ended.work())
    await finished.begun.wait()
    await ended.begun.wait()
    closing = asyncio.create_task(tasks.close())
    finished.gate.set()
    await closing
    assert (finished.is_done, ended.is_done) == (True, False)
    await tasks.idle()


async def test_what_is_started_while_the_app_closes_ends_with_it() -> None:
    tasks: OwnedTasks = OwnedTasks()
    late = Steps()

    async def work() -> None:
        tasks.start(late.work())

    tasks.own(work(), to_its_end=True)
    await tasks.close()
    await tasks.idle()
    assert not late.is_done


async def test_an_app_closes_right_after_the_last_step_of_a_task() -> None:
    tasks: OwnedTasks = OwnedTasks()
    steps = Steps()
    steps.gate.set()
    task = tasks.own(steps.work())
    await asyncio.sleep(0)
    assert task.done()
    await tasks.close()
    await tasks.idle()


async def test_a_defect_in_work_whose_caller_has_left_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    tasks: OwnedTasks = OwnedTasks()
    steps = Steps()

    async def defective() -> None:
        await steps.work()
        raise ZeroDivisionError

    caller = asyncio.create_task(waiting(tasks.own(defective())))
    await steps.begun.wait()
    caller.cancel()
    steps.gate.set()
    await asyncio.wait({caller})
    await tasks.idle()
    assert "ZeroDivisionError" in caplog.text


async def test_work_of_a_key_knows_whether_anybody_waits_for_it() -> None:
    tasks: OwnedTasks = OwnedTasks()
    steps, waiters, told = Steps(), tasks.waiters("key"), asyncio.Event()
    tasks.start(steps.work(), "key")
    now = asyncio.get_running_loop().time()
    with waiters.notifying(told.set):
        assert await tasks.result_of("key", now) is None
        told.clear()
        waiting = asyncio.create_task(tasks.result_of("key", now + BOUND))
        await told.wait()
    assert waiters.any
    assert not tasks.waiters("another").any
    steps.gate.set()
    assert await waiting == "done"
    assert not waiters.any


async def test_work_on_many_or_long_messages_goes_to_a_thread() -> None:
    for messages, tokens in ((3, 100), (LARGE - 1, LARGE * MESSAGE_TOKENS - 1)):
        assert await offload(message_load(messages, tokens), threading.get_ident) == threading.get_ident()
    for messages, tokens in ((LARGE, 0), (3, LARGE * MESSAGE_TOKENS)):
        assert await offload(message_load(messages, tokens), threading.get_ident) != threading.get_ident()


async def test_in_each_turn_of_the_loop_one_request_makes_a_step() -> None:
    turn, steps, loop = 0, list[int](), asyncio.get_running_loop()

    def count() -> None:
        nonlocal turn
        turn += 1
        ticking[0] = loop.call_soon(count)

    async def work() -> None:
        for _ in range(5):
            await next_step()
            steps.append(turn)

    ticking = [loop.call_soon(count)]
    await asyncio.gather(*(work() for _ in range(8)))
    ticking[0].cancel()
    assert len(steps) == 40
    assert max(steps.count(each) for each in set(steps)) == 1


def filled(most: int, *keys: str) -> Lru[str, str]:
    kept: Lru[str, str] = Lru(most)
    for key in keys:
        kept.put(key, key.upper())
    return kept


def test_the_least_used_values_go_first_and_false_ones_stay() -> None:
    kept = filled(2, "a", "b", "c")
    assert dict(kept.items()) == {"b": "B", "c": "C"}
    assert kept.get("a") is None
    kept = filled(3, "a", "b", "c")
    kept.put("a", "again")
    assert kept.use("b") == "B"
    kept.get("c")
    kept.put("d", "D")
    assert dict(kept.items()) == {"a": "again", "b": "B", "d": "D"}


def test_a_value_that_is_false_is_kept_as_well_as_any_other() -> None:
    kept: Lru[str, int] = Lru(1)
    kept.put("a", 0)
    assert kept.use("a") == 0


def test_values_are_bounded_by_size_each_counted_once() -> None:
    kept: Lru[str, str] = Lru(10)
    kept.put("a", "A", 4)
    kept.put("b", "B", 4)
    assert kept.use("a") == "A"
    kept.put("c", "C", 4)
    assert [kept.use(key) for key in "abc"] == ["A", None, "C"]
    kept.put("large", "L", 11)
    assert [kept.use(key) for key in ("a", "c", "large")] == [None, None, "L"]
    kept = Lru(10)
    kept.put("a", "A", 3)
    for _ in range(5):
        kept.put("b", "B", 7)
    assert [kept.use(key) for key in "ab"] == ["A", "B"]
