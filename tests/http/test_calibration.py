"""Headroom before an upstream that counts in another way: another vocabulary, a hidden prompt, frames of its own.

Recorded conversations of several kinds and languages go through the real proxy, turn by turn. What it expects the
upstream to count is read from its headroom header and compared with what the upstream counts.
"""

import base64
import json
import random
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import pytest
import tiktoken

from proxy.tokens import ranks
from tests.http.recorded import SHORT, Conversation, conversations
from tests.support import wire
from tests.support.proxy import running_proxy
from tests.support.recording import Exchange
from tests.support.replies import Reply
from tests.support.stage import SUMMARY, Stage, chat, controls, counter, is_own, summary
from tests.support.upstream import Counting, ScriptedUpstream
from tests.support.wire import Answer

HIDDEN, FRAME, RESERVE = 700, 5, 500
SESSIONS, TURNS = 26, 8
Text = Callable[[str], int]


def small_vocabulary() -> Text:
    """A vocabulary of 12,000 tokens, as small models have: up to three times as many tokens for Chinese."""
    whole = ranks.load("cl100k_base")
    few = {token: rank for token, rank in ranks.vocabulary("cl100k_base").items() if rank < 12_000}
    encoding = tiktoken.Encoding("small", pat_str=whole._pat_str, mergeable_ranks=few, special_tokens={})
    return lambda text: len(encoding.encode_ordinary(text))


def nearly_bytes() -> Text:
    """Three bytes a token."""
    return lambda text: -(-len(text.encode()) // 3)


def older() -> Text:
    """The vocabulary of models before ours."""
    encoding = ranks.load("cl100k_base")
    return lambda text: len(encoding.encode_ordinary(text))


def twice() -> Text:
    """Twice as many tokens as we count."""
    return lambda text: 2 * counter().text(text)


def fewer() -> Text:
    """Two tokens where we count three."""
    return lambda text: 2 * counter().text(text) // 3


VOCABULARIES = {"small": small_vocabulary, "bytes": nearly_bytes, "older": older, "fewer": fewer}


def counting(text: Text) -> Callable[[Mapping[str, Any]], int]:
    """How a server counts that prints tools as JSON, frames each message and hides a prompt before all of it."""

    def count(body: Mapping[str, Any]) -> int:
        tools = body.get("tools")
        said = sum(FRAME + text(_rendered(each)) for each in body["messages"])
        return HIDDEN + said + (100 + text(json.dumps(tools)) if tools else 0)

    return count


def _rendered(message: Mapping[str, Any]) -> str:
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return "".join([message["role"], message.get("content") or "", *(c["name"] + c["arguments"] for c in calls)])


class Seen(NamedTuple):
    """One request: of which session, which turn of it, and by which share the expected count was wrong."""

    session: int
    turn: int
    error: float
    action: str


@contextmanager
def counted(text: Text, **settings: Any) -> Iterator[Stage]:
    """A proxy before an upstream that counts so."""
    with ScriptedUpstream(counting=Counting(counting(text))) as upstream:
        upstream.answer(lambda exchange: summary(SUMMARY) if is_own(exchange) else None)
        with running_proxy(upstream.url, **settings) as proxy:
            yield Stage(proxy, upstream)


def talked(stage: Stage, chosen: list[Conversation], window: int) -> list[Seen]:
    """All requests of some conversations, one conversation after the other."""
    seen: list[Seen] = []
    for number, conversation in enumerate(chosen):
        offered = {"tools": conversation.tools} if conversation.tools else {}
        for turn, length in enumerate(conversation.requests()[:TURNS]):
            headers = controls(session=f"s{number}", window=window)
            answer = stage.ask(conversation.messages[:length], headers, max_tokens=RESERVE, **offered)
            true = json.loads(answer.body)["usage"]["prompt_tokens"]
            expected = window - RESERVE - answer.headroom
            seen.append(Seen(number, turn, abs(expected - true) / true, answer.action or ""))
    return seen


def mixture() -> list[Conversation]:
    """Conversations of all kinds, in an order that is the same every time."""
    known = sorted(conversations(SHORT).values(), key=lambda each: each.id)
    return random.Random(6).sample([each for each in known if len(each.requests()) > 2], SESSIONS)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("vocabulary", "window"),
    [
        ("small", 9_000),
        pytest.param("small", 200_000, marks=pytest.mark.torture),
        ("bytes", 9_000),
        ("older", 200_000),
        ("fewer", 9_000),
    ],
)
def test_the_count_of_recorded_conversations_is_right_from_the_third_turn_on(vocabulary: str, window: int) -> None:
    with counted(VOCABULARIES[vocabulary]()) as stage:
        seen = talked(stage, mixture(), window)
    later = [each.error for each in seen if each.turn >= 2]
    assert fmean(later) < 0.015
    assert sum(error > 0.05 for error in later) <= 0.06 * len(later)  # where little text came before what is new


