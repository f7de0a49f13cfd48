"""Files of agents are read as the conversations that the agents had."""

import json
from pathlib import Path
from typing import Any

import pytest

from proxy.commands.replaying.play import request_ends
from proxy.commands.replaying.recorded import Conversation, Empty, Unreadable, load

Line = dict[str, Any]


def read(tmp_path: Path, *lines: Line) -> list[Conversation]:
    path = tmp_path / "session.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return load(path)


def texts(conversation: Conversation) -> list[str]:
    return [conversation.endpoint.dialect.text(message) for message in conversation.messages]


class Claude:
    """Writes lines as Claude Code does, each with the line before it as its parent."""

    def __init__(self, **more: object) -> None:
        self.more = more
        self.last: str | None = None

    def line(self, uuid: str, kind: str, **members: object) -> Line:
        line = {"parentUuid": self.last, "isSidechain": False, "type": kind, "uuid": uuid, "sessionId": "s1"}
        self.last = uuid
        return {**line, **self.more, **members}

    def user(self, uuid: str, content: object, **members: object) -> Line:
        return self.line(uuid, "user", message={"role": "user", "content": content}, **members)

    def reply(self, uuid: str, id: str, block: Line, **members: object) -> Line:
        message = {"id": id, "role": "assistant", "model": "claude-opus-4-8", "content": [block], "usage": {}}
        return self.line(uuid, "assistant", message=message, **members)


def said(text: str) -> Line:
    return {"type": "text", "text": text}


def call(id: str) -> Line:
    return {"type": "tool_use", "id": id, "name": "Bash", "input": {}}


def result(id: str) -> list[Line]:
    return [{"type": "tool_result", "tool_use_id": id, "content": f"result of {id}"}]


def test_blocks_of_one_reply_are_joined_and_results_between_them_follow_it(tmp_path: Path) -> None:
    claude = Claude()
    snapshot = {"type": "prompt_snapshot", "systemPrompt": ["Be", "brief."], "tools": [{"schema": {"name": "Bash"}}]}
    (read_one,) = read(
        tmp_path,
        {"type": "summary", "summary": "A title", "leafUuid": "x"},
        {"type": "file-history-snapshot", "messageId": "u1", "snapshot": {}},
        claude.user("u1", "Count."),
        claude.line("a0", "attachment", attachment=snapshot),
        claude.reply("r1", "msg_1", call("t1")),
        claude.user("u2", result("t1")),
        claude.reply("r2", "msg_1", call("t2"), parentUuid="r1"),
        claude.user("u3", result("t2"), parentUuid="r2"),
        claude.reply("r3", "msg_2", said("Done."), parentUuid="u2"),
        claude.line("r4", "assistant", message={"model": "<synthetic>", "content": [said("API Error")]}),
        claude.line("y1", "system", subtype="turn_duration", content="took 3 s"),
    )
    assert [message["role"] for message in read_one.messages] == ["user", "assistant", "user", "assistant"]
    assert read_one.messages[1]["content"] == [call("t1"), call("t2")]
    assert read_one.messages[2]["content"] == result("t1") + result("t2")
    assert list(request_ends(read_one)) == [1, 3]
    assert (read_one.id, read_one.model, read_one.endpoint.dialect.name) == ("s1", "claude-opus-4-8", "messages")
    assert (read_one.members["system"], read_one.tools) == ("Be\n\nbrief.", [{"name": "Bash"}])


def test_what_was_taken_back_is_left_out_and_repeated_lines_count_once(tmp_path: Path) -> None:
    claude = Claude()
    first, reply = claude.user("u1", "Begin."), claude.reply("r1", "msg_1", said("Begun."))
    wrong, wronged = claude.user("u2", "Wrong."), claude.reply("r2", "msg_2", said("Wronged."))
    claude.last = "r1"
    right, done = claude.user("u3", "Right."), claude.reply("r3", "msg_3", said("Done."))
    (read_one,) = read(tmp_path, first, reply, wrong, wronged, first, reply, right, done)
    assert texts(read_one) == ["Begin.", "Begun.", "Right.", "Done."]


