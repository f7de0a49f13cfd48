"""What cannot be read, or is odd: 400 in OpenAI's form or the upstream's own word, never 500, and nothing stored."""

import json
import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.replies import completion, error
from tests.support.stage import EMPTY, Stage, body_of, chat, controls, proxy_with_sqlite, store_rows
from tests.support.wire import Answer

HI = b'{"role":"user","content":"hi"}'


@dataclass
class Kept:
    """A proxy with a store that can be looked into."""

    stage: Stage
    path: Path

    def post(self, body: bytes) -> Answer:
        """Sends a body under an explicit id: whatever succeeds is stored."""
        return self.stage.post(body, controls(session="bad"))


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    path = tmp_path_factory.mktemp("store") / "s.db"
    with proxy_with_sqlite(path) as stage:
        yield Kept(stage, path)


@pytest.fixture(autouse=True)
def _fresh(kept: Kept) -> None:
    """Nothing is stored and no reply is queued when a test begins."""
    kept.stage.upstream.drop_queue()
    with closing(sqlite3.connect(kept.path, timeout=10)) as connection, connection:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("DELETE FROM sessions")
        connection.execute("DELETE FROM chain")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Python 3.11 cannot format the traceback of a deep recursion in two threads at once: a test that fails must be
    able to say so while the server would log."""
    log = logging.getLogger("uvicorn.error")
    log.disabled = True
    yield
    log.disabled = False


UNREADABLE = {
    "empty": b"",
    "unclosed string": b'{"messages":[{"role":"us',
    "trailing text": b'{"messages":[%s]} x' % HI,
    "two byte order marks": b"\xef\xbb\xbf" * 2 + b'{"messages":[%s]}' % HI,
    "utf-16": '{"messages":[{"role":"user","content":"hi"}]}'.encode("utf-16"),
    "bytes that are no utf-8": b'{"messages":[{"role":"user","content":"\xff\xfe"}]}',
    "array": b"[%s]" % HI,
    "null": b"null",
    "no messages": b'{"model":"m"}',
    "messages null": b'{"messages":null}',
    "messages empty": b'{"messages":[]}',
    "messages of texts": b'{"messages":["hi"]}',
    "no role": b'{"messages":[{"content":"hi"}]}',
    "messages twice": b'{"messages":[%s],"messages":[%s]}' % (HI, HI),
    "extension twice": b'{"condenser":{},"condenser":{},"messages":[%s]}' % HI,
    "deep outside": b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b',"messages":[%s]}' % HI,
    "deep message": b'{"messages":[{"role":"user","content":' + b"[" * 100_000 + b"]" * 100_000 + b"}]}",
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_an_unreadable_body_is_400_and_goes_nowhere(name: str, kept: Kept) -> None:
    before = len(kept.stage.upstream.journal)
    answer = kept.post(UNREADABLE[name])
    assert answer.status == 400
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert len(kept.stage.upstream.journal) == before
    assert store_rows(kept.path) == EMPTY


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


ODD = {
    "lone surrogate": b'{"messages":[{"role":"user","content":"\\ud800 \\udfff"}]}',
    "lone surrogate in a role": b'{"messages":[{"role":"\\ud800","content":"x"}]}',
    "lone surrogate in a key": b'{"\\ud800":1,"messages":[%s]}' % HI,
    "lone surrogate in the model": b'{"model":"\\ud800","messages":[%s]}' % HI,
    "lone surrogate in a cache key": b'{"prompt_cache_key":"\\ud800","messages":[%s]}' % HI,
    "lone surrogate in arguments": b'{"messages":[%s,{"role":"assistant","tool_calls":[{"id":"\\udc00",'
    b'"function":{"name":"\\udc00","arguments":"\\"\\\\ud800\\""}}]},'
    b'{"role":"tool","tool_call_id":"\\udc00","content":"x"}]}' % HI,
    "nan": b'{"temperature":NaN,"messages":[{"role":"user","content":"x","n":-Infinity}]}',
    "nan as content": b'{"messages":[{"role":"user","content":[NaN, 1e999]}]}',
    "huge integer": b'{"seed":1%s,"messages":[{"role":"user","content":"x","n":2%s}]}' % (b"0" * 4000, b"1" * 4000),
    "model is a number": b'{"model":5,"messages":[%s]}' % HI,
    "model is a list": b'{"model":["m@off"],"messages":[%s]}' % HI,
    "other members twice": b'{"n":1,"n":2,"messages":[{"role":"user","role":"user","content":"a"}]}',
    "unknown role": b'{"messages":[{"role":"narrator","content":"x"}]}',
    "content is a number": b'{"messages":[{"role":"user","content":7}]}',
    "content is an object": b'{"messages":[{"role":"user","content":{"text":"x"}}]}',
    "parts are no parts": b'{"messages":[{"role":"user","content":[null,7,[],"x",{"type":5},{"text":9},{}]}]}',
    "no content at all": b'{"messages":[{"role":"user"},{"role":"assistant"},{"role":"tool"}]}',
    "calls are no calls": b'{"messages":[%s,{"role":"assistant",'
    b'"tool_calls":[null,1,"x",{},{"id":5,"function":7}]}]}' % HI,
    "calls are a text": b'{"messages":[%s,{"role":"assistant","tool_calls":"none"}]}' % HI,
    "calls are an object": b'{"messages":[%s,{"role":"assistant","tool_calls":{"a":1}}]}' % HI,
    "function call is a text": b'{"messages":[%s,{"role":"assistant","function_call":"f"}]}' % HI,
    "arguments are an object": b'{"messages":[%s,{"role":"assistant","tool_calls":[{"id":"c","function":{"name":"f",'
    b'"arguments":{"a":1}}}]},{"role":"tool","tool_call_id":{"a":1},"content":[]}]}' % HI,
    "huge number in arguments": b'{"messages":[%s,{"role":"assistant","tool_calls":[{"id":"c","function":{"name":"f",'
    b'"arguments":"%s"}}]}]}' % (HI, b"9" * 6000),
    "result first": b'{"messages":[{"role":"tool","tool_call_id":"x","content":"y"},%s]}' % HI,
    "assistant alone": b'{"messages":[{"role":"assistant","content":"x"}]}',
    "tools are a text": b'{"tools":"all","functions":[1],"tool_choice":[],"messages":[%s]}' % HI,
    "tools are odd": b'{"tools":[null,{"function":{"parameters":{"properties":[1]}}}],"messages":[%s]}' % HI,
    "lengths are odd": b'{"max_tokens":"many","max_completion_tokens":-5,"stream":"yes","messages":[%s]}' % HI,
    "metadata is a list": b'{"metadata":[1],"user":{},"messages":[%s]}' % HI,
    "pictures that are none": b'{"messages":[{"role":"user","content":[{"type":"image_url","image_url":"data:x"},'
    b'{"type":"image_url"},{"type":"input_audio","input_audio":5},{"type":"file","file":null}]}]}',
    **{
        f"content {depth} deep": b'{"messages":[{"role":"user","content":%s}]}' % nested(depth)
        for depth in (90, 300, 600, 900)
    },
    **{
        f"message {depth} deep": b'{"messages":[{"role":"user","content":"x","y":%s}]}' % nested(depth)
        for depth in (300, 900)
    },
    "arguments 900 deep": b'{"messages":[%s,{"role":"assistant","tool_calls":[{"id":"c","function":{"name":"f",'
    b'"arguments":"%s"}}]}]}' % (HI, nested(900)),
    "tools 600 deep": b'{"tools":[{"function":{"name":"f","parameters":%s}}],"messages":[%s]}' % (nested(600), HI),
}  # fmt: skip


def judged_by_the_upstream(body: bytes, headers: list[tuple[str, str]], kept: Kept) -> None:
    """The upstream gets the bytes as they are and its word comes back; or we said 400 in OpenAI's form."""
    kept.stage.upstream.reply(error(422, "no such thing"))
    before = len(kept.stage.upstream.journal)
    answer = kept.stage.post(body, headers)
    if answer.status == 400 and len(kept.stage.upstream.journal) == before:
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    else:
        assert kept.stage.upstream.journal.to()[-1].body == body
        assert answer.status in (400, 422)
    assert store_rows(kept.path)["sessions"] == 0


