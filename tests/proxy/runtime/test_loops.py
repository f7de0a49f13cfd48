"""Loops of the background: none ends with a step that fails, and one that hangs is named."""

import asyncio
from pathlib import Path

import pytest

from proxy.operator.routes import readiness
from proxy.runtime.loops import STANDING, Loops
from proxy.services import open_services
from proxy.settings import load_settings
from tests.support.virtual_time import Clock


async def test_a_step_that_fails_is_logged_once_counted_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    failed: list[str] = []
    loops, left, done = Loops(failed.append), [ValueError("odd"), KeyError("odd")], asyncio.Event()

    async def step() -> float:
        if left:
            raise left.pop(0)
        done.set()
        return 60

    await loops.start("revoked-keys", 0, step)
    await done.wait()
    await asyncio.sleep(0)
    assert failed == ["revoked-keys"] * 2
    first, last = (record.getMessage() for record in caplog.records)
    assert first == "the loop revoked-keys failed, and goes on"
    assert last == "the loop revoked-keys works again, after 2 failures"
    assert "odd" in caplog.text
    assert loops.standing() == []
    await loops.close()


async def test_a_loop_that_stands_still_is_named_by_readiness(tmp_path: Path) -> None:
    turns, clock = iter((0.0,)), Clock(0.0)
    stuck = asyncio.Event()

    async def step() -> float:
        for pause in turns:
            return pause
        stuck.set()
        await asyncio.Event().wait()
        return 0

    async def at_rest() -> None:
        pass

    settings = load_settings(
        store={"url": f"sqlite:///{tmp_path}/s.db"}, upstream={"base_url": "http://127.0.0.1:9/v1"}
    )
    async with open_services(settings) as services:
        services.loops.clock = clock
        await services.loops.start("at-rest", 600, at_rest)
        await services.loops.start("stuck", 0, step)
        await stuck.wait()
        assert (await readiness(services))["standing_still"] == []
        clock.now += STANDING + 1
        found = await readiness(services)
        assert (found["status"], found["standing_still"]) == ("degraded", ["stuck"])
