"""The real driver over a store in memory, without a socket: what it decides on a request.

async with open_services(Settings(strategy="extract", window=4_096)) as services:
    turn = await drive.decide(services, request(talk(20)))
"""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from proxy import controls
from proxy.bodies.wire import ClientRequest
from proxy.servers.upstream.choice import DEFAULTS
from proxy.services import Services, open_services
from proxy.settings import Settings
from tests.support import chat_bodies as wire

Message = dict[str, Any]
WINDOW = 4_096


def conversation(turns: int, words: int = 60) -> list[Message]:
    """A conversation of turns that each have a question and an answer of so many words, and a last question."""
    messages: list[Message] = [{"role": "system", "content": "You keep a garden."}]
    for number in range(turns):
        messages.append({"role": "user", "content": f"What of bed {number}? " + "frost " * words})
        messages.append({"role": "assistant", "content": f"Bed {number} gets kale. " + "water " * words})
    return [*messages, {"role": "user", "content": "And what comes next?"}]


def request(messages: Sequence[Mapping[str, Any]], members: Message | None = None, /, **control: str) -> ClientRequest:
    """A request of tenant `t` in session `s` with more `members`; `control` are headers, as `dry_run="true"`."""
    asked = {"session": "s", **control}
    headers = [(f"x-condenser-{name}".replace("_", "-").encode(), value.encode()) for name, value in asked.items()]
    body: dict[str, Any] = {"model": "gpt-4o", "messages": messages, **(members or {})}
    read = wire.read(json.dumps(body).encode())
    return ClientRequest("t", headers, read, DEFAULTS[0], body["model"], False, controls.read(headers, None, None))


@asynccontextmanager
async def running_services(strategy: str = "extract", **settings: Any) -> AsyncIterator[Services]:
    """The services of a proxy with this strategy and a window of `WINDOW` tokens."""
    values = {"strategy": strategy, "window": WINDOW, "store": {"url": "memory://"}, **settings}
    async with open_services(Settings.model_validate(values)) as built:
        yield built
