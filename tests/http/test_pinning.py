"""A message that a person pinned stands in every later view, word for word, until it is unpinned."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from proxy.cli import main
from proxy.commands.sessions import lines_of
from tests.http import test_messages
from tests.http.test_agents import MESSAGES, Api, each_api
from tests.http.test_reverting import FULL, SETTINGS, TRIGGER, each_store, for_agents, store, until_condensed
from tests.support.admin_api import SESSIONS, TOKEN, admin, only_place, operator, place_of
from tests.support.messages_upstream import StrictMessages
from tests.support.proxy import running_proxy
from tests.support.replies import completion
from tests.support.stage import Stage, agent, chat, controls, proxy_with_upstream

__all__ = ["store"]

PINNED = 5
"""The number of a message that every condensation here would hide, as `sessions show` prints it."""
LATER = FULL + 60
"""Rounds after which the chat has been condensed again."""
Json = dict[str, Any]


@pytest.fixture
def stage(store: str) -> Iterator[Stage]:
    with proxy_with_upstream(store={"url": store}, **SETTINGS) as built:
        yield built


def shown(stage: Stage) -> Json:
    document: Json = admin(stage, f"{SESSIONS}/s").json()
    return document


def place_of_pins(stage: Stage) -> str:
    return f"{place_of(shown(stage))}/pins"


def pinned(stage: Stage, number: int = PINNED) -> str:
    answer = admin(stage, place_of_pins(stage), "POST", {"message": number, "branch": "main"})
    assert answer.status == 200, answer.body
    return str(answer.json()["id"])


def ask(stage: Stage, rounds: int) -> str:
    return stage.ask(chat(rounds), controls(session="s")).action or ""


def shows(stage: Stage, number: int = PINNED) -> bool:
    """Whether the last view has the message; the system message is not numbered."""
    return chat(LATER)[number + 1] in stage.last_view


def test_it_stays_through_every_condensation(stage: Stage) -> None:
    ask(stage, 10)
    pinned(stage)
    actions = [ask(stage, rounds) for rounds in range(TRIGGER, LATER, 5) if shows(stage)]
    assert len(actions) == len(range(TRIGGER, LATER, 5))
    assert actions.count("condensed") >= 2
    assert shows(stage)


def test_one_that_was_condensed_already_comes_back_until_it_is_unpinned(stage: Stage) -> None:
    assert ask(stage, TRIGGER) == "condensed"
    assert not shows(stage)
    pin = pinned(stage)
    assert ask(stage, TRIGGER + 1) == "replayed"
    assert shows(stage)
    assert f"  [message {PINNED} of branch main, pinned, word for word]" in list(lines_of(shown(stage)))
    assert ask(stage, LATER) == "condensed"
    assert shows(stage)
    for _ in range(2):
        assert admin(stage, f"{place_of_pins(stage)}/{pin}", "DELETE").json() == {"object": "unpinned", "pin": pin}
    assert shown(stage)["pins"] == []
    ask(stage, LATER + FULL)
    assert not shows(stage)


def test_to_pin_twice_is_to_pin_once_and_the_session_shows_it(stage: Stage) -> None:
    ask(stage, 10)
    pin = pinned(stage)
    assert pinned(stage) == pin
    assert shown(stage)["pins"] == [{"id": pin, "message": PINNED, "branch": "main", "fits": True}]
    admin(stage, f"{place_of_pins(stage)}/{pin}", "DELETE")
    assert pinned(stage) == pin
    assert len(shown(stage)["pins"]) == 1


def test_a_result_stays_with_its_call(stage: Stage) -> None:
    stage.ask(agent(10), controls(session="s"))
    pinned(stage, 4)
    for rounds in (60, 120):
        answer = stage.ask(agent(rounds, lines=30), controls(session="s"))
    session = agent(10)
    answer = stage.ask([*session, *agent(90, lines=20)[2:]], controls(session="s"))
    assert answer.action == "condensed"
    call, result = session[4:6]
    place = stage.last_view.index(dict(call))
    assert stage.last_view[place + 1] == result


@each_store
def test_it_holds_on_another_replica_and_after_a_restart(stage: Stage, store: str) -> None:
    ask(stage, 10)
    with running_proxy(stage.upstream.url, store={"url": store}, **SETTINGS) as proxy:
        other = Stage(proxy, stage.upstream)
        ask(other, 12)
        pinned(stage)
        assert ask(other, TRIGGER) == "condensed"
        assert shows(stage)
    with running_proxy(stage.upstream.url, store={"url": store}, **SETTINGS) as proxy:
        assert ask(Stage(proxy, stage.upstream), LATER) == "condensed"
        assert shows(stage)


def test_a_fork_keeps_the_pins_it_was_made_with(stage: Stage) -> None:
    stage.ask(chat(TRIGGER - 10))
    stage.ask(chat(TRIGGER - 5))
    (row,) = admin(stage).json()["data"]
    first = f"{place_of(row)}/pins"
    pin = admin(stage, first, "POST", {"message": PINNED}).json()["id"]
    begun = [*chat(TRIGGER - 10)[:-1], {"role": "user", "content": "Something else."}]
    stage.ask([*begun, *chat(TRIGGER)[-24:]])
    keys = {each["session"] for each in admin(stage).json()["data"]} - {row["session"]}
    (fork,) = keys
    assert shows(stage)
    assert admin(stage, f"{first}/{pin}", "DELETE").status == 200
    pins = admin(stage, f"{SESSIONS}/{row['tenant']}/{fork}").json()["pins"]
    assert pins == [{"id": pin, "message": PINNED, "branch": "main", "fits": True}]


def test_a_client_that_drops_its_oldest_messages_sees_it_stay(stage: Stage) -> None:
    ask(stage, 10)
    pinned(stage)
    ask(stage, TRIGGER)
    system, *said = chat(TRIGGER + 1)
    answer = stage.ask([system, *said[40:]], controls(session="s"))
    assert answer.action == "replayed"
    assert shows(stage)


def test_in_append_mode_messages_are_numbered_as_they_are_shown(stage: Stage) -> None:
    appending = controls(session="s", history="append")
    said = chat(LATER)
    for number in range(1, 40, 2):
        first = said[:1] if number == 1 else []
        stage.upstream.reply(completion(str(said[number + 1]["content"])))
        stage.ask([*first, said[number]], appending)
    appended = shown(stage)["appended"]
    assert appended[7]["content"] == said[7]["content"]
    pin = pinned(stage, 7)
    assert shown(stage)["pins"] == [{"id": pin, "message": 7, "branch": "main", "fits": True}]
    assert admin(stage, place_of_pins(stage), "POST", {"message": 0}).status == 400
    answer = stage.ask([said[3]], [*appending, *controls(force="true")])
    assert answer.action == "condensed"
    assert said[7] in stage.last_view
    assert said[9] not in stage.last_view


def test_more_than_an_eighth_of_the_window_cannot_be_pinned(stage: Stage) -> None:
    ask(stage, TRIGGER)
    place, refused = place_of_pins(stage), None
    for number in range(1, 2 * TRIGGER, 2):
        refused = admin(stage, place, "POST", {"message": number})
        if refused.status != 200:
            break
    assert refused is not None
    assert (refused.status, refused.json()["error"]["code"]) == (400, "pins_full")
    assert 2 <= len(shown(stage)["pins"]) < TRIGGER
    assert ask(stage, TRIGGER + 1) == "replayed"
    assert all(shows(stage, pin["message"]) for pin in shown(stage)["pins"])


def test_a_too_large_message_cannot_be_pinned(stage: Stage) -> None:
    stage.ask(chat(1, words=1_200), controls(session="s"))
    assert not shown(stage)["condensations"]
    refused = admin(stage, place_of_pins(stage), "POST", {"message": 1})
    assert (refused.status, refused.json()["error"]["code"]) == (400, "pins_full")
    assert admin(stage, place_of_pins(stage), "POST", {"message": 2}).status == 200


def test_pins_count_as_far_as_a_later_window_holds(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    with proxy_with_upstream(store={"url": store}, **{**SETTINGS, "window": None}) as stage:
        ask(stage, 10)
        for number in range(1, 20, 2):
            pinned(stage, number)
        stage.ask(chat(TRIGGER), controls(session="s", window=SETTINGS["window"]))
        fits = [pin["fits"] for pin in shown(stage)["pins"]]
        assert fits == sorted(fits, reverse=True)
        assert True in fits
        assert False in fits
        assert [shows(stage, pin["message"]) for pin in shown(stage)["pins"]] == fits
        assert main(["sessions", "show", "s", "--url", stage.proxy.url, "--token", TOKEN]) == 0
        assert capsys.readouterr().out.count(", does not fit)") == fits.count(False)


@pytest.mark.parametrize(
    "written", [{}, [], {"message": -1}, {"message": True}, {"message": "5"}, {"message": 500}, {"message": 5, "x": 1}]
)
def test_what_names_no_message_is_refused(stage: Stage, written: object) -> None:
    ask(stage, 3)
    assert admin(stage, place_of_pins(stage), "POST", written).status == 400


def test_what_a_session_does_not_have_is_not_found(stage: Stage) -> None:
    ask(stage, 3)
    place = place_of_pins(stage)
    assert admin(stage, place, "POST", {"message": 1, "branch": "b9"}).status == 404
    assert admin(stage, f"{SESSIONS}/t/s/pins", "POST", {"message": 1}).status == 404
    assert admin(stage, f"{place}/p0", "DELETE").status == 404
    assert admin(stage, place, "GET").status == admin(stage, f"{place}/p0", "POST", {}).status == 405
    assert admin(stage, place, "POST", {"message": 1}, token="wrong").status == 401


def test_commands_pin_and_unpin_by_message_number(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    ask(stage, 10)
    where = ["--url", stage.proxy.url, "--token", TOKEN]
    assert main(["sessions", "pin", "s", str(PINNED), *where]) == 0
    (pin,) = shown(stage)["pins"]
    assert capsys.readouterr().out == f"pinned message {PINNED} of branch main as {pin['id']}\n"
    assert main(["sessions", "show", "s", *where]) == 0
    assert f"  {PINNED} (pinned as {pin['id']})  assistant: " in capsys.readouterr().out
    assert main(["sessions", "unpin", "s", str(PINNED), *where]) == 0
    assert main(["sessions", "unpin", "s", pin["id"], *where]) == 0
    assert main(["sessions", "unpin", "s", str(PINNED), *where]) == 0
    told = f"unpinned {pin['id']}\n"
    assert capsys.readouterr().out == f"{told}{told}message {PINNED} of branch main is not pinned\n"
    assert main(["sessions", "pin", "s", "first", *where]) == main(["sessions", "unpin", "s", "p0", *where]) == 1


def is_use(message: Mapping[str, Any]) -> list[str]:
    """The ids of the calls in a message of the Messages API."""
    return [block["id"] for block in message["content"] if isinstance(block, dict) and block["type"] == "tool_use"]


def is_call(item: Mapping[str, Any]) -> list[str]:
    """The id of the call that an item of the Responses API is."""
    return [item["call_id"]] if item.get("type") == "function_call" else []


@each_api
def test_it_is_the_same_under_the_apis_of_agents(api: Api, store: str) -> None:
    """An agent goes on until it is condensed; its first call is pinned, and is in all views until long after."""
    with (
        api.upstream(api.tests.reader, window=test_messages.WINDOW) as upstream,
        for_agents(upstream.url, store) as proxy,
    ):
        agent = api.tests.Agent(proxy.url)
        calls = is_use if api is MESSAGES else is_call
        until_condensed(proxy, agent)
        place = only_place(proxy.url)
        (branch,) = operator(proxy.url, place).json()["branches"]
        view = str(api.views(upstream)[-1])
        called = ((i, calls(message)) for i, message in enumerate(branch["messages"]))
        numbers = (i for i, ids in called if ids and not any(each in view for each in ids))

        def is_taken(number: int) -> bool:
            """Whether the message may be pinned: some rounds have more than an eighth of the window."""
            answer = operator(proxy.url, f"{place}/pins", "POST", {"message": number})
            return answer.status == 200

        ids = calls(branch["messages"][next(filter(is_taken, numbers))])
        actions: list[str | None] = []
        while actions.count("condensed") < 2:
            actions.append(agent.turn().action)
            proxy.quiet()
            assert all(str(api.views(upstream)[-1]).count(each) >= 2 for each in ids), "call and result"
        assert set(actions) == {"replayed", "condensed"}


def test_thinking_is_taken_by_the_upstream_whenever_pins_change(store: str) -> None:
    with (
        StrictMessages(test_messages.reader, window=test_messages.WINDOW) as upstream,
        for_agents(upstream.url, store) as proxy,
    ):
        client = test_messages.Agent(proxy.url)
        until_condensed(proxy, client)
        place, actions = f"{only_place(proxy.url)}/pins", []
        for _ in range(3):
            pin = operator(proxy.url, place, "POST", {"message": 4}).json()["id"]
            actions += [client.turn().action for _ in range(2)]
            pinned = test_messages.client_bodies(upstream)[-1]["messages"]
            operator(proxy.url, f"{place}/{pin}", "DELETE")
            actions += [client.turn().action for _ in range(2)]
            assert len(pinned) != len(test_messages.client_bodies(upstream)[-1]["messages"])
        assert set(actions) <= {"replayed", "condensed"}
