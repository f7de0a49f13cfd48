"""What a long session costs a turn: 2,000 messages of 500k tokens, of which only the last few are new.

Each row is one store, with and without a condensation that stands. The session is sent whole once, then grows turn by
turn; what a turn costs is measured by stage, in milliseconds of wall time that the proxy adds before it forwards, and
what it stores after. The parts are those of the app; only the summarizer is scripted.

    read      the body's bytes to messages that are known or new        (proxy/request/wire.py, message_cache.py)
    count     digests and tokens of what is new                         (proxy/request/measure.py)
    session   the session from the store, recognised                    (proxy/sessions/recognition.py)
    view      replay, requirement, splice                               (proxy/condenser.py)
    settle    the turn's own messages into the store                    (proxy/sessions/keeping.py)
"""

from __future__ import annotations

import asyncio
import gc
import json
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

from bench.history import Message, long_history
from proxy.condensing.decision import Decision
from proxy.http.headers import Headers
from proxy.replaying.play import ScriptedSummarizer
from proxy.request import controls, wire
from proxy.request.chat import ChatRequest
from proxy.services import Services, open_services
from proxy.settings import load_settings
from proxy.store.base import SessionStore, Write
from proxy.tokens.counter import Tokenizers
from tests.support.redis_server import RedisServer
from tests.support.redis_server import available as redis_available

MESSAGES = 2_000
TURNS = 41
ROOM = 1_000_000
"""A window in which the session stays below every mark."""
TIGHT = 500_000
"""A window that the session has just outgrown: half of its rounds are condensed once, and that stands."""
CPU = "cpu"
STAGES = ("read", "count", "session", "view", "settle")
TARGET = 10.0
MODEL = "gpt-4o"


@dataclass(frozen=True, slots=True)
class Row:
    """Medians in milliseconds by stage over all turns but the first; sizes are those of the last turn.

    `cpu` is processor time of all threads, which tells more than the clock where the machine does other work too.
    `first` is the total of the first request, in which everything was new; `bytes_in` is the last body, and
    `bytes_stored` what the last turn gave the store.
    """

    store: str
    condensed: bool
    recognised: str
    messages: int
    tokens: int
    first: float
    stages: dict[str, float]
    median: float
    worst: float
    cpu: float
    bytes_in: int
    bytes_stored: int


def measure(messages: int = MESSAGES, turns: int = TURNS) -> list[Row]:
    """All rows; takes about a minute. Redis is measured where `redis-server` is installed."""
    history = long_history(messages + 2 * turns)
    rows = []
    for name in ("memory", "sqlite", "redis"):
        for condensed in (False, True):
            for explicit in (True, False):
                with _store_url(name) as url:
                    if url is not None:
                        session = LongSession(history, url, TIGHT if condensed else ROOM, explicit=explicit)
                        rows.append(asyncio.run(session.row(name, messages, turns)))
    return rows


@contextmanager
def _store_url(name: str) -> Iterator[str | None]:
    """The address of an empty store; None where it cannot be had."""
    if name == "memory":
        yield "memory://"
    elif name == "sqlite":
        with tempfile.TemporaryDirectory() as folder:
            yield f"sqlite:///{Path(folder) / 'sessions.db'}"
    elif redis_available():
        with RedisServer() as server:
            yield server.url
    else:
        yield None


class LongSession:
    """One session that grows; `explicit` tells whether the client names it or it is found by its chain."""

    def __init__(self, history: Sequence[Message], url: str, window: int, *, explicit: bool) -> None:
        self._raws = [json.dumps(message, ensure_ascii=False) for message in history]
        self._url = url
        self._explicit = explicit
        given = {"window": str(window), "strategy": "half-window", **({"session": "long"} if explicit else {})}
        self._headers = [(f"x-condenser-{key}".encode(), value.encode()) for key, value in given.items()]

    async def row(self, store: str, messages: int, turns: int) -> Row:
        """The session with `messages`, then `turns` times two more."""
        spent = []
        async with _built(self._url) as (built, written):
            for turn in range(turns):
                data = self._body(messages + 2 * turn)
                gc.collect()
                before = written.bytes
                decision, stages = await _turn(built, data, self._headers)
                spent.append(stages)
        totals = [sum(each[name] for name in STAGES) for each in spent]
        return Row(
            store=store,
            condensed=decision.applied is not None,
            recognised="id" if self._explicit else "chain",
            messages=messages + 2 * (turns - 1),
            tokens=decision.tokens_before,
            first=totals[0],
            stages={name: median(each[name] for each in spent[1:]) for name in STAGES},
            median=median(totals[1:]),
            worst=max(totals[1:]),
            cpu=median(each[CPU] for each in spent[1:]),
            bytes_in=len(data),
            bytes_stored=written.bytes - before,
        )

    def _body(self, end: int) -> bytes:
        return f'{{"model":"{MODEL}","messages":[{",".join(self._raws[:end])}],"stream":true}}'.encode()


async def _turn(built: Services, data: bytes, headers: Headers) -> tuple[Decision, dict[str, float]]:
    on_cpu, started = process_time(), perf_counter()
    body = wire.read(data, built.message_cache)
    read = _milliseconds(started)
    chosen = controls.read(headers, None, None)
    exchange = await built.condenser.exchange(
        ChatRequest(tenant="t", headers=[], body=body, model=MODEL, has_suffix=False, controls=chosen)
    )
    started = perf_counter()
    await exchange.store()
    timing = exchange.timing
    stages = (read, timing.count, timing.session, timing.condense, _milliseconds(started))
    spent = (process_time() - on_cpu) * 1_000
    return exchange.decision, {**dict(zip(STAGES, stages, strict=True)), CPU: spent}


def _milliseconds(started: float) -> float:
    return (perf_counter() - started) * 1_000


class Written:
    """What was given to a store's `save`, in bytes before compression."""

    def __init__(self) -> None:
        self.bytes = 0


@asynccontextmanager
async def _built(url: str) -> AsyncIterator[tuple[Services, Written]]:
    """The parts of the app over the store at `url`, and what is written to it."""
    settings = load_settings(upstream={"base_url": "http://localhost/v1"}, store={"url": url, "timeout": 30})
    written = Written()
    async with open_services(settings, summarizer=ScriptedSummarizer(Tokenizers())) as built:
        _tell(built.store, written)
        yield built, written


def _tell(store: SessionStore, written: Written) -> None:
    """Adds what each save gives to `store`, without a store of another kind between them."""
    save = store.save

    async def told(key: Any, write: Write) -> bool:
        written.bytes += len(write.meta) + sum(map(len, write.blocks.values()))
        return await save(key, write)

    store.save = told  # type: ignore[method-assign]


def markdown(rows: Sequence[Row]) -> str:
    """One line a row: stages and their sum, in milliseconds."""
    heads = ["store", "standing", "found by", *STAGES, "all", "worst", "CPU", "first request", "bytes stored", "target"]
    lines = [heads, [*["---"] * 3, *["---:"] * (len(heads) - 4), "---"]]
    for row in rows:
        numbers = [*(f"{row.stages[name]:.2f}" for name in STAGES), f"{row.median:.1f}", f"{row.worst:.1f}"]
        numbers += [f"{row.cpu:.1f}", f"{row.first:.0f}", f"{row.bytes_stored:,}"]
        verdict = "met" if row.median < TARGET else "missed"
        lines.append([row.store, "half-window" if row.condensed else "-", row.recognised, *numbers, verdict])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def document(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows as JSON."""
    return [asdict(row) for row in rows]
