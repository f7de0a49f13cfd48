"""Everything that one app is made of, built once when it starts and closed when it stops."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from proxy.admin import Admin, admin_token
from proxy.attempts import Attempts
from proxy.condenser import Condenser
from proxy.identity import Tenants, tenant_key
from proxy.intake import Intake
from proxy.keeping import Keeper
from proxy.making import Maker
from proxy.measure import Measurer
from proxy.policy import Policies
from proxy.recognition import Recogniser
from proxy.resources import config_directory, tool_output_patterns
from proxy.settings import Settings
from proxy.store import open_store
from proxy.store.base import SessionStore
from proxy.stored import StoredSessions
from proxy.summarizer import Summarizer
from proxy.telemetry import Telemetry
from proxy.tokens.counter import CountingPool, Tokenizers
from proxy.tokens.windows import ModelTable
from proxy.upstream import Transport, Upstream
from strategies.core.transcript import Reader


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
    telemetry: Telemetry
    admin: Admin

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
    summarizer: Summarizer | None = None,
    clock: Callable[[], float] = time.time,
) -> AsyncIterator[Services]:
    """Builds all parts; a `store` that is given is not closed, a `summarizer` takes the place of the real one."""
    async with AsyncExitStack() as stack:
        if store is None:
            quotas = settings.store.max_session_bytes, settings.store.max_tenant_bytes
            store = await open_store(
                settings.store.url, clock=clock, max_session_bytes=quotas[0], max_tenant_bytes=quotas[1]
            )
            stack.push_async_callback(store.close)
        upstream = Upstream(settings.upstream, transport)
        stack.push_async_callback(upstream.close)
        pool = CountingPool()
        stack.callback(pool.close)
        tokenizers = Tokenizers(settings.tokenizer.ranks_dir)
        await asyncio.to_thread(tokenizers.warm)
        policies = Policies(settings, ModelTable.load(config_directory() / "models.toml"))
        yield Services(
            settings=settings,
            store=store,
            upstream=upstream,
            tenants=Tenants(settings, tenant_key(settings)),
            tokenizers=tokenizers,
            policies=policies,
            condenser=_condenser(
                settings, store, summarizer or Summarizer(upstream), pool, tokenizers, policies, clock
            ),
            telemetry=Telemetry(),
            admin=Admin(StoredSessions(store, settings.store.timeout), admin_token(settings)),
        )


def _condenser(
    settings: Settings,
    store: SessionStore,
    summarizer: Summarizer,
    pool: CountingPool,
    tokenizers: Tokenizers,
    policies: Policies,
    clock: Callable[[], float],
) -> Condenser:
    keeps_text = settings.store.content == "full"
    stored = StoredSessions(store, settings.store.timeout)
    intake = Intake(
        policies=policies,
        recogniser=Recogniser(stored, settings.sessions.headers),
        measurer=Measurer(Reader(tool_output_patterns()), pool),
        tokenizers=tokenizers,
        keeps_text=keeps_text,
    )
    keeper = Keeper(stored, ttl=settings.store.ttl, clock=clock, with_text=keeps_text)
    return Condenser(
        intake=intake,
        keeper=keeper,
        maker=Maker(Attempts(summarizer, settings.inline_timeout), keeper, clock),
    )
