"""The load: requests of small, medium and large payloads, and a generator of them as a process of its own.

Each connection sends its next request when the reply to the one before is complete.

Requests are what most clients send: an agent's tools, `temperature` and `max_tokens`, the wish for usage where the
reply is streamed, and nothing that names their session unless that is measured. All connections share what was said;
the system prompt tells the connection, the last message the request. All that can be made ahead of time is: of a
request only some digits differ from the one before it.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import count
from multiprocessing import get_context
from time import perf_counter
from typing import Any, NamedTuple, cast

import httptools
import uvloop

from bench.stub import REPLY
from proxy.commands.replaying.recorded import Conversation, in_protocol
from strategies.dialects.chat import CHAT
from tests.support.histories import Message, agent_history, long_history

PATIENCE = 60.0
"""Seconds after which a reply that does not come ends the job."""
MODEL = "gpt-4o"
MARK = "#00000000"
"""Stands wherever requests differ; the number of one, of as many digits, takes its place."""
NAME = "SESSION"
"""Stands where the session is named; its name takes its place."""
NEWEST = "{}"
"""Stands where the newest messages are, those of earlier turns before the last one."""
_ASKED = "Please go on, and say in one sentence what you have found so far and what you will do next."
_ASKING = b'{"role": "user", "content": "%b #%%08d"}' % _ASKED.encode()
_REPLIED = b', {"role": "assistant", "content": "%b#%%08d"}, ' % REPLY.encode()
"""A reply as the client has it: with a number, for no two replies of a model are the same."""
_PARAMETERS = {
    "read_file": {"path": "Path of the file, relative to the workspace"},
    "edit_file": {"path": "Path of the file", "old_string": "Text to replace", "new_string": "Text in its place"},
    "bash": {"command": "Command line, run in the workspace"},
}


@dataclass(frozen=True, slots=True)
class Job:
    """What to send where, for how many `seconds`, from how many `connections`; `least` requests each in any case.

    Where they are `cold` no message was sent before; else all are but the last, or conversations go on for so many
    `turns`: a request is the one before it, its reply and a new message. Where they are `named` a header names their
    session; another gives the `window` in tokens. `first` is where the numbers of requests begin; of two jobs with the
    same ones, the second is not cold.
    """

    payload: str
    streamed: bool = False
    cold: bool = False
    named: bool = False
    window: int | None = None
    turns: int = 1
    protocol: str = CHAT.name
    port: int = 0
    connections: int = 1
    seconds: float = 0.0
    least: int = 1
    first: int = 0


class Load(NamedTuple):
    """What came of a job: its seconds, and those of each request until the first byte of the reply's body, and all."""

    seconds: float
    first_bytes: list[float]
    completes: list[float]


def sent(job: Job) -> Load:
    """What came of a job; raises where a request failed."""
    return _generators().submit(_sent, job).result()


@cache
def _generators() -> ProcessPoolExecutor:
    """Two processes, for two jobs at once; they end with this one."""
    return ProcessPoolExecutor(2, get_context("spawn"))


def _sent(job: Job) -> Load:
    """Does a job in this process, on the last core."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    return uvloop.run(_load(job))


class _Connection(asyncio.Protocol):
    """A connection that has one request under way at a time."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._done: asyncio.Future[None] | None = None

    async def request(self, data: bytes) -> float:
        """Sends a request and returns, when its reply is complete, when that began; raises where it fails."""
        self._done = asyncio.get_running_loop().create_future()
        self._parser, self._first_byte = httptools.HttpResponseParser(self), 0.0
        self.transport.write(data)
        await self._done
        return self._first_byte

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._first_byte = self._first_byte or perf_counter()

    def on_message_complete(self) -> None:
        assert self._done is not None
        status = self._parser.get_status_code()
        if status == 200:
            self._done.set_result(None)
        else:
            self._done.set_exception(RuntimeError(f"a request was answered with {status}"))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(exc or ConnectionResetError("the connection was closed"))


