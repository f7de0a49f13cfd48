"""Routes commands to the server of the URL, to the master that Sentinels name, or to the node that serves a slot.

A route takes commands and returns their answers. It sends a command again only if it was not executed (see `redis.py`),
and starts nothing after `until`, the end of the caller's budget on the event loop's clock.

What a route knows of its servers may be out of date, and any answer can show that. A redirection corrects one slot. A
server that fails, or that is no master any more, makes the whole map doubtful. A doubtful map is replaced before the
next command: several servers are asked at once and the first answer is taken, so that servers which hang cost nothing.
During a fail-over that answer names the server that is down: calls fail at once until another server takes its place,
and the first call after that finds it.

While a slot moves between nodes, Redis refuses scripts if some of their keys are on the other node: the sessions in
that slot are unavailable until it has moved, and are never half written.

What Redis itself may lose: replication is asynchronous, so a fail-over forgets writes that were acknowledged but had
not reached the replica. Then a revision may be used twice, and a record may be written again under its name. Each write
stays atomic on its server, and the client's next transcript restores what is missing.
"""

from __future__ import annotations

import asyncio
import random
from binascii import crc_hqx
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from proxy.store.base import StoreError
from proxy.store.breaker import Breaker
from proxy.store.redis import Address, Command, Node, NotSent, Redirect, TryAgain

T = TypeVar("T")
Connect = Callable[[Address], Node]
Guard = Callable[[Address], Breaker]

SLOTS = 16_384
TRIES = 4  # a redirection, a correction of it, and two more
ASKED_AT_ONCE = 5  # servers that are asked for the map of a cluster
SCANNED_AT_ONCE = 1_000  # keys that a server looks at in one step of a listing
PAUSE = 0.02  # seconds before a command to a moving slot is sent again

PING = Command(("PING",))

_DOUBTS = frozenset({"store-loading", "store-read-only", "store-timeout", "store-unavailable"})


class Route(Protocol):
    """The way to the servers behind one URL. If `is_one_server`, one command may have keys of any slots."""

    is_one_server: bool

    async def ask(self, commands: Sequence[Command], until: float) -> list[Any]:
        """All answers in order; raises StoreError where any is missing, even if other commands were executed."""
        ...

    async def ping(self, until: float) -> None:
        """Returns when every server that takes writes has answered."""
        ...

    async def keys(self, pattern: str, until: float) -> set[bytes]:
        """The keys that match, of all servers that take writes; raises `store-timeout` where time runs out."""
        ...

    async def close(self) -> None:
        """Closes all connections."""
        ...


class Direct:
    """One server, always the same."""

    is_one_server = True

    def __init__(self, node: Node) -> None:
        self._node = node

    async def ask(self, commands: Sequence[Command], until: float) -> list[Any]:
        return complete(await self._node.ask(commands))

    async def ping(self, until: float) -> None:
        await self.ask([PING], until)

    async def keys(self, pattern: str, until: float) -> set[bytes]:
        return await _scan(self._node.ask, pattern, until)

    async def close(self) -> None:
        await self._node.close()


