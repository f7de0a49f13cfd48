"""The prompt formula meets published counts, prices media, and takes whatever a client sends."""

import base64
import json
import struct
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import tiktoken
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.protocols.chat import ChatCounter
from proxy.protocols.counter import namespace
from proxy.protocols.messages import MessagesCounter
from proxy.protocols.responses import ResponsesCounter
from proxy.tokens import media
from proxy.tokens.counter import Counted, Counter, Opaque

# Requests and their prompt_tokens as reported by OpenAI (gpt-3.5 and gpt-4), published as test data by the
# named projects, both MIT: Pamela Fox's openai-messages-token-helper and Harry Marr's openai-chat-tokens.
PUBLISHED = json.loads((Path(__file__).parent / "published_counts.json").read_text(encoding="utf-8"))
WITH_TOOLS = [case for case in PUBLISHED if {"tools", "functions"} & case["request"].keys()]
PLAIN = [case for case in PUBLISHED if case not in WITH_TOOLS]


def words(text: str) -> int:
    """A counter whose results can be checked by eye."""
    return len(text.split())


BY_WORD = ChatCounter("any", words, media.media_prices("gpt-4o"))


@pytest.fixture(scope="module")
def gpt4(encodings: Callable[[str], tiktoken.Encoding]) -> Counter:
    encode = encodings("cl100k_base").encode_ordinary
    return ChatCounter("any", lambda text: len(encode(text)), media.media_prices("gpt-4o"))


def total(prompt: Counter, request: Mapping[str, Any]) -> int:
    has_system = any(message["role"] == "system" for message in request["messages"])
    return sum(map(prompt.message, request["messages"])) + prompt.overhead(request, has_system=has_system)


def test_published_counts_are_met_exactly_or_within_three(gpt4: Counter) -> None:
    for case in PLAIN:
        assert total(gpt4, case["request"]) == case["tokens"]
    for case in WITH_TOOLS:
        assert -3 <= total(gpt4, case["request"]) - case["tokens"] <= 1
    exact = [case for case in WITH_TOOLS if total(gpt4, case["request"]) == case["tokens"]]
    assert (len(exact), len(WITH_TOOLS)) == (19, 27)


def test_a_message_costs_its_parts_and_nothing_else() -> None:
    assert BY_WORD.message({"role": "user", "content": "one two three"}) == 3 + 1 + 3
    assert BY_WORD.message({"role": "user", "name": "ann", "content": "one"}) == 3 + 1 + 1 + 1 + 1
    empties: list[object] = [None, "", []]
    forms = [BY_WORD.message({"role": "assistant", "content": empty}) for empty in empties]
    assert [*forms, BY_WORD.message({"role": "assistant"})] == [4] * 4
    parts = [{"type": "text", "text": "one two"}]
    assert BY_WORD.message({"role": "user", "content": parts}) == 3 + 1 + 2
    call = {"id": "a b c d", "type": "function", "function": {"name": "find", "arguments": "{ x }"}}
    assert BY_WORD.message({"role": "assistant", "content": None, "tool_calls": [call, call]}) == 4 + 2 * 4
    extra: dict[str, object] = {"refusal": None, "annotations": [1], "cache_control": {}}
    message = {"role": "assistant", "content": "yes"}
    assert BY_WORD.message({**message, **extra}) == BY_WORD.message(message)
    part = {"type": "image_url", "image_url": {"url": "https://example.test/a.png", "detail": "low"}}
    assert BY_WORD.message({"role": "user", "content": [part]}) == 4 + 85


