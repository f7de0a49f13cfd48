"""`/_condenser/…/memory`: an operator lists, searches, adds and forgets cards, and requests see what was left."""

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from strategies.core.cards import LONGEST
from tests.http.test_memory_injection import FORCE, diary, ending
from tests.http.test_memory_scopes import CARD, QUESTION, scope
from tests.support import wire
from tests.support.admin_api import SESSIONS, TOKEN, admin, place_of
from tests.support.stage import Message, Stage, chat, controls, proxy_with_upstream, summary

CARDS = [
    {"content": "The gate code is 4711.", "type": "fact", "tags": ["gate"]},
    {"content": CARD, "type": "fact", "tags": ["fig", "names"]},
    {"content": "The gate code is 9000.", "type": "fact", "tags": ["gate"]},
]

WITHOUT_CARDS = [*controls(strategy="recent", memory="inject"), FORCE]
"""Has a session condensed without a summary, so that it brings no cards of its own."""
DIARY = (
    "The user keeps a garden diary, in which every plant has a line. " + "Each was sown, watered and seen again. " * 6
)


@pytest.fixture
def stage() -> Iterator[Stage]:
    answer = json.dumps({"summary": DIARY, "memories": CARDS})
    settings: dict[str, Any] = {"strategy": "rolling", "memory": {"scopes": True}, "admin": {"token": TOKEN}}
    with proxy_with_upstream(answers=lambda _: summary(answer), **settings) as built:
        yield built


def place(stage: Stage, name: str = "s") -> str:
    """Where the memory of the only session of that name is."""
    (row,) = admin(stage, f"{SESSIONS}?id={name}").json()["data"]
    return f"{place_of(row)}/memory"


def listed(stage: Stage, path: str) -> list[dict[str, Any]]:
    answer = admin(stage, path)
    assert answer.status == 200, answer.body
    cards: list[dict[str, Any]] = answer.json()["data"]
    return cards


def contents(cards: Sequence[Mapping[str, Any]]) -> list[str]:
    return [card["content"] for card in cards]


def condensed(stage: Stage, session: str = "s") -> list[Message]:
    messages = diary(12)
    stage.ask(messages, [*controls(session=session), FORCE])
    return messages


def block(stage: Stage, text: str, session: str = "s", *more: tuple[str, str]) -> str:
    """The memory block that a question has put before it, "" for none."""
    stage.ask(ending(diary(12), text), [*controls(session=session), *more])
    return "".join(each["content"] for each in stage.last_view if each.get("name") == "memory_context")


# -- what is seen ------------------------------------------------------------------------------------------


def test_cards_are_listed_with_where_they_come_from(stage: Stage) -> None:
    condensed(stage)
    cards = listed(stage, place(stage))
    assert contents(cards) == contents(CARDS)
    fig = cards[1]
    assert (fig["type"], fig["tags"], fig["role"], fig["source"]) == (
        "fact",
        ["fig", "names"],
        "user",
        "context_summary",
    )
    assert fig["condensation"].startswith("c")
    assert fig["created_at"].endswith("+00:00")


def test_a_search_finds_cards_and_messages_with_their_role_and_place(stage: Stage) -> None:
    messages = condensed(stage)
    (card, *_) = listed(stage, place(stage) + "/search?query=fig%20tree%20called")
    assert (card["object"], card["text"], card["type"], card["role"]) == ("card", CARD, "fact", "user")
    (found, *_) = listed(stage, place(stage) + "/search?query=plant3n7&top_k=1")
    assert (found["object"], found["place"], found["role"]) == ("message", 7, "assistant")
    assert messages[7]["content"].startswith(found["text"])


def test_a_search_sees_what_its_branch_sees(stage: Stage) -> None:
    messages = condensed(stage)
    stage.ask([*messages[:3], {"role": "user", "content": "I mean the roses."}], controls(session="s"))
    path = place(stage) + "/search?query=roses%20fig&branch="
    assert [hit["object"] for hit in listed(stage, path + "main")] == ["card"]
    assert listed(stage, path + "b2")[0]["text"] == "I mean the roses."
    assert all(hit["object"] == "message" for hit in listed(stage, path + "b2"))
    assert admin(stage, path + "b3").status == 404


@pytest.mark.parametrize("query", ["", "?query=%20", "?query=a&top_k=0", "?query=a&top_k=x", "?query=a&top_k=101"])
def test_a_search_for_nothing_or_with_a_wrong_number_is_refused(stage: Stage, query: str) -> None:
    stage.ask(chat(1), controls(session="s"))
    answer = admin(stage, place(stage) + "/search" + query)
    assert (answer.status, answer.json()["error"]["type"]) == (400, "invalid_request_error")


