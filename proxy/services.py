"""Services: builds all parts of one app when it starts, and closes them when it stops."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass

import anyio.lowlevel

from proxy.asking import Asking, Resolver
from proxy.condensing.deciding import Decider
from proxy.condensing.exchange import Condenser
from proxy.condensing.intake import Intake
from proxy.condensing.knowledge import Knowledge
from proxy.condensing.leases import Leases
from proxy.condensing.making import Maker
from proxy.condensing.policy import Policies
from proxy.condensing.preparing import Preparer
from proxy.condensing.recall import Injector, Recall
from proxy.condensing.restoring import Restorer
from proxy.condensing.running import PipelineRunner
from proxy.condensing.searching import Searcher
from proxy.controls import Controls
from proxy.discovery import Discovered
from proxy.http.admission import Admission
from proxy.http.headers import lowered_names
from proxy.knowledge.calibrator import Calibrator
from proxy.knowledge.learned_windows import LearnedWindows
from proxy.knowledge.profiles import Profiles
from proxy.live import Live
from proxy.memory.admin import MemoryAdmin
from proxy.memory.meaning import Meanings
from proxy.package import config_directory, tool_output_patterns
from proxy.request.callers import AUTHORIZATION, Callers, Tenants, tenant_key
from proxy.request.measure import Measurer
from proxy.request.message_cache import MessageCache
from proxy.request.scanning import Bounds
from proxy.runtime.owned_tasks import OwnedTasks
from proxy.sessions.admin import Admin
from proxy.sessions.append import KeptReplies
from proxy.sessions.keeping import Keeper
from proxy.sessions.recognition import Recogniser
from proxy.sessions.stored import StoredSessions
from proxy.settings import Settings
from proxy.settings.loading import ControlSettings
from proxy.settings.token import admin_token
from proxy.store import open_store
from proxy.store.base import Store
from proxy.telemetry import Telemetry
from proxy.tokens.counter import CountingPool, Tokenizers
from proxy.tokens.windows import bundled_table
from proxy.upstream import Upstream
from strategies.core.messages import Reader


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
    live: Live
    admission: Admission
    admin: Admin
    memory_admin: MemoryAdmin
    clock: Callable[[], float]
    kept_replies: KeptReplies | None
    """The histories of replies that requests may name; None where they are not taken over."""
    own_key: str | None
    """The operator's key for the upstream; None where callers bring their own."""
    bounds: Bounds
    """What one request body may hold."""
    permit: Callable[[Controls], None] | None
    """Raises `BadRequest` for controls that clients may not set; None if they may set all."""

    @property
    def store(self) -> Store:
        """Where sessions are stored."""
        return self.stored.store


@dataclass(frozen=True, slots=True)
class _Ground:
    """What all other parts are built on."""

    settings: Settings
    clock: Callable[[], float]
    upstream: Upstream
    stored: StoredSessions
    tasks: OwnedTasks
    telemetry: Telemetry
    pool: CountingPool
    tokenizers: Tokenizers


@asynccontextmanager
async def open_services(
    settings: Settings,
    *,
    store: Store | None = None,
    summarizer: Resolver | None = None,
    clock: Callable[[], float] = time.time,
) -> AsyncIterator[Services]:
    """Builds all parts of an app. A `store` that is passed in is not closed, a `summarizer` replaces the real one."""
    async with AsyncExitStack() as stack:
        if store is None:
            store = await stack.enter_async_context(_opened_store(settings, clock))
        # httpx imports modules at its first use, which would delay concurrent requests by 16 ms.
        await anyio.lowlevel.checkpoint()
        upstream = Upstream(settings.upstream)
        stack.push_async_callback(upstream.close)
        pool = stack.enter_context(closing(CountingPool()))
        telemetry = Telemetry()
        stored = StoredSessions(store, settings.store.timeout, telemetry.record_write)
        stack.push_async_callback(stored.close)
        tasks = OwnedTasks()
        stack.push_async_callback(tasks.close)
        tokenizers = Tokenizers(settings.tokenizer.ranks_dir)
        await asyncio.to_thread(tokenizers.warm)
        yield _services(_Ground(settings, clock, upstream, stored, tasks, telemetry, pool, tokenizers), summarizer)


@asynccontextmanager
async def _opened_store(settings: Settings, clock: Callable[[], float]) -> AsyncIterator[Store]:
    quotas = settings.store.max_session_bytes, settings.store.max_tenant_bytes
    store = await open_store(settings.store.url, clock=clock, max_session_bytes=quotas[0], max_tenant_bytes=quotas[1])
    try:
        yield store
    finally:
        await store.close()


