"""The proxy's own calls to models: summaries, votes and embeddings, each from the model that the settings name.

lanes       when a call that no client waits for may be made, per server
dispatch    the dispatcher that every call passes: lane, whose credential it carries and how long, timeout
calls       one question to one server, ballots of several, and the vectors of texts
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from proxy.asking.calls import Embedded, Embeddings, ModelCalls, Roles, poll, question_for
from proxy.asking.dispatch import Caller, Dispatcher, FinishedCall
from proxy.asking.lanes import Lanes
from proxy.settings.tables import BackgroundSettings, ModelRole
from proxy.upstream import Upstream
from strategies.core.effects import Ask, Effect, Failure, Result

__all__ = ["Asking", "Caller", "FinishedCall", "Resolver", "Roles"]


class Resolver(Protocol):
    """Resolves the effects that a strategy yields."""

    async def resolve(self, effects: Sequence[Effect], roles: Roles, caller: Caller) -> tuple[Result, ...]:
        """One result for each effect; failures are results too."""
        ...


class Asking:
    """Calls models; one per app. `on_call` is given every call when it has ended.

    `clock` gives seconds since the epoch. With `own_key` requests carry the operator's key instead of the caller's.
    `is_serial` says whether the upstream is known to do one thing at a time.
    """

    def __init__(
        self,
        upstream: Upstream,
        background: BackgroundSettings | None = None,
        *,
        own_key: bool = False,
        clock: Callable[[], float] = time.time,
        on_call: Callable[[FinishedCall], None] | None = None,
        is_serial: Callable[[], bool] = lambda: False,
    ) -> None:
        own = upstream.server(None)
        lanes = Lanes(background or BackgroundSettings(), clock, lambda server: server == own and is_serial())
        self.lane = lanes.to(own)
        """The lane of the upstream itself, which also hears of clients' requests."""
        dispatcher = Dispatcher(upstream, lanes, clock, on_call, own_key)
        self._calls = ModelCalls(upstream, dispatcher)
        self._embeddings = Embeddings(upstream, dispatcher)

    async def resolve(self, effects: Sequence[Effect], roles: Roles, caller: Caller) -> tuple[Result, ...]:
        """One result for each effect, all asked for at the same time; failures are results too.

        Failures: `timeout`, `unreachable`, `rate-limited`, `http-error`, `unreadable`; in the background also `paused`,
        where a call did not get its turn in time, and `expired`, where the caller's credential was too old by then.
        """
        return tuple(await asyncio.gather(*(self._one(effect, roles, caller) for effect in effects)))

    async def embed(self, texts: Sequence[str], role: ModelRole, caller: Caller) -> Embedded | Failure:
        """The vectors of texts, from the model of a role.

        Failures are those of `resolve`, and `server-error` where the server cannot answer now, for example while it
        loads the model.
        """
        return await self._embeddings.embed(texts, role, caller)

    async def _one(self, effect: Effect, roles: Roles, caller: Caller) -> Result:
        if not isinstance(effect, Ask):
            return await poll(effect, roles, caller, self._calls)
        reply = await self._calls.ask(question_for(effect, roles, caller), caller)
        return reply if isinstance(reply, Failure) else reply.answers[0]
