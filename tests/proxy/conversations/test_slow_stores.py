"""A slow store: what it costs one request in all, and that writes are completed although nobody waits for them."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from proxy import controls
from proxy.bodies.wire import ClientRequest
from proxy.commands.replaying.models import ScriptedSummarizer
from proxy.condensing.attempt import Turn
from proxy.conversations.session import session_key
from proxy.conversations.stored import LAST_SHARE
from proxy.errors import HistoryUnavailable
from proxy.reasons import Action
from proxy.servers.known import FIRST_LOOK
from proxy.servers.upstream.choice import DEFAULTS
from proxy.services import Services, open_services
from proxy.settings import Settings
from proxy.store.base import Snapshot, Store, StoreKey
from proxy.tokens.counter import Tokenizers
from proxy.turn import drive
from tests.support import chat_bodies as wire
from tests.support.signals import BOUND
from tests.support.virtual_time import PassingTime, SlowStore

WHOLE = 1_000.0
MOST = WHOLE * (1 + LAST_SHARE)
KEY = StoreKey("t", session_key("s"))


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": PassingTime}


@asynccontextmanager
async def asking(store: Store | SlowStore, strategy: str = "extract") -> AsyncIterator[Services]:
    settings = Settings.model_validate(
        {"strategy": strategy, "window": 4_096, "inline_timeout": 100 * WHOLE, "store": {"timeout": WHOLE}}
    )
    summarizer = ScriptedSummarizer(Tokenizers(None))
    async with open_services(settings, store=store, summarizer=summarizer) as built:
        yield built


def request(rounds: int = 24, **ours: str) -> ClientRequest:
    messages = [{"role": "user", "content": "task"}]
    for number in range(rounds):
        messages.append({"role": "assistant", "content": f"{number} " + "word " * 100})
        messages.append({"role": "user", "content": f"and {number}?"})
    return read(messages, **ours)


def read(messages: list[dict[str, str]], **ours: str) -> ClientRequest:
    headers = [(f"x-condenser-{name}".replace("_", "-").encode(), value.encode()) for name, value in ours.items()]
    body = wire.read(json.dumps({"model": "gpt-4o", "messages": messages}).encode())
    return ClientRequest("t", headers, body, DEFAULTS[0], "gpt-4o", False, controls.read(headers, None, None))


async def answered(built: Services, asked: ClientRequest) -> tuple[Turn, float]:
    """What was decided, and the seconds that passed until the last byte of its reply could go."""
    clock = asyncio.get_running_loop().time
    began = clock()
    turn = await drive.decide(built, asked)
    await drive.store(built, turn, [{"role": "assistant", "content": "yes"}])
    return turn, clock() - began


async def snapshot(store: Store) -> Snapshot:
    found = await store.load(KEY)
    assert found is not None
    return found


@pytest.mark.parametrize("seconds", [60, 190, 240, 260, 340, 490, 510, 900, 1_100])
@pytest.mark.parametrize("strategy", ["extract", "half-window"])
@pytest.mark.parametrize(
    "ours", [{}, {"session": "s"}, {"session": "s", "force": "true"}, {"session": "s", "history": "append"}]
)
async def test_the_store_costs_a_request_a_bounded_time(
    seconds: float, strategy: str, ours: dict[str, str], store: Store
) -> None:
    loop = asyncio.get_running_loop()
    async with asking(SlowStore(store, lambda _: seconds), strategy) as built:
        for rounds in (24, 25):
            began = loop.time()
            # An append cannot be made to a history that cannot be read, and says so.
            with suppress(HistoryUnavailable):
                await answered(built, request(rounds, **ours))
            assert loop.time() - began < MOST + BOUND


async def test_a_request_whose_patience_is_used_up_is_degraded_and_told_so(store: Store) -> None:
    async with asking(SlowStore(store, lambda name: 600)) as built:
        turn, _ = await answered(built, request(session="s", force="true"))
    assert (turn.sent.decision.action, turn.sent.decision.reason) == (Action.DEGRADED, "store-timeout")
    assert turn.sent.decision.applied is not None


async def test_what_was_read_in_time_stands_though_patience_ends_later(store: Store) -> None:
    async with asking(store) as built:
        before, _ = await answered(built, request(session="s", force="true"))
    async with asking(SlowStore(store, lambda name: WHOLE - BOUND if name == "load" else WHOLE)) as built:
        turn, _ = await answered(built, request(25, session="s"))
    assert turn.sent.decision.action is Action.REPLAYED
    assert turn.sent.decision.applied is not None
    assert before.sent.decision.applied is not None
    assert turn.sent.decision.applied.id == before.sent.decision.applied.id


async def test_record_and_session_are_stored_though_no_reply_waits_for_them(store: Store) -> None:
    async with asking(SlowStore(store, lambda name: 0 if name == "load" else 400)) as built:
        turn, _ = await answered(built, request(session="s", force="true"))
    assert turn.sent.decision.applied is not None
    found = await snapshot(store)
    assert found.revision == 1
    assert len(found.records) == len(found.marks) == 1


async def test_a_session_is_settled_once_the_store_is_well(store: Store) -> None:
    slow = SlowStore(store, lambda name: 2 * WHOLE if name == "put_record" else 0)
    async with asking(slow) as built:
        turn, passed = await answered(built, request(session="s", force="true"))
        assert (await snapshot(store)).revision == 1
    assert turn.sent.decision.reason == "store-timeout"
    assert WHOLE <= passed < WHOLE + BOUND


async def test_waiting_for_others_who_settle_the_same_session_counts_too(store: Store) -> None:
    async with asking(SlowStore(store, lambda name: 0 if name == "load" else 900)) as built:
        both = await asyncio.gather(*(answered(built, request(rounds, session="s")) for rounds in (3, 4, 5)))
    assert max(passed for _, passed in both) < MOST + BOUND


@pytest.mark.parametrize("seconds", [60, 190, 260, 340, 510, 900])
async def test_waiting_for_other_processes_costs_no_more(seconds: float, store: Store) -> None:
    slow = SlowStore(store, lambda _: seconds)
    async with asking(slow) as one, asking(slow) as other:
        turns = [
            answered(replica, request(rounds, session="s", force="true"))
            for rounds in (23, 24)
            for replica in (one, other)
        ]
        assert max(passed for _, passed in await asyncio.gather(*turns)) < MOST + BOUND


async def test_waiting_for_a_record_that_another_request_keeps_counts_too(store: Store) -> None:
    slow = SlowStore(store, lambda name: 900 if name == "put_record" else 0)
    async with asking(slow, "half-window") as built:
        asked = request(session="s", force="true")
        both = await asyncio.gather(answered(built, asked), answered(built, asked))
    assert max(passed for _, passed in both) < MOST + BOUND
    assert slow.asked.count("put_record") == 2


async def test_the_next_turn_has_what_was_settled_late(store: Store) -> None:
    async with asking(SlowStore(store, lambda name: 490)) as built:
        for rounds in (3, 4, 5):
            await answered(built, request(rounds, session="s"))
    async with asking(store) as built:
        turn, _ = await answered(built, request(6, session="s"))
    assert turn.sent.decision.context.branch_name == "main"
    assert (await snapshot(store)).revision == 4


async def test_what_is_prepared_after_the_reply_has_patience_of_its_own(store: Store) -> None:
    slow = SlowStore(store, lambda name: WHOLE - BOUND if name == "load" else 200)
    async with asking(slow, "half-window") as built:
        turn, _ = await answered(built, request(session="s"))
        assert "put_record" not in slow.asked
        drive.follow_up(built, turn)
        await built.background.idle()
        assert "put_record" in slow.asked


async def passed(store: Store, hangs: Callable[[str], bool], asked: ClientRequest) -> float:
    """Seconds that a request for a model that is new here waits for a store that never answers some calls."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, PassingTime)
    async with asking(SlowStore(store, lambda name: 100 * WHOLE if hangs(name) else 0)) as built:
        before = loop.passed
        await drive.decide(built, asked)
        return loop.passed - before


async def test_what_others_have_learned_is_waited_for_once_and_not_for_long(store: Store) -> None:
    assert await passed(store, lambda name: name == "recall", request(session="s")) <= FIRST_LOOK


async def test_a_request_that_is_off_does_not_wait(store: Store) -> None:
    asked = request(session="s", strategy="off")
    assert await passed(store, lambda name: name == "recall", asked) == 0


async def test_a_store_that_hangs_takes_one_patience_of_a_request_in_all(store: Store) -> None:
    assert await passed(store, lambda _: True, request(session="s")) <= WHOLE
