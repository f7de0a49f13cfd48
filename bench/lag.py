"""How late the event loop gets: no callback may hold it for 15 ms while large cold requests mix with small ones.

The real app is served on asyncio's own loop, whose callbacks are timed one by one, in a process of its own
(`python -m bench.lag ARGUMENT …` takes the arguments of `condenser`). The load comes from two generators at once: small
requests one after the other, and requests of 100k tokens, either cold, or warm, or outgrowing their window.

A callback is timed by the clock and by the processor, for the loop's thread alone. On a machine that does other work
these differ by what its neighbours, or threads of the proxy's own, have taken; what counts is the processor's time.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
from asyncio.events import Handle
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any

from bench.load import REPLAYED_WINDOW
from bench.processes import Served, condenser, store_url, stub, wait_until
from bench.traffic import Job, sent

MAX_MS = 15.0
"""Milliseconds that a callback may hold the loop for."""
SECONDS = 10.0
VARIABLE = "LAG_REPORT"
STATES = ("cold", "warm", "condensing")


def serve(arguments: Sequence[str]) -> None:
    """Serves as `condenser serve` does; SIGUSR1 writes the figures of the callbacks since the last one."""
    from proxy.app import server_config
    from proxy.cli import parse
    from proxy.commands.options import settings_from
    from proxy.http.server import Server

    config = server_config(settings_from(parse(arguments)))
    # uvloop's callbacks cannot be timed one by one.
    config.loop = "asyncio"
    run = Handle._run  # noqa: SLF001
    path = Path(os.environ[VARIABLE])
    figures = {"callbacks": 0, "wall": 0.0, "cpu": 0.0, "over": 0}

    def timed(handle: Handle) -> None:
        since, used = perf_counter(), thread_time()
        try:
            run(handle)
        finally:
            wall, cpu = (perf_counter() - since) * 1_000, (thread_time() - used) * 1_000
            figures["callbacks"] += 1
            figures["wall"], figures["cpu"] = max(figures["wall"], wall), max(figures["cpu"], cpu)
            figures["over"] += cpu > MAX_MS

    def report(*_: object) -> None:
        path.with_suffix(".new").write_text(json.dumps(figures))
        path.with_suffix(".new").rename(path)
        figures.update(dict.fromkeys(figures, 0))

    Handle._run = timed  # type: ignore[assignment, method-assign]  # noqa: SLF001
    signal.signal(signal.SIGUSR1, report)
    asyncio.run(Server(config).serve())


def measure(seconds: float = SECONDS, stores: Sequence[str] = ("memory", "sqlite")) -> list[dict[str, Any]]:
    rows = []
    for store in stores:
        with ExitStack() as stack:
            path = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "report"
            upstream, url = stack.enter_context(stub()), store_url(store, stack)
            if url is None:
                continue
            watched = condenser(upstream.port, url, module="bench.lag", environment={VARIABLE: str(path)})
            served = stack.enter_context(watched)
            _reported(served, path)
            rows += [_row(state, store, served, path, seconds) for state in STATES]
    return rows


def _row(state: str, store: str, served: Served, path: Path, seconds: float) -> dict[str, Any]:
    """What large requests in a state did to the loop; `longest` is the most that a callback took."""
    number = 1_000_000 * (STATES.index(state) + 1)
    window = REPLAYED_WINDOW if state == "condensing" else None
    two: dict[str, Any] = {"port": served.port, "connections": 2, "seconds": seconds}
    large = Job("large", streamed=True, cold=state != "warm", window=window, least=2, first=number, **two)
    small = Job("small", first=number + 500_000, **two)
    with ThreadPoolExecutor(2) as pool:
        big, little = pool.map(sent, (large, small))
    told = _reported(served, path)
    return {
        "large requests": state,
        "store": store,
        "large": len(big.completes),
        "small": len(little.completes),
        "callbacks": told["callbacks"],
        "longest, ms": told["wall"],
        "of it CPU": told["cpu"],
        "over": told["over"],
        "small p99": sorted(little.completes)[len(little.completes) * 99 // 100] * 1_000,
        "target": "missed" if told["over"] else "met",
    }


def _reported(served: Served, path: Path) -> dict[str, Any]:
    path.unlink(missing_ok=True)
    os.kill(served.pid, signal.SIGUSR1)
    wait_until(path.exists)
    figures: dict[str, Any] = json.loads(path.read_text())
    return figures


if __name__ == "__main__":
    serve(sys.argv[1:])
