"""Long work on the event loop goes on in steps, of which one is made in each turn of the loop."""

from __future__ import annotations

import asyncio

import pytest

from proxy.runtime.owned_tasks import next_step

pytestmark = pytest.mark.anyio


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
