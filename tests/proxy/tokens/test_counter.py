"""Counters are chosen by model name, loaded once, and never fail for want of a file."""

import asyncio
import json
import logging
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import tiktoken

from proxy.protocols.chat import ChatCounter
from proxy.tokens import ranks
from proxy.tokens.counter import (
    INLINE_CHARS,
    LONG_CHARS,
    MAX_COUNTERS,
    MOST_CHARS,
    REMEMBERED_CHARS,
    REMEMBERED_TEXTS,
    Counter,
    CountingPool,
    Tokenizers,
    cached_count,
    encoding_name,
)
from proxy.tokens.media import LEAST
from proxy.tokens.models import plain_name

Encodings = Callable[[str], tiktoken.Encoding]
HELLO = {"role": "user", "content": "Hello, how are you?"}
# Requests of OpenAI's cookbook, "How to count tokens with tiktoken", with what the API counted for them.
COOKBOOK = json.loads((Path(__file__).parent / "cookbook_counts.json").read_text(encoding="utf-8"))


@pytest.fixture
def pool() -> Iterator[CountingPool]:
    pool = CountingPool()
    yield pool
    pool.close()


OLDER = "gpt-4 gpt-4-turbo openai/gpt-4-0613 GPT-3.5-Turbo gpt-35-turbo-16k ft:gpt-3.5-turbo:org::id"
OTHERS = "gpt-4o gpt-4.1-mini ft:gpt-4o-mini:org::id gpt-5 o3 openrouter/anthropic/claude-sonnet-4-5 qwen3:8b"


def test_the_encoding_follows_the_model_name() -> None:
    assert {encoding_name(plain_name(model)) for model in OLDER.split()} == {"cl100k_base"}
    assert {encoding_name(plain_name(model)) for model in ("", *OTHERS.split())} == {"o200k_base"}


@pytest.mark.parametrize(
    ("model", "case"),
    [(model, case) for case in COOKBOOK for model in case["tokens"]],
    ids=lambda value: value if isinstance(value, str) else value["case"],
)
def test_openais_cookbook_counts_are_met(model: str, case: dict[str, Any], encodings: Encodings) -> None:
    counter, request = Tokenizers().for_model(model, ChatCounter), case["request"]
    total = sum(map(counter.message, request["messages"])) + counter.overhead(request, has_system=True)
    assert total == case["tokens"][model]


def test_counters_are_made_once_bounded_and_told_apart_by_prices(encodings: Encodings, tmp_path: Path) -> None:
    tokenizers = Tokenizers()
    assert tokenizers.for_model("gpt-4o", ChatCounter) is tokenizers.for_model("gpt-4o", ChatCounter)
    for number in range(3 * MAX_COUNTERS):
        tokenizers.for_model(f"model-{number}", ChatCounter)
    assert len(tokenizers._counters) <= MAX_COUNTERS
    tokenizers = Tokenizers(tmp_path)
    keys = {model: tokenizers.for_model(model, ChatCounter).cache_key for model in ("gpt-4o", "gpt-4.1", "gpt-4o-mini")}
    assert keys["gpt-4o"] == keys["gpt-4.1"] != keys["gpt-4o-mini"]


def test_many_threads_load_an_encoding_once(encodings: Encodings) -> None:
    tokenizers = Tokenizers()
    counters: list[Counter] = []

    def load() -> None:
        counters.append(tokenizers.for_model("gpt-4", ChatCounter))

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [counter.message(HELLO) for counter in counters] == [10] * 4
    assert len({id(counter.encoder) for counter in counters}) == 1


async def test_an_encoding_is_loaded_in_a_thread_by_the_first_count(encodings: Encodings, pool: CountingPool) -> None:
    tokenizers = Tokenizers()
    counter = tokenizers.for_model("gpt-4o", ChatCounter)
    assert counter.exact
    assert tokenizers.states() == {"cl100k_base": "not loaded", "o200k_base": "not loaded"}
    assert await counts(pool, counter, [HELLO]) == [10]
    assert tokenizers.states() == {"cl100k_base": "not loaded", "o200k_base": "loaded"}


