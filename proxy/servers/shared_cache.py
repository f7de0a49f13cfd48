"""The cache that the slots of a server share, or may share.

llama.cpp states how many slots it has, and not whether they share one cache, as they do where `--parallel` is left out.
So a call of the proxy's own is made as if they did: it waits until it fits beside all that is under way, and a client's
request waits until it fits beside such calls. Clients wait for each other once an error has shown that they share it.

A call that was hung up holds its room until `/slots` says that a slot is free. If it does not stream, llama.cpp notices
only when no answer of any request, `/slots` included, has moved for a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, cycle

from proxy.errors import UpstreamUnavailable
from proxy.runtime.owned_tasks import OwnedTasks

SLOT_WAIT = 2.0  # seconds that a client waits for own calls, unless it is known that it must
_GONE = 10.0  # seconds after which a call that was hung up holds nothing, whatever the server says
_LOOKS = 0.05, 1.1, 0.1  # seconds until a hang-up is noticed in a stream, and elsewhere, and until a batch has ended


@dataclass(slots=True, eq=False)
class SharedCache:
    """A cache of `size` tokens, and how many of them each request holds, of any tenant."""

    busy_slots: Callable[[], Awaitable[int | None]]  # how many of the server's slots work now; None if it does not say
    tasks: OwnedTasks
    size: int = 0
    is_shown: bool = False  # whether an error has shown that it was full of other requests
    _own: dict[object, int] = field(default_factory=dict)
    _clients: dict[object, int] = field(default_factory=dict)
    _freed: asyncio.Event = field(default_factory=asyncio.Event)

    async def take(self, holder: object, tokens: int, *, is_own: bool = False) -> None:
        """Returns when a request holds so many tokens, or all that there are, in place of what it held before."""
        self.release(holder)
        beside = [self._own, *[self._clients] * (is_own or self.is_shown)]
        with suppress(TimeoutError):
            async with asyncio.timeout(SLOT_WAIT if len(beside) == 1 else None):
                # A server that is started anew may have another size.
                while sum(sum(each.values()) for each in beside) + min(tokens, self.size) > self.size:
                    await self._freed.wait()
        (self._own if is_own else self._clients)[holder] = min(tokens, self.size)

    def release(self, holder: object, *, hung_up: bool = False) -> None:
        """Frees what a request holds; if it was hung up, when its server is free of it."""
        if hung_up:
            self.tasks.start(self._leave(holder))
        elif self._own.pop(holder, None) is not None or self._clients.pop(holder, None) is not None:
            self._freed.set()
            self._freed = asyncio.Event()

    async def _leave(self, holder: object) -> None:
        try:
            with suppress(TimeoutError, UpstreamUnavailable):
                async with asyncio.timeout(_GONE):
                    for seconds in chain(_LOOKS[:1], cycle(_LOOKS[1:])):
                        await asyncio.sleep(seconds)
                        if (busy := await self.busy_slots()) is None:
                            await asyncio.sleep(SLOT_WAIT)
                        if busy is None or busy < len(self._own) + len(self._clients):
                            break
        finally:
            self.release(holder)
