"""The breaker: against a model, the calls that it guards, and those of a store."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from proxy.store.base import ANSWERS, StoreError, Write
from proxy.store.redis import COOL_DOWN, FAILURES, WINDOW, Breaker, State
from proxy.store.redis_store import RedisStore
from tests.proxy.store.on_redis import EVERY_CALL, KEY, failure
from tests.support.redis_server import RedisServer
from tests.support.virtual_time import Clock

LONGEST = 10.0


class Machine(RuleBasedStateMachine):
    """Calls begin, end and overlap in any order; a model beside the breaker keeps what a caller can know."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.breaker = Breaker("it", self.clock)
        self.under_way: list[tuple[int, AbstractContextManager[None]]] = []

    def teardown(self) -> None:
        # A call that were left to the garbage collector would count as failed, and be logged, in another test.
        for _, call in self.under_way:
            call.__exit__(None, None, None)

    @property
    def age(self) -> int:
        return self.breaker.transitions.total()

    @rule(seconds=st.sampled_from([0.0, 0.25, 1.0, 2.5, 11.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule()
    def a_call_begins(self) -> None:
        before, until, call = self.breaker.state, self.breaker.until, self.breaker.guard()
        try:
            call.__enter__()
        except StoreError:
            assert before is not State.CLOSED
            assert before is State.HALF_OPEN or self.clock.now < until
        else:
            assert before is not State.HALF_OPEN, "there is one probe"
            assert before is State.CLOSED or self.clock.now >= until
            self.under_way.append((self.age, call))

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def a_call_is_answered(self, data: st.DataObject) -> None:
        before, failures = self.breaker.state, self.breaker.failures[:]
        if self._ends(data, None):
            assert self.breaker.state is State.CLOSED
            assert self.breaker.failures == []
        else:
            assert (self.breaker.state, self.breaker.failures) == (before, failures)

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def a_call_fails(self, data: st.DataObject) -> None:
        before, cool_down, failures = self.breaker.state, self.breaker.cool_down, self.breaker.failures[:]
        if not self._ends(data, StoreError("store-timeout")):
            assert (self.breaker.state, self.breaker.failures) == (before, failures)
        elif before is State.HALF_OPEN:
            assert self.breaker.state is State.OPEN
            assert self.breaker.cool_down == min(2 * cool_down, LONGEST)
        elif self.breaker.state is State.OPEN:
            assert len(failures) >= FAILURES - 1
            assert self.clock.now - failures[-2] <= WINDOW
            assert self.breaker.cool_down == COOL_DOWN

    def _ends(self, data: st.DataObject, error: StoreError | None) -> bool:
        """Ends a call; whether it began in the state that the breaker was in until then."""
        began, call = self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))
        age = self.age
        assert not call.__exit__(type(error) if error else None, error, None)
        return began == age

    @invariant()
    def a_closed_breaker_has_seen_fewer_failures_in_a_row_than_it_takes(self) -> None:
        if self.breaker.state is State.CLOSED:
            assert len(self.breaker.failures) < FAILURES

    @invariant()
    def an_open_breaker_lets_a_probe_through_before_long(self) -> None:
        if self.breaker.state is State.OPEN:
            assert self.breaker.until - self.clock.now <= LONGEST

    @invariant()
    def a_half_open_breaker_waits_for_a_probe_that_is_under_way(self) -> None:
        if self.breaker.state is State.HALF_OPEN:
            assert [began for began, _ in self.under_way].count(self.age) == 1


TestBreaker = Machine.TestCase


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> Breaker:
    return Breaker("it", clock)


def fail(reason: str) -> None:
    if reason:
        raise StoreError(reason)


def ends(breaker: Breaker, *reasons: str) -> list[str]:
    """What calls in a row end with that fail for these reasons, "" for none."""
    found = []
    for reason in reasons:
        try:
            with breaker.guard():
                fail(reason)
        except StoreError as error:
            found.append(error.reason)
        else:
            found.append("")
    return found


def is_asked(breaker: Breaker) -> bool:
    """Whether a call is let through; it is answered."""
    return ends(breaker, "") == [""]


def open_up(breaker: Breaker) -> None:
    ends(breaker, *["store-timeout"] * 3)
    assert breaker.state is State.OPEN


def test_three_failures_in_a_row_and_the_next_call_is_refused_unasked(breaker: Breaker) -> None:
    assert ends(breaker, "store-timeout", "store-error", "store-loading", "") == [
        *("store-timeout", "store-error", "store-loading"),
        "store-unavailable",
    ]


def test_the_refusal_says_how_long_and_why_once(breaker: Breaker) -> None:
    ends(breaker, *["store-unavailable"] * 3)
    with pytest.raises(StoreError) as raised, breaker.guard():
        pass
    assert str(raised.value) == "store-unavailable: it has failed and is asked again in 1.0 s"
    open_up(other := Breaker("it", Clock()))
    with pytest.raises(StoreError, match=r"in 1\.0 s; store-timeout"), other.guard():
        pass


def test_an_answer_that_is_no_is_an_answer(breaker: Breaker) -> None:
    for reason in sorted(ANSWERS):
        assert ends(breaker, *[reason] * 5) == [reason] * 5
        assert breaker.state is State.CLOSED


def test_a_defect_is_a_failure(breaker: Breaker) -> None:
    for _ in range(3):
        with pytest.raises(RuntimeError), breaker.guard():
            raise RuntimeError("a bug")
    assert breaker.state is State.OPEN


def test_one_probe_goes_through_after_the_cool_down(breaker: Breaker, clock: Clock) -> None:
    open_up(breaker)
    clock.now += 1
    with breaker.guard():
        assert ends(breaker, "", "", "") == ["store-unavailable"] * 3
    assert breaker.state is State.CLOSED
    assert ends(breaker, "", "", "") == [""] * 3


def test_each_probe_that_fails_doubles_the_cool_down_up_to_its_bound(breaker: Breaker, clock: Clock) -> None:
    open_up(breaker)
    for cool_down in (1, 2, 4, 8, 10, 10):
        clock.now += cool_down - 0.1
        assert not is_asked(breaker)
        clock.now += 0.1
        assert ends(breaker, "store-timeout") == ["store-timeout"]
    clock.now += 10
    assert is_asked(breaker)
    open_up(breaker)
    clock.now += 1
    assert is_asked(breaker)


def test_transitions_are_counted_and_logged(breaker: Breaker, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "proxy.store.redis")
    open_up(breaker)
    ends(breaker, *[""] * 50)
    clock.now += 1
    ends(breaker, *[""] * 50)
    assert [record.levelname for record in caplog.records] == ["DEBUG"] * 3
    assert breaker.transitions == {State.OPEN: 1, State.HALF_OPEN: 1, State.CLOSED: 1}


@pytest.fixture
async def store(own_redis: RedisServer, breaker: Breaker) -> AsyncIterator[RedisStore]:
    store = RedisStore(own_redis.url, shown="it", breaker=breaker)
    yield store
    await store.close()


async def test_a_stale_revision_and_an_unknown_session_are_answers(store: RedisStore, breaker: Breaker) -> None:
    for _ in range(5):
        assert await store.load(KEY) is None
        assert not await store.save(KEY, Write(b"", 3, 600))
    assert breaker.state is State.CLOSED


@pytest.mark.parametrize("name", EVERY_CALL)
async def test_every_call_is_guarded(store: RedisStore, breaker: Breaker, name: str) -> None:
    open_up(breaker)
    assert (await failure(EVERY_CALL[name](store))).reason == "store-unavailable"


async def test_a_probe_whose_caller_gave_up_decides(
    store: RedisStore, own_redis: RedisServer, breaker: Breaker, clock: Clock
) -> None:
    await store.ping()
    open_up(breaker)
    clock.now += 1
    own_redis.stop()
    probe = asyncio.create_task(store.ping())
    await asyncio.sleep(0)
    probe.cancel()
    await asyncio.gather(probe, return_exceptions=True)
    own_redis.cont()
    await store.close()
    assert breaker.transitions[State.CLOSED] == 1


async def test_a_closed_store_says_closed_though_the_breaker_is_open(store: RedisStore, breaker: Breaker) -> None:
    open_up(breaker)
    await store.close()
    assert (await failure(store.ping())).reason == "store-closed"