@pytest.mark.parametrize("name", ODD)
def test_what_is_odd_is_for_the_upstream_to_judge_counted_planned_or_condensed(name: str, kept: Kept) -> None:
    for force in ("false", "true"):
        judged_by_the_upstream(ODD[name], controls(session="odd", force=force), kept)
    planned = kept.stage.post(ODD[name], controls(dry_run="true", force="true"))
    assert planned.status in (200, 400)
    assert isinstance(planned.json(), dict)


@pytest.mark.parametrize("name", [each for each in ODD if "deep" not in each])
def test_a_history_with_an_odd_message_is_condensed(name: str, kept: Kept) -> None:
    history = chat(12)
    messages = [*history[:4], *json.loads(ODD[name])["messages"], *history[4:]]
    body = json.dumps({"model": "scripted-1", "messages": messages}).encode()
    kept.stage.upstream.reply(completion("anything"))
    answer = kept.stage.post(body, controls(session=f"within {name}"))
    assert (answer.status, answer.action) == (200, "condensed")


def test_a_condensed_request_that_the_upstream_refuses_can_be_sent_again(kept: Kept) -> None:
    kept.stage.upstream.reply(error(500, "not now"))
    assert kept.stage.post(body_of(chat(12)), controls(session="again")).status == 500
    refused = kept.stage.forwarded[-1].body
    assert store_rows(kept.path)["sessions"] == 0
    kept.stage.ask(chat(12), controls(session="again"))
    assert kept.stage.forwarded[-1].body == refused


