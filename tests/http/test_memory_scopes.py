"""Scopes: sessions of one tenant that name the same scope share memory cards, and nobody else sees them.

As for all memory, a session sees them once something of its own was condensed.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.http.test_memory_injection import FORCE, blocks, diary, ending
from tests.support.searching import offers_search, reply_of, search
from tests.support.stage import (
    Message,
    Stage,
    body_of,
    controls,
    count,
    proxy_with_upstream,
    summary,
)

CARD = "The fig tree is called Ada."
QUESTION = "What is the fig tree called?"


def question(text: str = QUESTION) -> list[Message]:
    return [{"role": "user", "content": text}]


def scope(name: str) -> tuple[str, str]:
    return ("X-Condenser-Memory-Scope", name)


def answering(*contents: str, kind: str = "fact") -> str:
    """A summarizer's answer that brings cards."""
    cards = [{"content": content, "type": kind, "tags": []} for content in contents]
    return json.dumps(
        {
            "summary": "The user keeps a garden diary, in which every plant has a line. "
            + "Each was sown and seen again. " * 7,
            "memories": cards,
        }
    )


@contextmanager
def gardening(*contents: str, **settings: Any) -> Iterator[Stage]:
    """A proxy with scopes, under whose strategy memory is put before messages; the first summary brings cards."""
    settings = {"memory": {"scopes": True}, "strategy": "rolling", **settings}
    answers = [answering(*(contents or (CARD,)))]
    with proxy_with_upstream(answers=lambda _: summary(answers.pop() if answers else answering()), **settings) as stage:
        yield stage


def fill_scope(stage: Stage, session: str = "a") -> None:
    """Has a session of the scope "home" condensed, which brings the cards."""
    stage.ask(diary(12), [*controls(session=session), scope("home"), FORCE])


def sees(stage: Stage, headers: Sequence[tuple[str, str]], text: str = QUESTION, card: str = CARD) -> bool:
    """Whether a question, with which its session is condensed, has the card put before it."""
    stage.ask(ending(diary(12), text), [*headers, FORCE])
    return card in str(blocks(stage))


def test_a_card_crosses_sessions_of_its_scope_and_nothing_else_does() -> None:
    with gardening() as stage:
        fill_scope(stage)
        assert sees(stage, [*controls(session="b"), scope("home")])
        # What others said stays theirs.
        assert not sees(stage, [*controls(session="b"), scope("home")], "plant3n7 plant3n8", "plant3n7")
        assert not sees(stage, [*controls(session="e"), scope("work")])
        assert not sees(stage, controls(session="c"))
        assert not sees(stage, [])
        assert not sees(replace(stage, key="sk-second", sent=[]), [*controls(session="d"), scope("home")])


@pytest.mark.parametrize("memory", ["inject", "inject+tool"])
def test_shared_cards_have_at_most_half_of_what_was_saved(memory: str) -> None:
    with gardening(*(f"The fig tree {number} is called Ada {number}." for number in range(40))) as stage:
        fill_scope(stage)
        for rounds in (2, 4, 12):
            sizes = []
            for headers in ([], [scope("home")]):
                session = f"{rounds}-{len(headers)}"
                stage.ask(ending(diary(rounds), QUESTION), [*controls(session=session, memory=memory), *headers, FORCE])
                sizes.append(count(stage.forwarded[-1].json()))
            without, with_cards = sizes
            assert with_cards - without <= (count({"messages": ending(diary(rounds), QUESTION)}) - without) / 2
        assert blocks(stage)


def test_a_session_stays_in_its_scope_until_it_names_another() -> None:
    with gardening() as stage:
        fill_scope(stage)
        messages = ending(diary(12), "Good morning.")
        stage.ask(messages, [*controls(session="b"), scope("home"), FORCE])
        messages += [{"role": "assistant", "content": "Wait."}, *question()]
        stage.ask(messages, controls(session="b"))
        assert CARD in str(blocks(stage))
        messages += [{"role": "assistant", "content": "Hm."}, *question(QUESTION + " Once more?")]
        stage.ask(messages, [*controls(session="b"), scope("work")])
        assert "memory_context" not in str(stage.last_view[-2])


def test_a_derived_session_may_name_a_scope() -> None:
    with gardening() as stage:
        fill_scope(stage)
        assert sees(stage, [scope("home")])
        first = stage.last_view
        call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        messages = [
            *ending(diary(12), QUESTION),
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "figs"},
        ]
        fill_scope(stage, "later")
        stage.ask(messages, [scope("home")])
        assert stage.last_view[: len(first)] == first


def test_the_model_finds_shared_cards_with_the_tool() -> None:
    with gardening() as stage:
        fill_scope(stage)
        called = [reply_of(None, search("fig"), streamed=False)]
        stage.upstream.answer(lambda each: called.pop() if called and offers_search(each) else None)
        stage.ask(ending(diary(12), QUESTION), [*controls(session="b", memory="tool"), scope("home"), FORCE])
        assert CARD in stage.last_view[-1]["content"]


def test_a_scope_is_refused_where_the_settings_have_none() -> None:
    with proxy_with_upstream() as stage:
        answer = stage.post(body_of(question()), [scope("home")])
        assert (answer.status, answer.json()["error"]["param"]) == (400, "X-Condenser-Memory-Scope")
        assert "memory.scopes" in answer.json()["error"]["message"]
