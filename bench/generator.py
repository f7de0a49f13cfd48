"""A load generator, as a process of its own: `python -m bench.generator JOB`, with a job as JSON; it prints a `Load`.

Each connection sends its next request when the reply to the one before is complete. All that can be made ahead of
time is: of a request only some digits differ from the one before it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import count
from time import perf_counter
from typing import Any, cast

import httptools
import uvloop

from bench.payloads import request_parts

PATIENCE = 60.0
"""Seconds after which a reply that does not come ends the job."""
LEAVING = 16


@dataclass(frozen=True, slots=True)
class Job:
    """What to send where, for how many `seconds`, from how many `connections`; `least` requests are sent in any case.

    Where they are `cold` no message was sent before; else all are but the last, or conversations go on for so many
    `turns`: a request is the one before it, its reply and a new message. Where they are `named` a header tells their
    session. `first` is where the numbers of requests begin; of two jobs with the same ones, the second is not cold.
    `headers` are more lines of each head. Where they are `rough` any answer or none will do, and the client of every
    `LEAVING`th request leaves at the first bytes of its reply. A `rate` bounds each connection's
    requests a second.
    """

    port: int
    payload: str
    streamed: bool
    cold: bool
    connections: int
    seconds: float
    least: int = 1
    first: int = 0
    window: int | None = None
    named: bool = False
    turns: int = 1
    headers: str = ""
    rough: bool = False
    rate: float = 0.0
    protocol: str = "chat"


@dataclass(frozen=True, slots=True)
class Load:
    """What came of a job; times in milliseconds, of all requests, until the first byte of the body and the last."""

    requests: int
    seconds: float
    first_bytes: list[float]
    completes: list[float]


class _Connection(asyncio.Protocol):
    """A connection that has one request under way at a time."""

    def __init__(self, *, is_rough: bool = False) -> None:
        self._is_rough = is_rough
        self._leaves = False
        self._parser: Any = None
        self._done: asyncio.Future[None] | None = None
        self.first_byte = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    @property
    def is_closed(self) -> bool:
        """Whether no further request can be sent."""
        return self._transport.is_closing()

    async def request(self, data: bytes, *, leaves: bool = False) -> None:
        """Sends a request and returns when its reply is complete, or begins if it `leaves`; raises where it fails."""
        self._leaves = leaves
        self._done = asyncio.get_running_loop().create_future()
        self._parser, self.first_byte = httptools.HttpResponseParser(self), 0.0
        self._transport.write(data)
        await self._done

    def data_received(self, data: bytes) -> None:
        if self._leaves:
            self._transport.abort()
            return
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self.first_byte = self.first_byte or perf_counter()

    def on_message_complete(self) -> None:
        assert self._done is not None
        status = self._parser.get_status_code()
        if status == 200 or self._is_rough:
            self._done.set_result(None)
        else:
            self._done.set_exception(RuntimeError(f"a request was answered with {status}"))

    def close(self) -> None:
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._done is None or self._done.done():
            return
        if self._is_rough:
            self._done.set_result(None)
        else:
            self._done.set_exception(exc or ConnectionResetError("the connection was closed"))


class _Run:
    """A job under way."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._numbers = count(job.first)
        self.first_bytes: list[float] = []
        self.completes: list[float] = []

    async def load(self) -> Load:
        started = perf_counter()
        await asyncio.gather(*(self._client(place, started) for place in range(self._job.connections)))
        return Load(len(self.completes), perf_counter() - started, self.first_bytes, self.completes)

    async def _client(self, place: int, started: float) -> None:
        job = self._job
        connection = await self._connected()
        for sent, data in enumerate(requests(self._job, place, self._numbers)):
            if sent >= job.least and perf_counter() - started > job.seconds:
                break
            if connection.is_closed:
                connection = await self._connected()
            began = perf_counter()
            async with asyncio.timeout(PATIENCE):
                await connection.request(data, leaves=job.rough and sent % LEAVING == LEAVING - 1)
            self.first_bytes.append((connection.first_byte - began) * 1_000)
            self.completes.append((perf_counter() - began) * 1_000)
            if job.rate:
                await asyncio.sleep(began + 1 / job.rate - perf_counter())
        connection.close()

    async def _connected(self) -> _Connection:
        loop, make = asyncio.get_running_loop(), partial(_Connection, is_rough=self._job.rough)
        return (await loop.create_connection(make, "127.0.0.1", self._job.port))[1]


def requests(job: Job, place: int, numbers: Iterator[int]) -> Iterator[bytes]:
    """The requests of one connection of a job, without end; each takes its number from those of the job."""
    parts = request_parts(
        job.payload,
        streamed=job.streamed,
        cold=job.cold,
        named=job.named,
        window=job.window,
        protocol=job.protocol,
    )
    parts = replace(parts, head=parts.head + job.headers.encode())
    earlier: list[int] = []
    for number in numbers:
        opening = earlier[0] if earlier else number
        yield parts.request(_session(job, place, opening).encode(), number, earlier)
        earlier = [*earlier, number] if len(earlier) + 1 < job.turns else []


def _session(job: Job, place: int, opening: int) -> str:
    """A name: that of a conversation where each is new or named, else that of a place in a cell.

    A conversation has the number of the request that opened it.
    """
    if job.cold or (job.named and job.turns > 1):
        return f"c{opening:012d}"
    return f"{job.payload[0]}{job.streamed:d}{(job.window or 0) // 1_000:04d}{place:07d}"


def main(text: str) -> None:
    """Does a job and prints what came of it as JSON."""
    load = uvloop.run(_Run(Job(**json.loads(text))).load())
    # Where Python is told not to buffer, print() loses what a full pipe does not take at once.
    with open(sys.stdout.fileno(), "w", closefd=False) as out:
        json.dump(asdict(load), out)


if __name__ == "__main__":
    main(sys.argv[1])