def test_a_rank_file_that_goes_after_it_was_checked_leaves_an_estimate(encodings: Encodings, tmp_path: Path) -> None:
    file = Path(shutil.copy(ranks.RANKS_DIR / "o200k_base.tiktoken", tmp_path))
    tokenizers = Tokenizers(tmp_path)
    counter = tokenizers.for_model("gpt-4o", ChatCounter)
    file.unlink()
    assert counter.message(HELLO) == pytest.approx(10, abs=3)
    assert tokenizers.states()["o200k_base"] == "unavailable"


def test_missing_rank_files_cost_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tokenizers = Tokenizers(tmp_path)
    with caplog.at_level(logging.WARNING):
        counters = [tokenizers.for_model(model, ChatCounter) for model in ("gpt-4o", "gpt-5", "o3")]
    assert {(counter.name, counter.exact) for counter in counters} == {("estimate", False)}
    assert counters[0].message(HELLO) == pytest.approx(10, abs=3)
    assert len(caplog.records) == 1
    assert tokenizers.states() == {"cl100k_base": "not loaded", "o200k_base": "unavailable"}
    assert "make ranks" in tokenizers.encoder().problem


def test_the_other_encoding_still_counts_when_one_file_is_bad(encodings: Encodings, tmp_path: Path) -> None:
    shutil.copy(ranks.RANKS_DIR / "cl100k_base.tiktoken", tmp_path)
    (tmp_path / "o200k_base.tiktoken").write_text("truncated")
    tokenizers = Tokenizers(tmp_path)
    assert tokenizers.for_model("gpt-4", ChatCounter).exact
    assert not tokenizers.for_model("gpt-4o", ChatCounter).exact


