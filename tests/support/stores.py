"""Stores for tests that are not about the time limits of a Redis."""

import time
from collections.abc import Callable

from proxy.store import open_store
from proxy.store.base import Quotas, Store
from proxy.store.redis import Limits
from proxy.store.redis_store import RedisStore

PATIENT = Limits(connect=10, operation=20, free_connection=20, call=20)


async def open_patient_store(
    url: str, *, clock: Callable[[], float] = time.time, max_session_bytes: int = 0, max_tenant_bytes: int = 0
) -> Store:
    """As `open_store`, but a Redis on a busy machine may take its time."""
    if url.startswith("redis"):
        return RedisStore(url, shown=url, limits=PATIENT, quotas=Quotas(max_session_bytes, max_tenant_bytes))
    return await open_store(url, clock=clock, max_session_bytes=max_session_bytes, max_tenant_bytes=max_tenant_bytes)
