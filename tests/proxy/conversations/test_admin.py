"""`condenser sessions`: its output, the proxy it asks, and the token it uses."""

import json
import re
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from proxy.callers.operators import Operators
from proxy.commands.proxy_client import NOT_STORED
from proxy.commands.replaying.recorded import load
from proxy.commands.sessions import _message_lines, lines_of
from proxy.conversations.admin import Admin, session_document
from proxy.conversations.histories import StoredHistory
from proxy.conversations.session import Session
from proxy.conversations.stored import StoredSessions
from proxy.settings import Settings
from proxy.settings.token import TOKEN_FILE, admin_token, known_token
from proxy.store import open_store
from proxy.store.base import StoreKey, Write
from proxy.tokens.counter import Tokenizers
from tests.proxy.command_line import run
from tests.proxy.remembered import record
from tests.support.ports import free_port
from tests.support.replies import error, json_reply
from tests.support.stage import Stage, chat, controls, proxy_with_sqlite
from tests.support.transcripts import READER, condensation_of
from tests.support.upstream import ScriptedUpstream

pytestmark = pytest.mark.usefixtures("store_file")


@pytest.fixture
def stage(store_file: Path) -> Iterator[Stage]:
    with proxy_with_sqlite(store_file) as built:
        yield built


def settings(tmp_path: Path, **more: object) -> Settings:
    return Settings(**{"store": {"url": f"sqlite:///{tmp_path}/s.db"}, **more})  # type: ignore[arg-type]


def test_the_token_is_made_once_and_found_again(tmp_path: Path) -> None:
    assert known_token(settings(tmp_path)) is None
    token = admin_token(settings(tmp_path))
    assert token is not None
    assert token == admin_token(settings(tmp_path, host="::1")) == known_token(settings(tmp_path))
    assert stat.S_IMODE((tmp_path / TOKEN_FILE).stat().st_mode) == 0o600


OPEN = [{"host": host} for host in ("0.0.0.0", "::", "10.0.0.1", "a-name")]
NO_FILE = [{"store": {"url": url}} for url in ("memory://", "redis://h:1/0")]


@pytest.mark.parametrize("given", [*OPEN, *NO_FILE])
def test_no_token_is_made_for_others_or_without_a_place(tmp_path: Path, given: dict[str, Any]) -> None:
    assert admin_token(settings(tmp_path, **given)) is None
    assert known_token(settings(tmp_path, **given)) is None
    assert list(tmp_path.iterdir()) == []


def test_the_token_of_the_settings_wins_and_none_is_made(tmp_path: Path) -> None:
    given = settings(tmp_path, admin={"token": "mine"}, host="0.0.0.0")
    assert admin_token(given) == known_token(given, "http://elsewhere:1") == "mine"
    assert list(tmp_path.iterdir()) == []
    assert "mine" not in repr(given)
    with pytest.raises(ValidationError):
        settings(tmp_path, admin={"token": ""})


def test_the_token_of_a_file_goes_to_this_machine_only(tmp_path: Path) -> None:
    token = admin_token(settings(tmp_path))
    for url in ("http://127.0.0.1:1", "http://localhost:1/", "http://[::1]:1"):
        assert known_token(settings(tmp_path), url) == token
    for url in [
        "http://elsewhere:1",
        "http://127.0.0.1.example:1",
        "http://localhost@elsewhere",
        "nonsense",
        "http://[",
    ]:
        assert known_token(settings(tmp_path), url) is None


def test_without_a_token_nobody_is_an_operator() -> None:
    closed = Operators(None)
    assert closed.is_closed
    assert not any(
        closed.by_headers([(b"authorization", each)]) for each in (b"", b"Bearer", b"Bearer ", b"Bearer None")
    )
    assert not any(map(closed.by_text, ("", " ", "None")))


async def test_an_unreadable_session_can_be_deleted() -> None:
    store = await open_store("memory://")
    admin, key = Admin(StoredSessions(store, 1.0), READER, Tokenizers()), StoreKey("tenant", "broken")
    await store.save(key, Write(b"not JSON", 0, 60))
    await store.put_record(StoreKey("tenant", "never-saved"), "r", b"record", 60)
    listed = await admin.list_sessions()
    assert (listed["data"], listed["unreadable"]) == ([], [{"tenant": "tenant", "session": "broken"}])
    assert (await admin.stats())["sessions"] == 0
    assert (await admin.delete_tenant("tenant") or {})["sessions"] == 2
    assert await admin.delete_tenant("tenant") is None
    assert await store.keys() == []
    await store.close()


