"""Seconds that wait until a metric is read, and are then added to it together."""

from prometheus_client import CollectorRegistry, generate_latest

from proxy.telemetry import Times


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
