"""Calls over a socket: one question, its timeout, its token limit, its report, and how long a credential is used."""

import asyncio
from dataclasses import replace

import pytest
from pydantic import SecretStr

from proxy.asking import Caller, FinishedCall
from proxy.asking.dispatch import MOST_IN_VAIN, PACE_LIFE, Pace
from proxy.protocols.chat import CHAT_ENDPOINT
from proxy.runtime.owned_tasks import OwnedTasks
from proxy.servers import LessonScope
from proxy.servers.shared_cache import SharedCache
from proxy.settings.tables import ModelRole, SummarizerRole
from strategies.core.effects import Answer, Ask, Failure
from tests.proxy.asking.support import CALLER, LATER, asking
from tests.support.recording import Exchange
from tests.support.replies import Reply, completion, error, hang
from tests.support.signals import Signal
from tests.support.upstream import ScriptedUpstream
from tests.support.virtual_time import Clock

NEW_LIMIT, OLD_LIMIT = CHAT_ENDPOINT.reply_limits
RECORD = Answer("record", "stop", 10)


async def test_several_questions_are_asked_at_the_same_time(upstream: ScriptedUpstream) -> None:
    gate = Signal("all questions are there")

    def answers(exchange: Exchange) -> Reply:
        if len(upstream.journal.to()) == 3:
            gate.set()
        return completion(exchange.json()["messages"][1]["content"]).after(gate)

    upstream.answer(answers)
    async with asking(upstream.base_url) as own:
        found = await own.ask(*(Ask("s", text, 100) for text in "abc"))
    assert [each.text for each in found if isinstance(each, Answer)] == ["a", "b", "c"]


async def test_the_old_limit_name_is_learned_from_a_refusal(upstream: ScriptedUpstream) -> None:
    upstream.reply(error(400, "Unsupported parameter: 'max_completion_tokens'"), completion("record"))
    async with asking(upstream.base_url) as own:
        assert await own.ask() == (RECORD,)
        await own.ask()
        await own.ask(role=ModelRole(model="another"))
    limits = [each.json().get("max_tokens") for each in upstream.journal]
    assert limits == [None, 500, 500, None]


async def test_a_form_that_is_refused_too_is_not_remembered(upstream: ScriptedUpstream) -> None:
    upstream.reply(error(400, "max_completion_tokens"), error(500), completion("record"))
    async with asking(upstream.base_url) as own:
        assert await own.ask() == (Failure("http-error"),)
        assert await own.ask() == (RECORD,)
    assert [NEW_LIMIT in each.json() for each in upstream.journal] == [True, False, True]


