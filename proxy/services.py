"""Everything that one app is made of, built once when it starts and closed when it stops."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple

import anyio.lowlevel

from proxy.asking import Asking, Resolver
from proxy.calibration.calibrator import Calibrator
from proxy.condenser import Condenser
from proxy.condensing.attempts import Attempts
from proxy.condensing.judging import Judges
from proxy.condensing.leases import Leases
from proxy.condensing.making import Maker
from proxy.condensing.policy import Policies
from proxy.condensing.preparing import Background, Preparer
from proxy.condensing.retrying import Retrier
from proxy.condensing.settling import Settler
from proxy.discovery import Discovered
from proxy.learning.learned_windows import LearnedWindows
from proxy.learning.lessons import Lessons
from proxy.learning.profiles import Profiles
from proxy.memory.admin import MemoryAdmin
from proxy.memory.inject import Injector
from proxy.memory.meaning import Meanings
from proxy.memory.recall import Recall
from proxy.memory.searching import Memories, Searcher
from proxy.reply.watching import Watcher
from proxy.request.identity import Tenants, tenant_key
from proxy.request.intake import Intake
from proxy.request.measure import Measurer
from proxy.request.message_cache import MessageCache
from proxy.resources import config_directory, tool_output_patterns
from proxy.sessions.admin import Admin, admin_token
from proxy.sessions.keeping import Keeper
from proxy.sessions.recognition import Recogniser
from proxy.sessions.restoring import Restorer
from proxy.sessions.stored import StoredSessions
from proxy.settings import Settings
from proxy.store import open_store
from proxy.store.base import SessionStore
from proxy.telemetry import Telemetry
from proxy.tokens.counter import CountingPool, Tokenizers
from proxy.tokens.windows import bundled
from proxy.upstream import Transport, Upstream
from strategies.core.transcript import Reader


class _Writing(NamedTuple):
    """Who writes sessions, and who sees to it that work for one is done once."""

    keeper: Keeper
    leases: Leases


@dataclass(frozen=True, slots=True)
class Services:
    """The parts that endpoints use."""

    settings: Settings
    store: SessionStore
    upstream: Upstream
    tenants: Tenants
    tokenizers: Tokenizers
    policies: Policies
    condenser: Condenser
    searcher: Searcher
    seen: MessageCache
    discovered: Discovered
    calibrator: Calibrator
    retrier: Retrier
    watcher: Watcher
    tasks: Background
    asking: Asking
    telemetry: Telemetry
    admin: Admin
    memory_admin: MemoryAdmin
    clock: Callable[[], float]

    @property
    def own_key(self) -> str | None:
        """The operator's key for the upstream; None where callers bring their own."""
        key = self.settings.upstream.api_key
        return key.get_secret_value() if key else None


@asynccontextmanager
async def services(
    settings: Settings,
    *,
    store: SessionStore | None = None,
    transport: Transport | None = None,
    summarizer: Resolver | None = None,
    clock: Callable[[], float] = time.time,
) -> AsyncIterator[Services]:
    """Builds all parts; a `store` that is given is not closed, a `summarizer` takes the place of the real one."""
    async with AsyncExitStack() as stack:
        if store is None:
            store = await _opened(settings, clock)
            stack.push_async_callback(store.close)
        upstream = await _upstream(settings, transport)
        stack.push_async_callback(upstream.close)
        pool = CountingPool()
        stack.callback(pool.close)
        stored = StoredSessions(store, settings.store.timeout)
        stack.push_async_callback(stored.close)
        tasks = Background()
        stack.push_async_callback(tasks.close)
        tokenizers = Tokenizers(settings.tokenizer.ranks_dir)
        await asyncio.to_thread(tokenizers.warm)
        seen = MessageCache()
        discovered = _discovered(settings, upstream, tasks, clock)
        base_url = settings.upstream.base_url
        learned = LearnedWindows(base_url, stored, tasks, settings.upstream.learned_ttl, clock)
        table = bundled(config_directory() / "models.toml")
        profiles = Profiles(settings.profile_of)
        policies = Policies(settings, table, discovered.window, learned.window, profiles.of)
        telemetry = Telemetry()
        asking = _asking(settings, upstream, discovered, telemetry, clock)
        calibrator = Calibrator(base_url, stored, tasks, ttl=settings.store.ttl, clock=clock, told=telemetry.calibrated)
        writing = _writing(settings, stored, tasks, clock)
        recall = Recall(_meanings(settings, asking, writing.keeper, clock))
        searcher = Searcher(recall, settings.memory, learned, settings.upstream.learned_ttl, clock)
        memories = Memories(Injector(recall, settings.memory, tasks), searcher)
        lessons = Lessons(learned, calibrator, tasks)
        intake = _intake(settings, stored, pool, seen, tokenizers, policies, lessons, searcher)
        yield Services(
            settings=settings,
            store=store,
            upstream=upstream,
            tenants=Tenants(settings, tenant_key(settings)),
            tokenizers=tokenizers,
            policies=policies,
            condenser=_condenser(settings, writing, intake, summarizer or asking, tasks, calibrator, memories, clock),
            searcher=searcher,
            seen=seen,
            discovered=discovered,
            calibrator=calibrator,
            retrier=Retrier(policies, learned, profiles, telemetry.refused),
            watcher=Watcher(learned, telemetry, base_url),
            tasks=tasks,
            asking=asking,
            telemetry=telemetry,
            admin=Admin(stored, admin_token(settings)),
            memory_admin=_memory_admin(settings, stored, clock),
            clock=clock,
        )


