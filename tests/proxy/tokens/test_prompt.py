"""The prompt formula meets published counts, prices media, and takes whatever a client sends."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.endpoints.chat.counter import ChatCounter
from proxy.tokens import images
from proxy.tokens.counter import MAX_MEDIA_TOKENS, Counter
from proxy.tokens.tools import namespace

# Requests and their prompt_tokens as reported by OpenAI (gpt-3.5 and gpt-4), published as test data by the
# named projects, both MIT: Pamela Fox's openai-messages-token-helper and Harry Marr's openai-chat-tokens.
PUBLISHED = json.loads((Path(__file__).parent / "published_counts.json").read_text(encoding="utf-8"))
WITH_TOOLS = [case for case in PUBLISHED if {"tools", "functions"} & case["request"].keys()]
PLAIN = [case for case in PUBLISHED if case not in WITH_TOOLS]


def words(text: str) -> int:
    """A counter whose results can be checked by eye."""
    return len(text.split())


BY_WORD = ChatCounter("any", words, images.DEFAULT)


@pytest.fixture(scope="module")
def gpt4(encodings: Callable[[str], tiktoken.Encoding]) -> Counter:
    encode = encodings("cl100k_base").encode_ordinary
    return ChatCounter("any", lambda text: len(encode(text)), images.DEFAULT)


def total(prompt: Counter, request: Mapping[str, Any]) -> int:
    has_system = any(message["role"] == "system" for message in request["messages"])
    return sum(map(prompt.message, request["messages"])) + prompt.overhead(request, has_system=has_system)


@pytest.mark.parametrize("case", PLAIN, ids=lambda case: case["case"])
def test_published_counts_without_tools_are_met_exactly(case: dict[str, Any], gpt4: Counter) -> None:
    assert total(gpt4, case["request"]) == case["tokens"]


@pytest.mark.parametrize("case", WITH_TOOLS, ids=lambda case: case["case"])
def test_published_counts_with_tools_are_met_within_three(case: dict[str, Any], gpt4: Counter) -> None:
    assert -3 <= total(gpt4, case["request"]) - case["tokens"] <= 1


def test_most_published_counts_with_tools_are_met_exactly(gpt4: Counter) -> None:
    exact = [case for case in WITH_TOOLS if total(gpt4, case["request"]) == case["tokens"]]
    assert (len(exact), len(WITH_TOOLS)) == (19, 27)


def test_a_message_is_three_tokens_and_its_parts() -> None:
    assert BY_WORD.message({"role": "user", "content": "one two three"}) == 3 + 1 + 3
    assert BY_WORD.message({"role": "user", "name": "ann", "content": "one"}) == 3 + 1 + 1 + 1 + 1


def test_an_empty_content_costs_nothing_in_any_of_its_forms() -> None:
    empties: list[object] = [None, "", []]
    forms = [BY_WORD.message({"role": "assistant", "content": empty}) for empty in empties]
    assert [*forms, BY_WORD.message({"role": "assistant"})] == [4] * 4


def test_a_text_part_costs_what_the_string_costs() -> None:
    parts = [{"type": "text", "text": "one two"}]
    assert BY_WORD.message({"role": "user", "content": parts}) == BY_WORD.message(
        {"role": "user", "content": "one two"}
    )


def test_tool_calls_cost_their_names_and_arguments_but_not_their_ids() -> None:
    call = {"id": "a b c d", "type": "function", "function": {"name": "find", "arguments": "{ x }"}}
    assert BY_WORD.message({"role": "assistant", "content": None, "tool_calls": [call, call]}) == 4 + 2 * 4


def test_members_that_the_digest_ignores_do_not_count() -> None:
    extra: dict[str, object] = {
        "reasoning_content": "a long thought",
        "refusal": None,
        "annotations": [1],
        "cache_control": {},
    }
    message = {"role": "assistant", "content": "yes"}
    assert BY_WORD.message({**message, **extra}) == BY_WORD.message(message)


def test_a_picture_is_priced_and_its_base64_never_counted() -> None:
    def refuses_base64(text: str) -> int:
        assert "data:" not in text
        assert len(text) < 1_000
        return 1

    url = "data:image/png;base64," + base64.b64encode(b"\x89PNG" + b"x" * 100_000).decode()
    prompt = ChatCounter("any", refuses_base64, images.DEFAULT)
    for part in (
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "image_url", "image_url": url},
        {"type": "input_image", "image_url": url},
        {"type": "image", "source": {"type": "base64", "data": url.partition(",")[2]}},
    ):
        assert prompt.message({"role": "user", "content": [part]}) == 3 + 1 + 85 + 8 * 170
    assert prompt.message({"role": "user", "content": [{"type": "novel", "novel": {"it": url}}]}) < 2_000


def test_low_detail_costs_the_base_price() -> None:
    part = {"type": "image_url", "image_url": {"url": "https://example.test/a.png", "detail": "low"}}
    assert BY_WORD.message({"role": "user", "content": [part]}) == 4 + 85


@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_audio", "input_audio": {"data": "A" * 50_000_000, "format": "mp3"}},
        {"type": "file", "file": {"file_data": "A" * 50_000_000}},
        {"type": "file", "file": {"file_id": "file-1"}},
    ],
    ids=["audio", "file", "file by id"],
)
def test_sound_and_files_have_a_bounded_price(part: dict[str, object]) -> None:
    assert 100 < BY_WORD.message({"role": "user", "content": [part]}) <= 4 + MAX_MEDIA_TOKENS


def test_a_minute_of_speech_is_six_hundred_tokens() -> None:
    sound = "A" * (60 * 48_000 * 4 // 3)
    part = {"type": "input_audio", "input_audio": {"data": sound, "format": "wav"}}
    assert BY_WORD.message({"role": "user", "content": [part]}) == pytest.approx(604, abs=3)


def test_a_request_without_extras_costs_the_priming() -> None:
    assert BY_WORD.overhead({}) == BY_WORD.overhead({"tools": [], "tool_choice": "auto"}) == 3


def test_a_response_schema_costs_at_least_its_text() -> None:
    schema = {"name": "answer", "schema": {"type": "object", "properties": {"a b c": {"type": "string"}}}}
    assert BY_WORD.overhead({"response_format": {"type": "json_schema", "json_schema": schema}}) > 3 + 10
    assert BY_WORD.overhead({"response_format": {"type": "json_object"}}) == 3


def test_tools_of_other_kinds_are_counted_as_they_stand() -> None:
    search = {"type": "web_search", "user_location": {"city": "Berlin"}}
    custom = {"type": "custom", "custom": {"name": "sql", "format": {"definition": "start: SELECT it"}}}
    assert BY_WORD.overhead({"tools": [search]}) > 3
    assert BY_WORD.overhead({"tools": [custom]}) > 3 + 3


def test_a_nested_object_is_rendered_with_its_descriptions() -> None:
    place = {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Where"},
            "n": {"type": ["integer", "null"]},
        },
        "required": ["city"],
    }
    function = {"name": "go", "description": "Go there", "parameters": {"properties": {"place": place}}}
    assert namespace([function]) == (
        "namespace functions {\n\n// Go there\ntype go = (_: {\nplace?: {\n// Where\ncity: string,\n"
        "n?: number | null,\n},\n}) => any;\n\n} // namespace functions"
    )


def test_shared_definitions_are_rendered_once_and_named() -> None:
    parameters = {
        "$defs": {"Node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}},
        "properties": {
            "a": {"$ref": "#/$defs/Node"},
            "b": {"type": "array", "items": {"$ref": "#/$defs/Node"}},
        },
    }
    rendered = namespace([{"name": "walk", "parameters": parameters}])
    assert "type Node = {\nnext?: Node,\n};" in rendered
    assert "a?: Node,\nb?: Node[]," in rendered


def test_a_hostile_schema_costs_no_more_than_its_own_size() -> None:
    schema: dict[str, object] = {"type": "string"}
    for _ in range(200):
        schema = {"type": ["array", "object", "array"], "items": schema, "anyOf": []}
    rendered = namespace([{"name": "f", "parameters": {"properties": {"x": schema}}}])
    assert len(rendered) < 2_000


def deeply_nested() -> object:
    value: object = "leaf"
    for _ in range(50_000):
        value = [value]
    return value


@pytest.mark.parametrize("member", ["role", "content", "name", "tool_calls", "function_call"])
def test_nesting_of_any_depth_is_counted(member: str) -> None:
    assert BY_WORD.message({"role": "user", member: deeply_nested()}) > 0
    assert BY_WORD.message({"role": "user", member: {"type": deeply_nested()}}) > 0


@pytest.mark.parametrize("member", ["tools", "functions", "tool_choice", "response_format", "messages"])
def test_a_request_of_any_depth_is_counted(member: str) -> None:
    request = {"tools": [{"type": "function", "function": {"name": "f"}}], member: deeply_nested()}
    assert BY_WORD.overhead(request) > 0
    schema = {"json_schema": {"schema": deeply_nested()}}
    assert BY_WORD.overhead({"response_format": schema}) > 0


MEMBERS = """
    role content name tool_calls function_call function custom arguments type text image_url url detail
    input_audio data format file file_data refusal tools functions tool_choice response_format json_schema
    parameters properties required enum items anyOf $defs $ref description messages source
"""
KEYS = st.sampled_from(MEMBERS.split())
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["text", "image_url", "input_audio", "file", "function", "object", "array", "none", "data:,x"]),
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=6),
    max_leaves=40,
)


@settings(max_examples=100)
@given(st.dictionaries(KEYS, JSON, max_size=8))
def test_nothing_a_client_sends_is_refused(body: dict[str, object]) -> None:
    assert BY_WORD.message(body) > 0
    assert BY_WORD.overhead(body) > 0
