"""Ids of sessions as clients send them: which are refused, how long ones are shown, what of them goes on upstream."""

import pytest

from proxy.settings import Settings
from tests.support.stage import Message, Stage, agent, chat, controls

NAMES = [*Settings().sessions.headers, "x-some-tool-session-id"]
LONG = "chat/" + "0123456789abcdef" * 30


def test_the_digest_of_a_long_id_does_not_open_its_session(stage: Stage) -> None:
    shown = stage.ask(chat(12), [("X-Session-Id", LONG)]).session or ""
    assert stage.ask(chat(13), [("X-Session-Id", shown)]).action == "condensed"


@pytest.mark.parametrize("session", ["..", "../../etc", "a:b:c", "{a}", "*", "a b", "%00", "'; DROP TABLE sessions"])
def test_an_id_may_look_like_a_path_or_a_key(stage: Stage, session: str) -> None:
    assert stage.ask(chat(12), [("X-Session-Id", session)]).session == session
    assert stage.ask(chat(13), [("X-Session-Id", session)]).action == "replayed"
    assert stage.ask(chat(13), [("X-Session-Id", session + "x")]).action == "condensed"


@pytest.mark.parametrize("rounds", [1, 12], ids=["unchanged", "condensed"])
@pytest.mark.parametrize("name", NAMES)
def test_a_clients_own_session_header_reaches_the_upstream(stage: Stage, name: str, rounds: int) -> None:
    answer = stage.ask(chat(rounds), [(name, "id-1"), ("X-Condenser-Window", "4096")])
    assert answer.session == "id-1"
    sent = stage.forwarded[-1]
    assert [value for key, value in sent.headers if key.lower() == name.lower()] == ["id-1"]
    assert not any(key.lower().startswith("x-condenser-") for key, _ in sent.headers)


def test_ids_in_the_body_reach_the_upstream_also_in_a_condensed_one(stage: Stage) -> None:
    stage.ask(chat(12), metadata={"session_id": "id-1", "other": 1}, prompt_cache_key="k")
    assert stage.forwarded[-1].json()["metadata"] == {"session_id": "id-1", "other": 1}
    assert stage.forwarded[-1].json()["prompt_cache_key"] == "k"
    assert len(stage.last_view) < len(chat(12))


TITLE: list[Message] = [
    {"role": "system", "content": "You write titles."},
    {"role": "user", "content": "Write a title."},
    {"role": "user", "content": "Fix the door."},
]
TOOLS = [{"type": "function", "function": {"name": "run", "parameters": {"type": "object", "properties": {}}}}]


def branch(stage: Stage, messages: list[Message], *, tools: bool = True) -> str | None:
    members = {"tools": TOOLS} if tools else {}
    return stage.ask(messages, controls(session="s", strategy="mask"), **members).branch


def test_a_title_that_is_asked_for_first_leaves_main_to_the_first_conversation_with_tools(stage: Stage) -> None:
    for _ in range(2):
        branch(stage, TITLE, tools=False)
    assert [branch(stage, agent(rounds)) for rounds in (0, 1)] == ["main"] * 2
    assert branch(stage, TITLE, tools=False) == "b2"
    assert branch(stage, [{"role": "user", "content": "Look for paint."}]) == "b3"
    assert branch(stage, agent(2)) == "main"


def test_a_conversation_without_tools_that_has_gone_on_keeps_main(stage: Stage) -> None:
    assert [branch(stage, chat(rounds), tools=False) for rounds in (0, 1)] == ["main"] * 2
    assert branch(stage, agent(0)) == "b2"
    assert branch(stage, chat(2), tools=False) == "main"
