"""Memory pays for itself: it has at most half of what the condensation saves, and shows only what has left the view."""

from collections.abc import Sequence
from typing import Any

import pytest

from strategies import TABLE
from tests.http.test_agents import Api, each_api
from tests.http.test_judging import TAGGED, options, yes
from tests.http.test_memory_injection import FACT, FORCE, INJECT, QUESTION, blocks, diary, ending
from tests.http.test_reverting import SETTINGS, shown
from tests.support.admin_api import admin, place_of
from tests.support.proxy import proxy_before
from tests.support.recording import Exchange
from tests.support.replies import Reply
from tests.support.searching import offers_search, reply_of, search
from tests.support.stage import (
    Message,
    agent,
    chat,
    controls,
    count,
    is_own,
    is_vote,
    proxy_with_upstream,
    summary,
    vote,
)

STRATEGIES = [name for name in TABLE if name != "off"]


def playing(exchange: Exchange) -> Reply | None:
    """Judges say YES, summarizers answer, and a model that may search does so before each answer."""
    if is_own(exchange):
        return yes(exchange)
    return reply_of(None, search("bed seed1x3"), streamed=False) if offers_search(exchange) else None


def asking(list_of: Sequence[Message], number: int) -> list[Message]:
    return [*list_of, {"role": "assistant", "content": "Done."}, {"role": "user", "content": f"What of bed {number}?"}]


@pytest.mark.parametrize(
    ("strategy", "memory"), [*((name, "inject+tool") for name in STRATEGIES), ("extract", "inject"), ("recent", "tool")]
)
def test_no_view_is_longer_than_the_clients_list(strategy: str, memory: str) -> None:
    lists = [*(chat(rounds, words=20) for rounds in range(3, 12, 2)), agent(8), asking(agent(8), 3)]
    with proxy_with_upstream(strategy=strategy, window=16_384) as stage:
        stage.upstream.answer(playing)
        for number, listed in enumerate(lists):
            messages, headers = listed, controls(session=str(listed[0]["content"]), memory=memory)
            for force in ("false", "true", "false"):
                start = len(stage.forwarded)
                stage.ask(messages, [*headers, *controls(force=force)])
                stage.proxy.quiet()
                sizes = [count(each.json()) for each in stage.forwarded[start:]]
                assert max(sizes) <= count({"messages": messages}), (number, force)
                messages = asking(messages, number)


@each_api
def test_no_view_of_an_agent_is_longer_in_the_other_protocols(api: Api) -> None:
    settings: dict[str, Any] = {"strategy": "extract", "window": 16_384, "memory": {"default": "inject+tool"}}
    with proxy_before(api.upstream(api.tests.reader), **settings) as (upstream, proxy):
        client = api.tests.Agent(proxy.url)
        for turn in range(14):
            answer = client.turn()
            assert answer.tokens_after <= answer.tokens_before, turn
            proxy.quiet()
        assert upstream.refusals == []


def test_what_a_rollback_dropped_is_in_no_block() -> None:
    wrong = "The quokka service was wrongly set to port 771."

    def judged(exchange: Exchange) -> Reply:
        return vote("YES" if wrong in exchange.body.decode() else "NO") if is_vote(exchange) else summary(TAGGED)

    with proxy_with_upstream(window=8_192, strategy="dynacontext", answers=judged) as stage:
        said = [*chat(8)[:-1], {"role": "user", "content": "Set the port."}]
        said = [*said, {"role": "assistant", "content": wrong}, {"role": "user", "content": "No, stop."}]
        headers = [*controls(session="s"), INJECT, options("tail=drop,on_drift=rollback")]
        stage.ask(said, headers)
        stage.proxy.quiet()
        said = [*said, {"role": "assistant", "content": "Done."}, {"role": "user", "content": "Go on with bed 2."}]
        assert stage.ask(said, headers).action == "condensed"
        said = [*said, {"role": "assistant", "content": "Ok."}, {"role": "user", "content": "Which port had quokka?"}]
        stage.ask([*said[:-1], {"role": "user", "content": "seed3x4, seed3x5, seed3x6 and the quokka port?"}], headers)
        assert "seed3x4" in blocks(stage)[-1]["content"]
        assert "771" not in str(stage.last_view)


def test_a_turn_for_which_nothing_was_found_gets_no_block_later() -> None:
    with proxy_with_upstream(strategy="recent", memory={"default": "inject"}) as stage:
        messages = ending(diary(12), "zzz qqq")
        stage.ask(messages, [*controls(session="s"), FORCE])
        first = stage.last_view
        stage.ask(messages, controls(session="s"))
        assert stage.last_view == first


def test_after_a_revert_the_same_question_has_no_block() -> None:
    with proxy_with_upstream(**{**SETTINGS, "strategy": "recent", "memory": {"default": "inject"}}) as stage:
        messages = ending(diary(12), QUESTION)
        stage.ask(messages, [*controls(session="s"), FORCE])
        assert FACT in blocks(stage)[0]["content"]
        session = shown(stage)
        place = f"{place_of(session)}/condensations/{session['latest_condensation']}"
        assert admin(stage, f"{place}/revert", "POST").status == 200
        stage.ask(messages, controls(session="s"))
        assert stage.last_view == messages


@pytest.mark.parametrize(
    ("strategy", "said"),
    [("rolling", "enable_memory_injection=false"), ("dynacontext", "mode=refer"), ("dynacontext", "mode=openhands")],
)
def test_what_an_option_switches_off_a_header_switches_on(strategy: str, said: str) -> None:
    with proxy_with_upstream(
        strategy=strategy, memory={"default": "inject"}, answers=lambda _: summary(TAGGED)
    ) as stage:
        headers = [*controls(session="s"), options(said)]
        messages = ending(diary(12), QUESTION)
        stage.ask(messages, [*headers, FORCE])
        assert stage.ask(messages, headers).action == "replayed"
        assert not blocks(stage)
        stage.ask(messages, [*headers, INJECT])
        assert FACT in blocks(stage)[0]["content"]
