"""A condensation that a person took back: the longer view returns and stays, until it no longer fits."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from proxy.cli import main
from tests.http import test_messages, test_responses
from tests.http.test_agents import MESSAGES, Api, each_api
from tests.http.test_messages import RULE
from tests.support.admin_api import SESSIONS, TOKEN, admin, only_place, operator, place_of
from tests.support.proxy import Proxy, running_proxy
from tests.support.redis_server import RedisServer
from tests.support.stage import Stage, body_of, chat, controls, proxy_with_upstream, rounds_over

WINDOW = 16_384
AGENT_WINDOW = 64_000
TRIGGER = rounds_over(13_000)
"""Rounds of a chat that has passed the trigger and fits."""
FULL = rounds_over(16_384)
SETTINGS: dict[str, Any] = {
    "window": WINDOW,
    "strategy": "extract",
    "background": {"mode": "off"},
    "admin": {"token": TOKEN},
}


each_store = pytest.mark.parametrize("store", ["sqlite", "redis"], indirect=True)


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a store; for a test of several replicas each kind of it."""
    if getattr(request, "param", "sqlite") == "sqlite":
        yield f"sqlite:///{tmp_path / 'sessions.db'}"
    else:
        with RedisServer() as server:
            yield server.url


@pytest.fixture
def stage(store: str) -> Iterator[Stage]:
    with proxy_with_upstream(store={"url": store}, **SETTINGS) as built:
        yield built


def shown(stage: Stage) -> dict[str, Any]:
    document: dict[str, Any] = admin(stage, f"{SESSIONS}/s").json()
    return document


def place_of_revert(stage: Stage, condensation: str) -> str:
    return f"{place_of(shown(stage))}/condensations/{condensation}/revert"


def condensed(stage: Stage) -> str:
    """The id of the condensation that a chat at the trigger gets."""
    answer = stage.ask(chat(TRIGGER), controls(session="s"))
    assert answer.action == "condensed"
    return answer.condensation or ""


def reverted(stage: Stage) -> str:
    name = condensed(stage)
    answer = admin(stage, place_of_revert(stage, name), "POST")
    assert (answer.status, answer.json()) == (200, {"object": "reverted", "condensation": name})
    return name


def test_the_longer_view_returns_and_stays_while_it_fits(stage: Stage) -> None:
    reverted(stage)
    for rounds in (TRIGGER, TRIGGER + 1, TRIGGER + 2):
        answer = stage.ask(chat(rounds), controls(session="s"))
        assert (answer.action, answer.reason) == ("passed", "reverted")
        assert stage.last_view == chat(rounds)


@pytest.mark.parametrize(("rounds", "force"), [(FULL, "false"), (TRIGGER, "true")], ids=["too long", "forced"])
def test_the_next_condensation_is_another_one_and_stands(stage: Stage, rounds: int, force: str) -> None:
    name = reverted(stage)
    made = stage.ask(chat(rounds), controls(session="s", force=force))
    assert made.action == "condensed"
    assert made.condensation != name
    again = stage.ask(chat(rounds), controls(session="s"))
    assert (again.action, again.condensation) == ("replayed", made.condensation)


def test_to_revert_twice_is_to_revert_once_and_the_session_shows_it(stage: Stage) -> None:
    name = reverted(stage)
    assert admin(stage, place_of_revert(stage, name), "POST").status == 200
    session = shown(stage)
    assert [(record["id"], record["reverted"], record["standing"]) for record in session["condensations"]] == [
        (name, True, False)
    ]
    assert session["latest_condensation"] is None


def test_what_a_session_does_not_have_cannot_be_reverted(stage: Stage) -> None:
    condensed(stage)
    assert admin(stage, place_of_revert(stage, "c0"), "POST").status == 404
    assert admin(stage, f"{SESSIONS}/t/s/condensations/c0/revert", "POST").status == 404
    assert admin(stage, place_of_revert(stage, "c0"), "GET").status == 405
    assert admin(stage, place_of_revert(stage, "c0"), "POST", token="wrong").status == 401


@each_store
def test_another_replica_applies_it_no_more(stage: Stage, store: str) -> None:
    condensed(stage)
    with running_proxy(stage.upstream.url, store={"url": store}, **SETTINGS) as proxy:
        other = Stage(proxy, stage.upstream)
        name = str(shown(other)["latest_condensation"])
        assert other.post(body_of(chat(TRIGGER)), controls(session="s")).action == "replayed"
        admin(stage, place_of_revert(stage, name), "POST")
        assert other.post(body_of(chat(TRIGGER)), controls(session="s")).action == "passed"


def test_the_command_reverts_the_latest_that_stands(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    name = condensed(stage)
    where = ["--url", stage.proxy.url, "--token", TOKEN]
    assert main(["sessions", "revert", "s", *where]) == 0
    assert capsys.readouterr().out == f"reverted {name}\n"
    assert main(["sessions", "show", "s", *where]) == 0
    assert f"condensation {name}: reverted, " in capsys.readouterr().out
    assert main(["sessions", "revert", "s", "c0", *where]) == 1
    assert "no such condensation" in capsys.readouterr().err
    assert stage.ask(chat(TRIGGER), controls(session="s")).action == "passed"


@each_api
def test_it_is_the_same_under_the_apis_of_agents(api: Api, store: str) -> None:
    """An agent goes on until it is condensed; the turn after that was taken back forwards all that it sends."""
    with api.upstream(api.tests.reader, window=AGENT_WINDOW) as upstream, for_agents(upstream.url, store) as proxy:
        agent = api.tests.Agent(proxy.url)
        until_condensed(proxy, agent)
        place = only_place(proxy.url)
        name = operator(proxy.url, place).json()["latest_condensation"]
        assert operator(proxy.url, f"{place}/condensations/{name}/revert", "POST").status == 200
        sent = len(agent.messages if api is MESSAGES else agent.items)
        answer = agent.turn()
        assert answer.action in ("passed", "replayed")
        forwarded = api.views(upstream)[-1]
        assert len(forwarded) == sent
        assert RULE in str(forwarded[0])
        for _ in range(3):
            agent.turn()
            proxy.quiet()


def for_agents(upstream: str, store: str) -> AbstractContextManager[Proxy]:
    return running_proxy(upstream, store={"url": store}, **{**SETTINGS, "window": AGENT_WINDOW})


def until_condensed(proxy: Proxy, agent: test_messages.Agent | test_responses.Agent) -> None:
    action: str | None = ""
    while action != "condensed":
        action = agent.turn().action
        proxy.quiet()
