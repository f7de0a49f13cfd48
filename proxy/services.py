"""Services: builds all parts of one app when it starts, and closes them when it stops."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import anyio.lowlevel

from proxy import tool_output_patterns
from proxy.asking import Asking, FinishedCall, Resolver
from proxy.bodies.compaction_items import CompactionItems
from proxy.bodies.measure import Measurer
from proxy.bodies.message_cache import MessageCache
from proxy.bodies.scanning import Bounds
from proxy.callers.budgets import TokenBudget
from proxy.callers.keys import EVERY, Keys, read_revoked
from proxy.callers.operators import Operators
from proxy.callers.tenants import Callers, Tenants, tenant_key
from proxy.condensing.attempt import Attempts
from proxy.condensing.completing import Completer
from proxy.condensing.deciding import Decider
from proxy.condensing.ladder.rung import Parts
from proxy.condensing.making import Maker, PipelineRunner
from proxy.condensing.memory_tool import Searcher
from proxy.condensing.policy import Policies
from proxy.condensing.preparing import Claims, Preparer
from proxy.condensing.recall import Injector, Recall
from proxy.condensing.refusals import Refusals
from proxy.condensing.traits import DECODERS
from proxy.conversations.admin import Admin, MemoryAdmin
from proxy.conversations.keeping import Keeper
from proxy.conversations.noted import NO_SESSION, NOTED, NotedRequest
from proxy.conversations.own import OwnSessions
from proxy.conversations.recognition import Recogniser
from proxy.conversations.stored import StoredSessions
from proxy.conversations.supply import Supplier
from proxy.http.admission import Admission
from proxy.runtime.loops import Loops
from proxy.runtime.owned_tasks import OwnedTasks
from proxy.servers.discovery import Discovered
from proxy.servers.known import Servers
from proxy.servers.upstream import Upstream, server_of
from proxy.servers.upstream.choice import Destination, destinations
from proxy.settings import Settings
from proxy.settings.loading import ControlSettings, model_table
from proxy.settings.token import admin_token
from proxy.store import open_store
from proxy.store.access import timed
from proxy.store.base import Store
from proxy.telemetry import MAX_USED, SHARED, Sums, Telemetry
from proxy.tokens.counter import CountingPool, Tokenizers
from strategies.core.messages import Reader

if TYPE_CHECKING:
    from proxy.log import RequestLine
    from proxy.tracing import Tracing

_log = logging.getLogger(__name__)
POOL_WAIT = (0.2, 1.0)
"""The least and the longest wait in seconds before a request is repeated that found the server's cache full."""