@pytest.mark.parametrize(
    ("members", "known"),
    [
        ({"reasoning_content": "one two three"}, True),
        ({"reasoning": "one two three"}, True),
        ({"reasoning_content": "one two three", "thinking_blocks": [{"thinking": "one two three"}]}, True),
        ({"reasoning_details": [{"type": "reasoning.text", "text": "one two three"}]}, True),
        ({"reasoning": "one two three", "reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}]}, False),
        ({"content": ["yes", {"type": "thinking", "thinking": [{"type": "text", "text": "one two three"}]}]}, True),
    ],
)
def test_reasoning_that_comes_back_as_text_counts_once(members: dict[str, object], known: bool) -> None:
    message = {"role": "assistant", "content": "yes"}
    assert BY_WORD.counted({**message, **members}) == Counted(BY_WORD.message(message) + 3, unpriced=not known)


def test_a_picture_is_priced_and_its_base64_never_counted() -> None:
    def refuses_base64(text: str) -> int:
        assert "data:" not in text
        assert len(text) < 1_000
        return 1

    url = "data:image/png;base64," + base64.b64encode(b"\x89XNG" + b"x" * 100_000).decode()
    prompt = ChatCounter("any", refuses_base64, media.media_prices("gpt-4o"))
    for part in (
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "image_url", "image_url": url},
        {"type": "input_image", "image_url": url},
        {"type": "image", "source": {"type": "base64", "data": url.partition(",")[2]}},
    ):
        assert prompt.counted({"role": "user", "content": [part]}) == (4, True)
    assert prompt.counted({"role": "user", "content": [{"type": "novel", "novel": {"it": url}}]}) == (4, True)


def pdf(pages: int, filler: bytes = b"") -> str:
    kids = b" ".join(b"%d 0 R" % (number + 3) for number in range(pages))
    tree = b"2 0 obj\n<< /Type /Pages /Kids [%s] /Count %d >>\nendobj\n" % (kids, pages)
    leaves = [b"%d 0 obj\n<< /Type /Page /Parent 2 0 R >>\nendobj\n" % (number + 3) for number in range(pages)]
    return base64.b64encode(b"".join([b"%PDF-1.7\n", tree, *leaves, filler])).decode()


def packed(pages: int) -> str:
    objects = zlib.compress(b"<< /Type /Pages /Count 2 >>" + b"<</Type/Page/Parent 2 0 R>>" * pages)
    stream = b"9 0 obj\n<< /Type /ObjStm /N 3 /Filter /FlateDecode /Length 99 >>\nstream\r\n%s\nendstream\nendobj\n"
    return base64.b64encode(b"%PDF-1.7\n" + stream % objects).decode()


@pytest.mark.parametrize(
    ("file", "pages"),
    [(pdf(3), 3), (pdf(12, b"\0" * 300_000), 12), (packed(7), 7), ("data:application/pdf;base64," + pdf(2), 2)],
)
def test_a_pdf_costs_its_pages_whatever_its_bytes(file: str, pages: int) -> None:
    part = {"type": "file", "file": {"filename": "a.pdf", "file_data": file}}
    assert BY_WORD.counted({"role": "user", "content": [part]}) == (4 + 1 + pages * 765, False)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_audio", "input_audio": {"data": "A" * 5_000_000, "format": "mp3"}},
        {"type": "file", "file": {"file_data": "A" * 5_000_000}},
        {"type": "file", "file": {"file_data": base64.b64encode(b"%PDF-1.7 encrypted").decode()}},
        {"type": "file", "file": {"file_id": "file-1"}},
        {"type": "image_url", "image_url": {"url": "https://example.test/a.png"}},
        {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}},
    ],
)
def test_what_has_no_price_counts_nothing_and_is_told(part: dict[str, object]) -> None:
    assert BY_WORD.counted({"role": "user", "content": [part]}) == (4, True)


def wav(seconds: int) -> bytes:
    return b"RIFF0000WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, 24_000, 48_000, 2, 16) + b"\0" * 48_000 * seconds


@pytest.mark.parametrize(
    ("sound", "form"),
    [
        (wav(60), "wav"),
        (b"\0" * 60 * 48_000, "pcm16"),
        (b"\xff\xfb\x90\x00" + b"\0" * 60 * 16_000, "mp3"),
        (b"ID3\x04\0\0\0\0\0\x04tags\xff\xfb\x90\x00" + b"\0" * 60 * 16_000, "mp3"),
    ],
)
def test_a_minute_of_speech_is_six_hundred_tokens(sound: bytes, form: str) -> None:
    part = {"type": "input_audio", "input_audio": {"data": base64.b64encode(sound).decode(), "format": form}}
    assert BY_WORD.message({"role": "user", "content": [part]}) == pytest.approx(604, abs=3)


