"""The breaker: its circuit against a model, and the store that wraps another one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from proxy.store.base import FindResult, Lease, SessionKey, SessionStore, Snapshot, StoreError, Write
from proxy.store.breaker import ANSWERS, Breaker, BreakingStore, Circuit, State, Thresholds
from tests.proxy.store.conftest import Clock

KEY = SessionKey("tenant", "session")
RULES = Thresholds()


class Machine(RuleBasedStateMachine):
    """Calls begin, end and overlap in any order; what is known from outside is kept beside the circuit."""

    def __init__(self) -> None:
        super().__init__()
        self.circuit = Circuit()
        self.now = 0.0
        self.under_way: list[int] = []
        self.opened_at: list[float] = []
        self.probe: int | None = None

    @rule(seconds=st.sampled_from([0.0, 0.25, 1.0, 2.5, 11.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def a_call_begins(self) -> None:
        before = self.circuit
        self.circuit, may = before.admit(self.now)
        if before.state is State.CLOSED:
            assert may
        if before.state is State.HALF_OPEN:
            assert not may, "there is one probe"
        if before.state is State.OPEN:
            assert may == (self.now >= before.until)
            self.probe = self.circuit.age if may else None
        if may:
            self.under_way.append(self.circuit.age)

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def a_call_is_answered(self, data: st.DataObject) -> None:
        began = self._ends(data)
        before, self.circuit = self.circuit, self.circuit.after_success(began)
        if began == before.age:
            assert self.circuit.state is State.CLOSED
            assert self.circuit.failures == ()
        else:
            assert self.circuit == before

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def a_call_fails(self, data: st.DataObject) -> None:
        began = self._ends(data)
        before, self.circuit = self.circuit, self.circuit.after_failure(began, self.now)
        if began != before.age:
            assert self.circuit == before
        elif before.state is State.HALF_OPEN:
            assert self.circuit.state is State.OPEN
            assert self.circuit.cool_down == min(2 * before.cool_down, RULES.longest_cool_down)
        elif self.circuit.state is State.OPEN:
            assert len(before.failures) >= RULES.failures - 1
            assert self.now - before.failures[-2] <= RULES.window
            assert self.circuit.cool_down == RULES.cool_down

    def _ends(self, data: st.DataObject) -> int:
        return self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))

    @invariant()
    def a_closed_circuit_has_seen_fewer_failures_in_a_row_than_it_takes(self) -> None:
        if self.circuit.state is State.CLOSED:
            assert len(self.circuit.failures) < RULES.failures

    @invariant()
    def an_open_circuit_lets_a_probe_through_before_long(self) -> None:
        if self.circuit.state is State.OPEN:
            assert self.circuit.until - self.now <= RULES.longest_cool_down
            assert self.circuit.admit(self.circuit.until)[1]

    @invariant()
    def a_half_open_circuit_waits_for_a_probe_that_is_under_way(self) -> None:
        if self.circuit.state is State.HALF_OPEN:
            assert self.under_way.count(self.circuit.age) == 1


TestCircuit = Machine.TestCase
TestCircuit.settings = settings(max_examples=50, deadline=None)


def test_two_failures_and_an_answer_and_two_failures_open_nothing() -> None:
    circuit = Circuit()
    for failed in (True, True, False, True, True):
        circuit = circuit.after_failure(0, 0.0) if failed else circuit.after_success(0)
    assert circuit.state is State.CLOSED


def test_failures_that_are_further_apart_than_the_window_open_nothing() -> None:
    circuit = Circuit()
    for at in (0.0, 6.0, 12.0, 18.0):
        circuit = circuit.after_failure(0, at)
    assert circuit.state is State.CLOSED


@dataclass
class ScriptedStore:
    """A store that answers a ping as it is told: with nothing, or with an error of that reason."""

    reasons: list[str] = field(default_factory=list)
    asked: int = 0
    gate: asyncio.Event | None = None

    async def ping(self) -> None:
        self.asked += 1
        if self.gate is not None:
            await self.gate.wait()
        reason = self.reasons.pop(0) if self.reasons else ""
        if reason:
            raise StoreError(reason)

    async def load(self, key: SessionKey) -> Snapshot | None:
        await self.ping()
        return None

    async def save(self, key: SessionKey, write: Write) -> bool:
        await self.ping()
        return False

    async def put_record(self, key: SessionKey, name: str, record: bytes, ttl: int) -> bytes:
        await self.ping()
        return record

    async def mark_standing(self, key: SessionKey, name: str) -> None:
        await self.ping()

    async def blocks(self, key: SessionKey, names: Sequence[str] | None = None) -> dict[str, bytes]:
        await self.ping()
        return {}

    async def find(self, tenant: str, digests: Sequence[str], likely: Sequence[str] = ()) -> FindResult:
        await self.ping()
        return FindResult()

    async def lease(self, tenant: str, name: str, holder: str, ttl: float) -> Lease:
        await self.ping()
        return Lease(held=True)

    async def read_lease(self, tenant: str, name: str) -> Lease:
        await self.ping()
        return Lease(held=False)

    async def release(self, tenant: str, name: str, holder: str, handover: bytes, ttl: float) -> None:
        await self.ping()

    async def get_fact(self, name: str) -> bytes | None:
        await self.ping()
        return None

    async def put_fact(self, name: str, fact: bytes, ttl: int) -> None:
        await self.ping()

    async def sessions(self, tenant: str | None = None) -> list[SessionKey]:
        await self.ping()
        return []

    async def delete(self, key: SessionKey) -> bool:
        await self.ping()
        return False

    async def close(self) -> None: ...


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def inner() -> ScriptedStore:
    return ScriptedStore()


@pytest.fixture
def breaker(clock: Clock) -> Breaker:
    return Breaker("it", clock)


@pytest.fixture
def store(inner: ScriptedStore, breaker: Breaker) -> BreakingStore:
    return BreakingStore(inner, breaker)


async def reasons(store: SessionStore, calls: int) -> list[str]:
    """What so many pings in a row end with."""
    found = []
    for _ in range(calls):
        try:
            await store.ping()
        except StoreError as error:
            found.append(error.reason)
        else:
            found.append("")
    return found


async def opened(store: BreakingStore, inner: ScriptedStore, breaker: Breaker) -> None:
    inner.reasons = ["store-timeout"] * 3
    await reasons(store, 3)
    assert breaker.state is State.OPEN


@pytest.mark.anyio
async def test_three_failures_in_a_row_and_the_next_call_is_refused_unasked(
    store: BreakingStore, inner: ScriptedStore
) -> None:
    inner.reasons = ["store-timeout", "store-error", "store-unavailable"]

    assert await reasons(store, 4) == ["store-timeout", "store-error", "store-unavailable", "store-unavailable"]
    assert inner.asked == 3


@pytest.mark.anyio
async def test_the_refusal_says_how_long_and_why(store: BreakingStore, breaker: Breaker, inner: ScriptedStore) -> None:
    await opened(store, inner, breaker)
    with pytest.raises(
        StoreError, match=r"store-unavailable: it has failed and is asked again in 1\.0 s; store-timeout"
    ):
        await store.ping()


@pytest.mark.anyio
async def test_the_refusal_has_its_reason_once(store: BreakingStore, inner: ScriptedStore) -> None:
    inner.reasons = ["store-unavailable"] * 3
    await reasons(store, 3)
    with pytest.raises(StoreError) as raised:
        await store.ping()
    assert str(raised.value).count("store-unavailable") == 1


@pytest.mark.parametrize("reason", sorted(ANSWERS))
@pytest.mark.anyio
async def test_an_answer_that_is_no_is_an_answer(
    store: BreakingStore, breaker: Breaker, inner: ScriptedStore, reason: str
) -> None:
    inner.reasons = [reason] * 5
    assert await reasons(store, 5) == [reason] * 5
    assert breaker.state is State.CLOSED


@pytest.mark.anyio
async def test_a_stale_revision_and_an_unknown_session_are_answers(store: BreakingStore, breaker: Breaker) -> None:
    for _ in range(5):
        assert await store.load(KEY) is None
        assert not await store.save(KEY, Write(b"", 3, 600))
    assert breaker.state is State.CLOSED


@pytest.mark.anyio
async def test_a_bug_in_the_store_is_a_failure(clock: Clock) -> None:
    class Broken(ScriptedStore):
        async def ping(self) -> None:
            raise RuntimeError("a bug")

    breaker = Breaker("it", clock)
    store = BreakingStore(Broken(), breaker)
    for _ in range(3):
        with pytest.raises(RuntimeError):
            await store.ping()
    assert breaker.state is State.OPEN


@pytest.mark.anyio
async def test_after_the_cool_down_one_probe_goes_through_and_the_others_are_refused(
    store: BreakingStore, breaker: Breaker, inner: ScriptedStore, clock: Clock
) -> None:
    await opened(store, inner, breaker)
    clock.now += 1
    inner.gate = asyncio.Event()
    probe = asyncio.create_task(store.ping())
    await asyncio.sleep(0)

    assert await reasons(store, 3) == ["store-unavailable"] * 3
    inner.gate.set()
    await probe
    assert breaker.state is State.CLOSED
    assert await reasons(store, 3) == [""] * 3


@pytest.mark.anyio
async def test_each_probe_that_fails_doubles_the_cool_down_up_to_its_bound(
    store: BreakingStore, breaker: Breaker, inner: ScriptedStore, clock: Clock
) -> None:
    await opened(store, inner, breaker)
    for cool_down in (1, 2, 4, 8, 10, 10):
        clock.now += cool_down - 0.1
        asked = inner.asked
        await reasons(store, 1)
        assert inner.asked == asked
        clock.now += 0.1
        inner.reasons = ["store-timeout"]
        assert await reasons(store, 1) == ["store-timeout"]
    clock.now += 10
    assert await reasons(store, 1) == [""]
    await opened(store, inner, breaker)
    clock.now += 1
    assert await reasons(store, 1) == [""]


@pytest.mark.anyio
async def test_a_probe_whose_caller_gave_up_still_decides(
    store: BreakingStore, breaker: Breaker, inner: ScriptedStore, clock: Clock
) -> None:
    await opened(store, inner, breaker)
    clock.now += 1
    inner.gate = asyncio.Event()
    probe = asyncio.create_task(store.ping())
    await asyncio.sleep(0)
    probe.cancel()
    await asyncio.gather(probe, return_exceptions=True)
    assert breaker.state is State.HALF_OPEN

    inner.gate.set()
    await asyncio.gather(*store._running)
    assert breaker.transitions[State.CLOSED] == 1


@pytest.mark.anyio
async def test_every_call_is_guarded(store: BreakingStore, breaker: Breaker, inner: ScriptedStore) -> None:
    await opened(store, inner, breaker)
    calls = [
        store.load(KEY),
        store.save(KEY, Write(b"", 0, 600)),
        store.put_record(KEY, "r", b"", 600),
        store.mark_standing(KEY, "r"),
        store.blocks(KEY),
        store.find("tenant", ["d"]),
        store.lease("tenant", "work", "holder", 3),
        store.read_lease("tenant", "work"),
        store.release("tenant", "work", "holder", b"", 3),
        store.delete(KEY),
        store.ping(),
    ]
    for call in calls:
        with pytest.raises(StoreError) as raised:
            await call
        assert raised.value.reason == "store-unavailable"
    assert inner.asked == 3


@pytest.mark.anyio
async def test_transitions_are_counted_and_logged_and_requests_are_not(
    store: BreakingStore, breaker: Breaker, inner: ScriptedStore, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "proxy.store.breaker")
    await opened(store, inner, breaker)
    await reasons(store, 50)
    clock.now += 1
    await reasons(store, 50)

    assert [record.levelname for record in caplog.records] == ["DEBUG"] * 3
    assert breaker.transitions == {State.OPEN: 1, State.HALF_OPEN: 1, State.CLOSED: 1}


@pytest.mark.anyio
async def test_a_closed_store_says_closed_though_the_breaker_is_open(
    store: BreakingStore, breaker: Breaker, inner: ScriptedStore
) -> None:
    await opened(store, inner, breaker)
    await store.close()
    assert await reasons(store, 1) == ["store-closed"]