def test_a_body_over_the_limit_is_413_and_goes_nowhere(tmp_path: Path) -> None:
    with proxy_with_sqlite(tmp_path / "s.db", limits={"body": 2_000}) as stage:
        answer = stage.post(body_of(chat(8)), controls(session="large"))
        assert answer.status == 413
        assert answer.json()["error"]["code"] == "body_too_large"
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        assert list(stage.upstream.journal) == []
        assert store_rows(tmp_path / "s.db") == EMPTY
        assert stage.ask(chat(1)).status == 200


def test_a_body_of_too_many_values_is_413_and_names_the_member(kept: Kept) -> None:
    before = len(kept.stage.upstream.journal)
    answer = kept.post(b'{"messages":[%s],"tools":[%s{}]}' % (HI, b"{}," * 30_000))
    assert (answer.status, answer.json()["error"]["param"]) == (413, "tools")
    assert len(kept.stage.upstream.journal) == before
    assert store_rows(kept.path) == EMPTY


@pytest.mark.parametrize("headers", [[], controls(no_store="true"), controls(dry_run="true")])
def test_what_cannot_fit_is_refused_with_an_account_of_tokens(headers: list[tuple[str, str]], kept: Kept) -> None:
    huge = [{"role": "system", "content": "rule " * 900}, {"role": "user", "content": "word " * 5_000}]
    before = len(kept.stage.upstream.journal)
    answer = kept.stage.post(body_of(huge), headers)
    problem = answer.json()["error"]
    assert answer.status == 400
    assert (problem["code"], problem["type"], problem["param"]) == (
        "context_length_exceeded",
        "invalid_request_error",
        "messages",
    )
    for part in ("4,096", "from the settings", "system messages 9", "user message 5,0", "512 are reserved"):
        assert part in problem["message"]
    assert len(kept.stage.upstream.journal) == before
    assert store_rows(kept.path) == EMPTY


def test_the_upstream_judges_what_is_a_little_too_large(kept: Kept) -> None:
    answer = kept.post(body_of([{"role": "user", "content": "word " * 4_200}]))
    assert (answer.status, answer.action) == (200, "passed")
    assert answer.headroom < 0
