"""What a request costs is counted as its server counts it; what nobody can know counts nothing and is told."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.proxy.tokens.test_images import png, uri
from tests.proxy.tokens.test_prompt import pdf
from tests.support import wire
from tests.support.stage import Stage, body_of, controls, proxy_with_upstream

PICTURE = {"type": "image_url", "image_url": {"url": uri(png(512, 512) + b"\0" * 90_000)}}
SCAN = {"type": "file", "file": {"filename": "a.pdf", "file_data": pdf(10, b"\0" * 900_000)}}
FILE = {"type": "file", "file": {"file_id": "file-1"}}


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with proxy_with_upstream(strategy="mask+extract", window=40_000) as made:
        made.model = "gpt-4o"
        yield made


def user_with(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": "Which is newer?"}, *parts]}


@pytest.mark.parametrize(
    ("part", "count", "tokens"), [(PICTURE, "exact", 255), (SCAN, "exact", 7_650), (FILE, "inexact", 0)]
)
def test_the_header_tells_whether_a_part_had_a_price(stage: Stage, part: Any, count: str, tokens: int) -> None:
    plain, answer = stage.ask([user_with(FILE)]), stage.ask([user_with(part)])
    assert answer.header("x-condenser-count") == count
    before = [each.tokens_before for each in (plain, answer)]
    assert tokens <= before[1] - before[0] <= tokens + 8


def test_no_guess_refuses_a_request() -> None:
    with proxy_with_upstream(strategy="mask+extract", window=4_000) as stage:
        assert stage.ask([user_with(SCAN)]).status == 200
        reasoning = {"role": "assistant", "content": "", "reasoning_content": "word " * 9_000}
        assert stage.ask([user_with(), reasoning, user_with()]).status == 200


def test_a_deferred_tool_counts_once_a_reference_has_loaded_it(stage: Stage) -> None:
    tools: list[dict[str, Any]] = [
        {"name": "late", "description": "word " * 900, "input_schema": {}, "defer_loading": True}
    ]
    found = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "tool_reference", "tool_name": "late"}]}
    call = {"type": "tool_use", "id": "t", "name": "find", "input": {}}
    rounds = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [found]}]
    before = []
    for messages in ([{"role": "user", "content": "Go."}], [{"role": "user", "content": "Go."}, *rounds]):
        body = {"model": "claude-x", "max_tokens": 100, "tools": tools, "messages": messages}
        answer = wire.post_json(stage.proxy.url, "/v1/messages", body, controls(dry_run="true"))
        before.append(answer.json()["tokens_before"])
    assert before[0] < 900 < before[1] - before[0]


@pytest.mark.parametrize(("model", "repeats", "status"), [("gpt-4o", 6, 400), ("glm-x", 6, 200), ("glm-x", 7, 400)])
def test_text_far_over_a_set_window_is_refused(model: str, repeats: int, status: int) -> None:
    with proxy_with_upstream(strategy="mask+extract", window=4_000) as stage:
        question = {"role": "user", "content": "one two three four five six seven " * 110 * repeats}
        answer = stage.post(body_of([question], model))
        assert answer.status == status
        assert (b"(from the settings)" in answer.body) == (status == 400)


def test_the_bundled_table_refuses_nothing() -> None:
    with proxy_with_upstream(strategy="mask+extract", window=None) as stage:
        stage.model = "gpt-4"
        answer = stage.ask([{"role": "user", "content": "one two three four five six seven " * 1_500}])
        assert (answer.window, answer.status) == ("8192", 200)


@pytest.mark.parametrize(
    ("model", "window"), [("claude-sonnet-4-5", "1000000"), ("us.anthropic.claude-haiku-4-5-20251001-v1:0", "200000")]
)
def test_the_beta_header_raises_windows_where_models_allow_it(model: str, window: str) -> None:
    with proxy_with_upstream(window=None) as stage:
        body = {"model": model, "max_tokens": 100, "messages": [{"role": "user", "content": "Go."}]}
        headers = [("anthropic-beta", "context-1m-2025-08-07"), *controls(dry_run="true")]
        answer = wire.post_json(stage.proxy.url, "/v1/messages", body, headers)
        assert answer.window == window


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (
            "/v1/responses",
            {"store": False, "input": [{"type": "reasoning", "summary": [], "encrypted_content": "x" * 90}]},
        ),
        ("/v1/responses", {"store": False, "input": [{"type": "new_thing", "text": "one"}]}),
        (
            "/v1/messages",
            {"messages": [{"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}]},
        ),
        ("/v1/messages", {"messages": [{"role": "assistant", "content": [{"type": "thinking", "thinking": ""}]}]}),
    ],
)
def test_what_only_the_vendor_can_read_is_told_however_short_the_request(stage: Stage, path: str, body: Any) -> None:
    answer = wire.post_json(stage.proxy.url, path, {"model": "m", "max_tokens": 100, **body})
    assert answer.header("x-condenser-count") == "inexact"