def test_sessions_are_listed_as_aligned_lines(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    stage.ask(chat(12), controls(session="a-name-of-some-length"))
    stage.ask(chat(1), controls(session="b"))
    code, out, err = run(capsys, "sessions", "list", "--url", stage.proxy.url)
    assert (code, err) == (0, "")
    head, newest, oldest = out.splitlines()
    at = head.index("ID")
    assert (newest[at : at + 2], oldest[at : at + 22]) == ("b ", "a-name-of-some-length ")
    assert head.split() == ["SESSION", "ID", "MODEL", "STRATEGY", "REQUESTS", "SAVED", "LAST", "USED"]
    assert all(len(line) <= 100 for line in out.splitlines())


def test_a_conversation_that_is_not_stored_yet_is_said_to_be_so(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    name = stage.ask(chat(1)).session or ""
    code, out, _ = run(capsys, "sessions", "list", "--url", stage.proxy.url)
    assert (code, out.splitlines()[1:]) == (0, [f"None is stored. {NOT_STORED}."])
    code, _, err = run(capsys, "sessions", "show", name, "--url", stage.proxy.url)
    assert (code, err) == (1, f"condenser: there is no session {name}: a{NOT_STORED[1:]}\n")


def test_a_line_of_the_list_fits_100_columns_whatever_is_in_it(
    upstream: ScriptedUpstream, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = {
        **dict.fromkeys(("tenant", "session", "model", "strategy"), "x" * 300),
        "id": "y" * 300,
        "last_used": 1.9e9,
    }
    totals = [{"requests": 10**9, "saved_tokens": saved} for saved in (10**9 - 1, 10**18)]
    rows = [{**texts, "totals": each} for each in totals]
    upstream.answer(lambda request: json_reply({"object": "list", "data": rows, "unreadable": []}))
    out = run(capsys, "sessions", "list", "--url", upstream.url, "--token", "t")[1]
    assert max(map(len, out.splitlines())) == 100


def test_a_session_is_shown_by_its_id_or_its_key(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    stage.ask(chat(12), controls(session="mine"))
    by_id = run(capsys, "sessions", "show", "mine", "--url", stage.proxy.url)
    assert by_id[0] == 0
    key = by_id[1].split()[1]
    for name in (key, key[:12]):
        assert run(capsys, "sessions", "show", name, "--url", stage.proxy.url) == by_id
    mistyped = run(capsys, "sessions", "show", "mime", "--url", stage.proxy.url)
    assert mistyped == (1, "", "condenser: there is no session mime; did you mean mine?\n")
    document = json.loads(run(capsys, "sessions", "show", "mine", "--json", "--url", stage.proxy.url)[1])
    assert (document["object"], document["session"]) == ("session", key)
    assert re.search(r"^instead of the first \d+ messages, the model reads:$", by_id[1], re.MULTILINE)
    assert "branch main: 25 messages" in by_id[1]
    assert '  0  user: "Plan my garden. Never water at noon."' in by_id[1]
    assert "mask+half-window by" in by_id[1]
    assert re.search(r"^condensation c\w+ \(latest\): .*\srescued,\s+[\d,]+\s+tokens\s+saved,", by_id[1], re.M | re.S)
    assert re.search(r"^strategy +mask\+half-window$", by_id[1], re.MULTILINE)
    assert all(len(line) < 200 for line in by_id[1].splitlines())


def test_an_export_is_json_for_its_owner_only(stage: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stage.ask(chat(2), controls(session="mine"))
    code, out, _ = run(capsys, "sessions", "export", "mine", "--url", stage.proxy.url)
    assert code == 0
    assert json.loads(out)["branches"][0]["messages"] == chat(2)[1:]
    file = tmp_path / "mine.json"
    assert run(capsys, "sessions", "export", "mine", "--url", stage.proxy.url, "--file", str(file)) == (0, "", "")
    assert file.read_text("utf-8") == out
    (replayed,) = load(file)
    assert (replayed.id, replayed.messages) == ("mine main", chat(2)[1:])
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    code, _, err = run(capsys, "sessions", "export", "mine", "--url", stage.proxy.url, "--file", "/no/such/place")
    assert (code, err.startswith("condenser: ")) == (1, True)


def test_a_session_or_all_of_a_tenant_is_deleted(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    stage.ask(chat(2), controls(session="mine"))
    url = ("--url", stage.proxy.url)
    assert run(capsys, "sessions", "delete", "mine", *url) == (0, "deleted 1 session\n", "")
    for action in ("show", "export", "delete"):
        assert run(capsys, "sessions", action, "mine", *url) == (
            1,
            "",
            "condenser: there is no session mine; `condenser sessions list` prints them\n",
        )
    for name in ("a", "b"):
        stage.ask(chat(1), controls(session=name))
    tenant = json.loads(run(capsys, "sessions", "list", "--json", *url)[1])["data"][0]["tenant"]
    refused = (
        f"condenser: to delete 2 sessions of tenant {tenant} at {url[1]}, give --yes: standard input is not a terminal"
    )
    assert run(capsys, "sessions", "delete", "--tenant", tenant, *url) == (2, "", f"{refused}\n")
    assert run(capsys, "memory", "add", "a", "Deploys go out on Mondays.", "--type", "decision", *url)[0] == 0
    code, out, _ = run(capsys, "sessions", "delete", "--tenant", tenant, "--yes", *url)
    assert code == 0
    assert re.fullmatch(r"deleted 2 sessions, 1 memory card, [1-9] message blocks?, [1-9][\d,]+ bytes\n", out), out


def test_an_id_of_several_tenants_wants_one_of_them(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    stage.ask(chat(1), controls(session="s"))
    replace(stage, key="sk-second", sent=[]).ask(chat(1), controls(session="s"))
    url = ("--url", stage.proxy.url)
    code, _, err = run(capsys, "sessions", "delete", "s", *url)
    assert code == 1
    assert "several sessions" in err
    tenant = err.split()[-1]
    assert run(capsys, "sessions", "delete", "s", "--tenant", tenant, *url)[:2] == (0, "deleted 1 session\n")
    assert run(capsys, "sessions", "show", "s", *url)[0] == 0


def test_what_cannot_be_asked_ends_with_a_code_and_why(
    stage: Stage, capsys: pytest.CaptureFixture[str], upstream: ScriptedUpstream
) -> None:
    stage.ask(chat(1), controls(session="s"))
    assert run(capsys, "sessions", "delete", "--url", stage.proxy.url)[0] == 2
    assert run(capsys, "sessions", "delete", "", "--tenant", "", "--url", stage.proxy.url)[0] == 2
    assert run(capsys, "sessions", "show", "s", "--url", stage.proxy.url)[0] == 0
    assert run(capsys, "sessions")[0] == 2
    code, out, err = run(capsys, "sessions", "list", "--url", stage.proxy.url, "--token", "wrong")
    assert (code, out) == (1, "")
    assert "401" in err
    assert "admin.token" in err
    code, _, err = run(capsys, "sessions", "list", "--url", f"http://127.0.0.1:{free_port()}")
    assert (code, "no proxy answers" in err) == (1, True)
    upstream.answer(lambda request: error(404))
    assert run(capsys, "sessions", "list", "--url", upstream.url)[0] == 1


BARE: dict[str, Any] = {
    **dict.fromkeys(("session", "id", "tenant", "source", "parent"), "x"),
    **{key: {} for key in ("settings", "totals", "judging")},
    **{key: [] for key in ("condensations", "verdicts", "branches", "appended", "memory")},
    "created_at": 0.0,
    "context_strategy": "",
    "model": "",
    "latest_condensation": None,
    "failed_try": None,
}


def test_what_strategies_and_judges_have_told_is_shown_with_every_vote() -> None:
    votes = [
        {"decision": "YES", "parsed_ok": True, "error_type": None, "reasoning": "Done."},
        {"decision": None, "parsed_ok": False, "error_type": "timeout", "reasoning": ""},
    ]
    told = {"hard_trigger": False, "tail_exclusion_count": 1, "event_ids": list(range(500)), "judge_votes": votes}
    names = (
        "covered",
        "tokens_before",
        "tokens_after",
        "window",
        "created_at",
        "saved_tokens",
        "own_tokens",
        "requests",
        "rescued",
    )
    sizes = dict.fromkeys(names, 7)
    made = {
        **sizes,
        **dict.fromkeys(("id", "strategy"), "dynacontext"),
        "trigger": "judge",
        "standing": True,
        "pieces": [],
        "metadata": {"stages": ["dynacontext"], "reasons": {}, "dynacontext": told},
    }
    verdict = {"yes": True, "count": 9, "tokens": 700, "at": 0.0, "metadata": {"judge_votes": votes}}
    judging = {"should_judge": False, "last_skip_reason": "early-turns"}
    lines = list(lines_of({**BARE, "condensations": [made], "verdicts": [verdict], "judging": judging}))
    assert sum("vote YES, parsed: Done." in line for line in lines) == 2
    assert sum("vote none, not parsed, timeout" in line for line in lines) == 2
    assert not any("tail_exclusion_count" in line for line in lines)
    assert "judges not asked: early-turns" in lines
    assert all(len(line) <= 100 for line in lines)


def test_a_judges_words_are_printed_once_and_whole() -> None:
    said = "阶段已完成。" * 40 + "\nEnd of it."
    votes = [{"decision": "YES", "parsed_ok": True, "error_type": None, "reasoning": said}]
    counts = {"valid_votes": 1, "reasoning": [said]}
    verdict = {"yes": True, "count": 9, "tokens": 700, "at": 0.0, "metadata": {"judge_votes": votes}}
    judging = {"should_judge": True, "last_judge_metadata": counts}
    lines = list(lines_of({**BARE, "verdicts": [verdict], "judging": judging}))
    assert "".join(line.strip() for line in lines).count("阶段已完成。" * 40 + " End of it.") == 1
    assert all(len(line) <= 100 for line in lines)


def test_condensations_are_listed_in_order_with_cost() -> None:
    moments = {"c1-1": 30.0, "c2-2": 10.0, "c3-3": 20.0}
    records = [
        condensation_of(id=name, created_at=at, own_tokens=9, metadata={"stages": ["mask"], "compressionDuration": at})
        for name, at in moments.items()
    ]
    session = Session("s", "x-session", 0.0, strategy="mask+half-window")
    session = session._replace(condensations=tuple(records))
    used = [
        record(condensation="c3-3", before=2_000, after=766),
        record(condensation="c3-3", before=9_000, after=766, fits=False),
    ]
    document = session_document(StoreKey("tenant", "s"), session, StoredHistory(), used)
    assert [each["id"] for each in document["condensations"]] == ["c2-2", "c3-3", "c1-1"]
    assert document["latest_condensation"] == "c1-1"
    assert document["condenser_meta_latest"] == {"stages": ["mask"], "compressionDuration": 30.0}
    assert document["context_strategy"] == "mask+half-window"
    lines = list(lines_of(document))
    assert [line.split(":")[0] for line in lines if line.startswith("condensation ")] == [
        "condensation c2-2",
        "condensation c3-3",
        "condensation c1-1 (latest)",
    ]
    assert "tokens, 1 of 2 requests rescued, 1,234 tokens saved, 9 of own calls, " in " ".join(map(str.strip, lines))
    assert any(line.split() == ["strategy", "mask+half-window"] for line in lines)


def branch_of(message: dict[str, Any]) -> dict[str, Any]:
    return {"name": "main", "count": 1, "last_used": 0.0, "messages": [message]}


def test_a_text_that_is_cut_says_how_much_is_missing() -> None:
    branches = [branch_of({"role": "user", "content": "x" * 300})]
    (line,) = [line for line in lines_of({**BARE, "branches": branches}) if "user:" in line]
    assert line.endswith("… (202 more characters)")


def test_what_was_said_is_printed_without_control_characters() -> None:
    document = {
        **BARE,
        "judging": {"last_skip_reason": "\x1b[2J"},
        "branches": [branch_of({"role": "\x1b[2J", "content": "\x1b\u202e\ud800"})],
        "appended": [{"role": "tool", "content": None, "tool_calls": "\x07"}],
    }
    text = "\n".join(lines_of(document))
    assert all(char.isprintable() or char == "\n" for char in text)


def test_items_and_blocks_are_shown_in_words() -> None:
    """What Codex and Claude Code store: Responses' items and Messages' blocks."""
    shown = {
        '"Fix the test."': {"role": "user", "content": [{"type": "input_text", "text": "Fix the test."}]},
        'function call: "shell {"cmd": "ls"}"': {
            "type": "function_call",
            "name": "shell",
            "arguments": '{"cmd": "ls"}',
            "call_id": "c1",
        },
        'function call output: "a.py b.py"': {"type": "function_call_output", "call_id": "c1", "output": "a.py b.py"},
        'reasoning: "Two files."': {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "Two files."}],
            "encrypted_content": "gAAA",
        },
        'assistant: "I look. Read {"path": "a.py"}"': {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "t", "name": "Read", "input": {"path": "a.py"}},
            ],
        },
        'user: "1: import os [image]"': {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "1: import os"}]},
                {"type": "image", "source": {"type": "base64", "data": "AAAA"}},
            ],
        },
        'assistant: "read_file {}"': {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "read_file", "arguments": "{}"}}],
        },
        'tool: "done"': {"role": "tool", "tool_call_id": "c", "content": "done"},
    }
    lines = list(_message_lines(list(shown.values()), {}, "main"))
    for line, words in zip(lines, shown, strict=True):
        assert line.endswith(words)
        assert "input_text" not in line