async def _upstream(settings: Settings, transport: Transport | None) -> Upstream:
    # What httpx imports at its first use would hold up the requests beside it for 16 ms.
    await anyio.lowlevel.checkpoint()
    return Upstream(settings.upstream, transport)


async def _opened(settings: Settings, clock: Callable[[], float]) -> SessionStore:
    quotas = settings.store.max_session_bytes, settings.store.max_tenant_bytes
    return await open_store(settings.store.url, clock=clock, max_session_bytes=quotas[0], max_tenant_bytes=quotas[1])


def _asking(
    settings: Settings, upstream: Upstream, discovered: Discovered, telemetry: Telemetry, clock: Callable[[], float]
) -> Asking:
    return Asking(
        upstream,
        settings.background,
        own_key=settings.upstream.api_key is not None,
        clock=clock,
        told=telemetry.asked,
        serial=lambda: discovered.is_local,
    )


def _writing(settings: Settings, stored: StoredSessions, tasks: Background, clock: Callable[[], float]) -> _Writing:
    with_text = settings.store.content == "full"
    keeper = Keeper(stored, ttl=settings.store.ttl, clock=clock, with_text=with_text)
    return _Writing(keeper, Leases(stored, tasks))


def _meanings(settings: Settings, asking: Asking, keeper: Keeper, clock: Callable[[], float]) -> Meanings | None:
    model = settings.memory.embeddings_model
    return Meanings(asking, keeper, model, settings.background.allowance, clock) if model else None


def _memory_admin(settings: Settings, stored: StoredSessions, clock: Callable[[], float]) -> MemoryAdmin:
    with_text = settings.store.content == "full"
    return MemoryAdmin(stored, Reader(tool_output_patterns()), ttl=settings.store.ttl, clock=clock, with_text=with_text)


def _discovered(settings: Settings, upstream: Upstream, tasks: Background, clock: Callable[[], float]) -> Discovered:
    key = settings.upstream.api_key
    return Discovered(
        upstream,
        tasks,
        clock,
        api_key=key.get_secret_value() if key else None,
        enabled=settings.upstream.discover,
    )


def _intake(
    settings: Settings,
    stored: StoredSessions,
    pool: CountingPool,
    seen: MessageCache,
    tokenizers: Tokenizers,
    policies: Policies,
    lessons: Lessons,
    searcher: Searcher,
) -> Intake:
    keeps_text = settings.store.content == "full"
    reader = Reader(tool_output_patterns())
    return Intake(
        policies=policies,
        recogniser=Recogniser(stored, settings.sessions.headers),
        measurer=Measurer(reader, pool, seen),
        restorer=Restorer(reader, pool, with_text=keeps_text),
        tokenizers=tokenizers,
        lessons=lessons,
        offered=searcher.offered,
        keeps_text=keeps_text,
    )


def _condenser(
    settings: Settings,
    writing: _Writing,
    intake: Intake,
    resolver: Resolver,
    tasks: Background,
    calibrator: Calibrator,
    memories: Memories,
    clock: Callable[[], float],
) -> Condenser:
    with_text = settings.store.content == "full"
    keeper, leases = writing
    attempts = Attempts(resolver, tasks)
    maker = Maker(attempts, keeper, leases, tasks, clock)
    preparer = Preparer(
        maker=maker,
        judges=Judges(attempts, keeper, leases, settings.background.allowance, clock, with_text=with_text),
        keeper=keeper,
        leases=leases,
        tasks=tasks,
        counted=intake.counted,
        clock=clock,
    )
    return Condenser(
        intake=intake,
        keeper=keeper,
        maker=maker,
        preparer=preparer,
        settler=Settler(keeper=keeper, preparer=preparer, calibrator=calibrator, memories=memories),
        memories=memories,
        settings=settings,
    )