class Threads:
    """Counts words and remembers where."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.counter = ChatCounter("o200k_base", self.count, LEAST)

    def count(self, text: str) -> int:
        self.seen.add(threading.current_thread().name)
        return len(text.split())


def bodies(count: int, words: int) -> list[Mapping[str, object]]:
    return [{"role": "user", "content": "word " * (words + n)} for n in range(count)]


async def counts(pool: CountingPool, counter: Counter, messages: list[Mapping[str, object]]) -> list[int]:
    return [count.tokens for count in await pool.messages(counter, messages)]


async def test_only_long_messages_are_counted_off_the_loop_in_order(pool: CountingPool) -> None:
    threads = Threads()
    assert await counts(pool, threads.counter, bodies(3, 5)) == [9, 10, 11]
    assert threads.seen == {threading.current_thread().name}
    assert await pool.messages(threads.counter, []) == []
    threads = Threads()
    assert await counts(pool, threads.counter, bodies(5, 2_000)) == [2_004 + n for n in range(5)]
    assert threads.seen
    assert all(name.startswith("tokens") for name in threads.seen)


async def test_a_very_long_text_keeps_nobody_else_waiting(pool: CountingPool) -> None:
    release = threading.Event()

    def hostile(text: str) -> int:
        assert release.wait(30)
        return 1

    slow, quick = ChatCounter("o200k_base", hostile, LEAST), Threads().counter
    stuck = [asyncio.ensure_future(counts(pool, slow, bodies(1, LONG_CHARS))) for _ in range(3)]
    assert await counts(pool, quick, bodies(4, 4_000)) == [4_004 + n for n in range(4)]
    assert (await pool.overhead(quick, TOOLS, 20_000)).tokens > 3
    assert await counts(pool, quick, bodies(1, 5)) == [9]
    release.set()
    assert await asyncio.gather(*stuck) == [[5]] * 3


async def test_of_very_many_characters_the_newest_are_counted(pool: CountingPool) -> None:
    words = MOST_CHARS // 12  # five characters each
    assert await counts(pool, Threads().counter, bodies(6, words)) == [words + 4 + n for n in (3, 4, 5)]
    (one,) = await pool.messages(Threads().counter, [*bodies(1, MOST_CHARS // 2)])
    assert one.unpriced  # a sample of it was counted


TOOLS: dict[str, object] = {"tools": [{"type": "function", "function": {"name": "f", "description": "a tool"}}]}


@pytest.mark.parametrize(
    ("chars", "thread"), [(INLINE_CHARS, "MainThread"), (INLINE_CHARS + 1, "tokens_"), (LONG_CHARS + 1, "tokens-long")]
)
async def test_tools_are_counted_where_their_length_does_no_harm(pool: CountingPool, chars: int, thread: str) -> None:
    threads = Threads()
    assert (await pool.overhead(threads.counter, TOOLS, chars)).tokens == threads.counter.overhead(TOOLS)
    threads.seen.discard(threading.current_thread().name if chars > INLINE_CHARS else "")
    assert threads.seen
    assert all(name.startswith(thread) for name in threads.seen)


async def test_a_closed_pool_still_counts_short_messages_and_refuses_long_ones() -> None:
    pool = CountingPool()
    pool.close()
    assert await counts(pool, Threads().counter, bodies(1, 1)) == [5]
    with pytest.raises(RuntimeError):
        await pool.messages(Threads().counter, bodies(1, 20_000))


@pytest.mark.parametrize(
    "body",
    [
        {"content": [{"type": "text", "text": "x" * 20_000}]},
        {"content": None, "tool_calls": [{"function": {"arguments": "x" * 20_000}}]},
        {"content": {"anything": "x" * 20_000}},
        {"content": [{"type": "novel", "novel": "x" * 20_000}]},
        {"content": "hi", "name": "x" * 20_000},
        {"role": "x" * 20_000, "content": "hi"},
        {"content": None, "tool_calls": [{"function": {"name": "x" * 20_000, "arguments": "{}"}}]},
        {"content": None, "function_call": {"name": "f", "arguments": "x" * 20_000}},
        {"content": [{"type": "file", "file": {"filename": "x" * 20_000}}]},
        {"content": [[["x" * 20_000]]]},
    ],
)
def test_length_is_seen_wherever_it_hides_but_in_a_picture(body: dict[str, object]) -> None:
    assert Threads().counter.chars(body) > INLINE_CHARS
    picture: dict[str, object] = {"content": [{"type": "image_url", "image_url": {"url": "x" * 1_000_000}}]}
    assert Threads().counter.chars(picture) < INLINE_CHARS


class Lengths:
    """Counts characters and remembers what it has counted."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, text: str) -> int:
        self.seen.append(text)
        return len(text)


def test_a_text_is_counted_once_for_each_tenant_that_sends_it() -> None:
    count = Lengths()
    counted = cached_count(count)("")
    long, short = "é" * REMEMBERED_CHARS, "short"
    assert [counted(long), counted(long), counted(short), counted(short)] == [256, 256, 5, 5]
    assert count.seen == [long, short, short]
    count = Lengths()
    counting, long = cached_count(count), "x" * REMEMBERED_CHARS
    for owner in ("one", "two", "one"):
        assert counting(owner)(long) == REMEMBERED_CHARS
    assert count.seen == [long, long]


def test_texts_that_are_counted_again_and_again_outlive_those_that_are_not() -> None:
    count = Lengths()
    counted = cached_count(count)("")
    often = "o" * REMEMBERED_CHARS
    counted("once".ljust(REMEMBERED_CHARS))
    for number in range(2 * REMEMBERED_TEXTS):
        counted(often)
        counted(str(number).ljust(REMEMBERED_CHARS))
    counted("once".ljust(REMEMBERED_CHARS))
    assert count.seen.count(often) == 1
    assert count.seen.count("once".ljust(REMEMBERED_CHARS)) == 2
