"""Services: builds all parts of one app when it starts, and closes them when it stops."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from typing import NamedTuple

import anyio.lowlevel

from proxy.asking import Asking, Resolver
from proxy.calibration.calibrator import Calibrator
from proxy.condenser import Condenser
from proxy.condensing.deciding import Decider
from proxy.condensing.inject import Injector
from proxy.condensing.intake import Intake
from proxy.condensing.judging import Judges
from proxy.condensing.knowledge import Knowledge
from proxy.condensing.leases import Leases
from proxy.condensing.making import Maker
from proxy.condensing.policies import Policies
from proxy.condensing.preparing import Preparer
from proxy.condensing.recall import Recall
from proxy.condensing.restoring import Restorer
from proxy.condensing.running import PipelineRunner
from proxy.condensing.searching import Searcher
from proxy.control_names import KEYS
from proxy.discovery import Discovered
from proxy.http.admission import Admission
from proxy.http.headers import lowered_names
from proxy.learning.learned_windows import LearnedWindows
from proxy.learning.profiles import Profiles
from proxy.memory.admin import MemoryAdmin
from proxy.memory.meaning import Meanings
from proxy.request.callers import AUTHORIZATION, Callers, Tenants, tenant_key
from proxy.request.controls import Permits
from proxy.request.measure import Measurer
from proxy.request.message_cache import MessageCache
from proxy.request.scanning import Bounds
from proxy.resources import config_directory, tool_output_patterns
from proxy.runtime.owned_tasks import OwnedTasks
from proxy.sessions.admin import Admin
from proxy.sessions.keeping import Keeper
from proxy.sessions.recognition import Recogniser
from proxy.sessions.stored import StoredSessions
from proxy.settings import Settings
from proxy.settings.token import admin_token
from proxy.store import open_store
from proxy.store.base import SessionStore
from proxy.telemetry import Telemetry
from proxy.tokens.counter import CountingPool, Tokenizers
from proxy.tokens.windows import bundled_table
from proxy.upstream import Transport, Upstream
from strategies.core.messages import Reader


class _Writing(NamedTuple):
    """Writes sessions (`keeper`), and makes sure that work for a session is done once (`leases`)."""

    keeper: Keeper
    leases: Leases


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of an app that its endpoints use."""

    settings: Settings
    stored: StoredSessions
    upstream: Upstream
    tenants: Tenants
    callers: Callers
    tokenizers: Tokenizers
    policies: Policies
    condenser: Condenser
    message_cache: MessageCache
    discovered: Discovered
    calibrator: Calibrator
    background: OwnedTasks
    asking: Asking
    telemetry: Telemetry
    admission: Admission
    admin: Admin
    memory_admin: MemoryAdmin
    clock: Callable[[], float]

    @property
    def store(self) -> SessionStore:
        """Where sessions are stored."""
        return self.stored.store

    @property
    def own_key(self) -> str | None:
        """The operator's key for the upstream; None where callers bring their own."""
        key = self.settings.upstream.api_key
        return key.get_secret_value() if key else None

    @property
    def bounds(self) -> Bounds:
        """What one request body may hold."""
        limits = self.settings.limits
        return Bounds(limits.messages, limits.members, limits.values)

    @property
    def permits(self) -> Permits:
        """What clients may ask of the proxy."""
        allowed = self.settings.controls
        return Permits(KEYS if "*" in allowed.allow else allowed.allow, allowed.max_window, allowed.own_calls)


@asynccontextmanager
async def open_services(
    settings: Settings,
    *,
    store: SessionStore | None = None,
    transport: Transport | None = None,
    summarizer: Resolver | None = None,
    clock: Callable[[], float] = time.time,
) -> AsyncIterator[Services]:
    """Builds all parts of an app. A `store` that is passed in is not closed, a `summarizer` replaces the real one."""
    async with AsyncExitStack() as stack:
        if store is None:
            store = await stack.enter_async_context(_opened_store(settings, clock))
        upstream = await _upstream(settings, transport)
        stack.push_async_callback(upstream.close)
        pool = stack.enter_context(closing(CountingPool()))
        telemetry = Telemetry()
        stored = StoredSessions(store, settings.store.timeout, telemetry.record_write)
        stack.push_async_callback(stored.close)
        tasks = OwnedTasks()
        stack.push_async_callback(tasks.close)
        tokenizers = Tokenizers(settings.tokenizer.ranks_dir)
        await asyncio.to_thread(tokenizers.warm)
        message_cache = MessageCache()
        discovered = _discovered(settings, upstream, tasks, clock)
        base_url = settings.upstream.base_url
        learned = LearnedWindows(base_url, stored.facts, tasks, settings.upstream.learned_ttl, clock, discovered.window)
        table = bundled_table(config_directory() / "models.toml")
        profiles = Profiles(settings.profile_of)
        policies = Policies(settings, table, discovered.window, learned.window, profiles.for_model)
        asking = _asking(settings, upstream, discovered, telemetry, clock)
        calibrator = _calibrator(settings, stored, tasks, telemetry, learned, clock)
        writing = _writing(settings, stored, tasks, clock)
        recall = Recall(_meanings(settings, asking, writing.keeper, clock))
        searcher = Searcher(recall, settings.memory, learned, settings.upstream.learned_ttl, clock)
        knowledge = Knowledge(learned, calibrator, profiles, tasks, telemetry.record_truncation, base_url)
        intake = _intake(settings, stored, pool, message_cache, tokenizers, policies, knowledge, searcher)
        injector = Injector(recall, settings.memory, tasks)
        decider = _deciding(settings, writing, intake, injector, summarizer or asking, tasks, clock)
        probes, report = settings.usage_probe, telemetry.record_overflow
        condenser = Condenser(intake, decider, knowledge, policies, searcher, probes, report)
        yield Services(
            settings=settings,
            stored=stored,
            upstream=upstream,
            tenants=Tenants(settings, tenant_key(settings)),
            callers=_callers(settings, upstream, stored, tasks, clock),
            tokenizers=tokenizers,
            policies=policies,
            condenser=condenser,
            message_cache=message_cache,
            discovered=discovered,
            calibrator=calibrator,
            background=tasks,
            asking=asking,
            telemetry=telemetry,
            admission=_admission(settings, telemetry),
            admin=Admin(stored, admin_token(settings)),
            memory_admin=_memory_admin(settings, stored, clock),
            clock=clock,
        )