class Services:
    """The parts of an app, built on one store; must be made inside a running event loop.

    A `summarizer` replaces the calls to models. `clock` gives seconds since the epoch.
    """

    def __init__(
        self,
        settings: Settings,
        store: Store,
        loops: Loops,
        clock: Callable[[], float],
        summarizer: Resolver | None = None,
    ) -> None:
        # First what may fail, because a file may be unreadable.
        table = model_table()
        key = tenant_key(settings)
        token = admin_token(settings)
        self.keys = Keys(settings.auth, clock) if settings.auth.mode == "keys" else None
        """The callers' keys; None where callers need none of the proxy's own."""
        self.operators = Operators(token, self.keys)
        self.tenants = Tenants(settings, key, self.keys)
        self.settings, self.clock = settings, clock
        self.tracing = open_tracing() if OTLP in os.environ else None
        self.telemetry = Telemetry(self.tenants.names, settings.currency)
        self.upstream = Upstream(settings.upstream)
        self.store = store = timed(store, self.telemetry.store_timer)
        self.stored = StoredSessions(store, settings.store.timeout, self.telemetry.record_write, DECODERS)
        self.background, self.loops = OwnedTasks(), loops
        self.under_way: set[RequestLine] = set()  # requests to condensed endpoints
        loops.report = partial(self.telemetry.count, "loop_failures_total")
        self.policies = Policies(settings, table, clock)
        self.sums = Sums(self.stored, self.background, clock, self.policies.prices)
        self.counting = CountingPool()
        self.tokenizers = Tokenizers(settings.tokenizer.ranks_dir)
        self.message_cache = MessageCache()
        self._reader = Reader(*tool_output_patterns())
        limits, self.destinations = settings.limits, destinations(settings)
        judging = [each for each in self.destinations if each.judges_callers]
        judging = judging if settings.tenant_source == "credential" else []
        self.callers = Callers(self.upstream, self.stored.facts, self.background, clock, judging)
        self.discovered = {each.base_url: self._discovered(each) for each in self.destinations}
        """What the servers of the upstreams have said, by `base_url`."""
        learning = self.stored.facts, self.background, clock, self.telemetry.record_calibration
        self.servers = Servers(settings, table, self.discovered, *learning)
        self.asking = Asking(
            self.upstream,
            settings.background,
            clock=clock,
            report=self._note_call,
            report_votes=self.telemetry.record_votes,
            known={server_of(base_url): server for base_url, server in self.discovered.items()},
            budget=self._budget("own-tokens", limits.own_tokens_per_minute),
            shared_cache=self.servers.shared_cache,
        )
        self.token_budget = self._budget("tokens", limits.tokens_per_minute)
        """What each tenant may send upstream; None if that is not bounded."""
        self._build_turns(summarizer or self.asking)
        self.admission = self._admission()
        self.admin = Admin(self.stored, self._reader, self.tokenizers, self.tenants.name, self.tenants.named)
        self.memory_admin = MemoryAdmin(self.stored, self._reader, ttl=settings.store.ttl, clock=clock)
        self.compaction_items = CompactionItems(settings.tenant.pepper, self.stored.secret)
        self.own_sessions = OwnSessions(self.stored, self.memory_admin, self._reader, clock)
        self.bounds = Bounds(limits.messages, limits.members, limits.values)  # what one request body may hold
        self.permit = None if settings.controls == ControlSettings() else settings.controls.check
        """Raises `BadRequest` for controls that clients may not set; None if they may set all."""

    def _discovered(self, at: Destination) -> Discovered:
        """What a server is asked for; its list of models with a caller's credential only where there is one tenant."""
        asks, is_one = self.settings.upstream.discover, self.settings.tenant_source == "fixed"
        is_for_one = asks and is_one and at.judges_callers
        return Discovered(at, self.upstream, self.background, self.clock, enabled=asks, is_for_one=is_for_one)

    def _build_turns(self, resolver: Resolver) -> None:
        """The parts that a turn passes through (`proxy/turn/drive.py`)."""
        settings = self.settings
        self.keeper = Keeper(self.stored, ttl=settings.store.ttl, clock=self.clock)
        self.recogniser = Recogniser(self.stored, settings.sessions.headers)
        self._measurer = Measurer(self._reader, self.counting, self.message_cache)
        bounds = settings.upstream.read_timeout, settings.limits.body
        self.supplier = Supplier(self.stored, self.message_cache, self._measurer, *bounds)
        self._recall = Recall()
        self.searcher = Searcher(self._recall, settings.memory, settings.upstream.learned_ttl, self.clock)
        self.completer = Completer(
            policies=self.policies,
            measurer=self._measurer,
            servers=self.servers,
            add_memory=self.searcher.with_memory,
            tasks=self.background,
        )
        self.decider = self._decider(resolver)
        probes = self.servers.quiet if settings.usage_probe else ()
        self.attempts = Attempts(self.keeper, self.stored.outage, self.searcher, probes)
        self.refusals = self._refusals()

    def renew(self, settings: Settings) -> None:
        """Goes on with settings that differ from those before only in what `taken_over` takes over."""
        self.settings = settings
        self.tenants.name_all(settings)
        if self.keys is not None:
            self.keys.know(settings.auth)
        table = model_table()
        self.servers.renew(settings, table)
        self.policies.renew(settings, table)

    def _note_call(self, call: FinishedCall) -> None:
        self.telemetry.record_call(call, self.sums.note_call(call))
        if self.tracing is not None:
            self.tracing.record_call(call)

    def note(self, line: RequestLine) -> None:
        """Counts a request that has ended."""
        amounts, turn, key = line.amounts(), line.turn, NO_SESSION
        if turn is not None and turn.sent.stores:
            key = turn.sent.decision.context.recognised.key
            self.sums.used[key] = None
            if len(self.sums.used) > MAX_USED:
                self.sums.used.pop(next(iter(self.sums.used)))
        self.telemetry.record(line, amounts)
        self.sums.note(amounts)
        if rings := [name for name, amount in NOTED.items() if amounts.get(amount)]:
            record = turn.record if turn is not None else None
            noted = NotedRequest(key, record or line.refused(self.clock()))
            for ring in rings:
                self.sums.noted[ring].append(noted)
        if self.tracing is not None:
            self.tracing.end(line, self.telemetry.model_of(line))

    def _admission(self) -> Admission:
        # Every request with a place then has a connection to the upstream, and waits for nothing else.
        most = min(self.settings.limits.in_flight, self.settings.upstream.max_connections)
        admission = Admission(self.settings.limits, most, partial(self.telemetry.count, "refusals_total"))
        self.telemetry.show("queue", lambda: len(admission.waiting))
        self.telemetry.show("in_flight", lambda: len(self.under_way))
        self.telemetry.show("background_tasks", lambda: self.background.number)
        return admission

    def _budget(self, name: str, per_minute: int) -> TokenBudget | None:
        if not per_minute:
            return None
        timeout = self.settings.store.timeout / 4  # beside what a request waits for its session
        report = partial(self.telemetry.count, "refusals_total")
        return TokenBudget(name, per_minute, self.store, self.stored.outage, self.background, timeout, report)

    def _decider(self, resolver: Resolver) -> Decider:
        settings, tasks, clock, keeper = self.settings, self.background, self.clock, self.keeper
        runner = PipelineRunner(resolver, tasks, clock, self.asking.expected_seconds, self.servers.shared_cache)
        maker = Maker(runner, keeper, tasks, clock)
        preparer = Preparer(
            maker=maker,
            runner=runner,
            keeper=keeper,
            claims=Claims(self.stored),
            tasks=tasks,
            counted=self.completer.with_counts,
            clock=clock,
            allowance=settings.background.allowance,
        )
        return Decider(maker, preparer, keeper, Injector(self._recall), settings.inline_timeout)

    def _refusals(self) -> Refusals:
        decider, report = self.decider, self.telemetry.record_overflow
        pause = lambda: asyncio.sleep(random.uniform(*POOL_WAIT))  # noqa: E731, S311
        made = decider.smaller, self.completer.with_counts, decider.timeout
        parts = Parts(self.servers, self.policies, self.attempts, *made, pause)
        return Refusals(parts, report)


