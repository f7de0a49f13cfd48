"""`condenser memory`: its output and exit codes, and cards that are added, forgotten or shared."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proxy.conversations.cards import with_card, without_cards
from proxy.conversations.session import Session
from strategies.core.cards import MemoryCard, from_json
from strategies.core.condensation import Condensation
from strategies.core.messages import Role
from tests.http.test_memory_injection import FORCE, diary
from tests.http.test_memory_scopes import CARD, scope
from tests.proxy.command_line import run
from tests.support.stage import Stage, controls, proxy_with_sqlite, summary
from tests.support.transcripts import condensation_of

CARDS = [
    {"content": CARD, "type": "fact", "tags": ["fig", "names"]},
    {"content": "Water at dawn only.", "type": "constraint", "tags": []},
]
pytestmark = pytest.mark.usefixtures("store_file")
DIARY = (
    "The user keeps a garden diary, in which every plant has a line. " + "Each was sown, watered and seen again. " * 6
)


@pytest.fixture
def stage(store_file: Path) -> Iterator[Stage]:
    answer = json.dumps({"summary": DIARY, "memories": CARDS})
    settings: dict[str, Any] = {"strategy": "rolling", "memory": {"scopes": True}}
    with proxy_with_sqlite(store_file, answers=lambda _: summary(answer), **settings) as built:
        built.ask(diary(12), [*controls(session="mine"), scope("home"), FORCE])
        yield built


class Command:
    """`condenser memory` with a proxy; each call gives what was printed, or the error behind exit code 1."""

    def __init__(self, stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
        self._url = stage.proxy.url
        self._capsys = capsys

    def __call__(self, action: str, *words: str) -> str:
        code, out, err = run(self._capsys, "memory", action, *words, "--url", self._url)
        assert (code, err) == (0, "")
        return out

    def refused(self, action: str, *words: str) -> tuple[int, str]:
        code, out, err = run(self._capsys, "memory", action, *words, "--url", self._url)
        assert out == ""
        return code, err


@pytest.fixture
def memory(stage: Stage, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(stage, capsys)


def test_cards_are_listed_as_aligned_lines_with_their_messages(memory: Command) -> None:
    head, fig, water = memory("list", "mine").splitlines()
    assert head.split()[:3] == ["CARD", "TYPE", "ROLE"]
    assert fig[head.index("CONTENT") :] == CARD
    assert "fig,names" in fig
    assert water.split()[1:3] == ["constraint", "user"]
    memory("add", "mine", "The well is dry.")
    head, fig, _, well = memory("list", "mine").splitlines()
    # No message has the words of the first one: it is of all that its condensation stands for.
    assert re.fullmatch(r"0-\d+", fig[head.index("MESSAGES") :].split()[0])
    assert well[head.index("MESSAGES") : head.index("TAGS")].strip() == ""


def test_a_list_as_json_is_the_array_that_the_export_has(memory: Command, capsys: pytest.CaptureFixture[str]) -> None:
    array = json.loads(memory("list", "mine", "--json"))
    assert [{key: card[key] for key in ("content", "type", "tags")} for card in array] == CARDS
    assert [card.content for card in from_json(array)] == [card["content"] for card in CARDS]
    exported = run(capsys, "sessions", "export", "mine", "--url", memory._url)[1]
    assert json.loads(exported)["memory"] == array
    alone = json.loads(run(capsys, "sessions", "export", "mine", "--memory", "--url", memory._url)[1])
    assert [card["content"] for card in alone] == [card["content"] for card in CARDS]


def test_a_search_prints_what_was_found_with_its_place(memory: Command) -> None:
    first, text, *_ = memory("search", "mine", "fig tree called").splitlines()
    assert first.startswith("card ")
    assert text == f"  {CARD}"
    (first, *_) = memory("search", "mine", "plant3n7", "--top-k", "1", "--branch", "main").splitlines()
    assert first.startswith("message 7, assistant, score ")


def test_what_was_found_is_told_as_json_too(memory: Command) -> None:
    hits = json.loads(memory("search", "mine", "fig Brunhild", "--json"))
    lines = memory("search", "mine", "fig Brunhild").splitlines()
    assert [str(hit["score"]) for hit in hits] == [line.split()[-1] for line in lines if not line.startswith(" ")]


def test_a_card_is_added_and_forgotten(memory: Command) -> None:
    card = memory("add", "mine", "The well is dry.", "--type", "decision", "--tag", "water", "--tag", "well").strip()
    assert f"{card}  decision" in memory("list", "mine")
    assert "water,well" in memory("list", "mine")
    assert memory("forget", "mine", card) == "forgot 1 card\n"
    assert card not in memory("list", "mine")
    assert memory("forget", "mine", "--all") == "forgot 2 cards\n"
    assert len(memory("list", "mine").splitlines()) == 1


def test_an_exported_file_is_imported_into_another_session(memory: Command, stage: Stage, tmp_path: Path) -> None:
    stage.ask(diary(1), controls(session="yours"))
    file = tmp_path / "memory.json"
    file.write_text(memory("list", "mine", "--json"), "utf-8")
    assert memory("import", "yours", str(file)) == "added 2 of 2 cards, 0 were there already\n"
    assert memory("import", "yours", str(file)) == "added 0 of 2 cards, 2 were there already\n"
    assert "Water at dawn only." in memory("list", "yours")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[{"content": "a"}, {"content": ""}]', "Card 1: 'content' must be"),
        ("[", "is not JSON"),
        ("\xff", "is not JSON"),
    ],
)
def test_an_unusable_import_ends_with_1(memory: Command, tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "memory.json"
    file.write_text(text, "latin-1")
    code, err = memory.refused("import", "mine", str(file))
    assert code == 1
    assert problem in err
    code, err = memory.refused("import", "mine", str(tmp_path / "none.json"))
    assert (code, "No such file" in err) == (1, True)


def test_what_is_not_there_or_wrong_ends_with_1_and_says_why(memory: Command) -> None:
    unknown = "condenser: there is no session nobody; `condenser sessions list` prints them\n"
    assert memory.refused("list", "nobody") == (1, unknown)
    for action, words, said in [
        ("forget", ["0123456789abcdef"], "no such card"),
        ("search", ["fig", "--branch", "b9"], "branch"),
        ("search", ["fig", "--top-k", "many"], "top_k"),
        ("add", [" "], "content"),
        ("list", ["--token", "wrong"], "401"),
    ]:
        code, err = memory.refused(action, "mine", *words)
        assert (code, said in err) == (1, True)


@pytest.mark.parametrize(
    "words", [(), ("forget", "mine"), ("forget", "mine", "x", "--all"), ("add", "m", "c", "--type", "x")]
)
def test_a_wrong_call_ends_with_2(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "memory", *words)[0] == 2


def test_a_scope_is_named_by_its_name_and_cards_printed_plainly(memory: Command) -> None:
    memory("add", "mine", "The well \x1b[2J is \x07dry.")
    for out in (memory("list", "mine"), memory("search", "mine", "well")):
        assert all(char.isprintable() or char == "\n" for char in out)
    assert CARD in memory("list", "scope:home")
    assert memory("forget", "scope:home", "--all") == "forgot 2 cards\n"


def card(content: str, at: str = "2026-01-01T00:00:00+00:00", **more: Any) -> MemoryCard:
    return MemoryCard(content, created_at=at, **more)


def session(*condensations: Condensation, **more: Any) -> Session:
    return Session("s", "X-Condenser-Session", 0.0, condensations=condensations, **more)


def condensation(name: str, *cards: MemoryCard, at: float = 0.0) -> Condensation:
    return condensation_of(id=name, created_at=at, cards=cards)


def contents_of(session: Session) -> list[str]:
    return [each.content for each in session.cards()]


def test_a_card_is_told_once_and_forgotten_with_its_twins() -> None:
    one, again = card("The port is 9090.", condensation="c1"), card("the port is 9090", condensation="c2")
    both = session(condensation("c1", one), condensation("c2", again, at=1.0))
    assert contents_of(without_cards(both, {one.id})) == []
    assert set(without_cards(both, {one.id}).forgotten_ids) == {one.id, again.id}
    gone = without_cards(session(condensation("c1", one)), {one.id})
    assert contents_of(with_card(gone, card("The port is 9090."))) == ["The port is 9090."]
    changed = with_card(session(condensation("c1", one)), card("The port is 9090."))
    assert [each.content for each in changed.cards(())] == ["The port is 9090."]
    assert without_cards(changed, {one.id}).cards(()) == []


def test_a_tools_card_is_forgotten_and_the_users_twin_stays() -> None:
    tool, user = (
        card("The port is 9090.", role=Role.TOOL, condensation="c1"),
        card("The port is 9090.", condensation="c2"),
    )
    both = session(condensation("c1", tool), condensation("c2", user, at=1.0))
    assert contents_of(without_cards(both, {tool.id})) == ["The port is 9090."]
