"""Makes each of the proxy's own calls to a model: its lane, its caller's credential, its timeout.

`Dispatcher.dispatch` waits in the lane of the call's server until the call may be made (`Lane`), checks that a
caller's credential may still be used, makes the call, and reports how it ended. `Dispatcher.send` sends the request of
that call, within the timeout of its model. It tells the lane whether the server refused the call for its rate or
served it.

A key of the settings is used only on behalf of callers whose own credential the upstream has accepted
(`proxy/callers/tenants.py`). A caller's credential is sent to no other address than the caller's request. In the
background it is used for no longer than `CREDENTIAL_LIFE` seconds after that request.

A lane, one for each server, decides when a call that no client waits for may be made. Clients come first. A lane lets a
few calls through at the same time. If the server answers 429 or 503, to a client's request or to one of the proxy's
own, the lane closes for as long as the server asks, and a moment longer so that the clients that got the same answer
come back first. Then it reopens the way TCP recovers from packet loss: first one call, when no client's request is
under way, then one more for each call that succeeds, so their number doubles from round to round. So a server that
limits its rate refuses clients about as often as it would without the proxy.

In the mode `idle`, and for a local server, calls are made only while no client's request is under way there, and a
running call is broken off when a client's request arrives. The mode comes from the settings, or from those of the
call's model.

While a client waits for the result of a call (`Waiters`), none of this applies to that call: if it is waiting for its
turn, it is made at once like the client's own request; if it is running, it is not broken off. When the client has
stopped waiting, its own request breaks the call off.

A server that states its slots (llama.cpp) gets one call at a time, whoever waits: slots may share one cache, in which
five votes at once take five times the room (`SharedCache`). One vote after the other finds the same prompt in it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import KW_ONLY, dataclass, field
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from math import inf, isfinite
from typing import NamedTuple, Protocol, TypeVar

from proxy.callers.budgets import Spending, TokenBudget
from proxy.callers.tenants import ALWAYS, Trust
from proxy.errors import UpstreamUnavailable
from proxy.http.headers import API_KEYS, Headers, is_success
from proxy.protocols import compaction, endpoint_named
from proxy.protocols.chat import CHAT_ENDPOINT
from proxy.protocols.endpoint import Endpoint
from proxy.protocols.replies import tokens_in
from proxy.quoting import label
from proxy.runtime.lru import Lru
from proxy.runtime.owned_tasks import NOBODY, Waiters, offload
from proxy.servers import LessonScope
from proxy.servers.discovery import Discovered
from proxy.servers.shared_cache import SharedCache
from proxy.servers.upstream import JsonReply, Upstream, server_of
from proxy.servers.upstream.choice import Destination
from proxy.settings.profile import ANY, Profile
from proxy.settings.tables import BackgroundSettings, Mode, ModelRole
from proxy.values import json_or_none, object_at
from strategies.core.effects import Failure

PAUSE = 30.0  # seconds, if a server that refuses does not say how long
MAX_PAUSE = 3_600.0  # seconds; a server that asks for more is tried again after that
MOMENT = 1.0  # seconds that a client's request waits for the end of calls that were broken off for it
GRACE = 1.0  # seconds added, so that clients that got the same refusal come back first

PAUSED = "paused"
PREEMPTED = "preempted"
_log = logging.getLogger(__name__)

CANCELLED = "cancelled"  # how a call ends that a client broke off, or that is needed no more


class CallBlocked(Exception):
    """A background call was not made, or was broken off; `reason` is one kebab-case word."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Lane:
    """Admits background calls to one server.

    `clock` gives seconds since the epoch. `is_local` tells whether the server usually runs on one person's machine,
    `is_serial` whether it gets one call at a time.
    """

    def __init__(
        self,
        settings: BackgroundSettings,
        clock: Callable[[], float],
        is_local: Callable[[], bool] = lambda: False,
        is_serial: Callable[[], bool] = lambda: False,
    ) -> None:
        self._mode = settings.mode
        self._is_local = is_local
        self._is_serial = is_serial
        self._concurrency = settings.concurrency
        self._clock = clock
        self._limit = self._concurrency
        self._is_recovering = False
        self._closed_until = 0.0
        self._clients_under_way = 0
        self._places_taken = 0
        self._running: dict[asyncio.Timeout, tuple[Mode, Waiters]] = {}
        self._broken_off: set[asyncio.Timeout] = set()
        self._all_ended = asyncio.Event()  # of those broken off
        self._waiting: dict[asyncio.Future[None], tuple[Mode, Waiters]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def enter_foreground(self) -> None:
        """Notes that a request is under way for which a client waits; `leave_foreground` must follow."""
        self._clients_under_way += 1
        if self._running:
            now = asyncio.get_running_loop().time()
            for scope, (mode, waiters) in list(self._running.items()):
                if self._gives_way(mode) and not waiters.any:
                    del self._running[scope]
                    self._broken_off.add(scope)
                    self._all_ended.clear()
                    scope.reschedule(now)

    async def cleared(self) -> None:
        """Returns when the calls that were broken off have ended, or after a moment."""
        if self._broken_off:
            with suppress(TimeoutError):
                async with asyncio.timeout(MOMENT):
                    await self._all_ended.wait()

    def leave_foreground(self) -> None:
        """Notes that such a request is over."""
        self._clients_under_way -= 1
        if self._waiting:
            self._admit()

    @contextmanager
    def foreground(self) -> Iterator[None]:
        """A context to hold while a request is under way for which a client waits."""
        self.enter_foreground()
        try:
            yield
        finally:
            self.leave_foreground()

    @asynccontextmanager
    async def background(
        self, deadline: float, mode: Mode | None = None, waiters: Waiters = NOBODY
    ) -> AsyncIterator[None]:
        """A context to hold while a call is under way for which a client waits or none does (`waiters`).

        `mode` is by default the settings'. Entering waits for the call's turn until `deadline` on the clock. Raises
        `CallBlocked` if the turn does not come, or if the call is broken off.
        """
        mode = mode or self._mode
        await self._take_place(deadline, mode, waiters)
        scope = asyncio.timeout(None)
        try:
            with self.foreground() if waiters.any else nullcontext():
                async with scope:
                    self._running[scope] = mode, waiters
                    yield
        except TimeoutError:
            if scope.expired():
                raise CallBlocked(PREEMPTED) from None
            raise
        finally:
            self._running.pop(scope, None)
            self._broken_off.discard(scope)
            if not self._broken_off:
                self._all_ended.set()
            self._places_taken -= 1
            self._admit()

    def _gives_way(self, mode: Mode) -> bool:
        """Whether a call in this mode gives way to any client's request."""
        return mode == "idle" or self._is_local() or self._is_serial()

    def note_refusal(self, retry_after: str | None) -> None:
        """Notes that the server has refused a request for its rate, with this `Retry-After`, and closes the lane."""
        now = self._clock()
        self._closed_until = max(self._closed_until, now + pause_seconds(retry_after, now) + GRACE)
        self._is_recovering, self._limit = True, 1

    def note_success(self) -> None:
        """Notes that the server has answered a background call; a lane that reopens lets one more through."""
        if self._is_recovering and self._clock() >= self._closed_until:
            self._limit = min(self._limit + 1, self._concurrency)
            self._is_recovering = self._limit < self._concurrency

    async def _take_place(self, deadline: float, mode: Mode, waiters: Waiters) -> None:
        """Waits for a place in the lane and takes it."""
        now = self._clock()
        if not waiters.any and (mode == "off" or max(self._closed_until, now) > deadline):
            raise CallBlocked(PAUSED)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[turn] = mode, waiters
        self._admit()
        try:
            async with asyncio.timeout(deadline - now):
                with waiters.notifying(self._admit):
                    await turn
        except (TimeoutError, asyncio.CancelledError) as over:
            if turn.done() and not turn.cancelled():
                self._places_taken -= 1
                self._admit()
            if isinstance(over, TimeoutError):
                raise CallBlocked(PAUSED) from None
            raise

    def _may_begin(self, mode: Mode, waiters: Waiters, now: float) -> bool:
        if self._places_taken and self._is_serial():
            return False
        if waiters.any:
            return True
        is_closed = now < self._closed_until or (self._clients_under_way and self._is_recovering)
        if is_closed or self._places_taken >= self._limit:
            return False
        return not (self._clients_under_way and self._gives_way(mode))

    def _admit(self) -> None:
        """Gives places to waiting calls as far as the lane is open to them, first to those that a client waits for."""
        if not self._waiting:
            return
        now = self._clock()
        for turn, (mode, waiters) in sorted(self._waiting.items(), key=lambda entry: not entry[1][1].any):
            if turn.done():  # its call does not wait any longer
                del self._waiting[turn]
            elif self._may_begin(mode, waiters, now):
                del self._waiting[turn]
                self._places_taken += 1
                turn.set_result(None)
        # `now` is read only once: if the lane opened between two readings, no timer would be set.
        if self._waiting and now < self._closed_until:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(self._closed_until - now, self._admit)


def pause_seconds(retry_after: str | None, now: float) -> float:
    """How many seconds from `now` a `Retry-After` asks to wait; its value is a number of seconds or a date."""
    seconds = PAUSE
    if retry_after:
        text = retry_after.strip()
        try:
            seconds = float(text)
        except ValueError:
            with suppress(ValueError, OverflowError):
                seconds = parsedate_to_datetime(text).timestamp() - now
    return min(max(seconds, 0.0), MAX_PAUSE) if isfinite(seconds) else PAUSE


# -- calls -----------------------------------------------------------------------------------------------

CREDENTIAL_LIFE = 60.0  # seconds after the caller's own request
EXPIRED = "expired"
PACE_LIFE = 600.0  # seconds for which the last answer tells how long the next one takes
MOST_IN_VAIN = 6  # by so many more of a session's calls are broken off than answered; then none for `PACE_LIFE`
_LONGER = 1.25  # how much longer than it has taken a call without an answer is assumed to take
_MAX_MODELS, _EVENT_BYTES = 1_000, 160
NOT_ACCEPTED = "not-accepted"
OVER_BUDGET = "over-budget"

_REFUSALS = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)