def test_a_compaction_and_each_subagent_begin_another_conversation(tmp_path: Path) -> None:
    claude, agent = Claude(), Claude(isSidechain=True)
    before = [claude.user("u1", "Begin."), claude.reply("r1", "msg_1", said("Begun."))]
    side = [agent.user("x1", "Look."), agent.reply("x2", "msg_9", said("Seen."))]
    boundary = claude.line("b1", "system", subtype="compact_boundary", content="Compacted", parentUuid=None)
    hidden = {"isCompactSummary": True, "isVisibleInTranscriptOnly": True}
    after = [claude.user("u2", "Summary.", **hidden), claude.user("u3", "Next.")]
    after += [claude.user("u4", "Shown only.", isVisibleInTranscriptOnly=True)]
    after += [claude.reply("r2", "msg_2", said("Done."))]
    found = {each.id: texts(each) for each in read(tmp_path, *before, *side, boundary, *after)}
    assert found == {
        "s1": ["Begin.", "Begun."],
        "s1 after compaction 1": ["Summary.\nNext.", "Done."],
        "s1 agent x1": ["Look.", "Seen."],
    }


def codex(kind: str, **payload: object) -> Line:
    return {"timestamp": "2026-11-27T00:00:00Z", "type": kind, "payload": payload}


def item(role: str, text: str) -> Line:
    kind = "output_text" if role == "assistant" else "input_text"
    return codex("response_item", type="message", role=role, content=[{"type": kind, "text": text}], internal_x=1)


def test_a_rollout_is_read_with_its_instructions_and_without_what_codex_keeps_for_itself(tmp_path: Path) -> None:
    (read_one,) = read(
        tmp_path,
        codex("session_meta", id="c1", base_instructions={"text": "You are Codex."}),
        codex("session_meta", id="c0", instructions="Of the session that was forked."),
        codex("event_msg", type="task_started"),
        item("user", "Begin."),
        codex("turn_context", model="gpt-5.2-codex"),
        codex("response_item", type="reasoning", summary=[], encrypted_content="e"),
        codex("response_item", type="function_call", call_id="1", name="shell", arguments="{}"),
        codex("response_item", type="ghost_snapshot", ghost_commit={}),
        codex("response_item", type="function_call_output", call_id="1", output="ok"),
        item("assistant", "Done."),
        codex("event_msg", type="task_started"),
        item("user", "Wrong."),
        item("assistant", "Wronged."),
        codex("event_msg", type="thread_rolled_back", num_turns=1),
        codex("event_msg", type="token_count", info={"model_context_window": 258_400}),
        codex("event_msg", type="token_count", info={}),
    )
    kinds = ["message", "reasoning", "function_call", "function_call_output", "message"]
    assert [message["type"] for message in read_one.messages] == kinds
    assert not any("internal_x" in message for message in read_one.messages)
    assert list(request_ends(read_one)) == [1, 4]
    assert (read_one.id, read_one.model, read_one.window) == ("c1", "gpt-5.2-codex", 258_400)
    assert read_one.members == {"instructions": "You are Codex."}


@pytest.mark.parametrize(
    ("compacted", "follows"),
    [
        ({"replacement_history": [item("user", "Begin.")["payload"], item("user", "Sum.")["payload"]]}, "Sum."),
        ({"message": "A summary."}, "A summary."),
    ],
)
def test_a_rollout_goes_on_with_the_history_that_codex_compacted(compacted: Line, follows: str, tmp_path: Path) -> None:
    lines = [codex("session_meta", id="c1"), item("user", "Begin."), item("assistant", "Begun.")]
    first, second = read(tmp_path, *lines, codex("compacted", **compacted), item("assistant", "Done."))
    assert texts(first) == ["Begin.", "Begun."]
    assert (second.id, texts(second)) == ("c1 after compaction 1", ["Begin.", follows, "Done."])


def test_each_branch_of_an_exported_session_is_a_conversation(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."}]
    calls = [{"role": "user", "content": "Hi."}, {"type": "function_call", "call_id": "1", "name": "f"}]
    branches = [{"name": "main", "messages": chat}, {"name": "b2", "messages": calls}, {"name": "b3", "messages": []}]
    found = read(tmp_path, {"object": "session", "id": "mine", "model": "gpt-4o", "branches": branches})
    assert [(each.id, each.model, each.endpoint.dialect.name) for each in found] == [
        ("mine main", "gpt-4o", "chat"),
        ("mine b2", "gpt-4o", "responses"),
    ]


def test_a_file_of_no_known_form_says_what_is_read(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="a session file of Claude Code, and a rollout file of Codex"):
        read(tmp_path, {"event": "started"})
    with pytest.raises(Empty, match="holds no conversation"):
        read(tmp_path, {"type": "summary", "summary": "A title", "leafUuid": "x"})
