"""What hostile requests cost: how long `/livez` waits, and how much memory the process takes.

Each attack goes to a fresh proxy over a memory store, `--at-once` copies at a time, while another process asks
`/livez` every 10 ms. `waits` is the longest that it took to answer, and `memory` what the process had at most beyond
what it had before. An attack that needs no proxy of its own kind is one row of `ATTACKS`.
"""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from http.client import HTTPException
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

from bench.processes import Served, condenser, connected, stub

AT_ONCE = 32
PATH = "/v1/chat/completions"
_HI = b'{"role":"user","content":"x"}'
_WIRE = 1_000_000


def _body(extra: bytes = b"", messages: bytes = _HI) -> bytes:
    return b'{"model":"gpt-4o","messages":[%s]%s}' % (messages, extra)


def _text(size: int) -> bytes:
    return _body(messages=b'{"role":"user","content":"%s"}' % (b"lorem ipsum, dolor " * (size // 19)))


def _most_values() -> bytes:
    return _body(messages=b",".join([b'{"role":"user","x":[%s{}]}' % (b"{}," * 12_000)] * 10))


ATTACKS: dict[str, Callable[[], bytes]] = {
    "21 M empty objects, packed": lambda: _body(b',"z":[' + b"{}," * 21_000_000 + b"{}]"),
    "31 M numbers, packed": lambda: _body(b',"z":[' + b"1," * 31_000_000 + b"1]"),
    "2.1 M messages, packed": lambda: _body(messages=b",".join([_HI] * 2_100_000)),
    "a string of 60 MB, packed": lambda: _body(b',"z":"' + b"x" * 60_000_000 + b'"'),
    "a string of 4 MB, packed": lambda: _body(b',"z":"' + b"x" * 4_000_000 + b'"'),
    "objects in 1 MB": lambda: _body(b',"z":[' + b"{}," * (_WIRE // 3) + b"{}]"),
    "members in 1 MB": lambda: _body(b"".join(b',"m%d":1' % i for i in range(_WIRE // 11))),
    "most values of one member": lambda: _body(b',"z":[' + b"{}," * 12_000 + b"{}]"),
    "most messages": lambda: _body(messages=b",".join([_HI] * 10_000)),
    "most values of all messages": _most_values,
    "1 MB of text": lambda: _text(_WIRE),
    "1 MB of text, not JSON at the end": lambda: _text(_WIRE) + b"x",
    "a header of 16 MB": _body,
}
"""The bodies; `packed` ones are compressed."""


def measure(at_once: int = AT_ONCE, only: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """A row for each attack: the answers, the longest wait of `/livez`, and the memory, for one and for several."""
    with stub() as upstream:
        return [
            _row(name, make(), upstream, at_once)
            for name, make in ATTACKS.items()
            if not only or any(word in name for word in only)
        ]


def _row(name: str, body: bytes, upstream: Served, at_once: int) -> dict[str, Any]:
    headers = {"X-A": "a" * 16_000_000} if "header" in name else {}
    if name.endswith("packed"):
        body, headers = gzip.compress(body), {"Content-Encoding": "gzip"}
    figures: dict[str, float] = {}
    statuses: set[str] = set()
    for copies, label in ((1, ""), (at_once, "several at once: ")):
        with condenser(upstream.port, "memory://") as served:
            waits, memory, said = _attacked(served, body, headers, copies)
        figures |= {f"{label}`/livez` waits, ms": waits, f"{label}memory, MB": memory}
        statuses |= said
    wire = len(body) + sum(map(len, headers.values()))
    return {"attack": name, "kB on the wire": wire / 1_000, "answer": ", ".join(sorted(statuses)), **figures}


def _attacked(served: Served, body: bytes, headers: Mapping[str, str], copies: int) -> tuple[float, float, set[str]]:
    _post(served.port, _body(), {})
    # In a process of their own: the senders of large heads would keep the probe from asking.
    with ProcessPoolExecutor(1, get_context("spawn")) as senders:
        senders.submit(_post_all, served.port, _body(), {}, 1).result()
        before, waits, over = served.memory(), [0.0], threading.Event()
        Path(f"/proc/{served.pid}/clear_refs").write_text("5")  # the most begins anew
        probe = threading.Thread(target=_probe, args=(served.port, waits, over))
        probe.start()
        said = senders.submit(_post_all, served.port, body, headers, copies).result()
        over.set()
        probe.join()
    return max(waits) * 1_000, served.memory("VmHWM") - before, said


def _post_all(port: int, body: bytes, headers: Mapping[str, str], copies: int) -> set[str]:
    with ThreadPoolExecutor(copies) as pool:
        return set(pool.map(lambda _: _post(port, body, headers), range(copies)))


def _post(port: int, body: bytes, headers: Mapping[str, str]) -> str:
    """The status of the reply; `closed` where the connection was closed without one."""
    try:
        with connected(port) as connection:
            connection.request("POST", PATH, body, {"Content-Type": "application/json", **headers})
            return str(connection.getresponse().status)
    except (OSError, HTTPException):
        return "closed"


def _probe(port: int, waits: list[float], over: threading.Event) -> None:
    while not over.is_set():
        started = perf_counter()
        with connected(port) as connection:
            connection.request("GET", "/livez")
            connection.getresponse().read()
        waits.append(perf_counter() - started)
        sleep(0.01)