@dataclass(frozen=True, slots=True)
class Caller:
    """The client's request on whose behalf a call is made."""

    model: str
    upstream: Destination  # where the request goes
    headers: Headers  # the request's headers, for their credential
    members: Mapping[str, str] = field(default_factory=dict)
    """The members of the request that precede the message list in a prompt, such as its tools, as JSON text."""
    repeated: Mapping[str, str] = field(default_factory=dict)
    """Those that a compaction repeats, as JSON text; empty if none is asked for."""
    asked_at: float = 0.0  # when the request came, in seconds since the epoch
    trust: Trust = ALWAYS  # whether the upstream has accepted the request's credential
    background: bool = False  # whether nothing waits for the answer
    profile: Profile = ANY  # the message forms and parameters that the request's server accepts
    mode: Mode | None = None  # when background calls may be made; None leaves that to the settings
    waiters: Waiters = NOBODY  # requests that have begun to wait for the result of a background call
    endpoint: Endpoint = CHAT_ENDPOINT  # the endpoint of the request
    path: str = CHAT_ENDPOINT.path  # the path of the request
    query: str = ""  # its query, which may have a credential
    knows_stored: bool = False  # whether anything of the request's conversation comes from the store
    tenant: str = ""
    slope: float = 1.0
    """How many tokens the request's own model counts for one of ours, in text like the request's."""
    streams: bool = False  # whether the request asks for a stream, which its server then takes
    room: int = 0  # the tokens of the server's cache that a call takes; 0 if they were not counted
    session: Hashable = None  # of the request

    @property
    def maker(self) -> str:
        """Who could read a compaction of the request's own upstream."""
        return compaction.maker(self.upstream.base_url, self.model)

    @property
    def scope(self) -> LessonScope:
        """The scope of what is known of the model for all tenants."""
        return LessonScope(self.model, upstream=self.upstream.base_url)


