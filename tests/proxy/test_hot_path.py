"""What a turn of a long session costs, counted instead of timed: nothing that was seen before is worked on again."""

import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, cast

import httpx
import pytest

import proxy
from proxy import controls
from proxy.app import create_app
from proxy.bodies.scanning import DEFAULT_BOUNDS
from proxy.bodies.wire import ClientRequest
from proxy.commands.replaying.models import ScriptedSummarizer
from proxy.condensing.turn import Decision
from proxy.reasons import Action
from proxy.services import Services, open_services
from proxy.settings import Settings
from proxy.store import open_store
from proxy.store.base import Store, Write
from proxy.tokens.counter import Tokenizers
from proxy.turn import drive
from tests.support import chat_bodies as wire
from tests.support.histories import Message, long_history
from tests.support.recording import CHAT
from tests.support.upstream import ScriptedUpstream

SHORT, LONG = 60, 600
TURN = 2
"""Messages that a turn adds."""
ROOMY, TIGHT = 1_000_000, 14_000
HISTORY = long_history(LONG + 4 * TURN)
PRODUCT = tuple(f"{Path(proxy.__file__).parents[1] / package}/" for package in ("proxy", "strategies"))
WORK = {"raw_decode": ("json parses", "s"), "message_digest": ("digests", ""), "encode_ordinary": ("encodings", "text")}
"""Functions by name: what a call of theirs is counted as, and the argument whose length is added up."""


