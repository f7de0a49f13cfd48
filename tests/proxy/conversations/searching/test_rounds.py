"""Hidden rounds: the results of searches, their size, and what is kept of them."""

import asyncio
import json
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pytest

from proxy.conversations.searching import (
    ALL_SHOWN,
    FAILED,
    MAX_CALLS,
    MAX_PASSAGES,
    MIN_TOKENS,
    NO_ROOM,
    TOO_MANY,
    BadArguments,
    HiddenRounds,
    Search,
    ToolState,
    offer,
    offer_members,
    parse_arguments,
)
from proxy.protocols.chat import CHAT_ENDPOINT, FirstChoice
from proxy.protocols.hidden_calls import NAME, with_usage
from proxy.runtime.owned_tasks import LARGE, MESSAGE_TOKENS
from strategies.core.budget import Budget
from strategies.core.messages import TokenCounter
from strategies.dialects.chat import CHAT
from strategies.memory.ranking import Hit, Index, message_entries
from tests.support import replies
from tests.support.chat_bodies import read
from tests.support.searching import search
from tests.support.stage import counter
from tests.support.transcripts import WORDS, assistant, transcript_of, user, view_of, words

SAID = [user("where is the key of the greenhouse?"), assistant(f"behind the blue barrel {words(300)}"), user("and?")]
ASKED = (user("find it"),)


def rounds(
    budget: Budget | None = None,
    *,
    shows: Sequence[Any] = ASKED,
    most: int = 3,
    find: Search | None = None,
    counter: TokenCounter = WORDS,
) -> HiddenRounds:
    """The rounds after a view that shows these messages; a search finds what was SAID, or what `find` finds."""
    index, transcript = Index(), transcript_of(SAID)
    for place, message in enumerate(transcript.chain):
        index.add(message_entries(transcript.digests[place].hex(), message, place))

    async def found(query: str) -> list[Hit]:
        return index.search(query, allowed={each.hex() for each in transcript.digests})

    def body(hidden: Sequence[str], tool_state: ToolState) -> bytes:
        return json.dumps([list(hidden), tool_state.name]).encode()

    view = view_of(shows, counter=counter)
    return HiddenRounds(CHAT_ENDPOINT, view, budget, find or found, body, max_rounds=most, top_k=5, allowance=9_999)


def heard(*calls: replies.ToolCall, usage: dict[str, Any] | None = None) -> FirstChoice:
    return FirstChoice(replies.assistant(None, tool_calls=calls), finish="tool_calls", usage=usage)


def result(made: HiddenRounds, call: replies.ToolCall) -> str:
    asyncio.run(made.run(heard(call)))
    hidden, _ = json.loads(made.body())
    content: str = json.loads(hidden[-1])["content"]
    return content


def test_nothing_is_repeated_that_is_shown_or_was_found() -> None:
    shown = rounds(shows=SAID)
    assert result(shown, search("greenhouse key")) == ALL_SHOWN
    assert not asyncio.run(shown.shorten(None))
    made = rounds()
    assert "blue barrel" in result(made, search("blue barrel"))
    assert "blue barrel" not in result(made, search("blue barrel", id="again"))


def test_a_result_takes_at_most_a_quarter_of_the_window() -> None:
    for window in [1_000, 4_000]:
        assert WORDS.text(result(rounds(Budget.of(window)), search("barrel"))) <= window // 4
    budget = Budget.of(600)
    shows = [user(words(budget.usable - MIN_TOKENS))]
    assert result(rounds(budget, shows=shows), search("barrel")) == NO_ROOM

    async def defect(query: str) -> list[Hit]:
        raise ValueError(query)

    assert result(rounds(find=defect), search("barrel")) == FAILED