def _services(ground: _Ground, summarizer: Resolver | None) -> Services:
    settings, stored, clock, limits = ground.settings, ground.stored, ground.clock, ground.settings.limits
    key = settings.upstream.api_key
    own_key = key.get_secret_value() if key else None
    discovered = Discovered(ground.upstream, ground.tasks, clock, api_key=own_key, enabled=settings.upstream.discover)
    asking = Asking(
        ground.upstream,
        settings.background,
        own_key=key is not None,
        clock=clock,
        on_call=ground.telemetry.record_call,
        is_serial=lambda: discovered.is_local,
    )
    knowledge = _knowledge(ground, discovered)
    table = bundled_table(config_directory() / "models.toml")
    policies = Policies(settings, table, discovered.window, knowledge.learned.window, knowledge.profiles.for_model)
    message_cache, ttl, keeps_text = MessageCache(), settings.store.ttl, settings.store.keeps_text
    memory_reader = Reader(tool_output_patterns())
    return Services(
        settings=settings,
        stored=stored,
        upstream=ground.upstream,
        tenants=Tenants(settings, tenant_key(settings)),
        callers=_callers(ground),
        tokenizers=ground.tokenizers,
        policies=policies,
        condenser=_condenser(ground, policies, knowledge, message_cache, asking, summarizer or asking),
        message_cache=message_cache,
        discovered=discovered,
        calibrator=knowledge.calibrator,
        background=ground.tasks,
        asking=asking,
        telemetry=ground.telemetry,
        live=Live(clock),
        admission=_admission(settings, ground.telemetry),
        admin=Admin(stored, admin_token(settings), memory_reader, ground.tokenizers),
        memory_admin=MemoryAdmin(stored, memory_reader, ttl=ttl, clock=clock, keeps_text=keeps_text),
        clock=clock,
        kept_replies=KeptReplies(stored) if settings.sessions.take_over and keeps_text else None,
        own_key=own_key,
        bounds=Bounds(limits.messages, limits.members, limits.values),
        permit=None if settings.controls == ControlSettings() else settings.controls.check,
    )


def _admission(settings: Settings, telemetry: Telemetry) -> Admission:
    # Every request that is served then has a connection to the upstream: it waits for a place, and for nothing else.
    most = min(settings.limits.in_flight, settings.upstream.max_connections)
    admission = Admission(settings.limits, most, telemetry.record_refusal)
    telemetry.watch_queue(lambda: admission.waiting)
    return admission


def _callers(ground: _Ground) -> Callers:
    settings = ground.settings
    own_key, base_url = settings.upstream.api_key is not None, settings.upstream.base_url
    names = lowered_names([AUTHORIZATION, *settings.tenant.headers])
    return Callers(ground.upstream, base_url, ground.stored.facts, ground.tasks, ground.clock, names, own_key=own_key)


def _knowledge(ground: _Ground, discovered: Discovered) -> Knowledge:
    settings, facts, tasks, clock = ground.settings, ground.stored.facts, ground.tasks, ground.clock
    base_url, telemetry = settings.upstream.base_url, ground.telemetry
    learned = LearnedWindows(base_url, facts, tasks, settings.upstream.learned_ttl, clock, discovered.window)
    calibrator = Calibrator(
        base_url,
        facts,
        tasks,
        ttl=settings.store.ttl,
        clock=clock,
        report=telemetry.record_calibration,
        truncated_at=learned.truncated_at,
    )
    return Knowledge(learned, calibrator, Profiles(settings.profile_of), tasks, telemetry.record_truncation)


def _condenser(
    ground: _Ground,
    policies: Policies,
    knowledge: Knowledge,
    message_cache: MessageCache,
    asking: Asking,
    resolver: Resolver,
) -> Condenser:
    settings, stored, tasks, clock = ground.settings, ground.stored, ground.tasks, ground.clock
    memory, allowance, keeps_text = settings.memory, settings.background.allowance, settings.store.keeps_text
    keeper = Keeper(stored, ttl=settings.store.ttl, clock=clock, keeps_text=keeps_text)
    model = memory.embeddings_model
    recall = Recall(Meanings(asking.embed, keeper, model, allowance, clock) if model else None)
    searcher = Searcher(recall, memory, knowledge.learned, settings.upstream.learned_ttl, clock)
    reader = Reader(tool_output_patterns())
    intake = Intake(
        policies=policies,
        recogniser=Recogniser(stored, settings.sessions.headers),
        measurer=Measurer(reader, ground.pool, message_cache),
        restorer=Restorer(reader, ground.pool, keeps_text=keeps_text),
        tokenizers=ground.tokenizers,
        knowledge=knowledge,
        add_offer=searcher.with_offer,
        keeps_text=keeps_text,
    )
    leases, runner = Leases(stored, tasks), PipelineRunner(resolver, tasks)
    maker = Maker(runner, keeper, leases, tasks, clock)
    preparer = Preparer(
        maker=maker,
        runner=runner,
        keeper=keeper,
        leases=leases,
        tasks=tasks,
        counted=intake.with_counts,
        clock=clock,
        allowance=allowance,
        keeps_text=keeps_text,
    )
    injector = Injector(recall, memory, tasks)
    decider = Decider(maker, preparer, keeper, injector, settings.inline_timeout, settings.cost.cache_lifetime)
    report = ground.telemetry.record_overflow
    return Condenser(intake, decider, knowledge, policies, searcher, settings.usage_probe, report)