OTLP = "OTEL_EXPORTER_OTLP_ENDPOINT"
"""The environment variable with the address to which spans and metrics go; without it there are none."""


def open_tracing() -> Tracing | None:
    """The spans; None and a warning if the extra is missing, because the address may be meant for other programs."""
    try:
        from proxy.tracing import Tracing  # noqa: PLC0415 - most installations have no use for it
    except ImportError:
        _log.warning("%s is set, but nothing is sent: pip install 'condenser-proxy[otel]'", OTLP)
        return None
    return Tracing()


@asynccontextmanager
async def open_services(
    settings: Settings,
    *,
    store: Store | None = None,
    summarizer: Resolver | None = None,
    clock: Callable[[], float] = time.time,
) -> AsyncIterator[Services]:
    """The parts of an app while it runs. A `store` that is passed in is not closed."""
    async with AsyncExitStack() as stack:
        loops = Loops()
        if store is None:
            most, of_tenant = settings.store.max_session_bytes, settings.store.max_tenant_bytes
            store = await open_store(
                settings.store.url,
                clock=clock,
                max_session_bytes=most,
                max_tenant_bytes=of_tenant,
                keys=settings.store.encryption_keys,
                loops=loops,
            )
            stack.push_async_callback(store.close)
        stack.push_async_callback(loops.close)
        # httpx imports modules at its first use, which would delay concurrent requests by 16 ms.
        await anyio.lowlevel.checkpoint()
        built = Services(settings, store, loops, clock, summarizer)
        if built.tracing is not None:
            stack.push_async_callback(asyncio.to_thread, built.tracing.close)
        stack.push_async_callback(built.upstream.close)
        stack.callback(built.counting.close)
        stack.push_async_callback(built.stored.close)
        if SHARED in os.environ:
            stack.push_async_callback(built.telemetry.share)  # what it has counted stays when a worker ends
        stack.push_async_callback(built.sums.write)
        stack.push_async_callback(built.background.close)
        if built.keys is not None:
            step = partial(read_revoked, built.keys, built.stored.in_time, store, built.stored.outage)
            await loops.start("revoked-keys", EVERY, step)
        # Where nobody reads the metrics, what waits for them is not to grow.
        await loops.start("metrics", 1 if SHARED in os.environ else 60, built.telemetry.share)
        # Says now if tokens can only be estimated; the encoding itself is loaded when something is first counted.
        await asyncio.to_thread(built.tokenizers.encoder)
        if settings.store.encryption_old_keys:
            built.background.own(store.reseal())
        yield built
