"""Scopes: sessions of one tenant that name the same scope share memory cards, and nobody else sees them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support import replies
from tests.support.stage import Message, Stage, asked, body_of, on_file, staged, stored, summary

FORCE = ("X-Condenser-Force", "true")
CARD = "The fig tree is called Ada."
QUESTION = "What is the fig tree called?"


def diary(rounds: int, task: str = "Keep a diary of my garden.") -> list[Message]:
    messages: list[Message] = [{"role": "user", "content": task}]
    for day in range(rounds):
        said = f"Day {day}: " + " ".join(f"plant{day}n{each}" for each in range(60))
        messages.append({"role": "assistant", "content": said})
        messages.append({"role": "user", "content": f"Write down day {day + 1}."})
    return messages


def question(text: str = QUESTION) -> list[Message]:
    return [{"role": "user", "content": text}]


def scope(name: str) -> tuple[str, str]:
    return ("X-Condenser-Memory-Scope", name)


def answering(*contents: str, kind: str = "fact") -> str:
    """A summarizer's answer that brings cards."""
    cards = [{"content": content, "type": kind, "tags": []} for content in contents]
    return json.dumps({"summary": "The user keeps a garden diary, in which every plant has a line.", "memories": cards})


@contextmanager
def gardening(*contents: str, **settings: Any) -> Iterator[Stage]:
    """A proxy with scopes, under whose strategy memory is put before messages, and a summarizer that brings cards."""
    settings = {"memory": {"scopes": True}, "strategy": "rolling", **settings}
    with staged(answers=lambda _: summary(answering(*(contents or (CARD,)))), **settings) as stage:
        yield stage


def told(stage: Stage, task: str = "Keep a diary of my garden.", *, session: str = "a", name: str = "home") -> None:
    """Has a session that names a scope condensed, which brings the cards."""
    stage.ask(diary(12, task), [*asked(session=session), scope(name), FORCE])


def sees(stage: Stage, headers: Sequence[tuple[str, str]], text: str = QUESTION, card: str = CARD) -> bool:
    """Whether a question has the card put before it."""
    stage.ask(question(text), headers)
    blocks = [each for each in stage.last_view if each.get("name") == "memory_context"]
    return any(card in block["content"] for block in blocks)


def test_a_card_of_one_session_is_put_before_the_message_of_another_one_that_names_the_scope() -> None:
    with gardening() as stage:
        told(stage)
        assert sees(stage, [*asked(session="b"), scope("home")])


def test_another_scope_no_scope_and_another_tenant_see_nothing() -> None:
    with gardening() as stage:
        told(stage)
        assert not sees(stage, [*asked(session="b"), scope("work")])
        assert not sees(stage, asked(session="c"))
        assert not sees(stage, [])
        assert not sees(replace(stage, key="sk-second", sent=[]), [*asked(session="b"), scope("home")])


def test_what_others_said_stays_theirs_only_cards_are_shared() -> None:
    with gardening() as stage:
        told(stage)
        assert not sees(stage, [*asked(session="b"), scope("home")], "plant3n7 plant3n8", "plant3n7")


def test_a_session_stays_in_its_scope_until_it_names_another() -> None:
    with gardening() as stage:
        told(stage)
        assert sees(stage, [*asked(session="b"), scope("home")])
        messages = [*question(), {"role": "assistant", "content": "Wait."}, *question(QUESTION + " Again?")]
        stage.ask(messages, asked(session="b"))
        assert CARD in str(stage.last_view)
        messages += [{"role": "assistant", "content": "Hm."}, *question(QUESTION + " Once more?")]
        stage.ask(messages, [*asked(session="b"), scope("work")])
        assert CARD not in str(stage.last_view)


def test_a_derived_session_may_name_a_scope_too_and_its_block_stands_for_the_whole_turn() -> None:
    with gardening() as stage:
        told(stage)
        assert sees(stage, [scope("home")])
        first = stage.last_view
        call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        messages = [
            *question(),
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "figs"},
        ]
        told(stage, "Keep another diary.", session="later")
        stage.ask(messages, [scope("home")])
        assert stage.last_view[: len(first)] == first


def test_the_model_finds_shared_cards_with_the_tool() -> None:
    with gardening() as stage:
        told(stage)
        call = {"id": "s1", "type": "function", "function": {"name": "search_memory", "arguments": '{"query": "fig"}'}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        waiting = [replies.json_reply({"object": "chat.completion", "choices": [choice]})]
        stage.upstream.answer(lambda _: waiting.pop() if waiting else None)
        stage.ask(question(), [*asked(session="b", memory="tool"), scope("home")])
        assert CARD in stage.last_view[-1]["content"]


def test_of_two_cards_that_contradict_each_other_the_later_holds_for_all_sessions() -> None:
    answers = [answering("The gate code is 4711."), answering("The gate code is 9000.")]
    settings: dict[str, Any] = {"memory": {"scopes": True}, "strategy": "rolling"}
    with staged(answers=lambda _: summary(answers.pop(0)), **settings) as stage:
        told(stage)
        told(stage, "Keep the diary of my sister.", session="b")
        going_on = [*diary(12), {"role": "assistant", "content": "Done."}, *question("What is the gate code?")]
        stage.ask(going_on, [*asked(session="a"), scope("home")])
        (block,) = [each for each in stage.last_view if each.get("name") == "memory_context"]
        assert "9000" in block["content"]
        assert "4711" not in block["content"]


def test_a_card_is_kept_once_however_many_sessions_bring_it(tmp_path: Path) -> None:
    with on_file(
        tmp_path / "s.db",
        answers=lambda _: summary(answering(CARD)),
        memory={"scopes": True},
        strategy="rolling",
    ) as stage:
        told(stage)
        told(stage, "Keep the diary of my sister.", session="b")
        assert stored(tmp_path / "s.db")["sessions"] == 3
        stage.ask(question(), [*asked(session="c"), scope("home")])
        assert str(stage.last_view).count(CARD) == 1


def test_nothing_is_shared_where_nothing_is_to_be_stored() -> None:
    with gardening() as stage:
        stage.ask(diary(12), [*asked(session="a", no_store="true"), scope("home"), FORCE])
        assert not sees(stage, [*asked(session="b"), scope("home")])
    with gardening(store={"url": "memory://", "content": "digests"}) as stage:
        told(stage)
        assert not sees(stage, [*asked(session="b"), scope("home")])


def test_the_header_is_not_forwarded_and_neither_is_the_body_key() -> None:
    with gardening() as stage:
        body = body_of(question(), condenser={"memory_scope": "home", "session": "b"})
        assert stage.post(body).status == 200
        stage.ask(question(), [scope("home")])
        for exchange in stage.forwarded:
            assert "condenser" not in str(exchange.headers).lower() + exchange.body.decode()


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "ä", "a/b", "a:b"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with gardening() as stage:
        answer = stage.post(body_of(question(), condenser={"memory_scope": name}))
        assert (answer.status, answer.json()["error"]["param"]) == (400, "condenser.memory_scope")
        assert stage.forwarded == []


def test_a_scope_is_refused_where_the_settings_have_none() -> None:
    with staged() as stage:
        answer = stage.post(body_of(question()), [scope("home")])
        assert (answer.status, answer.json()["error"]["param"]) == (400, "X-Condenser-Memory-Scope")
        assert "memory.scopes" in answer.json()["error"]["message"]
