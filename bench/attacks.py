"""What hostile requests cost: how long `/livez` waits, and how much memory the process takes.

Each attack goes to a fresh proxy over a memory store, `--at-once` copies at a time, while another process asks
`/livez` every 10 ms. `waits` is the longest that it took to answer, and `memory` what the process had at most beyond
what it had before. An attack that needs no proxy of its own kind is one row of `ATTACKS`.
"""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPException
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter, sleep

from bench.processes import Served, condenser, connected, stub
from proxy.replaying.report import markdown as table_of

AT_ONCE = 32
PATH = "/v1/chat/completions"
_HI = b'{"role":"user","content":"x"}'
_WIRE = 1_000_000


@dataclass(frozen=True, slots=True)
class Row:
    """One attack: statuses that came back, the longest wait of `/livez` in ms, memory in MB, for one and for many."""

    attack: str
    wire: int
    status: str
    wait: float
    memory: float
    many_wait: float
    many_memory: float


def _packed(body: bytes) -> tuple[bytes, dict[str, str]]:
    return gzip.compress(body), {"Content-Encoding": "gzip"}


def _plain(body: bytes) -> tuple[bytes, dict[str, str]]:
    return body, {}


def _body(extra: bytes = b"", messages: bytes = _HI) -> bytes:
    return b'{"model":"gpt-4o","messages":[%s]%s}' % (messages, extra)


def _text(size: int) -> bytes:
    return b'{"role":"user","content":"%s"}' % (b"lorem ipsum, dolor " * (size // 19))


ATTACKS: dict[str, Callable[[], tuple[bytes, dict[str, str]]]] = {
    "21 M empty objects, packed": lambda: _packed(_body(b',"z":[' + b"{}," * 21_000_000 + b"{}]")),
    "31 M numbers, packed": lambda: _packed(_body(b',"z":[' + b"1," * 31_000_000 + b"1]")),
    "2.1 M messages, packed": lambda: _packed(_body(messages=b",".join([_HI] * 2_100_000))),
    "a string of 60 MB, packed": lambda: _packed(_body(b',"z":"' + b"x" * 60_000_000 + b'"')),
    "a string of 4 MB, packed": lambda: _packed(_body(b',"z":"' + b"x" * 4_000_000 + b'"')),
    "objects in 1 MB": lambda: _plain(_body(b',"z":[' + b"{}," * (_WIRE // 3) + b"{}]")),
    "members in 1 MB": lambda: _plain(_body(b"".join(b',"m%d":1' % i for i in range(_WIRE // 11)))),
    "most values of one member": lambda: _plain(_body(b',"z":[' + b"{}," * 12_000 + b"{}]")),
    "most messages": lambda: _plain(_body(messages=b",".join([_HI] * 10_000))),
    "most values of all messages": lambda: _plain(
        _body(messages=b",".join([b'{"role":"user","x":[%s{}]}' % (b"{}," * 12_000)] * 10))
    ),
    "1 MB of text": lambda: _plain(_body(messages=_text(_WIRE))),
    "1 MB of text, not JSON at the end": lambda: _plain(_body(messages=_text(_WIRE)) + b"x"),
    "a header of 16 MB": lambda: (_body(), {"X-A": "a" * 16_000_000}),
}


def measure(at_once: int = AT_ONCE, only: Sequence[str] | None = None) -> list[Row]:
    rows = []
    with stub() as upstream:
        for name, make in ATTACKS.items():
            if not only or any(word in name for word in only):
                rows.append(_row(name, make, upstream, at_once))
    return rows


def _row(name: str, make: Callable[[], tuple[bytes, dict[str, str]]], upstream: Served, at_once: int) -> Row:
    body, headers = make()
    wire = len(body) + sum(map(len, headers.values()))
    figures: list[float] = []
    statuses: set[str] = set()
    for copies in (1, at_once):
        with condenser(upstream.port, "memory://") as served:
            wait, memory, said = _attacked(served, body, headers, copies)
        figures += (wait, memory)
        statuses |= said
    return Row(name, wire, ", ".join(sorted(statuses)), *figures)


def _attacked(served: Served, body: bytes, headers: dict[str, str], copies: int) -> tuple[float, float, set[str]]:
    _post(served.port, _body(), {})
    # In a process of their own: the senders of large heads would keep the probe from asking.
    with ProcessPoolExecutor(1, get_context("spawn")) as senders:
        senders.submit(_post_all, served.port, _body(), {}, 1).result()
        before, waits, over = served.resident, [0.0], threading.Event()
        _reset_peak(served.pid)
        probe = threading.Thread(target=_probe, args=(served.port, waits, over))
        probe.start()
        said = senders.submit(_post_all, served.port, body, headers, copies).result()
        over.set()
        probe.join()
    return max(waits) * 1_000, _peak(served.pid) - before, said


def _post_all(port: int, body: bytes, headers: dict[str, str], copies: int) -> set[str]:
    with ThreadPoolExecutor(copies) as pool:
        return set(pool.map(lambda _: _post(port, body, headers), range(copies)))


def _post(port: int, body: bytes, headers: dict[str, str]) -> str:
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


def _reset_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _peak(pid: int) -> float:
    line = next(each for each in Path(f"/proc/{pid}/status").read_text().splitlines() if each.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def markdown(rows: Sequence[Row]) -> str:
    head = "attack | on the wire | answer | `/livez` waits, ms | memory, MB | several at once: waits, ms | memory, MB"
    lines = [
        [row.attack, f"{row.wire / 1_000:,.0f} kB", row.status]
        + [f"{figure:,.0f}" for figure in (row.wait, row.memory, row.many_wait, row.many_memory)]
        for row in rows
    ]
    return table_of(head, lines, texts=(0, 2))