class TalliedStore:
    """A store that counts its calls and the bytes that it is given."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.calls: Counter[str] = Counter()
        self.written = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        async def tallied(*arguments: Any) -> Any:
            self.calls[name] += 1
            self.written += sum(_bytes(argument) for argument in arguments)
            return await method(*arguments)

        return tallied

    @property
    def writes(self) -> int:
        return self.calls["save"] + self.calls["put_record"] + self.calls["stand"]


def _bytes(argument: object) -> int:
    match argument:
        case Write(meta=meta, blocks=blocks):
            return len(meta) + sum(map(len, blocks.values()))
        case bytes():
            return len(argument)
    return 0


@contextmanager
def watched() -> Iterator[Counter[str]]:
    """Counts the calls of the functions in WORK, and the characters that they are given, on this thread.

    `steps` are the calls of all functions of the product, generators' steps among them; those of the loop depend on
    the moment at which a thread is ready.
    """
    work: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        name = frame.f_code.co_name
        work["steps"] += event == "call" and frame.f_code.co_filename.startswith(PRODUCT)
        if event == "call" and name in WORK:
            what, argument = WORK[name]
            work[what] += 1
            work[f"{what}, characters"] += len(frame.f_locals[argument]) if argument else 0

    sys.setprofile(note)
    try:
        yield work
    finally:
        sys.setprofile(None)


@asynccontextmanager
async def running(**profile: bool) -> AsyncIterator[tuple[Services, TalliedStore]]:
    """The parts of the app over a store in memory."""
    store = await open_store("memory://")
    tallied = TalliedStore(store)
    upstream = {"base_url": "http://localhost/v1", "profile": profile}
    # Without `most` nothing is due in a roomy window to conversations of any length.
    own = {"upstream": upstream, "background": {"mode": "off"}, "marks": {"most": 0}}
    settings = Settings.model_validate(own)
    summarizer = ScriptedSummarizer(Tokenizers())
    async with open_services(settings, store=cast(Store, tallied), summarizer=summarizer) as built:
        yield built, tallied
    await store.close()


async def request_for(built: Services, messages: Sequence[Message], **given: str) -> ClientRequest:
    data = json.dumps({"model": "gpt-4o", "messages": messages}, ensure_ascii=False).encode()
    headers = [(f"x-condenser-{key}".encode(), value.encode()) for key, value in given.items()]
    body = await wire.read_through_cache(data, built.message_cache, DEFAULT_BOUNDS)
    chosen = controls.read(headers, None, None)
    to = built.destinations[0]
    return ClientRequest("t", [], body, to, model="gpt-4o", has_suffix=False, controls=chosen)


async def request(built: Services, messages: Sequence[Message], **given: str) -> Decision:
    turn = await drive.decide(built, await request_for(built, messages, **given))
    await drive.store(built, turn)
    return turn.sent.decision


async def warm_turn(length: int, window: int, **profile: bool) -> tuple[Decision, Counter[str], TalliedStore]:
    """The work of the third turn of a session that began with `length` messages."""
    given = {"session": "s", "strategy": "half-window", "window": str(window)}
    async with running(**profile) as (built, store):
        for turn in range(2):
            await request(built, HISTORY[: length + turn * TURN], **given)
        store.calls.clear()
        store.written = 0
        with watched() as work:
            decision = await request(built, HISTORY[: length + 2 * TURN], **given)
        return decision, work, store


@pytest.mark.parametrize("profile", [{}, {"alternate_roles": True}], ids=["any", "alternating"])
async def test_a_turn_costs_the_same_work_however_long_its_session_is(profile: dict[str, bool]) -> None:
    _, short, few = await warm_turn(SHORT, ROOMY, **profile)
    decision, long, many = await warm_turn(LONG, ROOMY, **profile)
    assert decision.action is Action.PASSED
    # A short conversation is below all marks by its length alone, which saves it some steps, however many messages.
    assert long["steps"] < short["steps"] + (LONG - SHORT) * 0.5
    assert many.calls == few.calls == {"load": 1, "save": 1}
    assert many.written < len(json.dumps([json.dumps(each) for each in HISTORY[LONG + TURN : LONG + 2 * TURN]])) + 1_000
    assert long["digests"] == short["digests"] == TURN
    assert long["json parses"] == short["json parses"]
    new = json.dumps(HISTORY[LONG + TURN : LONG + 2 * TURN], ensure_ascii=False)
    assert long["encodings, characters"] < 2 * len(new)
    assert long["json parses, characters"] < 2 * len(new) + 4_000


async def test_an_unchanged_body_is_forwarded_without_a_copy() -> None:
    async with running() as (built, _):
        for length in (LONG, LONG + TURN):
            came = await request_for(built, HISTORY[:length], window=str(ROOMY))
            decision = (await drive.decide(built, came)).sent.decision
            assert decision.action is Action.PASSED
            assert decision.body is came.body.data


@pytest.mark.parametrize("goes_on", [True, False], ids=["goes on", "forks"])
async def test_a_turn_found_by_its_chain_takes_two_steps(goes_on: bool) -> None:
    async with running() as (built, store):
        said = HISTORY[:LONG]
        for turn in range(4):
            asking = {"role": "user", "content": f"What is next, number {turn}?"}
            store.calls.clear()
            await request(built, [*said, asking], strategy="half-window", window="400000")
            said = [*said, asking, {"role": "assistant", "content": f"Number {turn + 1}."}] if goes_on else said
    assert store.calls == {"find": 1, "save": 1}


async def test_a_turn_under_a_standing_condensation_does_not_plan_again() -> None:
    first, work, store = await warm_turn(LONG, TIGHT)
    assert first.action is Action.REPLAYED
    assert first.tokens_after < first.context.history.sent.tokens / 2
    assert work["digests"] == TURN
    new = json.dumps(HISTORY[LONG + TURN : LONG + 2 * TURN], ensure_ascii=False)
    assert work["encodings, characters"] < 2 * len(new)
    assert store.calls == {"load": 1, "save": 1}
    assert not {"items", "structure"} & vars(first.view).keys()


async def retried(length: int) -> tuple[Decision, Counter[str], TalliedStore]:
    """The work of the third retry of a question behind `length` messages, without a session's name.

    Each has another system prompt, as of agents that tell the time in it.
    """
    async with running() as (built, store):
        for attempt in range(4):
            system = {"role": "system", "content": f"It is {attempt} o'clock."}
            question = {"role": "user", "content": f"What is left to be done? Attempt {attempt}."}
            store.calls.clear()
            store.written = 0
            with watched() as work:
                decision = await request(built, [system, *HISTORY[:length], question], window=str(ROOMY))
        return decision, work, store


async def test_a_retry_costs_and_stores_the_same_for_any_length() -> None:
    _, short, few = await retried(SHORT)
    decision, long, many = await retried(LONG)
    assert decision.action is Action.PASSED
    assert decision.context.recognised.identity.id is None
    assert long["digests"] == short["digests"] == TURN
    # A short conversation is below all marks by its length alone, which saves it some steps, however many messages.
    assert long["steps"] < short["steps"] + (LONG - SHORT) * 0.5
    assert many.calls == few.calls
    assert many.written < 2_000


async def test_a_thousand_requests_of_one_shot_each_write_nothing() -> None:
    async with running() as (built, store):
        for number in range(1_000):
            questions = range(1 + number % 3)
            decision = await request(
                built, [{"role": "user", "content": f"Question {number}, {i}?"} for i in questions]
            )
            assert decision.action is Action.PASSED
        assert store.writes == 0
        assert store.written == 0
        assert await store.keys() == []


MOST_FILES = 61
"""A request with nothing to do enters so many files: the way that a reader of the driver has to walk."""


async def test_a_small_request_enters_few_files() -> None:
    package, entered = str(Path(proxy.__file__).parents[1]), set[str]()

    def note(frame: FrameType, event: str, _: object) -> None:
        name = frame.f_code.co_filename.removeprefix(f"{package}/")
        if event == "call" and name.startswith(("proxy/", "strategies/")):
            entered.add(name)

    with ScriptedUpstream() as upstream:
        own = {"upstream": {"base_url": upstream.base_url, "discover": False}, "store": {"url": "memory://"}}
        app = create_app(Settings.model_validate(own))
        headers = {"x-condenser-session": "s", "authorization": "Bearer k"}
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as client,
        ):
            for length in (5, 7, 9):
                sys.setprofile(note if length == 9 else None)
                answer = await client.post(CHAT, json={"model": "gpt-4o", "messages": HISTORY[:length]})
                sys.setprofile(None)
    assert answer.headers["x-condenser-reason"] == "below-marks"
    assert len(entered) <= MOST_FILES, sorted(entered)