async def _upstream(settings: Settings, transport: Transport | None) -> Upstream:
    # httpx imports modules at its first use, which would delay concurrent requests by 16 ms.
    await anyio.lowlevel.checkpoint()
    return Upstream(settings.upstream, transport)


@asynccontextmanager
async def _opened_store(settings: Settings, clock: Callable[[], float]) -> AsyncIterator[SessionStore]:
    quotas = settings.store.max_session_bytes, settings.store.max_tenant_bytes
    store = await open_store(settings.store.url, clock=clock, max_session_bytes=quotas[0], max_tenant_bytes=quotas[1])
    try:
        yield store
    finally:
        await store.close()


def _asking(
    settings: Settings, upstream: Upstream, discovered: Discovered, telemetry: Telemetry, clock: Callable[[], float]
) -> Asking:
    return Asking(
        upstream,
        settings.background,
        own_key=settings.upstream.api_key is not None,
        clock=clock,
        on_call=telemetry.record_call,
        is_serial=lambda: discovered.is_local,
    )


def _calibrator(
    settings: Settings,
    stored: StoredSessions,
    tasks: OwnedTasks,
    telemetry: Telemetry,
    learned: LearnedWindows,
    clock: Callable[[], float],
) -> Calibrator:
    return Calibrator(
        settings.upstream.base_url,
        stored.facts,
        tasks,
        ttl=settings.store.ttl,
        clock=clock,
        report=telemetry.record_calibration,
        truncated_at=learned.truncated_at,
    )


def _writing(settings: Settings, stored: StoredSessions, tasks: OwnedTasks, clock: Callable[[], float]) -> _Writing:
    keeper = Keeper(stored, ttl=settings.store.ttl, clock=clock, keeps_text=settings.store.keeps_text)
    return _Writing(keeper, Leases(stored, tasks))


def _meanings(settings: Settings, asking: Asking, keeper: Keeper, clock: Callable[[], float]) -> Meanings | None:
    model = settings.memory.embeddings_model
    return Meanings(asking, keeper, model, settings.background.allowance, clock) if model else None


def _admission(settings: Settings, telemetry: Telemetry) -> Admission:
    # Every request that is served then has a connection to the upstream: it waits for a place, and for nothing else.
    most = min(settings.limits.in_flight, settings.upstream.max_connections)
    admission = Admission(settings.limits, most, telemetry.record_refusal)
    telemetry.watch_queue(lambda: admission.waiting)
    return admission


def _memory_admin(settings: Settings, stored: StoredSessions, clock: Callable[[], float]) -> MemoryAdmin:
    store, reader = settings.store, Reader(tool_output_patterns())
    return MemoryAdmin(stored, reader, ttl=store.ttl, clock=clock, keeps_text=store.keeps_text)


def _discovered(settings: Settings, upstream: Upstream, tasks: OwnedTasks, clock: Callable[[], float]) -> Discovered:
    key = settings.upstream.api_key
    return Discovered(
        upstream,
        tasks,
        clock,
        api_key=key.get_secret_value() if key else None,
        enabled=settings.upstream.discover,
    )


def _callers(
    settings: Settings, upstream: Upstream, stored: StoredSessions, tasks: OwnedTasks, clock: Callable[[], float]
) -> Callers:
    own_key, base_url = settings.upstream.api_key is not None, settings.upstream.base_url
    names = lowered_names([AUTHORIZATION, *settings.tenant.headers])
    return Callers(upstream, base_url, stored.facts, tasks, clock, names, own_key=own_key)


def _intake(
    settings: Settings,
    stored: StoredSessions,
    pool: CountingPool,
    message_cache: MessageCache,
    tokenizers: Tokenizers,
    policies: Policies,
    knowledge: Knowledge,
    searcher: Searcher,
) -> Intake:
    keeps_text = settings.store.keeps_text
    reader = Reader(tool_output_patterns())
    return Intake(
        policies=policies,
        recogniser=Recogniser(stored, settings.sessions.headers),
        measurer=Measurer(reader, pool, message_cache),
        restorer=Restorer(reader, pool, keeps_text=keeps_text),
        tokenizers=tokenizers,
        knowledge=knowledge,
        add_offer=searcher.with_offer,
        keeps_text=keeps_text,
    )


def _deciding(
    settings: Settings,
    writing: _Writing,
    intake: Intake,
    injector: Injector,
    resolver: Resolver,
    tasks: OwnedTasks,
    clock: Callable[[], float],
) -> Decider:
    keeper, leases = writing
    runner = PipelineRunner(resolver, tasks)
    maker = Maker(runner, keeper, leases, tasks, clock)
    allowance, keeps_text = settings.background.allowance, settings.store.keeps_text
    judges = Judges(runner, keeper, leases, allowance, clock, keeps_text=keeps_text)
    preparer = Preparer(
        maker=maker,
        judges=judges,
        keeper=keeper,
        leases=leases,
        tasks=tasks,
        counted=intake.with_counts,
        clock=clock,
    )
    timeout, lifetime = settings.inline_timeout, settings.cost.cache_lifetime
    return Decider(maker, preparer, keeper, injector, timeout, lifetime)