# -- what is changed ---------------------------------------------------------------------------------------


def test_a_persons_card_is_put_before_the_message_about_it(stage: Stage) -> None:
    condensed(stage)
    written = {"content": "The well is behind the barn.", "type": "fact", "tags": ["water"]}
    answer = admin(stage, place(stage), "POST", written)
    assert answer.status == 200
    added = answer.json()
    assert (added["content"], added["source"], added["condensation"]) == ("The well is behind the barn.", "person", "")
    assert added in listed(stage, place(stage))
    assert added["content"] in block(stage, "Where is the well?")


@pytest.mark.parametrize(
    ("written", "param"),
    [
        ([], None),
        ("text", None),
        ({"content": "a", "id": "x"}, None),
        ({}, "content"),
        ({"content": " "}, "content"),
        ({"content": 5}, "content"),
        ({"content": "x" * (LONGEST + 1)}, "content"),
        ({"content": "a", "type": "rule"}, "type"),
        ({"content": "a", "type": ["fact"]}, "type"),
        ({"content": "a", "tags": "x"}, "tags"),
        ({"content": "a", "tags": [1]}, "tags"),
        ({"content": "a", "tags": ["x"] * 33}, "tags"),
    ],
)
def test_what_is_no_card_is_refused(stage: Stage, written: object, param: str | None) -> None:
    stage.ask(chat(1), controls(session="s"))
    answer = admin(stage, place(stage), "POST", written)
    assert (answer.status, answer.json()["error"]["param"]) == (400, param)
    assert listed(stage, place(stage)) == []


def test_a_body_that_is_no_json_or_too_large_is_refused(stage: Stage) -> None:
    stage.ask(chat(1), controls(session="s"))
    path, token = place(stage), [("Authorization", f"Bearer {TOKEN}")]
    assert wire.request(stage.proxy.url, "POST", path, b"{", token).status == 400
    assert wire.request(stage.proxy.url, "POST", path, b"[" * 50_000, token).status == 400
    assert wire.request(stage.proxy.url, "POST", path, b" " * 70_000, token).status == 413


EXPORTED = [
    {
        "content": "The fig is called Bertha.",
        "type": "fact",
        "tags": ["fig"],
        "created_at": "2024-01-05T10:00:00+00:00",
        "source": "context_summary",
    },
    {"content": "Water before noon.", "type": "constraint", "tags": [], "created_at": "2024-01-06T10:00:00Z"},
]


def test_the_documents_array_is_read_back_and_a_second_time_adds_nothing(stage: Stage) -> None:
    stage.ask(chat(1), controls(session="s"))
    path = place(stage)
    first = admin(stage, f"{path}/import", "POST", EXPORTED)
    assert (first.status, first.json()) == (200, {"object": "imported", "added": 2, "known": 0})
    exported = admin(stage, f"{path}/export").json()
    assert exported == [EXPORTED[0], {**EXPORTED[1], "source": "person"}]
    again = admin(stage, f"{path}/import", "POST", [*exported, exported[0]])
    assert again.json() == {"object": "imported", "added": 0, "known": 3}
    assert admin(stage, f"{path}/export").json() == exported
    condensed(stage)
    assert "Water before noon." in block(stage, "When shall I water before noon?")


@pytest.mark.parametrize(
    ("written", "param"),
    [
        ({}, None),
        ([{"content": "a"}] * 501, None),
        ([EXPORTED[0], "a"], "[1]"),
        ([EXPORTED[0], {"content": " "}], "[1].content"),
        ([{"content": "a", "type": "wish"}], "[0].type"),
        ([{"content": "a", "tags": "x"}], "[0].tags"),
        ([{"content": "a", "created_at": "yesterday"}], "[0].created_at"),
        ([{"content": "a", "source": 1}], "[0].source"),
    ],
)
def test_an_import_with_a_bad_card_names_it_and_adds_none(stage: Stage, written: object, param: str | None) -> None:
    stage.ask(chat(1), controls(session="s"))
    answer = admin(stage, f"{place(stage)}/import", "POST", written)
    assert (answer.status, answer.json()["error"]["param"]) == (400, param)
    assert listed(stage, place(stage)) == []


def test_a_forgotten_card_stays_forgotten_when_it_is_brought_again(stage: Stage) -> None:
    messages = condensed(stage)
    assert CARD in block(stage, QUESTION)
    (fig,) = [card for card in listed(stage, place(stage)) if card["content"] == CARD]
    assert admin(stage, f"{place(stage)}/{fig['id']}", "DELETE").json() == {"object": "forgotten", "cards": 1}
    assert CARD not in contents(listed(stage, place(stage)))
    assert CARD not in block(stage, QUESTION + " Say!")
    longer = [*messages, *diary(12)[1:]]
    stage.ask(longer, [*controls(session="s"), FORCE])
    assert len(admin(stage, place(stage).removesuffix("/memory")).json()["condensations"]) == 2
    assert CARD not in contents(listed(stage, place(stage)))


