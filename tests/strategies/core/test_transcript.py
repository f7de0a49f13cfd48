"""Reading messages: roles, tool output that comes as a user message, the chain and the systems."""

import json

import pytest

from strategies.core.messages import Reader, Role, dump, literal
from strategies.core.transcript import Transcript
from strategies.dialects.chat import CHAT, content_text
from tests.support.transcripts import WORDS, Body, assistant, call, message, recorded, system, tool, transcript_of, user

OUTPUTS = {
    "mini-swe-agent": "<returncode>0</returncode>\n<output>\nok\n</output>",
    "SWE-agent": "AUTHORS.rst\n\n(Open file: n/a)\n(Current directory: /testbed)\nbash-$",
    "SWE-agent, interactive": "flag\n(Open file: n/a)\n(Current directory: /x)\n(Interactive session: n/a)\nbash-$",
    "OpenHands": "EXECUTION RESULT of [bash]:\nok",
    "Cline": "[read_file for 'src/a.py'] Result:\n1 | import os",
    "Roo Code": "[execute_command] Result:\nok",
    "ReAct": "Observation: 42",
    "OBSERVATION": "OBSERVATION:\nok",
    "prompted": "<tool_response>\n{}\n</tool_response>",
}


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        ("system", Role.SYSTEM),
        ("developer", Role.SYSTEM),
        ("user", Role.USER),
        ("assistant", Role.ASSISTANT),
        ("tool", Role.TOOL),
        ("function", Role.TOOL),
        ("moderator", Role.USER),
        (None, Role.USER),
    ],
)
def test_a_role_is_what_a_message_is_in_the_conversation(role: object, expected: Role) -> None:
    assert Reader().role({"role": role, "content": "x"}, CHAT) is expected


@pytest.mark.parametrize("in_parts", [False, True], ids=["text", "text part"])
@pytest.mark.parametrize("text", OUTPUTS.values(), ids=OUTPUTS)
def test_tool_output_that_comes_as_a_user_message_is_a_tool_result(text: str, in_parts: bool) -> None:
    content = [{"type": "text", "text": text}] if in_parts else text
    transcript = transcript_of([user("List the files."), assistant("ls"), user(content)])
    assert [each.role for each in transcript.chain] == [Role.USER, Role.ASSISTANT, Role.TOOL]
    assert transcript.last_user == 0


def test_output_may_follow_other_output() -> None:
    output = user(OUTPUTS["ReAct"])
    roles = [each.role for each in transcript_of([user("x"), assistant("a"), output, output]).chain]
    assert roles[2:] == [Role.TOOL, Role.TOOL]


@pytest.mark.parametrize("before", [[], [user("x")], [system()]], ids=["first", "after a user", "after a system"])
def test_what_looks_like_output_but_answers_nothing_is_the_users(before: list[Body]) -> None:
    assert transcript_of([*before, user(OUTPUTS["ReAct"])]).chain[-1].role is Role.USER


@pytest.mark.parametrize(
    "text",
    [
        "My observation: it fails",
        "run bash-$",
        "see <returncode>1</returncode>",
        "The [docs] Result:",
        "OBSERVATION: x",
    ],
)
def test_words_of_a_user_are_no_tool_output(text: str) -> None:
    assert transcript_of([user("x"), assistant("a"), user(text)]).chain[-1].role is Role.USER


def test_recorded_agents_that_send_output_as_user_messages_have_one_user_message() -> None:
    """SWE-agent's older runs and mini-swe-agent: every user message but the first is what a command printed."""
    agents = [one for one in recorded() if "SWE-agent/" in one.source and not one.tools]
    without_tools = [one for one in agents if all(body["role"] != "tool" for body in one.messages)]
    assert len(without_tools) >= 10
    for one in without_tools:
        users = [each for each in transcript_of(one.messages).chain if each.role is Role.USER]
        unread = [each.text[:80] for each in users[1:] if "returncode" in each.text or "bash-$" in each.text]
        assert unread == [], one.id


def test_recorded_people_are_never_taken_for_tools() -> None:
    for one in recorded():
        if one.kind in ("chat", "long-dialogue-qa", "long-dialogue-probes", "customer-service-tools"):
            said = sum(body["role"] == "user" for body in one.messages)
            assert sum(each.role is Role.USER for each in transcript_of(one.messages).chain) == said, one.id


def test_systems_are_kept_apart_with_their_places() -> None:
    transcript = transcript_of([system("a"), user("x"), system("b", "developer"), assistant("y"), system("c")])
    assert [each.role for each in transcript.chain] == [Role.USER, Role.ASSISTANT]
    assert [(place, each.text) for place, each in transcript.systems] == [(0, "a"), (1, "b"), (2, "c")]
    assert transcript.tokens == transcript.system_tokens + sum(each.tokens for each in transcript.chain)


def test_the_task_is_first_and_the_question_is_last() -> None:
    transcript = transcript_of([assistant("Hello!"), user("a"), assistant("b"), user("c"), assistant("d")])
    assert (transcript.task, transcript.last_user) == (1, 3)


def test_a_transcript_without_a_user_has_no_task() -> None:
    transcript = Transcript.of([message(assistant("a"))])
    assert (transcript.task, transcript.last_user) == (None, None)


def test_a_message_keeps_its_bytes_and_names_what_it_answers() -> None:
    raw = '{ "role":"tool",  "tool_call_id":"c1", "content":"1.0e2" }'
    read = message(json.loads(raw), raw=raw)
    assert (read.raw, read.answers, read.text) == (raw, ("c1",), "1.0e2")
    assert message({"role": "function", "name": "f", "content": "x"}).answers == ()


def test_only_an_assistants_calls_are_calls() -> None:
    assert [each.id for each in message(assistant(None, call("a"), call("b"))).calls] == ["a", "b"]
    assert message({**user("x"), "tool_calls": [call("a")]}).calls == ()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, ""),
        ("a", "a"),
        ([], ""),
        ([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}], "a\n[image_url]"),
        (["a", 3, {"no": "type"}], "a\n\n[part]"),
        ({"odd": 1}, ""),
    ],
)
def test_the_text_of_a_content_names_what_is_no_text(content: object, text: str) -> None:
    assert content_text(content) == text


def test_what_we_write_can_always_be_encoded() -> None:
    assert dump({"content": "修复 é"}) == '{"content":"修复 é"}'
    assert json.loads(dump({"content": "\ud800"}).encode()) == {"content": "\ud800"}


def test_a_message_of_ours_is_counted_but_not_chained() -> None:
    body = tool("c1", "left out")
    ours, theirs = literal(body, WORDS, Role.TOOL), message(body)
    assert (ours.tokens, ours.answers) == (theirs.tokens, theirs.answers)
    assert ours.digest == b""