class Sentinels:
    """The master of a service, as its Sentinels name it."""

    is_one_server = True

    def __init__(self, sentinels: Sequence[Node], service: str, connect: Connect) -> None:
        self._sentinels = sentinels
        self._question = Command(("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service))
        self._service = service
        self._nodes = _Nodes(connect)
        self._master: Address | None = None
        self._search: asyncio.Task[Address] | None = None

    async def ask(self, commands: Sequence[Command], until: float) -> list[Any]:
        master = await self._find_master()
        try:
            return await self._ask(master, commands)
        except NotSent:
            elsewhere = await self._find_master()
            if elsewhere == master or _is_past(until):
                raise
            return await self._ask(elsewhere, commands)

    async def ping(self, until: float) -> None:
        await self.ask([PING], until)

    async def keys(self, pattern: str, until: float) -> set[bytes]:
        master = await self._find_master()  # one for all steps, since a cursor is valid on its own server only
        return await _scan(lambda commands: self._ask(master, commands), pattern, until)

    async def close(self) -> None:
        for node in (*self._sentinels, *self._nodes):
            await node.close()

    async def _ask(self, master: Address, commands: Sequence[Command]) -> list[Any]:
        try:
            return complete(await self._nodes[master].ask(commands))
        except StoreError as error:
            if error.reason in _DOUBTS and self._master == master:
                self._master = None
            raise

    async def _find_master(self) -> Address:
        if self._master is None:
            if self._search is None:
                self._search = asyncio.create_task(_first_answer(self._ask_sentinel(each) for each in self._sentinels))
            search = self._search
            try:
                self._master = await search
            finally:
                self._search = None if self._search is search else self._search
        return self._master

    async def _ask_sentinel(self, sentinel: Node) -> Address:
        (answer,) = complete(await sentinel.ask([self._question]))
        if answer is None:
            raise NotSent("store-unavailable", f"the Sentinel knows no service {self._service!r}")
        host, port = answer
        return host.decode(), int(port)


class Cluster:
    """The nodes of a cluster, by the slots that they serve; `seeds` are the nodes in the URL.

    `guard` makes a breaker for each node: while a node is down, its slots fail at once and the others go on.
    """

    is_one_server = False

    def __init__(self, seeds: Sequence[Address], connect: Connect, guard: Guard) -> None:
        self._seeds = seeds
        self._guard = guard
        self._breakers: dict[Address, Breaker] = {}
        self._nodes = _Nodes(connect)
        self._slots: list[Address | None] = []
        self._members: frozenset[Address] = frozenset(seeds)
        self._doubted: set[Address] = set()
        self._search: asyncio.Task[None] | None = None

    async def ask(self, commands: Sequence[Command], until: float) -> list[Any]:
        answers: list[Any] = [None] * len(commands)
        redirects: dict[int, Redirect] = {}
        waiting = list(range(len(commands)))
        for _ in range(TRIES):
            sent_to = await self._ask(commands, waiting, redirects, answers)
            redirects = self._redirected(waiting, answers)
            if any(isinstance(answers[n], NotSent) for n in waiting):
                await self._ensure_map()
            waiting = [n for n in waiting if self._may_go_on(answers[n], commands[n].key, sent_to[n])]
            if not waiting or _is_past(until):
                break
            if any(isinstance(answers[n], TryAgain) for n in waiting):
                await asyncio.sleep(PAUSE)
        return complete(answers)

    async def ping(self, until: float) -> None:
        for answers in await asyncio.gather(
            *(self._send(each, [PING], asking=False) for each in await self._masters())
        ):
            complete(answers)

    async def keys(self, pattern: str, until: float) -> set[bytes]:
        scans = [_scan(partial(self._send, each, asking=False), pattern, until) for each in await self._masters()]
        return {key for found in await asyncio.gather(*scans) for key in found}

    async def _masters(self) -> set[Address]:
        await self._ensure_map()
        return {address for address in self._slots if address is not None}

    async def close(self) -> None:
        for node in self._nodes:
            await node.close()

    async def _ask(
        self, commands: Sequence[Command], waiting: Iterable[int], redirects: Mapping[int, Redirect], answers: list[Any]
    ) -> dict[int, Address]:
        """Sends each waiting command to its node, all nodes at once. Returns the node of each."""
        await self._ensure_map()
        groups: dict[tuple[Address, bool], list[int]] = {}
        for n in waiting:
            once = redirects.get(n)
            place = (once.address, True) if once and once.ask else (self._serving(commands[n].key), False)
            groups.setdefault(place, []).append(n)
        results = await asyncio.gather(
            *(self._send(address, [commands[n] for n in group], asking=ask) for (address, ask), group in groups.items())
        )
        for group, result in zip(groups.values(), results, strict=True):
            for n, answer in zip(group, result, strict=True):
                answers[n] = answer
        return {n: address for (address, _), group in groups.items() for n in group}

    async def _send(self, address: Address, commands: Sequence[Command], *, asking: bool) -> list[Any]:
        try:
            answers = await self._guarded(address, commands, asking=asking)
        except StoreError as error:
            answers = [error] * len(commands)
        if any(isinstance(each, StoreError) and each.reason in _DOUBTS for each in answers):
            self._doubted.add(address)
        return answers

    async def _guarded(self, address: Address, commands: Sequence[Command], *, asking: bool) -> list[Any]:
        if address not in self._breakers:
            self._breakers[address] = self._guard(address)
        breaker = self._breakers[address]
        try:
            ticket = breaker.begin()
        except StoreError as refused:
            raise NotSent(refused.reason, str(refused)) from None
        failed: BaseException | None = None
        try:
            answers = await self._nodes[address].ask(commands, asking=asking)
            failed = next((each for each in answers if isinstance(each, StoreError)), None)
        except BaseException as error:
            failed = error
            raise
        finally:
            breaker.end(ticket, failed)
        return answers

    def _redirected(self, waiting: Iterable[int], answers: Sequence[Any]) -> dict[int, Redirect]:
        """The redirections among the answers; permanent ones correct the map of slots."""
        redirects = {n: answers[n] for n in waiting if isinstance(answers[n], Redirect)}
        for each in redirects.values():
            if not each.ask:
                self._slots[each.slot] = each.address
        return redirects

    def _may_go_on(self, answer: Any, key: str, sent_to: Address) -> bool:
        """Whether the answer shows that the command was not executed, and another try may succeed."""
        if isinstance(answer, NotSent):
            return self._serving(key) != sent_to
        return isinstance(answer, Redirect | TryAgain)

    def _serving(self, key: str) -> Address:
        address = self._slots[slot_of(key)]
        if address is None:
            raise StoreError("store-unavailable", f"no node of the cluster serves slot {slot_of(key)}")
        return address

    async def _ensure_map(self) -> None:
        """Makes sure that there is a map of slots; replaces a doubtful one where a node has a newer map."""
        if self._slots and not self._doubted:
            return
        if self._search is None:
            self._search = asyncio.create_task(self._fetch_map())
        search = self._search
        try:
            await search
        except StoreError:
            if not self._slots:
                raise
        finally:
            self._search = None if self._search is search else self._search

    async def _fetch_map(self) -> None:
        doubted, self._doubted = self._doubted, set()
        trusted = (self._members | frozenset(self._seeds)) - doubted or self._members
        asked = random.sample(sorted(trusted), min(ASKED_AT_ONCE, len(trusted)))
        try:
            self._slots, self._members = await _first_answer(self._ask_for_slots(each) for each in asked)
        except StoreError:
            self._doubted |= doubted
            raise

    async def _ask_for_slots(self, address: Address) -> tuple[list[Address | None], frozenset[Address]]:
        (answer,) = complete(await self._nodes[address].ask([Command(("CLUSTER", "SLOTS"))]))
        slots: list[Address | None] = [None] * SLOTS
        members = set()
        for first, last, *servers in answer:
            known = [_address(server, address[0]) for server in servers]
            members.update(known)
            slots[first : last + 1] = [known[0]] * (last + 1 - first)
        if not members:
            raise NotSent("store-unavailable", "the node serves no slots and knows none that does")
        return slots, frozenset(members)


class _Nodes:
    """The nodes that were ever used, by address. They are never dropped: they are few, and one that left may return."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._nodes: dict[Address, Node] = {}

    def __getitem__(self, address: Address) -> Node:
        if address not in self._nodes:
            self._nodes[address] = self._connect(address)
        return self._nodes[address]

    def __iter__(self) -> Iterator[Node]:
        return iter(list(self._nodes.values()))


def slot_of(key: str) -> int:
    """The slot of a key, by its hash tag (the text between its first braces), or by all of it."""
    start = key.find("{")
    end = key.find("}", start + 1)
    tag = key[start + 1 : end] if start >= 0 and start + 1 < end else key
    return crc_hqx(tag.encode(), 0) % SLOTS


def complete(answers: list[Any]) -> list[Any]:
    """The answers, if all commands were executed; else raises StoreError for the first that was not."""
    for answer in answers:
        match answer:
            case StoreError():
                raise answer
            case Redirect():
                raise StoreError("store-unavailable", "redirected too often, or part of a cluster: redis+cluster://")
            case TryAgain():
                raise StoreError("store-unavailable", "the slot is moving to another node")
    return answers


async def _scan(ask: Callable[[Sequence[Command]], Awaitable[list[Any]]], pattern: str, until: float) -> set[bytes]:
    """The keys of one server that match, by SCAN, since KEYS would block the server for all its clients."""
    found: set[bytes] = set()
    cursor = b"0"
    while True:
        step = Command(("SCAN", cursor, "MATCH", pattern, "COUNT", SCANNED_AT_ONCE))
        ((cursor, keys),) = complete(await ask([step]))
        found.update(keys)
        if cursor == b"0":
            return found
        if _is_past(until):
            raise StoreError("store-timeout", "there are more keys than can be listed in time")


async def _first_answer(questions: Iterable[Awaitable[T]]) -> T:
    """The first answer; slower ones are cancelled. Raises the last error if there is no answer."""
    pending = {asyncio.ensure_future(question) for question in questions}
    error: BaseException = NotSent("store-unavailable", "there is no server to ask")
    try:
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                failed = task.exception()
                if failed is None:
                    return task.result()
                error = failed
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
    raise error


def _address(server: Sequence[Any], asked: str) -> Address:
    host, port = server[0], server[1]
    # A node that does not know its own address means the address at which it was asked.
    return (host.decode() if host else asked), int(port)


def _is_past(until: float) -> bool:
    return asyncio.get_running_loop().time() >= until
