"""Properties of whole sessions with the real driver, for any order of clients' actions (`machine.py`)."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.proxy.session_machine import Sessions
from tests.support.redis_server import RedisServer

SHORT = settings(
    max_examples=5,
    stateful_step_count=20,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
LONG = settings(SHORT, max_examples=100, stateful_step_count=50, derandomize=False, print_blob=True)


@contextmanager
def sessions_on(store: str) -> Iterator[type[Sessions]]:
    """The machine on this store; a Redis runs for it."""
    if store != "redis":
        yield Sessions
        return
    with RedisServer() as running:
        yield type("SessionsOnRedis", (Sessions,), {"redis": running})


@pytest.mark.timeout(300)  # a failure is made small first
@pytest.mark.parametrize("store", ["sqlite", "redis"])
def test_sessions_keep_their_promises_whatever_clients_do(store: str) -> None:
    with sessions_on(store) as machine:
        run_state_machine_as_test(machine, settings=SHORT)


@pytest.mark.torture
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("store", ["sqlite", "redis"])
def test_sessions_keep_their_promises_over_thousands_of_steps(store: str) -> None:
    with sessions_on(store) as machine:
        run_state_machine_as_test(machine, settings=LONG)


def test_a_window_that_ends_two_branches_mixes_no_messages() -> None:
    machine = Sessions()
    machine.start("extract", 3, 5)
    try:
        line = machine.lines[0]
        branch = line.copy()
        branch.messages[1] = {"role": "user", "content": machine.speech.text(3)}
        machine.request(branch)
        line.dropped = 2
        machine.speech.say(line, 3)
        machine.request(line)
    finally:
        machine.teardown()