def test_a_tool_whose_loading_is_deferred_costs_nothing_until_then() -> None:
    late = {"type": "function", "name": "late", "description": "one two", "defer_loading": True}
    group = {"type": "namespace", "name": "crm", "tools": [late]}
    for kind in (ChatCounter, ResponsesCounter, MessagesCounter):
        counter = kind("any", words, media.media_prices("gpt-4o"))
        bare = counter.overhead({"tools": [{"name": "find", "type": "function"}]})
        both = {"tools": [{"name": "find", "type": "function"}, late]}
        assert counter.overhead(both) == bare
        assert counter.count_outside(both, Opaque(), loaded=["late"]) > bare
        assert counter.overhead({"tools": [group]}) == counter.overhead({"tools": [{**group, "tools": []}]})


def test_tools_of_a_remote_server_are_not_known() -> None:
    opaque = Opaque()
    ResponsesCounter("any", words, media.LEAST).count_outside({"tools": [{"type": "mcp", "server_url": "x"}]}, opaque)
    assert opaque.unpriced


def test_a_request_costs_its_priming_schema_and_tools_of_any_kind() -> None:
    assert BY_WORD.overhead({}) == BY_WORD.overhead({"tools": [], "tool_choice": "auto"}) == 3
    schema = {"name": "answer", "schema": {"type": "object", "properties": {"a b c": {"type": "string"}}}}
    assert BY_WORD.overhead({"response_format": {"type": "json_schema", "json_schema": schema}}) > 3 + 10
    assert BY_WORD.overhead({"response_format": {"type": "json_object"}}) == 3
    search = {"type": "web_search", "user_location": {"city": "Berlin"}}
    custom = {"type": "custom", "custom": {"name": "sql", "format": {"definition": "start: SELECT it"}}}
    assert BY_WORD.overhead({"tools": [search]}) > 3
    assert BY_WORD.overhead({"tools": [custom]}) > 3 + 3


def test_a_nested_object_is_rendered_with_its_descriptions() -> None:
    place = {
        "type": "object",
        "properties": {"city": {"type": "string", "description": "Where"}, "n": {"type": ["integer", "null"]}},
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
        "properties": {"a": {"$ref": "#/$defs/Node"}, "b": {"type": "array", "items": {"$ref": "#/$defs/Node"}}},
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


def test_nesting_of_any_depth_is_counted() -> None:
    for member in ("role", "content", "name", "tool_calls", "function_call"):
        assert BY_WORD.message({"role": "user", member: deeply_nested()}) > 0
        assert BY_WORD.message({"role": "user", member: {"type": deeply_nested()}}) > 0
    for member in ("tools", "functions", "tool_choice", "response_format", "messages"):
        request = {"tools": [{"type": "function", "function": {"name": "f"}}], member: deeply_nested()}
        assert BY_WORD.overhead(request) > 0
    assert BY_WORD.overhead({"response_format": {"json_schema": {"schema": deeply_nested()}}}) > 0


MEMBERS = """
    role content name tool_calls function_call function custom arguments type text image_url url detail
    input_audio data format file file_data refusal tools functions tool_choice response_format json_schema
    parameters properties required enum items anyOf $defs $ref description messages source
    system instructions input output output_config result results x
"""
KEYS = st.sampled_from(MEMBERS.split())
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["text", "image_url", "input_audio", "file", "function", "object", "array", "none", "data:,x"]),
    st.sampled_from(["image", "document", "tool_use", "tool_result", "thinking", "function_call_output", "message"]),
)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=6), max_leaves=40
)


EVERY = [kind("any", words, media.media_prices("gpt-4o")) for kind in (ChatCounter, MessagesCounter, ResponsesCounter)]


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(KEYS, JSON, max_size=8))
def test_nothing_a_client_sends_is_refused(body: dict[str, object]) -> None:
    for counter in EVERY:
        for kind in ("message", "function_call_output"):
            message = {**body, "type": kind, "content": body, "output": body}
            assert counter.message(message) > 0
            assert counter.chars(message) > 0
        assert counter.overhead(body) > 0
