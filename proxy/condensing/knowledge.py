"""What upstreams have taught this process and others: windows, refused forms, and how it counts.

Before a request, `refresh` reads the lessons of other processes, now and then and in the background. Only the first
request for a model waits for them, and not for long: all are read at once, within the request's patience with the
store. A request that is `off` does not wait at all. After a reply, its usage teaches how the upstream counts; a refusal
teaches a window, a size or a form.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

from proxy.condensing.policy import Policies, Server, Window
from proxy.condensing.turn import Decision, RequestContext
from proxy.endpoints.replies import Usage
from proxy.knowledge.anchor import Anchor
from proxy.knowledge.calibrator import Calibrator
from proxy.knowledge.learned_windows import REFUSED_FOR, SOURCE, LearnedWindows, SizeRefused
from proxy.knowledge.profiles import MAX_MODELS, LessonScope, Profiles, WindowLookup
from proxy.overflow import Refusal
from proxy.request.wire import ClientRequest
from proxy.runtime.lru import Lru
from proxy.runtime.owned_tasks import OwnedTasks
from proxy.sessions.recognition import Recognised
from proxy.store.access import Patience
from proxy.tokens.counter import Tokenizers

FIRST_LOOK = 0.25  # seconds
Usable = Callable[[int, str, int | None], int]
"""Gives how much of a window a prompt may use, for a model and a reply limit."""
_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Pool:
    """The cache that requests to a server share, and the tokens that each holds of it."""

    held: dict[object, int] = field(default_factory=dict)
    _freed: asyncio.Event = field(default_factory=asyncio.Event)

    async def take(self, holder: object, tokens: int, size: int) -> None:
        """Returns when a request holds so many of `size` tokens, in place of what it held before."""
        self.release(holder)
        while self.held and sum(self.held.values()) + tokens > size:
            await self._freed.wait()
        self.held[holder] = tokens

    def release(self, holder: object) -> None:
        if self.held.pop(holder, None) is not None:
            self._freed.set()
            self._freed = asyncio.Event()


@dataclass(slots=True, eq=False)
class Knowledge:
    """What is known of the upstreams; one per app. `stated` gives the window that a server stated, once `asked`."""

    policies: Policies
    tokenizers: Tokenizers

    learned: LearnedWindows
    calibrator: Calibrator
    profiles: Profiles
    tasks: OwnedTasks
    clock: Callable[[], float]
    stated: WindowLookup
    asked: Callable[[LessonScope], Awaitable[object]]
    shared_pools: Lru[LessonScope, Pool] = field(default_factory=lambda: Lru(MAX_MODELS))
    """Those of the models whose server has shown that requests share its cache, by an error that the cache is full.

    A pool is that of all tenants, because it only has requests wait for each other, and keeps calls of our own back.
    """

    async def server(self, asked: ClientRequest, patience: Patience) -> Server:
        """What is known of the server of a request; only the first request for a model waits for the store."""
        endpoint, controls = asked.body.endpoint, asked.controls
        scope = LessonScope(asked.model, asked.tenant, asked.upstream.base_url)
        counter = self.tokenizers.for_model(asked.model, endpoint.counter, asked.tenant)
        waits = not self.policies.is_off(controls, asked.model)
        await self.refresh(scope, counter.cache_key, patience, waits=waits)
        pays = partial(asked.upstream.charges, asked.headers, is_login=asked.trust.is_claimed)
        is_long = endpoint.asks_for_long(asked.headers)
        basis = self.policies.basis(controls.window, scope, is_long=is_long, pays=pays)
        return Server(counter, basis, self.calibrator.hidden(scope, counter.cache_key))

    def in_session(self, server: Server, asked: ClientRequest, recognised: Recognised) -> Server:
        """The same with what the session knows besides."""
        size = self.size_refused(asked, recognised)
        if size is None:
            return server
        return server._replace(basis=server.basis._replace(size_refused=size.tokens), size_refused=size)

    async def refresh(self, scope: LessonScope, counter: str, patience: Patience, *, waits: bool) -> None:
        """Reads what other processes have learned of a model, if it is time to."""
        first_reads = [*self.learned.refresh(scope), *self.calibrator.refresh(scope, counter)]
        if first_reads and waits:
            clock = asyncio.get_running_loop().time
            began = clock()
            for key in first_reads:
                await self.tasks.result_of(key, began + min(FIRST_LOOK, patience.remaining))
            patience.spend(clock() - began)

    def learn_from_usage(self, decision: Decision, usage: Usage) -> Anchor | None:
        """Learns from the usage of a complete reply; returns the anchor for the next request of its branch."""
        context = decision.context
        shares = not context.request.controls.no_store
        self.learned.accepted(context.request.lesson_scope, usage.prompt, shares=shares)
        if not shares:
            return None
        applied = decision.applied.id if decision.applied else ""
        return self.calibrator.learn(context.prompt, context.calibrated, decision.view, applied, usage.prompt)

    # -- refusals for length -----------------------------------------------------------------------------

    def window_after(self, refusal: Refusal, decision: Decision) -> Window:
        """The window that holds after a refusal for length.

        One that is set stands. Else the window that the refusal states is learned if nothing smaller is known, but not
        from one who only claims to be of its tenant.
        """
        window, request = decision.context.policy.window, decision.context.request
        if refusal.window is None or window.is_set:
            return window
        window = window.lowered(refusal.window)
        if window.source == SOURCE and (request.trust.accepted or not request.trust.is_claimed):
            self.learned.learn(request.lesson_scope, refusal.window, shares=not request.controls.no_store)
        return window

    def size_after(self, refusal: Refusal, decision: Decision, usable: Usable) -> SizeRefused | None:
        """The size that bounds a session after a refusal for length; None if none does.

        A refusal without a number teaches it, and one with a smaller window than the one that is set; one without words
        teaches nothing. `usable` gives how much of a window a prompt may use.
        """
        context, window = decision.context, decision.context.policy.window
        known, request = context.size_refused, context.request
        if (
            refusal.is_silent
            or not decision.context.policy.rewrites
            or (refusal.window is not None and not window.is_set)
        ):
            return known
        size = decision.expected_tokens
        if refusal.window is not None:
            if window.tokens is not None and window.tokens <= refusal.window:
                return known
            size = usable(refusal.window, request.model, request.body.envelope.reply_limit)
        size = min(size, known.tokens) if known is not None else size
        text = "a prompt of %d tokens was refused for %s; for an hour, prompts of session %s have at most %d"
        _log.warning(text, decision.expected_tokens, request.lesson_scope.named, decision.session, size)
        return SizeRefused(request.model, size, self.clock() + REFUSED_FOR, request.upstream.base_url)

    def size_refused(self, request: ClientRequest, recognised: Recognised) -> SizeRefused | None:
        """The size refused that bounds a session now."""
        session = recognised.session
        size = session.size_refused if session else self.learned.sizes.get((request.lesson_scope, recognised.shown_id))
        if size is None or (size.model, size.upstream) != (request.model, request.upstream.base_url):
            return None
        return size if size.until > self.clock() else None

    def keep_size(self, context: RequestContext, size: SizeRefused | None) -> None:
        """Keeps the size refused of a session that is not stored, in this process."""
        key = context.request.lesson_scope, context.recognised.shown_id
        if size is None:
            self.learned.sizes.forget(key)
        elif not context.request.controls.no_store:
            self.learned.sizes.put(key, size)

    def is_full_pool(self, refusal: Refusal, decision: Decision) -> bool | None:
        """Whether an error of the server says that its cache is full of other requests, not that this one is too long.

        It does if it names no number and the request fits the window that the server states. None if the server states
        none, or only a ceiling, so nobody knows.
        """
        if refusal.window is not None or not refusal.is_server_error:
            return False
        request = decision.context.request
        stated = self.stated(request.lesson_scope)
        if stated is None or stated.is_ceiling:
            return None
        return decision.expected_tokens + (request.body.envelope.reply_limit or 0) <= stated.window

    async def take_room(self, decision: Decision, usable: Usable, *, alone: bool) -> None:
        """Returns when a request fits beside those under way into the cache that they share, or has it `alone`."""
        request = decision.context.request
        pool = self.shared_pools.get(request.lesson_scope._replace(tenant=""))
        size, held_until = self.shared_cache(request.lesson_scope), request.until_answered
        if pool is None or size is None or held_until is None:
            return
        reply = size - usable(size, request.model, request.body.envelope.reply_limit)
        await pool.take(held_until, size if alone else min(decision.expected_tokens + reply, size), size)
        held_until.callback(pool.release, held_until)

    def shared_cache(self, scope: LessonScope) -> int | None:
        """The window of a model, in tokens, if its server has shown that requests share one cache of that size."""
        stated = self.stated(scope) if scope._replace(tenant="") in self.shared_pools else None
        return stated and stated.window
