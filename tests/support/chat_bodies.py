"""Request bodies of the chat protocol, read as the proxy reads them."""

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from proxy.bodies import scanning, wire
from proxy.bodies.message_cache import Element, MessageCache
from proxy.bodies.scanning import DEFAULT_BOUNDS, Bounds, Member
from proxy.bodies.wire import Body
from proxy.protocols.chat import CHAT_ENDPOINT
from proxy.protocols.endpoint import Endpoint


def read(data: bytes, cache: MessageCache | None = None, bounds: Bounds = DEFAULT_BOUNDS, *, owner: str = "") -> Body:
    if cache is None:
        return wire.read(data, CHAT_ENDPOINT, bounds, owner)
    return read_by(cache, data, CHAT_ENDPOINT, bounds, owner=owner)


def read_by(
    cache: MessageCache, data: bytes, endpoint: Endpoint, bounds: Bounds = DEFAULT_BOUNDS, *, owner: str = ""
) -> Body:
    """The body as it is read through a cache, on an event loop of its own, so that a test's loop may run."""
    with ThreadPoolExecutor(1) as worker:
        reading = wire.read_through_cache(data, endpoint, cache, bounds, owner=owner)
        return worker.submit(asyncio.run, reading).result()


async def read_through_cache(data: bytes, cache: MessageCache, bounds: Bounds, *, owner: str = "") -> Body:
    return await wire.read_through_cache(data, CHAT_ENDPOINT, cache, bounds, owner=owner)


def Tally(bounds: Bounds, size: int) -> scanning.Tally:
    return scanning.Tally(CHAT_ENDPOINT, bounds, size)


def Envelope(text: str, members: Mapping[str, Member]) -> scanning.Envelope:
    return scanning.Envelope(text, members, CHAT_ENDPOINT)


def element(raw: str) -> Element:
    return Element.of(raw, CHAT_ENDPOINT)