ENGLISH = "the survey of our gardens shows that most beds were planted late and need water before winter comes"
CHINESE = "我们昨天讨论了花园的计划其中包括种植蔬菜和香草还需要考虑冬天之前的浇水安排以及土壤改良的问题请继续说明"
CHARGED, ADDED, EACH_TOOLS, A_PICTURE = 9, 20, 150, 258
"""Tokens that a chat template adds to each message, to each request, to tools; and what a picture costs."""
Writer = Callable[[random.Random, int], str]


def english(dice: random.Random, tokens: int) -> str:
    return " ".join(dice.choices(ENGLISH.split(), k=tokens))


def chinese(dice: random.Random, tokens: int) -> str:
    return "".join(dice.choices(CHINESE, k=tokens * 4 // 3))


def code(dice: random.Random, tokens: int) -> str:
    numbers = [(dice.randint(0, 999), dice.randint(0, 9_999)) for _ in range(max(tokens // 25, 1))]
    return "\n".join(f"    total_{one} = compute(items[{two % 10}], key='{two}')" for one, two in numbers)


@lru_cache(maxsize=65_536)  # a conversation is counted with each of its requests
def real_model(text: str) -> float:
    """Counts text as a small model does, by the ratios that were measured for each kind of text."""
    wide = sum(ord(character) > 0x2E80 for character in text)
    slope = 2.59 if 4 * wide > len(text) else 1.30 if "compute(" in text or text.startswith("{") else 1.08
    return slope * counter().text(text)


def as_real_model(body: Mapping[str, Any]) -> int:
    total = float(ADDED)
    for message in body["messages"]:
        content = message.get("content") or ""
        parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
        lines = [line for part in parts for line in part.get("text", "").split("\n")]
        calls = [call["function"] for call in message.get("tool_calls") or ()]
        written = [*lines, *(text for call in calls for text in (call["name"], call["arguments"]))]
        total += CHARGED * (1 + len(calls)) + sum(map(real_model, written))
        total += A_PICTURE * sum(part["type"] == "image_url" for part in parts)
    tools = body.get("tools")
    return round(total + (EACH_TOOLS + 1.3 * counter().text(json.dumps(tools)) if tools else 0))


def picture(number: int) -> dict[str, Any]:
    size = struct.pack(">II", *[(1_920, 1_080), (800, 600), (1_024, 1_024)][number % 3])
    png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + size + bytes([8, 2, 0, 0, 0, number]) * 99
    return {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(png).decode()}}


def talking(write: Writer, turns: int, tokens: int, *, pictured: bool = False) -> Iterator[list[Mapping[str, Any]]]:
    """The requests of a conversation, whose replies are of so many tokens; with a picture in each third question."""
    dice = random.Random(tokens)
    messages: list[Mapping[str, Any]] = [{"role": "system", "content": "You are a helpful assistant. " * 6}]
    for number in range(turns):
        question = write(dice, tokens // 3)
        shown = [{"type": "text", "text": question}, picture(number)] if pictured and number % 3 == 0 else question
        messages.append({"role": "user", "content": shown})
        yield list(messages)
        messages.append({"role": "assistant", "content": write(dice, tokens)})


def working(write: Writer, turns: int, tokens: int) -> Iterator[list[Mapping[str, Any]]]:
    """The requests of an agent, whose results are of so many tokens."""
    dice = random.Random(tokens)
    messages: list[Mapping[str, Any]] = [{"role": "system", "content": "You are a coding agent. " * 20}]
    messages.append({"role": "user", "content": write(dice, tokens)})
    for number in range(turns):
        yield list(messages)
        call = {"name": "read", "arguments": json.dumps({"path": f"src/a{number}.py"})}
        calls = [{"id": f"c{number}", "type": "function", "function": call}]
        messages.append({"role": "assistant", "content": None, "tool_calls": calls})
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": write(dice, tokens)})


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Reads a file of the project and returns its lines, with their numbers.",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}, "start": {"type": "integer"}}},
        },
    }
    for name in ("read", "grep", "list", "stat", "diff", "blame")
]


@pytest.mark.parametrize(
    ("window", "longer", "strategy"),
    [
        (4_000, 1, "recent"),
        (16_000, 2, "mask+extract"),
        pytest.param(48_000, 3, "recent", marks=pytest.mark.torture),
    ],
)
def test_headroom_is_within_a_twentieth_of_the_prompt(window: int, longer: int, strategy: str) -> None:
    """One after the other before one upstream, so each begins with the figures that the one before has taught."""
    turns, errors, condensed = 24, [], set()
    with (
        ScriptedUpstream(counting=Counting(as_real_model)) as upstream,
        running_proxy(upstream.url, strategy=strategy) as at,
    ):
        stage = Stage(at, upstream)
        for name, talk in (
            ("english", talking(english, turns, 180 * longer)),
            ("code", talking(code, turns, 200 * longer)),
            ("pictures", talking(english, turns, 170 * longer, pictured=True)),
            ("chinese-and-pictures", talking(chinese, turns, 170 * longer, pictured=True)),
            ("tools-in-chinese", working(chinese, turns, 220 * longer)),
            ("english-again", talking(english, turns, 190 * longer)),
        ):
            offered = {"tools": TOOLS} if name.startswith("tools") else {}
            for turn, messages in enumerate(talk, 1):
                answer = stage.ask(messages, controls(session=name, window=window), max_tokens=RESERVE, **offered)
                counted_there = true(answer)
                if answer.action == "condensed":
                    condensed.add(name)
                if turn >= 3:
                    errors.append((abs(expected(answer, window) / counted_there - 1), name, turn))
    assert len(condensed) >= {4_000: 6, 16_000: 2}.get(window, 0)
    assert max(errors)[0] < 0.08, max(errors)
    assert len([error for error in errors if error[0] > 0.05]) <= len(errors) // 100


def by_length(body: Mapping[str, Any]) -> int:
    """Four characters of JSON a token: a short call is mostly framing, and numbers cost less than we count."""
    return len(json.dumps(body["messages"], ensure_ascii=False)) // 4


def framed(body: Mapping[str, Any]) -> int:
    """Forty tokens for each message."""
    return sum(40 + counter().text(_rendered(each)) for each in body["messages"])


LONG = 10_314  # characters of a result that is more than half of the window, by our own count
SHORT_ROUNDS = {
    "searches": ("Find the page about the planting dates and tell me which bed is late.", "query of the beds", "bed 4"),
    "numbers": ("Add these up: 4, 8, 15, 16, 23, 42.", "4 8 15 16", "108"),
    "chinese": ("请查一下花园里哪一块地种得晚。", "种植日期", "第四块地还没有种"),
    "single words": ("Go.", "ok", "ok"),
}
"""A task, and what the assistant and a tool or the user say in each round."""


def short_then_long(kind: str, rounds: int, *, calls: bool) -> Iterator[list[Mapping[str, Any]]]:
    """The requests of a conversation with so many short rounds, and a long result, or question, after them."""
    task, asked, found = SHORT_ROUNDS[kind]
    dice = random.Random(7)
    long = "".join(f"bed {dice.getrandbits(24):06x} planted, " for _ in range(LONG))[:LONG]
    messages: list[Mapping[str, Any]] = [{"role": "user", "content": task}]
    for number in range(rounds + 1):
        yield list(messages)
        last = long if number == rounds else f"{found} {number}"
        call = {"name": "search", "arguments": json.dumps({"query": asked}, ensure_ascii=False)}
        uses = [{"id": f"c{number}", "type": "function", "function": call}]
        if calls:
            messages.append({"role": "assistant", "content": None, "tool_calls": uses})
            messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": last})
        else:
            messages += [{"role": "assistant", "content": asked}, {"role": "user", "content": last}]
    yield list(messages)


@pytest.mark.parametrize("rounds", [1, 2, 5])
@pytest.mark.parametrize("calls", [True, False], ids=["calls", "talk"])
@pytest.mark.parametrize("count", [by_length, framed])
def test_short_rounds_do_not_make_a_long_result_longer(
    count: Callable[[Mapping[str, Any]], int], calls: bool, rounds: int
) -> None:
    with (
        ScriptedUpstream(counting=Counting(count)) as upstream,
        running_proxy(upstream.url, strategy="mask+extract") as at,
    ):
        stage = Stage(at, upstream)
        for kind in SHORT_ROUNDS:
            for messages in short_then_long(kind, rounds, calls=calls):
                answer = stage.ask(messages, controls(session=kind, window=8_192))
                assert (answer.action, stage.last_view) == ("passed", messages), kind


def expected(answer: Answer, window: int) -> int:
    """What the proxy expected the upstream to count."""
    return window - RESERVE - answer.headroom


def true(answer: Answer) -> int:
    """What the upstream has counted."""
    return int(json.loads(answer.body)["usage"]["prompt_tokens"])


def test_another_process_goes_on_from_what_the_upstream_counted(tmp_path: Path) -> None:
    store = {"url": f"sqlite:///{tmp_path / 'store.db'}"}
    talk = chat(20)
    with counted(twice(), store=store) as stage:
        before = stage.ask(talk[:-2], controls(session="s", window=20_000), max_tokens=RESERVE)
        with running_proxy(stage.upstream.url, store=store) as other:
            answer = Stage(other, stage.upstream).ask(talk, controls(session="s", window=20_000), max_tokens=RESERVE)
        assert expected(before, 20_000) < 0.8 * true(before)
        assert expected(answer, 20_000) == pytest.approx(true(answer), rel=0.03)


def test_nothing_is_learned_of_a_request_that_wants_nothing_stored() -> None:
    with counted(nearly_bytes()) as stage:
        for number in range(4):
            stage.ask(chat(3 + number), controls(session="s", window=9_000, no_store="true"), max_tokens=RESERVE)
        answer = stage.ask(chat(8), controls(session="s", window=9_000), max_tokens=RESERVE)
        assert expected(answer, 9_000) == answer.tokens_after


def test_the_marks_go_by_what_the_upstream_counts() -> None:
    """By our own count the last request is far below the mark; by the upstream's it does not fit."""
    with counted(twice()) as stage:
        ask = controls(session="s", window=5_000, strategy="recent")
        stage.ask(chat(5), ask, max_tokens=RESERVE)
        answer = stage.ask(chat(7), ask, max_tokens=RESERVE)
        assert answer.action == "condensed"
        assert answer.tokens_before < 0.85 * 4_500
        assert true(answer) <= 4_500


def test_a_view_stays_while_what_is_known_of_the_upstream_moves() -> None:
    with counted(small_vocabulary()) as stage:
        views: list[list[Any]] = []
        for rounds in range(6, 26):
            answer = stage.ask(chat(rounds), controls(session="s", window=6_000, strategy="recent"), max_tokens=RESERVE)
            if answer.action != "condensed" and views:
                assert stage.last_view[: len(views[-1])] == views[-1]
            views.append(stage.last_view)
            talk = [{"role": "user", "content": f"今天天气怎么样 {rounds} " * rounds}]
            stage.ask(talk, controls(session=f"other{rounds}", window=6_000), max_tokens=RESERVE)


def test_the_error_is_measured_and_told() -> None:
    with counted(older()) as stage:
        for rounds in range(2, 14):
            stage.ask(chat(rounds), controls(session="s", window=2_500, strategy="recent"), max_tokens=RESERVE)
        text = wire.request(stage.proxy.url, "GET", "/metrics", b"", ()).body.decode()
        found = [line for line in text.splitlines() if line.startswith("condenser_calibration_error{")]
        told = {line.split("kind=")[1].split('"')[1]: float(line.split()[-1]) for line in found}
        assert 0 <= told["anchored"] < 0.10


def writing(exchange: Exchange) -> Reply:
    """A summarizer's answer in Chinese that does as it is told, but is cut at its limit by the count of its model."""
    body = exchange.json()
    words = int(re.findall(r"at most (\d+) words", json.dumps(body["messages"]))[0])
    text = f"<summary>{chinese(random.Random(7), words)}</summary>"
    return summary(text, finish="length" if real_model(text) > body["max_completion_tokens"] else "stop")


@pytest.mark.parametrize("strategy", ["half-window", "summary"])
def test_a_record_in_chinese_has_room_in_a_small_window_and_in_its_limit(strategy: str) -> None:
    with ScriptedUpstream(counting=Counting(as_real_model)) as upstream:
        upstream.answer(lambda exchange: writing(exchange) if is_own(exchange) else None)
        with running_proxy(upstream.url, strategy=strategy) as proxy:
            stage, asked = Stage(proxy, upstream), controls(session="s", window=2_048)
            answers = [stage.ask(each, asked, max_tokens=RESERVE // 2) for each in talking(chinese, 12, 60)]
    made = [(each.reason, each.header("x-condenser-stages")) for each in answers if each.action == "condensed"]
    assert len(made) >= 2
    assert set(made) == {(None, strategy)}
