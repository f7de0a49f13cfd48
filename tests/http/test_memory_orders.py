"""Orders: a message that names what has left the view gets it, question or not, and in any language."""

from collections.abc import Iterator

import pytest

from tests.http.test_memory_injection import FORCE, INJECT, ending
from tests.support.stage import Message, Stage, controls, proxy_with_upstream

HOST = "The staging host is atlas-07.internal, and it runs the old kernel."
PORT = "We agreed on the port 8443 for the relay."
FARID = "Please note: the ticket number of Farid is 45314. It is about the backup job."
GRETA = "Please note: the ticket number of Greta is 71964. It is about the search box."
DATABASE = "数据库我们选PostgreSQL 15。"
SERVER = "Der Server für die Abnahme heißt orion.example."
PRESENT = "El regalo de Lucía es un telescopio de Brennan."
GATE = "Le code du portail est 5582, il change en mars."
DENTIST = "치과 예약은 금요일 오후 네 시예요."
CLIENT = "取引先の担当者は村瀬さんです。"
FACTS = (HOST, PORT, FARID, GRETA, DATABASE, SERVER, PRESENT, GATE, DENTIST, CLIENT)
ORDERS = {
    "Deploy to the host I gave you earlier.": HOST,
    "Set the port back to what we agreed on.": PORT,
    "Look up the ticket number of Farid and write it down.": FARID,
    "Find Farid's ticket.": FARID,
    "I need the ticket number of Greta.": GRETA,
    "Please send Greta a short mail that quotes the ticket number I gave you earlier.": GRETA,
    "Nenne mir die Ticketnummer von Farid.": FARID,
    "Spiel es auf den Server für die Abnahme.": SERVER,
    "Envuelve el regalo de Lucía.": PRESENT,
    "继续，用我们选的数据库。": DATABASE,
    "Envoie le code du portail au livreur.": GATE,
    "치과 예약을 달력에 넣어 줘.": DENTIST,
    "取引先の担当者にお礼のメールを書いて。": CLIENT,
    "What is the ticket number of Greta?": GRETA,
}
NAMING_NOTHING = (
    "Thanks, that works.",
    "Go on.",
    "Make it shorter, please.",
    "Write a poem about autumn.",
    "Translate the last paragraph into French.",
    "Danke, das passt so.",
    "Gracias, así está bien.",
    "Merci beaucoup.",
    "続けてください。",
    "고마워요, 좋아요.",
    "好的，谢谢。",
    "请写得短一点。",
)


def talk(turns: int = 60) -> list[Message]:
    """Talk about a garden, in whose first half the facts are stated."""
    messages: list[Message] = [{"role": "user", "content": "Keep a diary of my garden."}]
    for day in range(turns):
        at, is_told = divmod(day, 3)
        said = FACTS[at] if is_told == 1 and at < len(FACTS) else f"Go on with bed {day}, please, and write it down."
        seen = " ".join(f"plant{day}n{each}" for each in range(30))
        messages += [{"role": "assistant", "content": f"Done: {seen}."}, {"role": "user", "content": said}]
    return messages


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """A session that has lost its first half."""
    with proxy_with_upstream(strategy="recent") as built:
        built.ask(talk(), [*controls(session="s"), FORCE])
        assert not any(fact in str(built.last_view) for fact in FACTS)
        yield built


def told(stage: Stage, said: str) -> str:
    """The text of the block that a message would get; nothing is kept of it."""
    planned = stage.ask(ending(talk(), said), [*controls(session="s", dry_run="true"), INJECT]).json()["messages"]
    return "".join(each["content"] for each in planned if each.get("name") == "memory_context")


@pytest.mark.parametrize("order", ORDERS)
def test_an_order_gets_what_it_names_and_nothing_that_says_less_of_it(stage: Stage, order: str) -> None:
    block = told(stage, order)
    assert ORDERS[order] in block
    if ORDERS[order] in (FARID, GRETA):
        assert not {FARID, GRETA} <= {fact for fact in FACTS if fact in block}


@pytest.mark.parametrize("said", NAMING_NOTHING)
def test_a_message_that_names_nothing_hidden_gets_no_block(stage: Stage, said: str) -> None:
    assert told(stage, said) == ""