def endpoint_for(role: ModelRole, caller: Caller) -> Endpoint:
    """The endpoint of a call: the request's own, or that of another server's protocol."""
    return caller.endpoint if role.is_at(caller.upstream.name) else endpoint_named(role.protocol)


def address_for(role: ModelRole, caller: Caller) -> str:
    """The base URL that a call goes to: the role's own, else that of the request's upstream."""
    return role.base_url or caller.upstream.base_url


def headers_for(role: ModelRole, caller: Caller) -> Headers:
    """The credential for a call: the role's own, else that of the request if the call goes to the same upstream."""
    endpoint = endpoint_for(role, caller)
    is_there = role.is_at(caller.upstream.name)
    own = [*endpoint.version_headers, *(caller.upstream.fixed if is_there else role.fixed)]
    if role.upstream != caller.upstream.name and role.api_key is not None:
        name, before = endpoint.key_header
        return [(name, before + role.api_key.get_secret_value().encode()), *own]
    if not is_there:
        return own
    lent = {*API_KEYS, *endpoint.lent_headers, *dict(caller.upstream.fixed)}
    return [pair for pair in caller.headers if pair[0] in lent]


class FinishedCall(NamedTuple):
    """How one call ended: `failure` is "" or a kebab-case word that says what went wrong, `tokens` the whole cost.

    `seconds` are those from its turn to its end.
    """

    role: str
    model: str
    background: bool
    failure: str
    tokens: int
    seconds: float = 0.0


