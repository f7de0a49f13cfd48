"""`sessions condense`: the next request is condensed, once, whatever the marks say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from proxy.cli import main
from tests.http import test_messages, test_responses
from tests.http.test_reverting import SETTINGS, for_agents, store
from tests.support import wire
from tests.support.admin_api import SESSIONS, TOKEN, admin
from tests.support.messages_upstream import StrictMessages
from tests.support.proxy import Proxy, proxying
from tests.support.responses_upstream import StrictResponses
from tests.support.stage import Headers, Stage, asked, chat, staged

__all__ = ["store"]

WISHED = {"object": "condense", "branch": "main"}


@pytest.fixture
def stage(store: str) -> Iterator[Stage]:
    with staged(store={"url": store}, **SETTINGS) as built:
        yield built


def place(stage: Stage) -> str:
    session = admin(stage, f"{SESSIONS}/s").json()
    return f"{SESSIONS}/{session['tenant']}/{session['session']}"


def wish(stage: Stage, given: object = None) -> Any:
    return admin(stage, f"{place(stage)}/condense", "POST", given).json()


def waiting(stage: Stage) -> Any:
    return admin(stage, f"{SESSIONS}/s").json()["condenses_next"]


def outcome(stage: Stage, rounds: int, more: Headers = ()) -> tuple[str | None, str | None]:
    answer = stage.ask(chat(rounds), [*asked(session="s"), *more])
    return answer.header("x-condenser-action"), answer.header("x-condenser-trigger")


def test_the_next_request_is_condensed_however_small_it_is_and_later_ones_are_not(stage: Stage) -> None:
    assert outcome(stage, 10) == ("passed", "none")
    assert wish(stage) == WISHED
    assert outcome(stage, 11) == ("condensed", "forced")
    assert len(stage.last_view) < len(chat(11))
    assert outcome(stage, 12)[0] == "replayed"
    assert len(admin(stage, place(stage)).json()["condensations"]) == 1


def test_to_wish_twice_is_to_wish_once_until_it_has_come_true(stage: Stage) -> None:
    outcome(stage, 10)
    assert wish(stage) == wish(stage, {"branch": "main"}) == WISHED
    assert waiting(stage) == ["main"]
    assert outcome(stage, 11)[0] == "condensed"
    assert waiting(stage) == []
    assert outcome(stage, 12)[0] == "replayed"
    wish(stage)
    assert outcome(stage, 20) == ("condensed", "forced")


def test_any_replica_makes_it_come_true_and_none_does_so_again(stage: Stage, store: str) -> None:
    outcome(stage, 10)
    wish(stage)
    with proxying(stage.upstream.url, store={"url": store}, **SETTINGS) as proxy:
        assert outcome(Stage(proxy, stage.upstream), 11) == ("condensed", "forced")
    assert outcome(stage, 12)[0] == "replayed"


def test_what_was_taken_back_is_condensed_again_only_when_it_is_wished_for(stage: Stage) -> None:
    outcome(stage, 10)
    wish(stage)
    outcome(stage, 11)
    (record,) = admin(stage, place(stage)).json()["condensations"]
    admin(stage, f"{place(stage)}/condensations/{record['id']}/revert", "POST")
    assert outcome(stage, 12) == ("passed", "none")
    wish(stage)
    assert outcome(stage, 13) == ("condensed", "forced")


def test_where_nothing_can_go_it_is_tried_once(stage: Stage) -> None:
    outcome(stage, 0)
    wish(stage)
    tried = stage.ask(chat(0), asked(session="s"))
    assert (tried.header("x-condenser-action"), waiting(stage)) == ("passed", [])
    assert tried.header("x-condenser-reason") in ("nothing-to-condense", "nothing-to-extract")


def test_a_request_that_stores_nothing_leaves_it_to_the_next_one(stage: Stage) -> None:
    outcome(stage, 10)
    wish(stage)
    assert outcome(stage, 11, asked(no_store="true")) == ("passed", "none")
    stage.ask(chat(11), asked(session="s", dry_run="true"))
    assert waiting(stage) == ["main"]
    assert outcome(stage, 11) == ("condensed", "forced")


def test_it_is_for_one_branch(stage: Stage) -> None:
    outcome(stage, 10)
    other = [*chat(4)[:-1], {"role": "user", "content": "Something else."}]
    stage.ask(other, asked(session="s"))
    assert wish(stage) == {"object": "condense", "branch": "b2"}
    assert outcome(stage, 11) == ("passed", "none")
    answer = stage.ask([*other, *chat(3)[2:]], asked(session="s"))
    assert answer.header("x-condenser-action") == "condensed"


def test_what_is_not_there_or_no_branch_is_refused(stage: Stage) -> None:
    outcome(stage, 3)
    path = f"{place(stage)}/condense"
    assert admin(stage, path, "POST", {"branch": "b9"}).status == 404
    assert admin(stage, f"{SESSIONS}/t/s/condense", "POST").status == 404
    assert admin(stage, path, "POST", {"branch": 3}).status == admin(stage, path, "POST", []).status == 400
    assert admin(stage, path, "GET").status == 405
    assert admin(stage, path, "POST", token="wrong").status == 401
    assert waiting(stage) == []


def test_the_command_says_what_it_did_and_the_session_shows_it(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome(stage, 10)
    where = ["--url", stage.proxy.url, "--token", TOKEN]
    assert main(["sessions", "condense", "s", *where]) == 0
    assert capsys.readouterr().out == "the next request of branch main is condensed\n"
    assert main(["sessions", "show", "s", *where]) == 0
    assert ", condensed with its next request\n" in capsys.readouterr().out
    assert main(["sessions", "condense", "s", "--branch", "b9", *where]) == 1
    assert "the session has no branch b9" in capsys.readouterr().err


def test_a_strategy_that_asks_a_model_asks_it_for_the_next_request(store: str) -> None:
    with staged(store={"url": store}, **{**SETTINGS, "strategy": "summary"}) as stage:
        outcome(stage, 10)
        wish(stage)
        assert outcome(stage, 11) == ("condensed", "forced")
        assert len(stage.summaries) == 1


def test_it_is_the_same_under_the_messages_api(store: str) -> None:
    with (
        StrictMessages(test_messages.reader, window=test_messages.WINDOW) as upstream,
        for_agents(upstream.url, store) as proxy,
    ):
        assert_condensed(proxy, test_messages.Agent(proxy.url))


def test_it_is_the_same_under_the_responses_api(store: str) -> None:
    with (
        StrictResponses(test_responses.reader, window=test_messages.WINDOW) as upstream,
        for_agents(upstream.url, store) as proxy,
    ):
        assert_condensed(proxy, test_responses.Agent(proxy.url))


def assert_condensed(proxy: Proxy, agent: test_messages.Agent | test_responses.Agent) -> None:
    """An agent's turn is condensed because somebody wants it, and the turns after that go on."""
    for _ in range(7):
        assert agent.turn().header("x-condenser-action") == "passed"
        proxy.quiet()
    operator = [("Authorization", f"Bearer {TOKEN}")]
    (row,) = wire.request(proxy.url, "GET", SESSIONS, b"", operator).json()["data"]
    path = f"{SESSIONS}/{row['tenant']}/{row['session']}/condense"
    assert wire.request(proxy.url, "POST", path, b"", operator).json() == WISHED
    answer = agent.turn()
    assert (answer.header("x-condenser-action"), answer.header("x-condenser-trigger")) == ("condensed", "forced")
    for _ in range(2):
        proxy.quiet()
        assert agent.turn().header("x-condenser-action") in ("replayed", "condensed")