def test_results_are_cut_once_and_nothing_is_searched_after() -> None:
    made = rounds()
    asyncio.run(made.run(heard(search("greenhouse"), search("[]", id="broken"), search("blue barrel", id="more"))))
    most = made.tokens - 150
    assert asyncio.run(made.shorten(most))
    hidden, tool_state = json.loads(made.body())
    assert made.tokens <= most
    assert ([json.loads(each)["role"] for each in hidden], tool_state) == (
        ["assistant", "tool", "tool", "tool"],
        "NOT_CALLABLE",
    )
    assert "where is the key" in json.loads(hidden[1])["content"]
    assert not asyncio.run(made.shorten(most // 2))


def test_without_known_room_a_note_replaces_results() -> None:
    made = rounds(most=1)
    assert json.loads(made.body())[1] == "OFFERED"
    asyncio.run(made.run(heard(search("barrel"))))
    assert asyncio.run(made.shorten(None))
    hidden, tool_state = json.loads(made.body())
    assert (json.loads(hidden[-1])["content"], tool_state) == (NO_ROOM, "NOT_CALLABLE")
    made.give_up()
    assert (made.patch, made.runs_calls, made.tokens) == (None, False, rounds().tokens)


def test_a_call_without_an_id_gets_one() -> None:
    made = rounds()
    asyncio.run(made.run(heard(search(id=""), search(id=""))))
    call, *results = (json.loads(each) for each in json.loads(made.body())[0])
    assert [each["id"] for each in call["tool_calls"]] == [each["tool_call_id"] for each in results]
    assert len({each["id"] for each in call["tool_calls"]}) == 2
    patch = made.patch
    assert patch is not None
    assert (patch.anchor, patch.at, patch.covered) == (transcript_of(ASKED).digests[0], 1, 0)


class Watching:
    """Counts words, and notes the thread that has texts counted."""

    dialect, factor = CHAT, 1.0

    def __init__(self) -> None:
        self.threads: set[int] = set()

    def text(self, text: str) -> int:
        self.threads.add(threading.get_ident())
        return WORDS.text(text)

    def message(self, body: Mapping[str, object]) -> int:
        return WORDS.message(body)


@pytest.mark.parametrize(("size", "stays"), [(30, True), (LARGE * MESSAGE_TOKENS + 1, False)], ids=["small", "large"])
def test_a_result_beside_a_long_view_is_written_in_a_thread(size: int, stays: bool) -> None:
    watching = Watching()
    made = rounds(shows=[user(words(size))], counter=watching)
    watching.threads.clear()
    assert "blue barrel" in result(made, search("barrel"))
    assert (watching.threads == {threading.get_ident()}) is stays


def test_hidden_replies_cost_what_they_say_or_we_count() -> None:
    made = rounds()
    made.add_cost(heard(search(), usage=replies.usage(100, 10)))
    assert made.spent_tokens == 110
    made.add_cost(heard(search()))
    assert made.spent_tokens == 110 + made.tokens


@pytest.mark.parametrize(
    ("values", "made", "runs", "reason"),
    [
        ({}, True, True, ""),
        ({"tools": None, "n": 1, "tool_choice": "auto"}, True, True, ""),
        ({"n": 2}, True, False, "memory-tool-not-run"),
        ({"tool_choice": "required"}, True, False, "memory-tool-not-run"),
        ({"tools": [{"type": "function", "function": {"name": NAME}}]}, False, False, "memory-tool-taken"),
        ({"tools": [{"type": "custom", "custom": {"name": NAME}}]}, False, False, "memory-tool-taken"),
        ({"functions": [{"name": "old"}]}, False, False, "memory-tool-not-run"),
        ({"tools": "what?"}, False, False, ""),
        ({"tools": [None, {"type": 1}, {"function": {"name": "look"}}]}, True, True, ""),
    ],
)
def test_when_it_is_offered_and_run(values: dict[str, Any], made: bool, runs: bool, reason: str) -> None:
    offered = offer(CHAT_ENDPOINT, values, counter(), has_system=True, refused=False, top_k=5)
    assert (offered.is_made, offered.runs_calls, offered.reason) == (made, runs, reason)


@pytest.mark.parametrize("tools", [[], [{"type": "function", "function": {"name": "look", "parameters": {}}}]])
@pytest.mark.parametrize("has_system", [False, True])
def test_its_tokens_are_what_it_adds_to_the_prompt(tools: list[Any], has_system: bool) -> None:
    messages = [{"role": "system", "content": "x"}] if has_system else [user("x")]
    body = read(json.dumps({"messages": messages, **({"tools": tools} if tools else {})}).encode())
    offered = offer(CHAT_ENDPOINT, body.values, counter(), has_system=has_system, refused=False, top_k=5)
    after = json.loads(body.spliced(members=offer_members(body, offered)))
    overhead = partial(counter().overhead, has_system=has_system)
    before = {"messages": messages, "tools": tools}
    assert offered.tokens == overhead(after) - overhead(before)


def test_the_model_may_ask_for_more_passages_but_not_for_all() -> None:
    asked = [
        parse_arguments(json.dumps({"query": "x", "top_k": top_k}), 5)[1] for top_k in (None, 0, 7, 10_000, "7", True)
    ]
    assert asked == [5, 1, 7, MAX_PASSAGES, 5, 5]
    offered = offer(CHAT_ENDPOINT, {}, counter(), has_system=True, refused=False, top_k=8)
    assert json.loads(offered.definition)["function"]["parameters"]["properties"]["top_k"]["default"] == 8


@pytest.mark.parametrize("arguments", ["", "{", "[]", "null", '{"query": 1}', '{"query": ""}', None, "[" * 100_000])
def test_arguments_that_cannot_be_read_tell_the_model_what_to_do(arguments: object) -> None:
    with pytest.raises(BadArguments, match=NAME):
        parse_arguments(arguments, 5)


@pytest.mark.parametrize("data", [b"", b"[]", b'{"choices": []}', b'{"choices": [1]}', b'{"error": {}}', b"\xff"])
def test_what_hides_nothing_keeps_its_bytes_and_no_completion_says_nothing(data: bytes) -> None:
    assert CHAT_ENDPOINT.said(data) is None
    data = b'{ "choices" : [{"message":{"content":"x"}, "finish_reason":"stop"}] }'
    assert CHAT_ENDPOINT.joined(data, []) == data


def test_details_of_a_usage_are_added_up_too() -> None:
    first = {**replies.usage(100, 10), "completion_tokens_details": {"reasoning_tokens": 8, "audio_tokens": None}}
    last = {**replies.usage(150, 7), "completion_tokens_details": {"reasoning_tokens": 2, "audio_tokens": 0}}
    assert with_usage({"usage": last}, [heard(usage=first)])["usage"] == {
        **replies.usage(150, 17),
        "completion_tokens_details": {"reasoning_tokens": 10, "audio_tokens": 0},
    }


def test_of_very_many_searches_at_once_some_are_run_and_all_are_answered() -> None:
    queries: list[str] = []

    async def found(query: str) -> list[Hit]:
        queries.append(query)
        return []

    made = rounds(find=found)
    asyncio.run(made.run(heard(*(search(f"key {at}", f"call_{at}") for at in range(3 * MAX_CALLS)))))
    hidden, _ = json.loads(made.body())
    results = [json.loads(each) for each in hidden][1:]
    assert [each["tool_call_id"] for each in results] == [f"call_{at}" for at in range(3 * MAX_CALLS)]
    assert [each["content"] == TOO_MANY for each in results] == [False] * MAX_CALLS + [True] * (2 * MAX_CALLS)
    assert len(queries) == MAX_CALLS