class Billed(Protocol):
    """The result of a call that succeeded; `tokens` is its whole cost, 0 if the server does not report it."""

    @property
    def tokens(self) -> int: ...


B = TypeVar("B", bound=Billed)


@dataclass(slots=True)
class Pace:
    """How long the calls to one model take, in seconds on the event loop's clock."""

    seconds: float = 0.0  # what the last answer took, or what a call had taken that was given up
    at: float = -inf
    running: list[float] = field(default_factory=list)  # when the calls that are under way began

    def note_end(self, began: float, now: float, *, is_answered: bool) -> None:
        self.running.remove(began)
        # A call that was given up would have taken longer; how long is known only of the longest.
        seconds = (now - began) * (1.0 if is_answered else _LONGER)
        if is_answered or seconds > self.seconds:
            self.seconds, self.at = seconds, now

    def expected(self, now: float, *, joins: bool) -> float:
        elapsed, last = now - min(self.running, default=now), self.seconds if now <= self.at + PACE_LIFE else 0.0
        return max(last - elapsed, 0.0) if joins else max(last, elapsed * _LONGER)


@dataclass(slots=True, eq=False)
class Dispatcher:
    """Makes calls when their servers' lanes let them through.

    `report` gets every call that has ended. `clock` gives seconds since the epoch. `known` are the servers of the
    upstreams by their addresses, which are asked what they are before the first call (`Lane`).
    """

    upstream: Upstream
    background: BackgroundSettings = field(default_factory=BackgroundSettings)
    _: KW_ONLY
    clock: Callable[[], float] = time.time
    report: Callable[[FinishedCall], None] = lambda _: None
    known: Mapping[str, Discovered] = field(default_factory=dict)
    budget: TokenBudget | None = None  # what calls may spend for each tenant; None if that is not bounded
    shared_cache: Callable[[LessonScope], SharedCache | None] = lambda _: None  # of the slots of a model's server
    _lanes: dict[str, Lane] = field(default_factory=dict, init=False)  # of each server, and of each base URL
    _pace: Lru[tuple[str, str], Pace] = field(default_factory=lambda: Lru(_MAX_MODELS), init=False)
    """How long calls take, by server and model."""
    # When calls of a session were broken off, on the clock.
    _in_vain: Lru[Hashable, list[float]] = field(default_factory=lambda: Lru(_MAX_MODELS), init=False)

    def lane_of(self, base_url: str) -> Lane:
        """The lane of the server at a base URL."""
        if base_url in self._lanes:
            return self._lanes[base_url]
        server = server_of(base_url)
        if server not in self._lanes:
            known = self.known.get(server)
            facts = (lambda: known.is_local, lambda: known.slots > 0) if known is not None else ()
            self._lanes[server] = Lane(self.background, self.clock, *facts)
        return self._lanes.setdefault(base_url, self._lanes[server])

    def deadline(self, model: ModelRole, caller: Caller) -> float:
        """The time on the clock until which a background call that is requested now may wait for its turn."""
        return caller.asked_at + CREDENTIAL_LIFE if self._is_lent(model, caller) else self.clock() + model.timeout

    async def dispatch(
        self,
        role: str,
        model: ModelRole,
        caller: Caller,
        call: Callable[[Lane], Awaitable[B | Failure]],
        deadline: float | None = None,
    ) -> B | Failure:
        """Makes a call once it has its turn; the result is a failure if its turn does not come by the deadline."""
        address = address_for(model, caller)
        lane, known = self.lane_of(address), self.known.get(server_of(address))
        deadline = self.deadline(model, caller) if deadline is None else deadline
        key = address, caller.session
        if (in_vain := self._in_vain.use(key)) is None:
            in_vain = self._in_vain.put(key, [])
        if len(in_vain) >= MOST_IN_VAIN and self.clock() < in_vain[-1] + PACE_LIFE:
            return Failure(PAUSED)
        try:
            self._check_credential(model, caller)
            async with AsyncExitStack() as turn:
                if known is not None:
                    await known.asked()
                if caller.background or caller.waiters is not NOBODY:
                    await turn.enter_async_context(lane.background(deadline, caller.mode, caller.waiters))
                else:
                    turn.enter_context(lane.foreground())
                self._check_credential(model, caller)
                failure, tokens, began = CANCELLED, 0, time.perf_counter()
                try:
                    result = await call(lane)
                    failure, tokens = (result.reason, 0) if isinstance(result, Failure) else ("", result.tokens)
                    del in_vain[: not failure]  # an answer makes up for one call
                    return result
                finally:
                    asked, seconds = model.model or caller.model, time.perf_counter() - began
                    self.report(FinishedCall(role, asked, caller.background, failure, tokens, seconds))
        except CallBlocked as blocked:
            if blocked.reason == PREEMPTED:
                in_vain.append(self.clock())
                if len(in_vain) == MOST_IN_VAIN:
                    _log.warning("%s: quick requests break off most own calls; rules condense now", label(caller.model))
            return Failure(blocked.reason)

    def expected_seconds(self, model: ModelRole, caller: Caller, *, joins: bool) -> float:
        """How long an answer of a model would take as the last calls did; 0 if that is not known.

        With `joins`, the answer of the call that is under way.
        """
        return self._pace_of(model, caller).expected(asyncio.get_running_loop().time(), joins=joins)

    def _pace_of(self, model: ModelRole, caller: Caller) -> Pace:
        key = server_of(address_for(model, caller)), model.model or caller.model
        return self._pace.use(key) or self._pace.put(key, Pace())

    def _is_lent(self, model: ModelRole, caller: Caller) -> bool:
        """Whether a call carries the caller's credential."""
        if not caller.upstream.judges_callers or model.api_key is not None:
            return False
        has_query = bool(caller.query) and model.is_at(caller.upstream.name)
        return has_query or any(name in API_KEYS for name, _ in headers_for(model, caller))

    def _check_credential(self, model: ModelRole, caller: Caller) -> None:
        """Raises `CallBlocked` if the caller's credential, or a key of the settings, may not be used for the call.

        Nor is what is stored put into one for a caller who has only claimed to be its owner.
        """
        trust = caller.trust
        needs_proof = model.api_key is not None or (trust.is_claimed and caller.knows_stored)
        if needs_proof and not trust.accepted:
            raise CallBlocked(NOT_ACCEPTED)
        if caller.background and self._is_lent(model, caller) and self.clock() > caller.asked_at + CREDENTIAL_LIFE:
            raise CallBlocked(EXPIRED)

    async def send(
        self, model: ModelRole, caller: Caller, path: str, data: bytes, lane: Lane, query: str = ""
    ) -> JsonReply | Failure:
        """The server's reply to a request, within the model's timeout; the lane learns from its status."""
        spending = Spending(self.budget, caller.tenant) if self.budget is not None else None
        if spending is not None and await spending.begin(len(data)):
            return Failure(OVER_BUDGET)
        reply = await self._sent(model, caller, path, data, lane, query)
        if isinstance(reply, JsonReply) and is_success(reply.status):
            read, events = endpoint_for(model, caller).in_one_piece, len(reply.body) // _EVENT_BYTES
            reply = reply._replace(body=await offload(events, read, reply.body))
        if spending is not None and isinstance(reply, JsonReply):
            is_charged = is_success(reply.status)
            reported = tokens_in(object_at(json_or_none(reply.body), "usage")) if is_charged else 0
            spending.end(reported, is_refused=not is_charged)
        return reply

    async def _sent(
        self, model: ModelRole, caller: Caller, path: str, data: bytes, lane: Lane, query: str
    ) -> JsonReply | Failure:
        cache, holder = self.shared_cache(caller.scope) if model.is_at(caller.upstream.name) else None, object()
        if cache is not None:
            await cache.take(holder, caller.room or len(data), is_own=True)
        pace, began = self._pace_of(model, caller), asyncio.get_running_loop().time()
        pace.running.append(began)
        reply, has_ended = None, False
        try:
            self._check_credential(model, caller)  # once more, as room may come late
            async with asyncio.timeout(model.timeout):
                headers, target = headers_for(model, caller), f"{path}?{query}" if query else path
                reply = await self.upstream.ask(address_for(model, caller), target, headers, data, model.timeout)
                has_ended = is_success(reply.status)
        except TimeoutError:
            return Failure("timeout")
        except UpstreamUnavailable as error:
            return Failure("timeout" if error.code == "upstream_timeout" else "unreachable")
        finally:
            pace.note_end(began, asyncio.get_running_loop().time(), is_answered=has_ended)
            if cache is not None:
                cache.release(holder, hung_up=reply is None)
        if reply.status in _REFUSALS:
            lane.note_refusal(reply.retry_after)
        elif caller.background and not is_down(reply.status):
            lane.note_success()
        return reply


def is_down(status: int) -> bool:
    """Whether the server cannot answer now, for example because it is loading a model; 501 means that it never can."""
    return status >= HTTPStatus.INTERNAL_SERVER_ERROR and status != HTTPStatus.NOT_IMPLEMENTED
