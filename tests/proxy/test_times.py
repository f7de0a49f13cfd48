"""Seconds that wait until a metric is read, and are then added to it together."""

import asyncio

from prometheus_client import CollectorRegistry, generate_latest

from proxy.services import open_services
from proxy.settings import load_settings
from proxy.telemetry import Times
from tests.support.virtual_time import PassingTime


def test_seconds_that_are_added_together_count_as_each_would_alone() -> None:
    seconds, shown = [0.0, 0.25, 0.25, 0.5, 1.0, 4.0, 64.0], list[list[bytes]]()
    for is_together in (False, True):
        registry = CollectorRegistry()
        times = Times("seconds", "How long it took.", ("of",), registry=registry, buckets=(0.25, 1, 5)).labels("load")
        waiting = [*seconds]
        if is_together:
            times.add(waiting)
        else:
            for each in waiting:
                times.observe(each)
        shown.append([line for line in generate_latest(registry).splitlines() if b"_created" not in line])
    assert waiting == []
    assert shown[0] == shown[1]


def test_seconds_that_nobody_reads_are_added_after_a_minute() -> None:
    loop = PassingTime()

    async def serve() -> bytes:
        settings = load_settings(store={"url": "memory://"}, upstream={"base_url": "http://127.0.0.1:9/v1"})
        async with open_services(settings) as services:
            for _ in range(1_000):
                await services.store.ping()
            with loop.passing():
                await asyncio.sleep(61)
            return generate_latest(services.telemetry.registry)

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        assert b'condenser_store_seconds_count{operation="ping"} 1000.0' in runner.run(serve())