async def test_only_so_many_models_are_remembered_for_their_form(
    upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.asking.MAX_FORMS", 2)
    upstream.answer(lambda exchange: error(400, NEW_LIMIT) if NEW_LIMIT in exchange.json() else completion("record"))
    async with asking(upstream.base_url) as own:
        for name in "abcca":
            await own.ask(caller=replace(CALLER, model=name))
    assert [OLD_LIMIT in each.json() for each in upstream.journal] == [False, True] * 3 + [True, False, True]


@pytest.mark.parametrize(("said", "calls"), [("no", 1), ("neither max_completion_tokens nor max_tokens", 3)])
async def test_a_server_is_asked_again_only_without_what_its_refusal_names(
    said: str, calls: int, upstream: ScriptedUpstream
) -> None:
    upstream.answer(lambda exchange: error(400, said))
    async with asking(upstream.base_url) as own:
        assert await own.ask() == (Failure("http-error"),)
    assert len(upstream.journal) == calls


async def test_every_call_is_told_with_its_role_its_end_and_its_cost(upstream: ScriptedUpstream) -> None:
    refused = error(400, "max_completion_tokens")
    upstream.reply(completion("record", tokens=(900, 40)), error(500), refused, completion("record"))
    async with asking(upstream.base_url) as own:
        await own.ask()
        await own.ask(caller=LATER)
        await own.ask()
        assert all(call.seconds > 0 for call in own.calls)
        assert [call._replace(seconds=0) for call in own.calls] == [
            FinishedCall("summarizer", "m", False, "", 940),
            FinishedCall("summarizer", "m", True, "http-error", 0),
            FinishedCall("summarizer", "m", False, "form-refused", 0),
            FinishedCall("summarizer", "m", False, "", 10),
        ]


@pytest.mark.parametrize(("seconds", "found"), [(60.0, RECORD), (60.1, Failure("expired"))])
async def test_a_credential_serves_the_background_for_a_minute(
    seconds: float, found: Answer | Failure, upstream: ScriptedUpstream
) -> None:
    clock = Clock()
    upstream.answer(lambda exchange: completion("record"))
    async with asking(upstream.base_url, clock=clock) as own:
        clock.now = 1_000.0 + seconds
        assert await own.ask(caller=replace(LATER, asked_at=1_000.0)) == (found,)
    assert len(upstream.journal) == isinstance(found, Answer)


async def test_an_aged_credential_is_not_used_again(upstream: ScriptedUpstream) -> None:
    clock = Clock()

    def answers(exchange: Exchange) -> Reply:
        clock.now += 61
        return error(400, "max_completion_tokens")

    upstream.answer(answers)
    async with asking(upstream.base_url, clock=clock) as own:
        assert await own.ask(caller=LATER) == (Failure("expired"),)
    assert len(upstream.journal) == 1


@pytest.mark.parametrize(
    ("caller", "role", "own_key"),
    [
        pytest.param(CALLER, ModelRole(), False, id="of a client that waits"),
        pytest.param(LATER, ModelRole(api_key=SecretStr("sk-role")), False, id="of the role"),
        pytest.param(LATER, ModelRole(), True, id="of the operator"),
        pytest.param(replace(LATER, headers=[(b"cookie", b"c")]), ModelRole(), False, id="none"),
    ],
)
async def test_a_credential_that_no_client_lends_does_not_grow_old(
    caller: Caller, role: ModelRole, own_key: bool, upstream: ScriptedUpstream
) -> None:
    clock = Clock()
    clock.now = 1_000.0
    upstream.reply(completion("record"))
    async with asking(upstream.base_url, clock=clock, own_key=own_key) as own:
        assert await own.ask(role=role, caller=caller) == (RECORD,)


async def test_a_call_may_have_another_mode_than_the_settings(upstream: ScriptedUpstream) -> None:
    upstream.reply(completion("record"))
    async with asking(upstream.base_url) as own:
        assert await own.ask(caller=replace(LATER, mode="off")) == (Failure("paused"),)
        assert await own.ask(caller=LATER) == (RECORD,)
        assert len(upstream.journal) == 1


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("background", [False, True])
async def test_a_refused_call_pauses_no_client(background: bool, status: int, upstream: ScriptedUpstream) -> None:
    upstream.reply(error(status, headers=[("Retry-After", "61")]))
    async with asking(upstream.base_url) as own:
        await own.ask(caller=replace(CALLER, background=background))
        assert await own.ask(caller=LATER) == (Failure("paused"),)
        assert len(upstream.journal) == 1
        upstream.reply(completion("record"))
        assert await own.ask() == (RECORD,)


async def test_a_refused_client_pauses_its_own_server_only(upstream: ScriptedUpstream) -> None:
    upstream.reply(completion("record"))
    with ScriptedUpstream() as other:
        async with asking(other.base_url) as own:
            own.lane.note_refusal("61")
            for paused in (ModelRole(), ModelRole(base_url=other.url + "/another/path", timeout=60)):
                assert await own.ask(role=paused, caller=LATER) == (Failure("paused"),)
            assert await own.ask(role=ModelRole(base_url=upstream.base_url), caller=LATER) == (RECORD,)


async def test_a_call_waits_until_a_refusal_is_over(upstream: ScriptedUpstream) -> None:
    clock = Clock()
    upstream.reply(completion("record"))
    async with asking(upstream.base_url, clock=clock) as own:
        own.lane.note_refusal("9")
        task = asyncio.create_task(own.ask(caller=LATER))
        with own.lane.foreground():
            await asyncio.sleep(0)
            clock.now = 10.0
        assert await task == (RECORD,)


async def test_an_idle_question_is_broken_off_and_asked_again(upstream: ScriptedUpstream) -> None:
    never = Signal("the end of the test")
    upstream.reply(hang(never), completion("record"))
    async with asking(upstream.base_url, mode="idle") as own:
        task = asyncio.create_task(own.ask(caller=LATER))
        await asyncio.to_thread(upstream.journal.await_arrival)
        with own.lane.foreground():
            first = upstream.journal.only()
            await asyncio.to_thread(first.disconnected.wait)
            assert len(upstream.journal) == 1
        assert await task == (RECORD,)
        assert own.failures == ["cancelled", ""]


async def test_a_question_that_clients_break_off_is_asked_three_times(upstream: ScriptedUpstream) -> None:
    never = Signal("the end of the test")
    upstream.reply(*[hang(never)] * 4)
    async with asking(upstream.base_url, mode="idle") as own:
        task = asyncio.create_task(own.ask(caller=LATER))
        for n in range(3):
            asked = await asyncio.to_thread(upstream.journal.await_arrival, n + 1)
            with own.lane.foreground():
                await asyncio.to_thread(asked.disconnected.wait)
        assert await task == (Failure("preempted"),)
    assert len(upstream.journal) == 3


async def test_a_session_that_breaks_all_calls_off_has_none_for_a_while(
    upstream: ScriptedUpstream, caplog: pytest.LogCaptureFixture
) -> None:
    never, clock, quick = Signal("the end of the test"), Clock(), replace(LATER, session="quick")
    upstream.reply(*[hang(never)] * MOST_IN_VAIN, completion("record"), completion("record"))
    async with asking(upstream.base_url, clock=clock, mode="idle") as own:
        for first in (0, 3):
            task = asyncio.create_task(own.ask(caller=quick))
            for n in range(first, first + 3):
                asked = await asyncio.to_thread(upstream.journal.await_arrival, n + 1)
                with own.lane.foreground():
                    await asyncio.to_thread(asked.disconnected.wait)
            assert await task == (Failure("preempted"),)
        assert await own.ask(caller=quick) == (Failure("paused"),)
        assert len(upstream.journal) == MOST_IN_VAIN
        assert await own.ask(caller=replace(LATER, session="slow")) == (RECORD,)
        clock.now += PACE_LIFE
        assert await own.ask(caller=replace(quick, asked_at=clock.now)) == (RECORD,)
    assert caplog.text.count("m: quick requests break off most own calls") == 1


async def test_calls_that_begin_together_count_together_when_they_are_broken_off(upstream: ScriptedUpstream) -> None:
    never, quick = Signal("the end of the test"), replace(LATER, session="quick")
    upstream.reply(*[hang(never)] * MOST_IN_VAIN)
    async with asking(upstream.base_url, mode="idle") as own:
        tasks = [asyncio.create_task(own.ask(caller=quick)) for _ in range(2)]
        for first in (0, 2, 4):
            asked = [await asyncio.to_thread(upstream.journal.await_arrival, first + n + 1) for n in range(2)]
            with own.lane.foreground():
                for each in asked:
                    await asyncio.to_thread(each.disconnected.wait)
        assert [await each for each in tasks] == [(Failure("preempted"),)] * 2
        assert await own.ask(caller=quick) == (Failure("paused"),)


async def test_an_idle_question_that_is_waited_for_goes_first(upstream: ScriptedUpstream) -> None:
    never = Signal("the end of the test")
    upstream.reply(hang(never), completion("record"), completion("later"))
    async with asking(upstream.base_url, mode="idle") as own:
        task = asyncio.create_task(own.ask(caller=LATER))
        await asyncio.to_thread(upstream.journal.await_arrival)
        assert await own.ask() == (RECORD,)
        assert await task == (replace(RECORD, text="later"),)


async def test_a_credential_may_expire_while_a_client_is_there(upstream: ScriptedUpstream) -> None:
    clock = Clock()
    async with asking(upstream.base_url, clock=clock, mode="idle") as own:
        with own.lane.foreground():
            task = asyncio.create_task(own.ask(caller=LATER))
            await asyncio.sleep(0)
            clock.now = 61.0
        assert await task == (Failure("expired"),)
    assert len(upstream.journal) == 0


async def test_a_credential_may_expire_while_a_call_waits_for_room_in_a_shared_cache(
    upstream: ScriptedUpstream,
) -> None:
    async def nobody_works() -> int:
        return 0

    clock, tasks, asked = Clock(), OwnedTasks(), asyncio.Event()
    cache = SharedCache(nobody_works, tasks, size=100)
    await cache.take("a client", 100)

    def shared(_: LessonScope) -> SharedCache:
        asked.set()
        return cache

    async with asking(upstream.base_url, clock=clock) as own:
        own.asking.shared_cache = shared
        task = asyncio.create_task(own.ask(caller=LATER))
        await asked.wait()
        clock.now = 61.0
        cache.release("a client")
        assert await task == (Failure("expired"),)
    assert len(upstream.journal) == 0
    await tasks.idle()
    await asyncio.wait_for(cache.take("own", 100, is_own=True), 1)  # its room is free


def test_a_call_is_expected_to_last_as_long_as_before() -> None:
    pace = Pace()
    assert pace.expected(0.0, joins=False) == 0.0
    pace.running.append(0.0)
    assert (pace.expected(12.0, joins=False), pace.expected(12.0, joins=True)) == (15.0, 0.0)
    pace.note_end(0.0, 20.0, is_answered=False)
    pace.running.append(30.0)
    assert (pace.expected(35.0, joins=False), pace.expected(35.0, joins=True)) == (25.0, 20.0)
    pace.note_end(30.0, 36.0, is_answered=False)
    assert pace.expected(36.0, joins=False) == 25.0
    pace.running.append(40.0)
    pace.note_end(40.0, 42.0, is_answered=True)
    assert pace.expected(42.0, joins=False) == 2.0
    assert pace.expected(42.0 + PACE_LIFE + 1, joins=False) == 0.0


async def test_the_pace_is_that_of_a_server_and_model(upstream: ScriptedUpstream) -> None:
    upstream.answer(lambda _: completion("record"))
    async with asking(upstream.base_url) as own:
        await own.ask()
        caller = replace(CALLER, upstream=own.upstream)
        assert own.asking.expected_seconds(SummarizerRole(), caller, joins=False) > 0
        assert own.asking.expected_seconds(SummarizerRole(model="other"), caller, joins=False) == 0