def test_writers_at_the_same_time_lose_no_card(stage: Stage) -> None:
    stage.ask(chat(1), controls(session="s"))
    path = place(stage)
    names = ("Ada", "Berta", "Carla", "Dora", "Emma", "Frieda")
    written = [{"content": f"{name} planted a {name.lower()} rose."} for name in names]
    with ThreadPoolExecutor(len(names)) as pool:
        answers = list(pool.map(lambda card: admin(stage, path, "POST", card), written))
    assert {answer.status for answer in answers} == {200}
    assert sorted(contents(listed(stage, path))) == sorted(card["content"] for card in written)
    assert admin(stage, path, "DELETE").json() == {"object": "forgotten", "cards": len(names)}
    assert listed(stage, path) == []


# -- scopes ------------------------------------------------------------------------------------------------


def test_a_scope_is_listed_searched_and_changed_as_a_session_is(stage: Stage) -> None:
    stage.ask(diary(12), [*controls(session="s"), scope("home"), FORCE])
    path = place(stage, "scope:home")
    assert contents(listed(stage, path)) == contents(CARDS)
    assert listed(stage, path + "/search?query=fig")[0]["text"] == CARD
    admin(stage, path, "POST", {"content": "The well is behind the barn."})
    (fig,) = [card for card in listed(stage, path) if card["content"] == CARD]
    admin(stage, f"{path}/{fig['id']}", "DELETE")
    found = block(stage, QUESTION + " And where is the well?", "t", *WITHOUT_CARDS, scope("home"))
    assert "behind the barn" in found
    assert CARD not in found


def test_a_card_forgotten_by_its_session_is_hidden_there(stage: Stage) -> None:
    stage.ask(diary(12), [*controls(session="s"), scope("home"), FORCE])
    (fig,) = [card for card in listed(stage, place(stage)) if card["content"] == CARD]
    admin(stage, f"{place(stage)}/{fig['id']}", "DELETE")
    assert CARD not in block(stage, QUESTION, "s", scope("home"))
    assert CARD in block(stage, QUESTION, "t", *WITHOUT_CARDS, scope("home"))


def test_a_scope_is_no_session(stage: Stage) -> None:
    stage.ask(diary(12), [*controls(session="s"), scope("home"), FORCE])
    key = place(stage, "scope:home").split("/")[-2]
    for name in ("scope:home", "home", key):
        assert CARD not in block(stage, QUESTION, name, *WITHOUT_CARDS)
    assert admin(stage, "/_condenser/stats").json()["sessions"] == 4


# -- who gets in -------------------------------------------------------------------------------------------


def test_a_wrong_token_is_refused_and_changes_nothing(stage: Stage) -> None:
    condensed(stage)
    path = place(stage)
    for method, more in (("GET", ""), ("GET", "/search?query=a"), ("POST", ""), ("DELETE", ""), ("DELETE", "/x")):
        assert admin(stage, path + more, method, {"content": "a"}, token="wrong").status == 401
    assert contents(listed(stage, path)) == contents(CARDS)


def test_under_another_tenant_or_name_there_is_nothing(stage: Stage) -> None:
    condensed(stage)
    replace(stage, key="sk-second", sent=[]).ask(chat(1), controls(session="other"))
    tenant, session = place(stage).split("/")[-3:-1]
    strangers = place(stage, "other").split("/")[-3]
    (first, *_) = listed(stage, place(stage))
    for path in (f"{strangers}/{session}", f"{tenant}/none", f"{tenant}/*"):
        for method, more in (("GET", ""), ("GET", "/search?query=a"), ("POST", ""), ("DELETE", f"/{first['id']}")):
            answer = admin(stage, f"{SESSIONS}/{path}/memory{more}", method, {"content": "a"})
            assert (answer.status, answer.json()["error"]["code"]) == (404, "not_found")
    assert contents(listed(stage, place(stage))) == contents(CARDS)


def test_a_card_that_is_not_there_and_a_wrong_method_are_told(stage: Stage) -> None:
    condensed(stage)
    path = place(stage)
    assert admin(stage, f"{path}/0123456789abcdef", "DELETE").status == 404
    for method, more in (("PUT", ""), ("PATCH", "/x"), ("GET", "/x"), ("POST", "/x")):
        assert admin(stage, path + more, method).status == 405
    assert admin(stage, path + "/x/y").status == 404
