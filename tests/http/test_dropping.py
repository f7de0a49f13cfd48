"""What a person drops from the ledger appears in no later view, and a revert that is taken back."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from proxy.cli import main
from proxy.conversations.drops import drop_mark, without_dropped
from strategies.core.ledger import Ledger, append_ledger, line_id
from strategies.core.pieces import Literal
from strategies.core.replacement import replacement
from strategies.dialects.chat import CHAT
from tests.http.test_agents import Api, each_api
from tests.http.test_keys import BEN, keyed
from tests.http.test_memory_injection import diary, ending
from tests.http.test_operators import ROLES
from tests.http.test_reverting import (
    AGENT_WINDOW,
    SETTINGS,
    TRIGGER,
    condensed,
    each_store,
    for_agents,
    place_of_revert,
    reverted,
    shown,
    store,
    until_condensed,
)
from tests.support.admin_api import SESSIONS, TOKEN, admin, only_place, operator, place_of
from tests.support.proxy import running_proxy
from tests.support.stage import Message, Stage, chat, controls, proxy_with_upstream, rounds_over
from tests.support.transcripts import condensation_of

__all__ = ["store"]
FIRST, SECOND = "Never restart the database on a Friday.", "Deploy only from the branch release-7."
LARGER, STILL_LARGER = rounds_over(14_000), rounds_over(16_000)


@pytest.fixture
def stage(store: str) -> Iterator[Stage]:
    with proxy_with_upstream(store={"url": store}, **SETTINGS) as built:
        yield built


def told(rounds: int) -> list[Message]:
    """A chat in which the user has said two things worth keeping."""
    messages = chat(rounds)
    place = [i for i, message in enumerate(messages) if message["role"] == "user"][1]
    messages[place] = {**messages[place], "content": f"{messages[place]['content']}\n\n- {FIRST}\n- {SECOND}"}
    return messages


def ask(stage: Stage, rounds: int, **more: Any) -> Any:
    return stage.ask(told(rounds), controls(session="s", **more))


def ledger(stage: Stage) -> dict[str, Mapping[str, Any]]:
    return {row["text"]: row for row in shown(stage)["ledger"]}


def dropped(stage: Stage, text: str, query: str = "") -> None:
    line = ledger(stage)[text]["id"]
    place = f"{place_of(shown(stage))}/ledger/{line}{query}"
    answer = admin(stage, place, "DELETE")
    assert (answer.status, answer.json()) == (200, {"object": "dropped", "line": line, "now": bool(query)})
    assert admin(stage, place, "DELETE").status == 200  # safe to repeat


def test_a_line_leaves_with_the_next_condensation_and_comes_back_with_no_earlier_one(stage: Stage) -> None:
    assert ask(stage, TRIGGER).action == "condensed"
    before = stage.last_view
    assert FIRST in str(before)
    dropped(stage, FIRST)
    ask(stage, TRIGGER)
    assert stage.last_view == before
    assert ask(stage, TRIGGER, force="true").action == "condensed"
    for rounds in (TRIGGER, LARGER):
        assert ask(stage, rounds).action == "replayed"
        assert FIRST not in str(stage.last_view)
        assert SECOND in str(stage.last_view)
    latest = str(shown(stage)["latest_condensation"])
    assert admin(stage, place_of_revert(stage, latest), "POST").status == 200
    assert ask(stage, TRIGGER).action == "replayed"  # the one before, as it was recorded when the line was still in it
    assert FIRST not in str(stage.last_view[:3])
    row = ledger(stage)[FIRST]
    assert (row["dropped"], row["shown"]) == (True, False)  # listed, as nothing stored is lost


def test_a_line_that_is_dropped_now_leaves_the_next_view_and_nothing_else_changes(stage: Stage) -> None:
    ask(stage, TRIGGER)
    before = stage.last_view
    dropped(stage, FIRST, "?now=true")
    assert ask(stage, TRIGGER).action == "replayed"
    changed = [(old, new) for old, new in zip(before, stage.last_view, strict=True) if old != new]
    assert [(old["content"].replace(f"- {FIRST}\n", ""), new["role"]) for old, new in changed] == [
        (changed[0][1]["content"], "user")
    ]
    assert ask(stage, LARGER, force="true").action == "condensed"
    assert FIRST not in str(stage.last_view)


def test_a_line_dropped_on_one_branch_stays_in_its_record_until_the_next_condensation(stage: Stage) -> None:
    """Though another branch has condensed later: the cache of both goes on to hit."""
    ask(stage, TRIGGER)
    before = stage.last_view
    other = [*chat(2)[:-1], *chat(TRIGGER)[2:]]
    stage.ask(other, controls(session="s", force="true"))
    assert len(shown(stage)["condensations"]) == 2
    line = line_id(FIRST)
    assert admin(stage, f"{place_of(shown(stage))}/ledger/{line}", "DELETE").status == 200
    ask(stage, TRIGGER)
    assert stage.last_view == before
    assert ask(stage, TRIGGER, force="true").action == "condensed"
    assert FIRST not in str(stage.last_view)


def test_a_prepared_record_shows_no_line_that_was_dropped_before_it_was_used() -> None:
    made = [
        condensation_of(id=f"c{place}", pieces=(carried(FIRST),), standing=place == 1, created_at=float(place))
        for place in (0, 1)
    ]
    (mark,) = {drop_mark(line_id(FIRST), made, now=False)}
    assert [FIRST in str(each.pieces) for each in without_dropped(made, {mark}, CHAT)] == [False, True]
    used = [replace(each, standing=True) for each in made]
    assert [FIRST in str(each.pieces) for each in without_dropped(used, {mark}, CHAT)] == [False, False]


def carried(line: str) -> Literal:
    return replacement(append_ledger("", Ledger((f"- {line}",))), 3, CHAT)


def test_a_name_is_dropped_like_a_line(stage: Stage) -> None:
    ask(stage, TRIGGER)
    names = [row["text"] for row in shown(stage)["ledger"] if row["kind"] == "name"]
    dropped(stage, names[0], "?now=true")
    ask(stage, TRIGGER)
    left = [row["text"] for row in shown(stage)["ledger"] if row["kind"] == "name" and row["shown"]]
    assert left == names[1:]


@pytest.mark.parametrize("is_dropped", [False, True])
def test_memory_brings_no_line_back_that_was_dropped(stage: Stage, is_dropped: bool) -> None:
    ask(stage, TRIGGER)
    everything = [row["text"] for row in shown(stage)["ledger"]]
    for text in everything if is_dropped else [each for each in everything if each != SECOND]:
        dropped(stage, text, "?now=true")
    asked = [*told(TRIGGER)[:-1], {"role": "user", "content": "From which branch do we deploy? What about Friday?"}]
    stage.ask(asked, controls(session="s", memory="inject"))
    assert (SECOND in str(stage.last_view)) is not is_dropped


@each_store
def test_another_replica_leaves_it_out_too_and_so_does_one_that_starts_later(stage: Stage, store: str) -> None:
    ask(stage, TRIGGER)
    dropped(stage, FIRST, "?now=true")
    with running_proxy(stage.upstream.url, store={"url": store}, **SETTINGS) as proxy:
        other = Stage(proxy, stage.upstream)
        assert ask(other, TRIGGER).action == "replayed"
        assert FIRST not in str(other.last_view)
        assert [row["text"] for row in shown(other)["ledger"] if row["dropped"]] == [FIRST]


def test_a_fork_takes_over_what_was_dropped(stage: Stage) -> None:
    """Derived sessions: another question after the same history forks, and makes condensations of its own."""
    stage.ask(told(TRIGGER))
    (row,) = admin(stage).json()["data"]
    line = next(each for each in admin(stage, place_of(row)).json()["ledger"] if each["text"] == FIRST)
    assert admin(stage, f"{place_of(row)}/ledger/{line['id']}", "DELETE").status == 200
    other = [*told(TRIGGER)[:-1], {"role": "user", "content": "And what about the other garden?"}]
    stage.ask(other, controls(force="true"))
    assert len(admin(stage).json()["data"]) == 2
    assert FIRST not in str(stage.last_view)


def test_a_fork_shows_the_record_of_its_parent_unchanged_until_it_has_one_of_its_own(stage: Stage) -> None:
    stage.ask(told(TRIGGER))
    (row,) = admin(stage).json()["data"]
    assert admin(stage, f"{place_of(row)}/ledger/{line_id(FIRST)}", "DELETE").status == 200
    fork = [*told(TRIGGER)[:-1], {"role": "user", "content": "And what about the other garden?"}]
    stage.ask(fork)
    before = stage.last_view
    fork += [{"role": "assistant", "content": "It is dry."}, {"role": "user", "content": "Then water it."}]
    stage.ask(fork)
    assert stage.last_view[: len(before)] == before
    assert FIRST in str(before)
    stage.ask(fork, controls(force="true"))
    assert FIRST not in str(stage.last_view)
    latest = next(each for each in admin(stage).json()["data"] if each["session"] != row["session"])
    made = str(admin(stage, place_of(latest)).json()["latest_condensation"])
    assert admin(stage, f"{place_of(latest)}/condensations/{made}/revert", "POST").status == 200
    stage.ask(fork)
    assert FIRST not in str(stage.last_view[:3])


@pytest.mark.parametrize("query", ["", "?now=true"])
def test_a_fork_shows_what_it_applies_of_its_parent_and_drops_from_that(stage: Stage, query: str) -> None:
    stage.ask(told(TRIGGER))
    (row,) = admin(stage).json()["data"]
    fork = [*told(TRIGGER)[:-1], {"role": "user", "content": "And what about the other garden?"}]
    stage.ask(fork)
    (place,) = (place_of(each) for each in admin(stage).json()["data"] if each["session"] != row["session"])

    def asked(words: str, **more: Any) -> str:
        fork.extend([{"role": "assistant", "content": "Good."}, {"role": "user", "content": words}])
        stage.ask(fork, controls(**more))
        return str(stage.last_view)

    def lines() -> dict[str, Mapping[str, Any]]:
        return {row["text"]: row for row in admin(stage, place).json()["ledger"]}

    assert FIRST in lines()
    line = f"{place}/ledger/{line_id(FIRST)}{query}"
    assert admin(stage, line, "DELETE").status == 200
    assert (lines()[FIRST]["shown"], lines()[FIRST]["dropped"]) == (not query, True)
    assert (FIRST in asked("Go on.")) is (not query)
    stage.ask(told(TRIGGER))
    assert FIRST in str(stage.last_view)  # the parent keeps it
    assert FIRST not in asked("And then?", force="true")


def test_a_fork_takes_back_what_it_applies_of_its_parent(stage: Stage) -> None:
    stage.ask(told(TRIGGER))
    (row,) = admin(stage).json()["data"]
    fork = [*told(TRIGGER)[:-1], {"role": "user", "content": "And what about the other garden?"}]
    assert stage.ask(fork).action == "replayed"
    (place,) = (place_of(each) for each in admin(stage).json()["data"] if each["session"] != row["session"])
    (made,) = admin(stage, place).json()["condensations"]
    for method, action in (("POST", "passed"), ("DELETE", "replayed")):
        assert admin(stage, f"{place}/condensations/{made['id']}/revert", method).status == 200
        assert stage.ask(fork).action == action


@each_api
def test_it_is_the_same_under_the_apis_of_agents(api: Api, store: str) -> None:
    with api.upstream(api.tests.reader, window=AGENT_WINDOW) as upstream, for_agents(upstream.url, store) as proxy:
        agent = api.tests.Agent(proxy.url)
        until_condensed(proxy, agent)
        place = only_place(proxy.url)
        row = operator(proxy.url, place).json()["ledger"][0]
        agent.turn()
        assert row["text"] in str(ledgers(api, upstream))
        assert operator(proxy.url, f"{place}/ledger/{row['id']}?now=true", "DELETE").status == 200
        for _ in range(4):
            agent.turn()
            proxy.quiet()
            assert row["text"] not in str(ledgers(api, upstream))


def ledgers(api: Api, upstream: Any) -> list[str]:
    """The ledgers in the last view."""
    return [text for text in map(str, api.views(upstream)[-1]) if "[Ledger]" in text]


def test_what_is_not_in_the_ledger_cannot_be_dropped(stage: Stage) -> None:
    ask(stage, TRIGGER)
    place = place_of(shown(stage))
    assert admin(stage, f"{place}/ledger/00000000", "DELETE").status == 404
    assert admin(stage, f"{SESSIONS}/t/s/ledger/00000000", "DELETE").status == 404
    line = ledger(stage)[FIRST]["id"]
    assert admin(stage, f"{place}/ledger/{line}", "DELETE", token="wrong").status == 401
    assert admin(stage, f"{place}/ledger/{line}", "POST").status == 405
    assert not ledger(stage)[FIRST]["dropped"]


def test_a_key_that_may_only_read_drops_nothing_and_takes_nothing_back() -> None:
    with keyed(*ROLES, **SETTINGS) as stage:
        messages = controls(session="s", force="true")
        assert stage.ask(told(8), messages).action == "condensed"
        place = only_place(stage.proxy.url)
        session = admin(stage, place).json()
        line, made = session["ledger"][0]["id"], session["latest_condensation"]
        paths = (f"ledger/{line}", f"ledger/{line}?now=true", f"condensations/{made}/revert")
        assert [admin(stage, f"{place}/{path}", "DELETE", token=BEN).status for path in paths] == [403] * 3
        after = admin(stage, place).json()
        assert (after["ledger"], after["condensations"]) == (session["ledger"], session["condensations"])


def test_the_command_drops_by_number_and_by_id(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    ask(stage, TRIGGER)
    where = ["--url", stage.proxy.url, "--token", TOKEN]
    assert main(["sessions", "show", "s", *where]) == 0
    line = next(each for each in capsys.readouterr().out.splitlines() if each.endswith(f"  {FIRST}"))
    number, name, _ = line.split(maxsplit=2)
    assert main(["sessions", "drop", "s", number, *where]) == 0
    assert capsys.readouterr().out == f"dropped {name}, from the next condensation on\n"
    assert main(["sessions", "drop", "s", name, "--now", *where]) == 0
    assert capsys.readouterr().out == f"dropped {name}, at once\n"
    assert main(["sessions", "drop", "s", SECOND, "--now", *where]) == 0
    capsys.readouterr()
    ask(stage, TRIGGER)
    assert FIRST not in str(stage.last_view)
    assert SECOND not in str(stage.last_view)
    assert main(["sessions", "show", "s", *where]) == 0
    assert f"{FIRST} (dropped)" in capsys.readouterr().out
    assert main(["sessions", "drop", "s", "ffffffff", *where]) == 1
    assert "no such line" in capsys.readouterr().err


@pytest.mark.parametrize("rounds", [TRIGGER, TRIGGER + 2])
def test_a_revert_that_is_taken_back_applies_the_condensation_again(stage: Stage, rounds: int) -> None:
    name = reverted(stage)
    assert stage.ask(chat(TRIGGER), controls(session="s")).action == "passed"
    for _ in range(2):  # safe to repeat
        answer = admin(stage, place_of_revert(stage, name), "DELETE")
        assert (answer.status, answer.json()) == (200, {"object": "restored", "condensation": name})
    again = stage.ask(chat(rounds), controls(session="s"))
    assert (again.action, again.condensation) == ("replayed", name)
    # And it can be reverted once more, and once more restored.
    for method, action in (("POST", "passed"), ("DELETE", "replayed")):
        assert admin(stage, place_of_revert(stage, name), method).status == 200
        assert stage.ask(chat(rounds), controls(session="s")).action == action


def test_a_revert_is_taken_back_although_the_longer_view_is_below_the_trigger(stage: Stage) -> None:
    name = reverted(stage)
    large = controls(session="s", window=65_536)
    assert stage.ask(chat(TRIGGER), large).action == "passed"
    assert stage.ask(chat(TRIGGER), controls(session="s")).action == "passed"
    assert admin(stage, place_of_revert(stage, name), "DELETE").status == 200
    assert stage.ask(chat(TRIGGER), controls(session="s")).condensation == name


def test_the_command_takes_the_latest_revert_back(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    name = condensed(stage)
    where = ["--url", stage.proxy.url, "--token", TOKEN]
    assert main(["sessions", "revert", "s", "--undo", *where]) == 0
    assert main(["sessions", "revert", "s", *where]) == 0
    assert main(["sessions", "revert", "s", "--undo", *where]) == 0
    assert capsys.readouterr().out == f"no revert to take back\nreverted {name}\nrestored {name}\n"
    assert stage.ask(chat(TRIGGER), controls(session="s")).condensation == name


@pytest.mark.parametrize(("query", "is_shown"), [("", True), ("?now=true", False)])
def test_a_card_leaves_the_next_block_and_with_now_those_that_views_show(query: str, is_shown: bool) -> None:
    fact, question = 'The well is "behind" the barn.', "Where is the well?"
    settings: dict[str, Any] = {"strategy": "recent", "memory": {"default": "inject"}, "admin": {"token": TOKEN}}
    with proxy_with_upstream(**settings) as stage:
        stage.ask(diary(12), controls(session="s", force="true"))
        place = only_place(stage.proxy.url)
        card = admin(stage, f"{place}/memory", "POST", {"content": fact}).json()["id"]
        asked = ending(diary(12), question)
        stage.ask(asked, controls(session="s"))
        assert fact in str(memory_in(stage))
        later: list[Message] = [
            *asked,
            {"role": "assistant", "content": "There."},
            {"role": "user", "content": "Thanks."},
        ]
        stage.ask(later, controls(session="s"))
        assert fact in str(memory_in(stage))
        assert admin(stage, f"{place}/ledger/{card}{query}", "DELETE").json() == {"object": "forgotten", "cards": 1}
        stage.ask(later, controls(session="s"))
        assert (fact in str(memory_in(stage))) is is_shown
        stage.ask([*later[:-1], asked[-1]], controls(session="s"))
        assert question in str(stage.last_view[-1])
        assert str(memory_in(stage)).count("barn") == int(is_shown)  # no new block has it


def memory_in(stage: Stage) -> list[str]:
    return [each["content"] for each in stage.last_view if each.get("name") == "memory_context"]
