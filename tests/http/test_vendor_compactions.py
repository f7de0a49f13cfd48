"""A client's list with a compaction that its vendor made: what precedes the last one passes, and counts nothing."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.http.test_pictures import ANSWERS
from tests.support import replies, wire
from tests.support.recording import Exchange
from tests.support.replies import Reply
from tests.support.stage import Stage, controls, proxy_with_upstream

Json = dict[str, Any]
WINDOW = 3_000
SAID = "Found so far: the port of the billing service is 48213."
PATHS = {"messages": ("/v1/messages", "messages", "claude-9"), "responses": ("/v1/responses", "input", "gpt-9")}


def rounds(protocol: str, first: int, number: int) -> list[Json]:
    made: list[Json] = []
    for at in range(first, first + number):
        text = " ".join(f"line{at}x{each}" for each in range(20))
        if protocol == "messages":
            use = {"type": "tool_use", "id": f"t{at}", "name": "read", "input": {"path": f"/f{at}"}}
            result = {"type": "tool_result", "tool_use_id": f"t{at}", "content": text}
            made += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
        else:
            made.append({"type": "function_call", "call_id": f"t{at}", "name": "read", "arguments": "{}"})
            made.append({"type": "function_call_output", "call_id": f"t{at}", "output": text})
    return made


def compacted(protocol: str) -> list[Json]:
    if protocol == "messages":
        block = {"type": "compaction", "content": SAID}
        return [{"role": "assistant", "content": [block, {"type": "text", "text": "Going on."}]}]
    item = {"type": "compaction", "id": "cmp_1", "encrypted_content": "AAAA"}
    return [item, {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Going on."}]}]


def history(protocol: str, before: int, after: int) -> list[Json]:
    asked, more = {"role": "user", "content": "Go through the files."}, {"role": "user", "content": "Go on."}
    return [asked, *rounds(protocol, 0, before), *compacted(protocol), more, *rounds(protocol, before, after)]


def ask(stage: Stage, protocol: str, messages: list[Json], model: str = "") -> wire.Answer:
    path, member, name = PATHS[protocol]
    body = {"model": model or name, "max_tokens": 100, member: messages}
    headers = [*wire.JSON, ("Authorization", "Bearer k"), *controls(session="s")]
    return wire.request(stage.proxy.url, "POST", path, json.dumps(body).encode(), headers)


def is_compaction(item: Mapping[str, Any]) -> bool:
    parts = [item, *(item["content"] if isinstance(item.get("content"), list) else [])]
    return any(part.get("type") == "compaction" for part in parts)


def listed(exchange: Exchange) -> list[Json]:
    found: list[Json] = exchange.json().get("messages") or exchange.json()["input"]
    return found


def by_what_follows(exchange: Exchange) -> Reply:
    """As the vendor does: it counts, and refuses, only what follows the last compaction."""
    items = listed(exchange)
    last = max((at for at, item in enumerate(items) if is_compaction(item)), default=0)
    used = len(json.dumps(items[last:])) // 4
    if used > WINDOW:
        return replies.overflow(WINDOW, used)
    return replies.json_reply({**ANSWERS[exchange.path], "usage": {"input_tokens": used, "output_tokens": 5}})


@pytest.mark.parametrize("protocol", PATHS)
@pytest.mark.parametrize("strategy", ["mask+extract", "half-window", "recent"])
def test_what_precedes_the_last_compaction_passes_and_the_rest_is_condensed(protocol: str, strategy: str) -> None:
    with proxy_with_upstream(window=WINDOW, strategy=strategy, background={"mode": "off"}) as stage:
        stage.upstream.answer(by_what_follows)
        head = history(protocol, 40, 0)
        actions = set()
        for after in range(1, 60, 3):
            answer = ask(stage, protocol, history(protocol, 40, after))
            sent = [each for each in stage.upstream.journal if len(listed(each)) > 3][-1]
            assert answer.status == 200, answer.body
            assert listed(sent)[: len(head) - 1] == head[:-1]
            actions.add(answer.action)
        assert {"condensed", "replayed"} <= actions
        # The next compaction takes in what was condensed.
        later = [*history(protocol, 40, 60), *compacted(protocol), {"role": "user", "content": "And now?"}]
        answer = ask(stage, protocol, later)
        assert (answer.status, answer.action) == (200, "passed")
        assert listed(list(stage.upstream.journal)[-1]) == later


@pytest.mark.parametrize("protocol", PATHS)
def test_counts_begin_at_the_last_compaction(protocol: str) -> None:
    with proxy_with_upstream(window=WINDOW) as stage:
        stage.upstream.answer(by_what_follows)
        for before in (10, 11):
            ask(stage, protocol, [{"role": "user", "content": "Go."}, *rounds(protocol, 0, before)])
        answer = ask(stage, protocol, history(protocol, 40, 2))
        assert answer.action == "passed"
        assert int(answer.header("x-condenser-tokens-before") or 0) < WINDOW / 4
        assert answer.headroom > WINDOW / 2


@pytest.mark.parametrize("protocol", PATHS)
def test_a_model_that_serves_no_compaction_reads_it_all(protocol: str) -> None:
    with proxy_with_upstream(window=WINDOW, strategy="recent") as stage:
        stage.upstream.answer(by_what_follows)
        assert ask(stage, protocol, history(protocol, 40, 2), "glm-9").action == "condensed"


@pytest.mark.parametrize("protocol", PATHS)
def test_a_list_may_end_with_a_compaction(protocol: str) -> None:
    with proxy_with_upstream(window=WINDOW, strategy="recent") as stage:
        stage.upstream.answer(by_what_follows)
        ends = [*history(protocol, 40, 0)[:-1]][: -1 if protocol == "responses" else None]
        answer = ask(stage, protocol, ends)
        assert (answer.status, answer.action) == (200, "passed")
        assert int(answer.header("x-condenser-tokens-before") or 0) < WINDOW / 4