async def _load(job: Job) -> Load:
    first_bytes: list[float] = []
    completes: list[float] = []
    numbers, started = count(job.first), perf_counter()

    async def connected() -> _Connection:
        return (await asyncio.get_running_loop().create_connection(_Connection, "127.0.0.1", job.port))[1]

    async def client(place: int) -> None:
        connection = await connected()
        for done, data in enumerate(requests(job, place, numbers)):
            if done >= job.least and perf_counter() - started > job.seconds:
                break
            if connection.transport.is_closing():
                connection = await connected()
            began = perf_counter()
            async with asyncio.timeout(PATIENCE):
                first_byte = await connection.request(data)
            first_bytes.append(first_byte - began)
            completes.append(perf_counter() - began)
        connection.transport.close()

    await asyncio.gather(*map(client, range(job.connections)))
    return Load(perf_counter() - started, first_bytes, completes)


def requests(job: Job, place: int, numbers: Iterator[int]) -> Iterator[bytes]:
    """The requests of one connection of a job, without end; each takes its number from those of the job."""
    session = f"{job.payload[0]}{job.streamed:d}{(job.window or 0) // 1_000:04d}{place:07d}"
    earlier: list[int] = []
    for number in numbers:
        name = f"c{number:012d}" if job.cold else session
        yield request(job, name.encode(), number, earlier)
        earlier = [*earlier, number] if len(earlier) + 1 < job.turns else []


def request(job: Job, session: bytes, number: int, earlier: Sequence[int] = ()) -> bytes:
    """The bytes of request `number` of a session; those of the numbers `earlier` were asked and answered before."""
    head, pieces = _pieces(job)
    turns = b"".join([_ASKING % each + _REPLIED % each for each in earlier])
    filled = {NAME.encode(): session, MARK.encode(): b"#%08d" % number, NEWEST.encode(): turns + _ASKING % number}
    body = b"".join([filled.get(piece, piece) for piece in pieces])
    return head.replace(NAME.encode(), session) + b"content-length: %d\r\n\r\n" % len(body) + body


@cache
def _pieces(job: Job) -> tuple[bytes, Sequence[bytes]]:
    """The head of a job's requests, and their body, divided where something is to be filled in."""
    history = messages(job.payload)
    if job.cold:
        history = [{**each, "content": f"{MARK} {each['content']}"} for each in history]
    system = {**history[0], "content": f"{history[0]['content']} You are in conversation {NAME}."}
    tools = [] if job.payload == "small" else list(map(_tool, _PARAMETERS))
    conversation = in_protocol(Conversation(job.payload, [system, *history[1:]], tools), job.protocol)
    endpoint = conversation.endpoint
    head = f"POST {endpoint.path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer sk-bench\r\n"
    head += "content-type: application/json\r\n"
    head += f"x-condenser-session: {NAME}\r\n" if job.named else ""
    head += f"x-condenser-window: {job.window}\r\n" if job.window else ""
    body = {
        "model": MODEL,
        **conversation.members,
        endpoint.list_member: [*conversation.messages, {}],
        "temperature": 0.2,
        endpoint.reply_limits[-1]: 512,
        **({"tools": conversation.tools} if conversation.tools else {}),
        # Towards the end, where the stub looks for it.
        **({"stream": True} if job.streamed else {}),
        **({"stream_options": {"include_usage": True}} if job.streamed and endpoint.dialect is CHAT else {}),
    }
    return head.encode(), re.split(f"({NAME}|{MARK}|{NEWEST})".encode(), json.dumps(body, ensure_ascii=False).encode())


def messages(payload: str) -> list[Message]:
    """The messages of a payload: `small` has 74 tokens, `medium` 60 messages of 8k, `large` 400 of 100k tokens."""
    if payload == "small":
        return [
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": "What does the parser do when a header is missing?"},
            {"role": "assistant", "content": "It returns early, so every caller has to check for None."},
        ]
    *before, last = agent_history(40)[:59] if payload == "medium" else long_history(399)
    # The last reply calls nothing: who asks on has the results of all calls.
    return [*before, {"role": last["role"], "content": last["content"]}]


def _tool(name: str) -> dict[str, Any]:
    properties = {key: {"type": "string", "description": said} for key, said in _PARAMETERS[name].items()}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    said = f"The tool {name} of the workspace; its result is text, cut where it is longer than 1,000 words"
    return {"type": "function", "function": {"name": name, "description": said, "parameters": schema}}
