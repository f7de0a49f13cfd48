"""Running a pipeline: effects are resolved, failures become reasons, and time is bounded."""

import asyncio
import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import pytest

from proxy.asking import Asking, Caller
from proxy.condensing.making import PipelineRunner, Run, RunResult
from proxy.condensing.policy import Policies, Policy
from proxy.controls import Controls
from proxy.protocols.chat import ChatCounter
from proxy.runtime.owned_tasks import OwnedTasks
from proxy.servers import LessonScope
from proxy.servers.shared_cache import SharedCache
from proxy.servers.upstream import Upstream
from proxy.servers.upstream.choice import DEFAULTS, Destination
from proxy.settings import Settings
from proxy.settings.tables import UpstreamSettings
from proxy.tokens.counter import Tokenizers
from strategies import parse
from strategies.core.budget import Budget, Scale
from strategies.core.condensation import Replayed
from strategies.core.messages import Reader
from strategies.core.protocol import SessionFacts, Steps, Strategy
from strategies.core.requirement import Requirement
from strategies.core.transcript import Transcript
from strategies.core.view import View, fold
from tests.support.servers import TABLE, server_of
from tests.support.stage import WINDOW, chat, summary
from tests.support.upstream import ScriptedUpstream

CALLER = Caller("m", DEFAULTS[0], [])


class Broken(Strategy):
    """A strategy with a defect."""

    name: ClassVar[str] = "broken"
    asks: ClassVar[bool] = False

    def condense(self, view: View, budget: Budget, session: SessionFacts) -> Steps:
        """Fails as only a defect does."""
        yield from ()
        raise ZeroDivisionError


def view(rounds: int) -> View:
    counter, reader = Tokenizers().for_model("m", ChatCounter), Reader()
    read = [reader.read(json.dumps(each), each, counter.message(each), counter.dialect) for each in chat(rounds)]
    return fold(Transcript.of(read), (), 10, counter)


def policy(strategy: str = "half-window", window: int | None = WINDOW) -> Policy:
    found = parse(strategy)
    assert found
    settings = Settings(window=window)
    return Policies(settings, TABLE, lambda: 0.0).policy(Controls(strategy=found), {}, server_of(settings))


async def attempt(
    upstream: ScriptedUpstream,
    *,
    using: Policy | None = None,
    rounds: int = 12,
    caller: Caller | None = CALLER,
    expected: float = 0.0,
    shared_cache: Callable[[LessonScope], SharedCache | None] = lambda _: None,
) -> RunResult:
    client = Upstream(UpstreamSettings())
    caller = caller and replace(caller, upstream=Destination("up", upstream.base_url))
    deadline = asyncio.get_running_loop().time() + 10.0
    chosen = using or policy()
    run = Run(Requirement.HARD, Replayed(view(rounds), None), chosen, chosen.budget, SessionFacts(), started=0.0)
    try:
        runner = PipelineRunner(Asking(client), OwnedTasks(), time.time, lambda *_, **__: expected, shared_cache)
        return await (runner.project(run) if caller is None else runner.run_until(deadline, run, caller))
    finally:
        await client.close()


async def test_a_long_prompt_for_a_shared_cache_is_counted_in_a_thread(upstream: ScriptedUpstream) -> None:
    upstream.reply(summary())
    threads: list[threading.Thread] = []

    class Watched(SharedCache):
        def __getattribute__(self, name: str) -> object:
            if name == "is_shown":
                threads.append(threading.current_thread())
            return super().__getattribute__(name)

    async def busy() -> int:
        return 0

    shared_cache = Watched(busy, OwnedTasks(), size=10_000)
    await attempt(upstream, rounds=100, using=policy(window=10_000), shared_cache=lambda _: shared_cache)
    assert threads
    assert threading.main_thread() not in threads


async def test_a_window_without_room_for_a_record_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    client, chosen = Upstream(UpstreamSettings()), policy(window=2_048)
    assert chosen.budget is not None
    small = replace(chosen.budget, prompt_window=128)
    runner = PipelineRunner(Asking(client), OwnedTasks(), time.time, lambda *_: 0.0, lambda _: None)
    for slope in (1.0, 1.2, 1.3):  # as the upstream's count becomes known
        budget = small.scaled(Scale(slope=slope))
        await runner.project(Run(Requirement.HARD, Replayed(view(12), None), chosen, budget, SessionFacts(), 0.0))
    await client.close()
    assert caplog.text.count("has no room") == caplog.text.count("a window of 2048 tokens has no room") == 1


async def test_a_projected_text_is_accepted_like_a_real_one(upstream: ScriptedUpstream) -> None:
    for window in (2_048, WINDOW, 6_000, 8_192, 16_384, 32_768):
        found = await attempt(upstream, using=policy(window=window), rounds=window // 340, caller=None)
        assert found.condensation is not None
        assert found.condensation.metadata["stages"][0] == "half-window", (window, found.reason)
        assert (found.asked_model, found.own_tokens) == (True, 0)
    assert len(upstream.journal) == 0


async def test_an_answer_that_would_come_too_late_is_not_waited_for(upstream: ScriptedUpstream) -> None:
    found = await attempt(upstream, expected=11.0)
    assert found.condensation is not None
    assert (found.reason, found.late) == ("summary-timeout", None)
    assert len(upstream.journal) == 0


async def test_the_ladder_makes_room_after_a_defect(
    upstream: ScriptedUpstream, caplog: pytest.LogCaptureFixture
) -> None:
    found = await attempt(upstream, using=policy()._replace(stages=[Broken()]))
    assert found.reason == "internal-error"
    assert "ZeroDivisionError" in caplog.text
    assert found.condensation is not None
    assert found.condensation.tokens_after < WINDOW
