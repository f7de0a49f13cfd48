import gzip
import json
import os
import zlib
from pathlib import Path
from typing import Any

import pytest

from proxy.commands.replaying.recorded import Conversation, Question, Unreadable, load

HELLO = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
BYE = [{"role": "user", "content": "bye"}, {"role": "assistant", "content": "good-bye"}]


def written(tmp_path: Path, data: bytes | str) -> Path:
    path = tmp_path / "recorded"
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def lines(*documents: Any) -> str:
    return "".join(json.dumps(each) + "\n" for each in documents)


def messages_in(path: Path, limit: int | None = None) -> list[list[Any]]:
    return [list(each.messages) for each in load(path, limit)]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(HELLO),
        json.dumps({"messages": HELLO}, indent=2),
        json.dumps([{"messages": HELLO}]),
        json.dumps([HELLO]),
        lines(HELLO),
        "\ufeff" + json.dumps(HELLO),
    ],
    ids=["bare list", "object", "list of objects", "list of lists", "one line", "byte order mark"],
)
def test_one_conversation_is_read_in_every_form(tmp_path: Path, text: str) -> None:
    assert messages_in(written(tmp_path, text)) == [HELLO]


def test_json_lines_hold_a_conversation_each(tmp_path: Path) -> None:
    path = written(tmp_path, lines(HELLO) + "\n" + lines({"messages": BYE}))
    assert messages_in(path) == [HELLO, BYE]
    assert messages_in(path, limit=1) == [HELLO]
    assert messages_in(written(tmp_path, gzip.compress(lines(HELLO, BYE).encode()))) == [HELLO, BYE]
    odd = [{"role": "user", "content": "a\u2028b\x85c"}]
    path = written(tmp_path, "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in (odd, HELLO)))
    assert messages_in(path) == [odd, HELLO]


def test_tools_id_and_evidence_are_read_where_they_are(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    questions = [{"question": "?", "evidence": [0, 1]}, {"question": "no evidence", "evidence": []}, {"question": "?"}]
    questions += [{"evidence": [7]}, {"evidence": ["0"]}]
    path = written(tmp_path, json.dumps({"id": "a", "messages": HELLO, "tools": tools, "qa": questions}))
    texts = [message["content"] for message in HELLO[:2]]
    assert load(path) == [Conversation("a", HELLO, tools, [Question("?", texts, [0, 1])])]


@pytest.mark.parametrize(
    ("document", "protocol"),
    [
        ({"messages": HELLO}, "chat"),
        ({"messages": HELLO, "system": "Be brief."}, "messages"),
        ({"messages": [*HELLO, {"role": "user", "content": [{"type": "tool_result"}]}]}, "messages"),
        ({"input": [{"role": "user", "content": "hi"}, {"type": "reasoning"}], "instructions": "Be."}, "responses"),
    ],
)
def test_every_protocols_body_is_a_conversation(tmp_path: Path, document: dict[str, Any], protocol: str) -> None:
    (read,) = load(written(tmp_path, json.dumps({"model": "m", "stream": True, **document})))
    assert read.endpoint.dialect.name == protocol
    assert read.messages == document.get("messages", document.get("input"))
    assert set(read.members) <= {"system", "instructions"}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("", "line 1: is not JSON|holds no conversation"),
        ("[]", "holds no conversation"),
        ("hello", "line 1: is not JSON"),
        ('{"messages": [\n', "line 1: is not JSON"),
        (lines(HELLO) + "{oops\n", "line 2: is not JSON"),
        (b"\xff\xfe", r"is not UTF-8 text \(byte 0\)"),
        (gzip.compress(b"[]" * 1000, mtime=0)[:-9], "ended before the end-of-stream marker"),
        ("3", "is no conversation: read are a list of messages"),
        ('{"messages": 3}', "is no conversation"),
        (lines(HELLO, {"turns": []}), "line 2: is no conversation"),
        ('[{"messages": []}, 7]', "conversation 2: is no conversation"),
        ('{"messages": ["hi"]}', r"messages\[0\] is no object with a 'role'"),
        ('{"messages": [{"role": "user"}, {"role": 1}]}', r"messages\[1\] is no object"),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_place(tmp_path: Path, data: bytes | str, said: str) -> None:
    path = written(tmp_path, data)
    with pytest.raises(Unreadable, match=said) as caught:
        load(path)
    assert str(caught.value).startswith(str(path))


def test_what_a_file_names_is_shown_without_control_characters(tmp_path: Path) -> None:
    (read,) = load(written(tmp_path, json.dumps({"id": "a\x1b[2Jb", "model": "m\u202e\n1", "messages": HELLO})))
    assert (read.id, read.model) == ("a [2Jb", "m  1")


def test_no_pipe_is_waited_for_and_no_bomb_is_unpacked(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Unreadable, match="is no file"):
        load(tmp_path / "pipe")
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    packed = b"".join([packer.compress(b" " * 2**20) for _ in range(65)]) + packer.flush()
    with pytest.raises(Unreadable, match="67,108,864 bytes unpacked"):
        load(written(tmp_path, packed))


def test_a_file_that_is_not_there_and_a_folder_are_told(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="No such file"):
        load(tmp_path / "missing")
    with pytest.raises(Unreadable, match="directory"):
        load(tmp_path)
