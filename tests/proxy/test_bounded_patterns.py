"""No pattern of the product gets more than 256 KB of a request at once, however long its texts are."""

import base64
import json
from typing import Any

import pytest

from strategies.core.client_context import clients_words, is_context, users_words
from strategies.core.parsing import STEP
from tests.support.patterns import watch
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


@pytest.mark.parametrize("before", [0, STEP - 40, STEP - 8, STEP + 9])
def test_a_block_is_found_where_two_steps_meet(before: int) -> None:
    said = "x" * before
    text = f"{said}<system-reminder>Be <b>kind</b>.</system-reminder>Go on."
    assert users_words(text) == f"{said}Go on."
    assert clients_words(text).split() == ["Be", "kind", "."]
    assert not is_context(text)
