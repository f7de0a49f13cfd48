"""No pattern of the product gets more than 256 KB of a request at once, however long its texts are."""

import base64
import json
import re
from collections.abc import Iterator
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any

import pytest

from bench.patterns import found, patterns_in
from proxy.bodies import wire
from proxy.bodies.message_cache import MessageCache
from proxy.bodies.scanning import DEFAULT_BOUNDS
from proxy.protocols.chat import CHAT_ENDPOINT
from strategies.core.client_context import clients_words, is_context, users_words
from strategies.core.parsing import STEP
from tests.support.patterns import watch, watched
from tests.support.replies import ToolCall, assistant, completion, error
from tests.support.stage import body_of, chat, controls, proxy_with_upstream

SENTENCE = "Please keep the tests green and never push to main before Friday. "
LONG = SENTENCE * (STEP // len(SENTENCE) + 900)  # 59,000 characters more than a step
TALK = [
    part
    for place in range(8)
    for part in ({"role": "user", "content": f"Go on {place}."}, {"role": "assistant", "content": f"Done {place}."})
]


def called(text: str) -> list[dict[str, Any]]:
    return [
        assistant(None, tool_calls=[ToolCall("run", json.dumps({"text": text}), "call_1")]),
        {"role": "tool", "tool_call_id": "call_1", "content": text},
    ]


def data(text: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(text).decode()}"


PICTURE = {"type": "image_url", "image_url": {"url": data(b"\x89PNG\r\n\x1a\n" + b"\0" * 300_000, "image/png")}}
PAGES = {"type": "file", "file": {"file_data": data(b"%PDF /Type /Pages" * 20_000, "application/pdf")}}
CASES: dict[str, list[dict[str, Any]]] = {
    "a question": [{"role": "user", "content": LONG}],
    "one line": [{"role": "user", "content": "a, no " * 50_000 + ":"}],
    "no sentence": [{"role": "user", "content": "a" * 300_000}],
    "a client's block": [{"role": "user", "content": f"<system-reminder>{LONG}</system-reminder>\nGo on."}],
    "an answer": [{"role": "assistant", "content": LONG}],
    "a thought": [{"role": "assistant", "content": f"<think>{LONG}</think>Yes."}],
    "a call": called(LONG),
    "numbers": called("1" * 300_000),
    "white space": [{"role": "user", "content": " " * 300_000 + "Go on."}],
    "files": [{"role": "user", "content": [{"type": "text", "text": "Look."}, PICTURE, PAGES]}],
    "a system prompt": [{"role": "system", "content": LONG}],
}


@pytest.mark.parametrize("case", CASES)
def test_no_pattern_gets_more_than_a_step(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    most = watch(monkeypatch)
    with proxy_with_upstream(strategy="mask+extract", window=2_000_000) as stage:
        body = body_of([*TALK, *CASES[case], *TALK, {"role": "user", "content": "And now?"}])
        assert stage.post(body, controls(session="s", force="true")).status == 200
        stage.proxy.quiet()
    assert len(most) > 20
    assert {name: size for name, size in most.items() if size > STEP} == {}


def test_no_pattern_gets_more_of_a_reply_than_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    most = watch(monkeypatch)
    with proxy_with_upstream() as stage:
        for reply in (completion(LONG), completion(LONG * 3), error(400, message=LONG)):
            stage.upstream.reply(reply)
            stage.post(body_of(chat(2)), controls(session="s"))
            stage.proxy.quiet()
    assert {name: size for name, size in most.items() if size > STEP} == {}


def repetitions(parsed: Any, *, is_followed: bool = False) -> Iterator[str]:
    """The repetitions without a bound that have something after them: each may be tried from each place."""
    for place, (kind, inside) in enumerate(parsed, 1):
        has_more = is_followed or place < len(parsed)
        if kind in (_constants.MAX_REPEAT, _constants.MIN_REPEAT):
            _, most, repeated = inside
            if most == _constants.MAXREPEAT and has_more:
                yield str(repeated)
            yield from repetitions(repeated, is_followed=has_more or most > 1)
        elif kind is _constants.BRANCH:
            for each in inside[1]:
                yield from repetitions(each, is_followed=has_more)
        elif kind in (_constants.SUBPATTERN, _constants.ASSERT, _constants.ASSERT_NOT):
            yield from repetitions(inside[-1], is_followed=has_more and kind is _constants.SUBPATTERN)


def test_a_repetition_is_found_where_something_follows_it() -> None:
    assert list(repetitions(_parser.parse(r"(?:a| b)*c")))
    assert list(repetitions(_parser.parse(r"(?:a\d*){0,3}")))
    assert not list(repetitions(_parser.parse(r"(?:a| b){0,6}c|\d+")))


def test_the_cost_of_a_refusal_grows_no_faster_than_its_text() -> None:
    patterns = {one: f"{module.__name__}.{key}" for module, key, value in found() for one in patterns_in(value)}
    read = {
        one: name for one, name in patterns.items() if name.startswith(("proxy.servers.refusals", "proxy.servers.err"))
    }
    assert len(read) > 60
    unbounded = {one: list(repetitions(_parser.parse(as_text(one.pattern)))) for one in read}
    assert {read[one]: places for one, places in unbounded.items() if places} == {}


def as_text(pattern: str | bytes) -> str:
    return pattern if isinstance(pattern, str) else pattern.decode("latin-1")


@pytest.mark.parametrize("before", [0, STEP - 300, STEP - 8, STEP, 3 * STEP + 9])
async def test_where_a_list_begins_is_looked_for_in_steps(before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    most: dict[str, int] = {}
    monkeypatch.setattr(wire, "_opening", lambda name: watched(re.compile(rb'"%s": *\[' % name.encode()), "it", most))
    data = json.dumps({"x": "y" * before, "messages": chat(2)}).encode()
    cache = MessageCache()
    for _ in range(2):
        body = await wire.read_through_cache(data, CHAT_ENDPOINT, cache, DEFAULT_BOUNDS, owner="t")
        assert [each.value for each in body.elements] == chat(2)
        assert body.hole is not None  # the fast way
    assert 0 < most["it"] <= STEP


@pytest.mark.parametrize("before", [0, STEP - 40, STEP - 8, STEP + 9])
def test_a_block_is_found_where_two_steps_meet(before: int) -> None:
    said = "x" * before
    text = f"{said}<system-reminder>Be <b>kind</b>.</system-reminder>Go on."
    assert users_words(text) == f"{said}Go on."
    assert clients_words(text).split() == ["Be", "kind", "."]
    assert not is_context(text)
