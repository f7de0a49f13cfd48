"""Hidden rounds: what a search has led to is kept with the session, and stands in later views."""

from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.http.strict import problems
from tests.http.test_memory_injection import FORCE, QUESTION, diary
from tests.http.test_search_memory import (
    FOUND,
    LOOK,
    LOOKS,
    asks,
    both,
    message_of,
    question,
    remembering,
    sendable,
    views,
)
from tests.support.replies import Reply
from tests.support.searching import SEARCH, TOOL, is_prefix, reply_of, search
from tests.support.stage import Message, Stage, controls, count, proxy_with_sqlite, proxy_with_upstream


def searched(stage: Stage) -> list[Message]:
    """A turn with a search; the history after it, which ends with the user."""
    stage.upstream.reply(reply_of(None, search(), streamed=False), reply_of(FOUND, streamed=False))
    reply = message_of(asks(stage, question(), False), False)
    return [*question(), sendable(reply), {"role": "user", "content": "And the shed?"}]


def test_a_hidden_round_is_stored_before_the_last_byte(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with proxy_with_sqlite(path, strategy="recent") as stage:
        stage.ask(diary(12), [*controls(session="s"), FORCE])
        messages = searched(stage)
    with proxy_with_sqlite(path, strategy="recent") as stage:
        asks(stage, messages, False)
        assert [each["role"] for each in stage.last_view[-5:]] == ["user", "assistant", "tool", "assistant", "user"]


def test_without_the_tool_the_hidden_rounds_are_not_shown() -> None:
    with remembering() as stage:
        messages = searched(stage)
        stage.ask(messages, [*controls(session="s"), ("X-Condenser-Memory", "off")])
        assert SEARCH not in str(stage.forwarded[-1].body)


def test_a_fork_in_which_nothing_is_condensed_shows_no_hidden_round() -> None:
    with proxy_with_upstream(strategy="recent") as stage:
        stage.ask(diary(12), [FORCE, TOOL])
        stage.upstream.reply(reply_of(None, search(), streamed=False), reply_of(FOUND, streamed=False))
        asking = [*diary(12), {"role": "assistant", "content": "Done."}, {"role": "user", "content": QUESTION}]
        history = [*asking, sendable(message_of(stage.ask(asking, [TOOL]), False))]
        for text in ("Thanks.", "Really?"):
            stage.ask([*history, {"role": "user", "content": text}], [TOOL])
        assert is_prefix(views(stage)[2], views(stage)[3])
        assert stage.forwarded[-1].body == stage.sent[-1]


@both
def test_an_injected_block_stands_before_the_question_and_its_search(streamed: bool) -> None:
    with remembering() as stage:
        stage.upstream.reply(reply_of(None, search("plant0n1"), LOOKS, streamed=streamed))
        more: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}} if streamed else {}
        headers = [*controls(session="s"), ("X-Condenser-Memory", "inject+tool")]
        reply = message_of(stage.ask(question(), headers, tools=[LOOK], **more), streamed)
        result = {"role": "tool", "tool_call_id": LOOKS.id, "content": "a barrel"}
        stage.ask([*question(), sendable(reply), result], headers, tools=[LOOK])
        block, asked_for, hidden, found, own, seen = stage.last_view[-6:]
        assert block["name"] == "memory_context"
        assert (asked_for, own, seen) == (question()[-1], sendable(reply), result)
        assert (hidden["tool_calls"][0]["function"]["name"], "plant0n1" in found["content"]) == (SEARCH, True)
        assert is_prefix(views(stage)[0], stage.last_view)


def test_the_supplied_history_of_append_mode_has_hidden_rounds() -> None:
    append = [*controls(session="appended", history="append"), TOOL]
    with proxy_with_upstream(strategy="recent") as stage:
        stage.ask(diary(12), [*append, FORCE])
        stage.upstream.reply(reply_of(None, search(), streamed=False), reply_of(FOUND, streamed=False))
        stage.ask([{"role": "user", "content": QUESTION}], append)
        stage.ask([{"role": "user", "content": "Thanks."}], append)
        assert is_prefix(views(stage)[2], stage.last_view)
        assert [each["role"] for each in stage.last_view[-5:]] == ["user", "assistant", "tool", "assistant", "user"]


@pytest.mark.parametrize(("seed", "strategy"), [(0, "recent"), (1, "mask+half-window"), (2, "extract")])
def test_views_of_a_long_conversation_stay_sound_and_grow(strategy: str, seed: int) -> None:
    chosen, streamed = Random(seed), seed % 2 == 1
    with proxy_with_upstream(strategy=strategy) as stage:
        messages: list[Message] = [{"role": "user", "content": "Keep a diary of my garden."}]
        condensed = 0
        before: list[dict[str, Any]] = []
        for turn in range(24):
            stage.upstream.reply(*replies_of(chosen, turn, streamed, may_search=condensed > 0))
            start = len(stage.forwarded)
            answer = asks(stage, messages, streamed, tools=[LOOK])
            is_new = answer.action == "condensed"
            condensed += is_new
            seen = views(stage)[start:]
            assert all(problems(view) == set() for view in seen)
            assert all(is_prefix(*pair) for pair in pairwise([*([] if is_new else [before]), *seen]))
            if answer.header("x-condenser-count") == "exact":
                assert answer.tokens_after == count(stage.forwarded[start].json())
            before = seen[-1]
            messages = [*messages, *following(message_of(answer, streamed), turn)]
        assert condensed


def replies_of(chosen: Random, turn: int, streamed: bool, *, may_search: bool) -> list[Reply]:
    """What the model says in one turn: searches, now and then, and then a text or a call of the client's."""
    text = f"Day {turn}: " + " ".join(f"plant{turn}n{each}" for each in range(60))
    query = f"plant{turn // 2}n3"
    hidden = [reply_of(None, search(query), streamed=streamed) for _ in range(chosen.choice((0, 1, 2)) * may_search)]
    calls = chosen.choice(((), (LOOKS,), *([(search("diary"), LOOKS)] if may_search else ())))
    return [*hidden, reply_of(text, *calls, streamed=streamed)]


def following(reply: dict[str, Any], turn: int) -> list[Message]:
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "x"} for call in reply.get("tool_calls") or ()]
    return [sendable(reply), *(results or [{"role": "user", "content": f"And day {turn + 1}?"}])]
