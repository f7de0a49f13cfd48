"""`/_condenser/own/…`: a caller searches its own sessions and gets back what their views leave out, and no other's."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from proxy.conversations.own import MOST_SESSIONS
from tests.support import wire
from tests.support.replies import error
from tests.support.stage import Stage, agent, body_of, controls, proxy_with_upstream
from tests.support.wire import Answer

OWN = "/_condenser/own"
MINE, OTHERS, REFUSED = "mine", "others", "refused"


@pytest.fixture
def stage() -> Iterator[Stage]:
    with proxy_with_upstream(strategy="mask") as built:
        yield built


def masked(stage: Stage, session: str, key: str, rounds: int = 14) -> tuple[str, str]:
    """Has a session masked; returns a handle that its view carries, and the text of the result behind it."""
    messages = agent(rounds)
    replace(stage, key=key).ask(messages, controls(session=session, force="true"))
    view = stage.last_view
    index, handle = next(
        (index, found[1])
        for index, message in enumerate(view)
        if message["role"] == "tool" and (found := re.search(r"handle ([0-9a-f]{8})", str(message["content"])))
    )
    return handle, str(messages[index]["content"])


def asked(stage: Stage, action: str, members: Any, key: str) -> Answer:
    headers = [("Authorization", f"Bearer {key}")] if key else []
    return wire.post_json(stage.proxy.url, f"{OWN}/{action}", members, headers)


def test_a_handle_gives_back_what_was_left_out_word_for_word(stage: Stage) -> None:
    handle, text = masked(stage, "s", MINE)
    for members in ({"handle": handle}, {"handle": f"handle {handle.upper()}", "session": "s"}):
        answer = asked(stage, "expand", members, MINE)
        assert answer.status == 200, answer.body
        assert (answer.json()["text"], answer.json()["role"], answer.json()["session"]) == (text, "tool", "s")


def test_a_search_finds_passages_of_the_callers_session(stage: Stage) -> None:
    _, text = masked(stage, "s", MINE)
    answer = asked(stage, "search", {"query": text[:40], "session": "s", "top_k": 1}, MINE)
    (found,) = answer.json()["data"]
    assert found["text"] in text
    assert asked(stage, "search", {"query": text[:40]}, MINE).json()["session"] == "s"


def test_another_tenant_is_told_the_same_as_if_the_handle_or_the_session_never_was(stage: Stage) -> None:
    handle, _ = masked(stage, "s", MINE)
    masked(stage, "t", OTHERS, rounds=13)
    never = asked(stage, "expand", {"handle": "0" * 8}, OTHERS)
    assert (never.status, never.json()["error"]["code"]) == (404, "not_known")
    never_there = asked(stage, "expand", {"handle": "0" * 8, "session": "no-such"}, OTHERS)
    known_to_me_only = {"handle": "1" * 8, "session": "s"}
    assert asked(stage, "expand", known_to_me_only, OTHERS).body == never_there.body
    searched, nowhere = (asked(stage, "search", {"query": "a", "session": name}, OTHERS) for name in ("s", "no-such"))
    assert (searched.status, searched.body) == (404, nowhere.body)
    assert asked(stage, "expand", {"handle": handle, "session": "t"}, MINE).status == 404


def test_a_handle_is_not_known_in_another_session(stage: Stage) -> None:
    handle, _ = masked(stage, "s", MINE)
    replace(stage, key=MINE).ask([{"role": "user", "content": "Something else."}], controls(session="t"))
    assert asked(stage, "expand", {"handle": handle, "session": "t"}, MINE).status == 404
    assert asked(stage, "expand", {"handle": handle}, MINE).json()["session"] == "s"


def test_where_several_sessions_can_be_meant_the_caller_names_one(stage: Stage) -> None:
    handle, text = masked(stage, "s", MINE)
    masked(stage, "t", MINE)
    for action, members in (("expand", {"handle": handle}), ("search", {"query": text})):
        answer = asked(stage, action, members, MINE)
        problem = answer.json()["error"]
        assert (answer.status, problem["code"], problem["param"]) == (400, "ambiguous_session", "session")
        assert problem["message"].endswith("name one in 'session': t, s.")
        assert asked(stage, action, {**members, "session": "t"}, MINE).json()["session"] == "t"


def test_another_tenants_many_sessions_hide_none_of_mine(stage: Stage) -> None:
    handle, _ = masked(stage, "s", MINE)
    other = replace(stage, key=OTHERS, sent=[])
    for number in range(MOST_SESSIONS + 2):
        other.ask([{"role": "user", "content": "Hi."}], controls(session=f"t{number}"))
    stage.proxy.quiet()
    assert asked(stage, "expand", {"handle": handle}, MINE).json()["session"] == "s"
    crowded = asked(stage, "expand", {"handle": handle}, OTHERS).json()["error"]
    assert (crowded["code"], crowded["message"].count(", t")) == ("ambiguous_session", 7)


def test_one_of_several_workers_knows_what_another_has_served() -> None:
    with proxy_with_upstream(strategy="mask", workers=2) as stage:
        handle, _ = masked(stage, "s", MINE)
        for _ in range(4):
            assert asked(stage, "expand", {"handle": handle}, MINE).json()["session"] == "s"
        assert asked(stage, "expand", {"handle": handle, "session": "s"}, MINE).status == 200


def test_a_credential_that_was_not_accepted_is_shown_nothing(stage: Stage) -> None:
    handle, _ = masked(stage, "s", MINE)
    stage.upstream.answer(lambda exchange: error(401) if REFUSED in (exchange.header("authorization") or "") else None)
    assert replace(stage, key=REFUSED).post(body_of(agent(2))).status == 401
    for key in (REFUSED, "new", ""):
        for action, members in (("expand", {"handle": handle}), ("search", {"query": "a", "session": "s"})):
            answer = asked(stage, action, members, key)
            assert (answer.status, answer.json()["error"]["code"]) == (403, "credential_unproven")


@pytest.mark.parametrize(
    ("action", "members", "param"),
    [
        ("expand", {"handle": "xyz"}, "handle"),
        ("expand", {}, "handle"),
        ("search", {"query": " "}, "query"),
        ("search", {"query": "a", "session": 5}, "session"),
        ("search", {"query": "a", "top_k": 0}, "top_k"),
        ("search", [], None),
    ],
)
def test_a_wrong_body_is_refused_by_the_name_of_its_member(stage: Stage, action: str, members: Any, param: str) -> None:
    replace(stage, key=MINE).ask(agent(1))
    answer = asked(stage, action, members, MINE)
    assert (answer.status, answer.json()["error"]["param"]) == (400, param)


def test_other_paths_and_methods_are_no_doors(stage: Stage) -> None:
    assert asked(stage, "sessions", {}, MINE).status == 404
    assert wire.request(stage.proxy.url, "GET", f"{OWN}/search").status == 405
