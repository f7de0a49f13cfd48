"""What a request asks of the proxy, from its headers, its body and its model's name."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.controls import KEYS, MEMORY, Controls, Memory, check_model, pipeline_named, read, split_model
from proxy.errors import BadRequest
from strategies import TABLE, Pipeline


def headers(**given_headers: str) -> list[tuple[bytes, bytes]]:
    return [(f"x-condenser-{key.replace('_', '-')}".encode(), value.encode()) for key, value in given_headers.items()]


def test_a_request_that_says_nothing_leaves_all_to_others() -> None:
    assert read([], None, None) == Controls()


def test_every_header_is_read() -> None:
    found = read(
        headers(
            session="s",
            strategy="mask+extract",
            options="mask.keep=2, max_tokens = 300",
            window="8192",
            history="append",
            if_head="3-abc",
            memory="inject+tool",
            memory_scope="team-1",
            force="TRUE",
            no_store="true",
            dry_run="false",
        ),
        None,
        None,
    )
    assert found == Controls(
        session="s",
        strategy=Pipeline(("mask", "extract")),
        options={"mask.keep": "2", "max_tokens": "300"},
        window=8192,
        append=True,
        if_head="3-abc",
        memory=Memory(inject=True, tool=True),
        memory_scope="team-1",
        force=True,
        no_store=True,
        dry_run=False,
    )


def test_body_keys_are_typed_and_spelt_either_way() -> None:
    found = read(
        [],
        {
            "session": "s",
            "strategy": "observe:recent",
            "options": {"keep": 2},
            "window": 8192,
            "history": "replay",
            "no_store": True,
            "dry-run": "true",
            "force": False,
            "memory": "off",
            "memory_scope": "a.b_C",
        },
        None,
    )
    assert found == Controls(
        session="s",
        strategy=Pipeline(("recent",), observe=True),
        options={"keep": 2},
        window=8192,
        memory=MEMORY["off"],
        memory_scope="a.b_C",
        no_store=True,
        dry_run=True,
    )


def test_the_header_wins_over_the_body_and_the_suffix() -> None:
    suffix, body = Pipeline(("mask",)), {"strategy": "recent", "window": 5_000, "session": "body"}
    assert read([], None, suffix).strategy == suffix
    assert read([], body, suffix).strategy == Pipeline(("recent",))
    over = read(headers(strategy="extract", session="header"), body, suffix)
    assert (over.strategy, over.session, over.window) == (Pipeline(("extract",)), "header", 5_000)


def test_header_names_are_read_in_any_case_and_values_without_their_margins() -> None:
    assert read([(b"X-Condenser-Session", b"  s\t")], None, None).session == "s"


def test_headers_that_are_not_ours_or_not_known_are_left_alone() -> None:
    assert read([(b"session", b"s"), (b"x-condenser-soon", b"1")], None, None) == Controls()


BAD = [
    ("session", ""),
    ("session", "x" * 257),
    ("session", "bell\x07"),
    ("session", "\u00e9"),
    ("strategy", "no-such"),
    ("strategy", ""),
    ("strategy", "mask+"),
    ("strategy", "off+mask"),
    ("strategy", "observe:"),
    ("strategy", "Mask"),
    ("strategy", "+".join(["mask"] * 60)),
    ("options", "keep"),
    ("options", "keep="),
    ("options", "=1"),
    ("options", "a=1,b"),
    ("options", f"a={'1' * 5_000}"),
    ("window", ""),
    ("window", "255"),
    ("window", "-1"),
    ("window", "8k"),
    ("window", "8 192"),
    ("window", "\u0668"),
    ("window", "1" * 10),
    ("history", "both"),
    ("if_head", "1-00"),
    ("memory", "always"),
    ("memory_scope", ""),
    ("memory_scope", "a b"),
    ("memory_scope", "x" * 65),
    ("memory_scope", "\u00e9"),
    ("force", "yes"),
    ("force", ""),
    ("no_store", "1"),
    ("dry_run", "on"),
]


@pytest.mark.parametrize(("key", "value"), BAD)
def test_a_bad_value_names_its_header(key: str, value: str) -> None:
    with pytest.raises(BadRequest) as raised:
        read(headers(**{key: value}), None, None)
    name = f"X-Condenser-{key.replace('_', '-').title()}"
    assert (raised.value.status, raised.value.param) == (400, name)
    assert name in raised.value.message
    assert len(raised.value.message) < 400
    assert raised.value.message.isprintable()


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("session", "x" * 257, "X-Condenser-Session must be 1-256 printable ASCII characters, not 257 characters."),
        ("session", "bell\x07", "X-Condenser-Session must be 1-256 printable ASCII characters, not 'bell?'."),
        ("window", "8k", "X-Condenser-Window must be a whole number of tokens, at least 256, not '8k'."),
        ("history", "both", "X-Condenser-History must be 'replay' or 'append', not 'both'."),
        ("force", "yes", "X-Condenser-Force must be 'true' or 'false', not 'yes'."),
        ("memory", "always", "X-Condenser-Memory must be one of off, inject, tool, inject+tool, not 'always'."),
        ("options", "keep" + "!" * 99, f"X-Condenser-Options: 'keep{'!' * 60}…' is not key=value."),
    ],
)
def test_a_bad_value_is_quoted_in_part_and_made_printable(key: str, value: str, says: str) -> None:
    with pytest.raises(BadRequest) as raised:
        read(headers(**{key: value}), None, None)
    assert raised.value.message == says


def test_a_pipeline_with_a_wrong_stage_names_it() -> None:
    with pytest.raises(BadRequest, match="X-Condenser-Strategy: unknown strategy 'foo' in 'mask\\+foo'; known: "):
        read(headers(strategy="mask+foo"), None, None)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("session", 5),
        ("session", ["s"]),
        ("strategy", 5),
        ("strategy", {}),
        ("options", [1]),
        ("options", True),
        ("options", {"keep": "1" * 5_000}),
        ("options", {"1" * 5_000: 1}),
        ("window", True),
        ("window", 8192.5),
        ("window", -1),
        ("window", [8192]),
        ("history", True),
        ("memory", True),
        ("force", 1),
        ("dry_run", "maybe"),
    ],
)
def test_a_bad_member_is_named_as_the_body_has_it(key: str, value: Any) -> None:
    with pytest.raises(BadRequest) as raised:
        read([], {key: value}, None)
    assert raised.value.param == f"condenser.{key}"


@pytest.mark.parametrize("extension", ["mask", 5, [], True])
def test_an_extension_that_is_no_object_is_refused(extension: Any) -> None:
    with pytest.raises(BadRequest) as raised:
        read([], extension, None)
    assert raised.value.param == "condenser"


def test_an_unknown_key_of_the_body_is_refused() -> None:
    with pytest.raises(BadRequest) as raised:
        read([], {"stratgy": "mask"}, None)
    assert all(key in raised.value.message for key in KEYS)


def test_an_unknown_strategy_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(BadRequest) as raised:
        read(headers(strategy="no-such"), None, None)
    assert all(name in raised.value.message for name in TABLE)


@given(st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=256))
def test_any_printable_ascii_up_to_256_characters_is_a_session(text: str) -> None:
    stripped = text.strip()
    if stripped:
        assert read(headers(session=text), None, None).session == stripped
    assert read([], {"session": text}, None).session == text


@pytest.mark.parametrize(
    ("model", "name", "strategy"),
    [
        ("gpt-4o@half-window", "gpt-4o", "half-window"),
        ("gpt-4o@mask+half-window", "gpt-4o", "mask+half-window"),
        ("gpt-4o@observe:mask", "gpt-4o", "observe:mask"),
        ("gpt-4o@off", "gpt-4o", "off"),
        ("vendor/model@2024", "vendor/model@2024", None),
        ("vendor/model@2024@off", "vendor/model@2024", "off"),
        ("a@mask@b", "a@mask@b", None),
        ("a@mask@recent", "a@mask", "recent"),
        ("a@off+mask", "a@off+mask", None),
        ("a@mask+unknown", "a@mask+unknown", None),
        ("a@", "a@", None),
        ("@mask", "@mask", None),
        ("@", "@", None),
        ("", "", None),
        ("gpt-4o", "gpt-4o", None),
        (None, None, None),
        (7, None, None),
        (["a@mask"], None, None),
    ],
)
def test_a_suffix_is_a_pipeline_behind_the_last_at(model: Any, name: str | None, strategy: str | None) -> None:
    found, pipeline = split_model(model)
    assert found == name
    assert (str(pipeline) if pipeline else None) == strategy


@given(st.text(max_size=20))
def test_a_model_without_a_known_suffix_keeps_its_name(model: str) -> None:
    name, pipeline = split_model(model)
    assert (name == model) or re.fullmatch(r".+@.+", model, re.DOTALL)
    assert (pipeline is None) == (name == model)


def test_a_model_name_without_text_is_refused() -> None:
    for fine in ("m" * 512, None, 7):
        check_model(fine)
    for name in ("m" * 513, "m" * 600 + "@mask", "@" * 1_000_000):
        with pytest.raises(BadRequest) as raised:
            check_model(name)
        assert raised.value.param == "model"
        assert len(raised.value.message) < 100


def test_what_a_client_calls_a_strategy_is_quoted_in_part() -> None:
    with pytest.raises(BadRequest) as raised:
        read([], {"strategy": "x" * 1_000_000}, None)
    assert len(raised.value.message) < 1_000


KNOWN = f"known: {', '.join(TABLE)}, joined with '+'"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("mask+foo", f"unknown strategy 'foo' in 'mask+foo'; {KNOWN}"),
        ("observe:mask+rollin", f"unknown strategy 'rollin' in 'observe:mask+rollin'; did you mean 'rolling'? {KNOWN}"),
        ("quux", f"unknown strategy 'quux'; {KNOWN}"),
        ("mask+", f"a strategy is missing in 'mask+'; {KNOWN}"),
        ("", f"a strategy is missing; {KNOWN}"),
        ("off+mask", "'off' cannot be joined with other strategies"),
        ("+".join(["mask"] * 60), "a pipeline has at most 256 characters, not 299"),
        ("a\n" + "b" * 200, f"unknown strategy 'a?{'b' * 62}…'; {KNOWN}"),
    ],
)
def test_the_stage_that_is_wrong_is_named(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(says)}$"):
        pipeline_named(text)
