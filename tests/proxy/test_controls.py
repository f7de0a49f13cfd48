"""Controls: how headers, body and model suffix are read, refused or warned of."""

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.controls import (
    KEYS,
    MEMORY,
    Controls,
    Memory,
    check_model,
    pipeline_named,
    read,
    split_model,
    suffix_warning,
    unknown_headers,
)
from proxy.errors import BadRequest
from strategies import TABLE, Pipeline
from tests.support.stage import chat, controls, proxy_with_upstream


def headers(**given_headers: str) -> list[tuple[bytes, bytes]]:
    return [(f"x-condenser-{key.replace('_', '-')}".encode(), value.encode()) for key, value in given_headers.items()]


def test_every_header_is_read() -> None:
    chosen = {"session": "s", "strategy": "mask+extract", "options": "mask.keep=2, max_tokens = 300", "window": "8192"}
    modes = {"history": "append", "if_head": "3-abc", "memory": "inject+tool", "memory_scope": "team-1"}
    found = read(headers(**chosen, **modes, force="TRUE", no_store="true", dry_run="false"), None, None)
    assert (found.session, found.strategy, found.window) == ("s", Pipeline(("mask", "extract")), 8192)
    assert found.options == {"mask.keep": "2", "max_tokens": "300"}
    assert (found.append, found.if_head, found.memory_scope) == (True, "3-abc", "team-1")
    assert found.memory == Memory(inject=True, tool=True)
    assert (found.force, found.no_store, found.dry_run) == (True, True, False)


def test_body_keys_are_typed_and_spelt_either_way() -> None:
    chosen = {"session": "s", "strategy": "observe:recent", "options": {"keep": 2}, "window": 8192, "history": "replay"}
    modes = {"no_store": True, "dry-run": "true", "force": False, "memory": "off", "memory_scope": "a.b_C"}
    strategy = Pipeline(("recent",), observe=True)
    asked = Controls(session="s", strategy=strategy, options={"keep": 2}, window=8192, no_store=True, dry_run=True)
    assert read([], chosen | modes, None) == replace(asked, memory=MEMORY["off"], memory_scope="a.b_C")


def test_headers_are_read_in_any_case_and_win_over_body_and_suffix() -> None:
    suffix, body = Pipeline(("mask",)), {"strategy": "recent", "window": 5_000, "session": "body"}
    assert read([], None, suffix).strategy == suffix
    assert read([], body, suffix).strategy == Pipeline(("recent",))
    over = read(headers(strategy="extract", session="header"), body, suffix)
    assert (over.strategy, over.session, over.window) == (Pipeline(("extract",)), "header", 5_000)
    assert read([(b"X-Condenser-Session", b"  s\t")], None, None).session == "s"
    assert read([(b"session", b"s"), (b"x-condenser-soon", b"1")], None, None) == Controls()


BAD = {
    "session": ["", "x" * 257, "bell\x07", "\u00e9"],
    "strategy": ["no-such", "", "mask+", "off+mask", "observe:", "Mask", "+".join(["mask"] * 60), "x" * 1_000_000],
    "options": ["keep", "keep=", "=1", "a=1,b", f"a={'1' * 5_000}"],
    "window": ["", "255", "-1", "8k", "8 192", "\u0668", "1" * 10],
    "history": ["both"],
    "if_head": ["1-00"],
    "memory": ["always"],
    "memory_scope": ["", "a b", "x" * 65, "\u00e9"],
    "force": ["yes", ""],
    "no_store": ["1"],
    "dry_run": ["on"],
}
BAD_MEMBERS: dict[str, list[Any]] = {
    "session": [5, ["s"]],
    "strategy": [5, {}],
    "options": [[1], True, {"keep": "1" * 5_000}, {"1" * 5_000: 1}],
    "window": [True, 8192.5, -1, [8192]],
    "history": [True],
    "memory": [True],
    "force": [1],
    "dry_run": ["maybe"],
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in BAD.items() for value in values])
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


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in BAD_MEMBERS.items() for value in values])
def test_a_bad_member_is_named_as_the_body_has_it(key: str, value: Any) -> None:
    with pytest.raises(BadRequest) as raised:
        read([], {key: value}, None)
    assert raised.value.param == f"condenser.{key}"


def test_an_extension_of_a_wrong_form_is_refused() -> None:
    extensions: list[Any] = ["mask", 5, [], True]
    for extension in extensions:
        with pytest.raises(BadRequest) as raised:
            read([], extension, None)
        assert raised.value.param == "condenser"
    with pytest.raises(BadRequest) as raised:
        read([], {"strategy": "x" * 1_000_000}, None)
    assert len(raised.value.message) < 1_000
    with pytest.raises(BadRequest) as raised:
        read([], {"stratgy": "mask"}, None)
    assert all(key in raised.value.message for key in KEYS)


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


@pytest.mark.parametrize(
    ("model", "meant"),
    [
        ("m@rollin", "rolling"),
        ("m@observe:mask+rollin", "mask+rolling"),
        ("m@Half-Window", "half-window"),
        ("m@rolling+rolling", "rolling"),
        *((name, "") for name in ("m@rolling", "m@20240101", "m@latest", "m@mask+gpt", "@rollin", "rollin", "")),
        ("m@" + "a" * 300, ""),
    ],
)
def test_an_ending_that_is_almost_a_strategy_is_warned_of(model: str, meant: str) -> None:
    warning = suffix_warning(model)
    assert (f"did you mean @{meant}?" in warning) if meant else not warning
    assert warning.isascii()


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
        ("mask+rolling+rolling", "'rolling' stands twice in 'mask+rolling+rolling'"),
        ("+".join(["mask"] * 60), "a pipeline has at most 256 characters, not 299"),
        ("a\n" + "b" * 200, f"unknown strategy 'a?{'b' * 62}…'; {KNOWN}"),
    ],
)
def test_the_stage_that_is_wrong_is_named(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(says)}$"):
        pipeline_named(text)


def test_the_reply_names_an_unknown_header_and_never_its_value() -> None:
    with proxy_with_upstream() as stage:
        headers = [("X-Condenser-Sesion", "hunter2"), ("x-condenser-quux", "1")]
        for _ in range(2):
            assert stage.ask(chat(1), headers).header("x-condenser-warning") == (
                "X-Condenser-Sesion is unknown and ignored, did you mean X-Condenser-Session?; "
                "X-Condenser-Quux is unknown and ignored"
            )
        assert stage.ask(chat(1)).header("x-condenser-warning") is None


def test_a_warning_is_short_printable_ascii_whatever_the_names_are() -> None:
    names = [f"X-Condenser-\r\n\x1b\xe9;{number}" + "y" * 10_000 for number in range(100)]
    warned = unknown_headers(names)
    assert len(warned) == 4
    assert all(each.isascii() and each.isprintable() and len(each) < 200 for each in warned)


def test_an_option_above_its_bound_is_clamped_with_a_warning() -> None:
    with proxy_with_upstream() as stage:
        answer = stage.ask(chat(1), controls(strategy="extract", options="max_tokens=9000"))
        assert answer.header("x-condenser-warning") == (
            "extract.max_tokens of 9,000 is clamped to 1,024: what a replacement may have in that window"
        )
