"""Shared by the tests of asking: a clock that tests move, an `Asking` in front of a scripted upstream, a caller."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from proxy.asking import Asking, Caller, FinishedCall
from proxy.servers.upstream import Upstream
from proxy.servers.upstream.choice import Destination
from proxy.settings.tables import BackgroundSettings, JudgeRole, ModelRole, SummarizerRole, UpstreamSettings
from strategies.core.effects import JUDGE, SUMMARIZER, Answer, Ask, Ballot, Effect, Result, Votes
from tests.support.virtual_time import Clock

ASK = Ask("Write it down.", "<history>", 500)
HEADERS = [(b"authorization", b"Bearer sk-1"), (b"openai-project", b"p"), (b"openai-organization", b"o")]
HEADERS += [(b"openai-beta", b"b"), (b"cookie", b"c"), (b"accept", b"*/*")]
NOWHERE = Destination("upstream", "")
"""The upstream of the callers below, before `asking` says where it is."""
CALLER = Caller("m", NOWHERE, HEADERS)
LATER = replace(CALLER, background=True)


class RecordedAsking:
    """An `Asking`, and every call that it has reported."""

    def __init__(self, asking: Asking, upstream: Destination, calls: list[FinishedCall]) -> None:
        self.asking = asking
        self.upstream = upstream
        self.lane = asking.lane_of(upstream.base_url)
        self.calls = calls

    async def ask(
        self, *effects: Effect, role: ModelRole | None = None, judge: ModelRole | None = None, caller: Caller = CALLER
    ) -> tuple[Result, ...]:
        """The results of effects, by default of one question."""
        roles = {SUMMARIZER: role or SummarizerRole(), JUDGE: judge or JudgeRole()}
        return await self.asking.resolve(effects or (ASK,), roles, replace(caller, upstream=self.upstream))

    async def votes(self, ballot: Ballot, *, judge: ModelRole | None = None, caller: Caller = CALLER) -> Votes:
        (found,) = await self.ask(ballot, judge=judge, caller=caller)
        assert isinstance(found, Votes)
        return found

    async def answer(self, *effects: Effect, role: ModelRole | None = None, caller: Caller = CALLER) -> Answer:
        (found,) = await self.ask(*effects, role=role, caller=caller)
        assert isinstance(found, Answer)
        return found

    @property
    def failures(self) -> Sequence[str]:
        """How the calls failed, in the order in which they ended; empty for one that did not."""
        return [call.failure for call in self.calls]


@asynccontextmanager
async def asking(
    base_url: str,
    *,
    clock: Callable[[], float] | None = None,
    own_key: bool = False,
    then: Callable[[], None] | None = None,
    **background: Any,
) -> AsyncIterator[RecordedAsking]:
    """An `Asking` whose upstream is at `base_url`; `background` are settings of the lanes.

    `then` is called when a call has ended and was reported.
    """
    calls: list[FinishedCall] = []

    def record(call: FinishedCall) -> None:
        calls.append(call)
        if then is not None:
            then()

    client = Upstream(UpstreamSettings())
    try:
        yield RecordedAsking(
            Asking(client, BackgroundSettings(**background), clock=clock or Clock(), report=record),
            Destination("upstream", base_url, "sk-operator" if own_key else None),
            calls,
        )
    finally:
        await client.close()
