"""What real clients do to a history before they send it again: what is forwarded, on which branch, and why.

Each behaviour is one entry of a table. All of them are played with an id and without one, and each time twice: with
nothing condensed, where the view is the whole history or what was sent, and with a record that stands for the first
messages, where it is in the view exactly when they are.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from langchain_core.messages import BaseMessage, convert_to_messages, convert_to_openai_messages, trim_messages
from langchain_core.messages.utils import count_tokens_approximately

from tests.http.strict import is_replacement
from tests.support.recording import Exchange
from tests.support.replies import Reply, completion
from tests.support.stage import Stage, controls, proxy_with_upstream
from tests.support.wire import Answer

Message = dict[str, Any]

WINDOW = 6_000
SHORT = {"depth": 1.0, "max_tokens": 400}  # a record in a tenth of the window, and no deeper cut than the goal
COVERED = 10  # how many messages the record stands for, the first one and answer 4 included
CHAT_ID = controls(session="chat")
SYSTEM: Message = {"role": "system", "content": "Be brief."}


def ask(name: object) -> Message:
    return {"role": "user", "content": f"ask {name}: " + "word " * 200}


def answer(name: object) -> Message:
    return {"role": "assistant", "content": f"answer {name}: " + "word " * 200}


def history_of(turns: int) -> list[Message]:
    return [SYSTEM, *(message for i in range(turns) for message in (ask(i), answer(i)))]


def reply(exchange: Exchange) -> Reply:
    """Answers each `ask` with its `answer`, so that a client can send back what it was told."""
    question = str(exchange.json()["messages"][-1]["content"])
    name = re.search("ask ([^:]*):", question)
    return completion(str(answer(name[1])["content"]) if name else "Well.")


def edited(messages: Sequence[Message], place: int, message: Message) -> list[Message]:
    return [*messages[:place], message, *messages[place + 1 :]]


def trimmed(messages: Sequence[Message], **options: Any) -> list[Message]:
    """What LangChain's own function leaves, as its chat model sends it."""
    chosen: dict[str, Any] = {"strategy": "last", "start_on": "human", "include_system": True, **options}
    kept: list[BaseMessage] = trim_messages(convert_to_messages(list(messages)), **chosen)
    sent: list[Message] = convert_to_openai_messages(kept)
    return sent


def with_context(message: Message) -> Message:
    return {**message, "content": f"Context: page 7 says so.\n\n{message['content']}"}


HISTORY = history_of(9)
SENT = HISTORY[:16]  # ends with ask 7
NEXT = HISTORY[:18]  # ends with ask 8
SUMMARY: Message = {"role": "user", "content": "Summary of the conversation so far: nothing was decided."}
TITLE: list[Message] = [
    {"role": "system", "content": "You name chats."},
    {"role": "user", "content": f"Give this chat a title of five words:\n\n{SENT[1]['content']}"},
]


@dataclass(frozen=True)
class Behaviour:
    """What a client sends after `before`, and what comes of it.

    `whole` is the view where nothing is condensed, what was sent where it is None; `stands` says whether the record is
    in it. `same`: without an id the conversation is still the session that it was.
    """

    sent: Sequence[Message]
    branch: str = "main"
    reason: str = "below-marks"
    whole: Sequence[Message] | None = None
    stands: bool = True
    same: bool = True
    before: Sequence[Sequence[Message]] = (SENT,)


def forks(sent: Sequence[Message], *, stands: bool = True, before: Sequence[Sequence[Message]] = (SENT,)) -> Behaviour:
    return Behaviour(sent, "b2", "new-branch", None, stands, same=False, before=before)


def aligns(sent: Sequence[Message]) -> Behaviour:
    return Behaviour(sent, "main", "aligned", NEXT, same=False)


GOES_ON = {
    "goes on": Behaviour(NEXT),
    "asks the same again": Behaviour(SENT),
    "regenerates its last reply and goes on from the new one": Behaviour([*SENT, answer("7 again"), ask(8)]),
    "cuts the reply that it sends back": Behaviour([*SENT, {"role": "assistant", "content": "answer 7"}, ask(8)]),
    "puts the time into its system prompt": Behaviour([{**SYSTEM, "content": "Be brief. It is 10:05."}, *NEXT[1:]]),
    "adds retrieved context to its last message only": Behaviour(
        [*NEXT[:-1], with_context(ask(8))], before=([*SENT[:-1], with_context(ask(7))],)
    ),
}
FORKS = {
    "goes back one turn and asks again": forks(SENT, before=(SENT, NEXT)),
    "goes back one turn for another reply": forks([*SENT, answer("7 again"), ask(8)], before=(SENT, NEXT)),
    "goes back a few turns": forks(HISTORY[:14]),
    "goes back into what was condensed": forks(HISTORY[:6], stands=False),
    "edits an earlier message": forks(edited(NEXT, 3, ask("1 edited")), stands=False),
    "edits an earlier message behind what was condensed": forks(edited(NEXT, 11, ask("5 edited"))),
    "edits a reply behind what was condensed": forks(edited(NEXT, 12, answer("5 edited"))),
    "goes on in another way": forks([*HISTORY[:14], answer("other"), ask("other")], before=(SENT, NEXT)),
}
WINDOWS = {
    "trims by LangChain to a number of messages": aligns(trimmed(NEXT, max_tokens=10, token_counter=len)),
    "trims by LangChain to a number of tokens": aligns(
        trimmed(NEXT, max_tokens=2_000, token_counter=count_tokens_approximately)
    ),
    "sends its newest eight messages": aligns([SYSTEM, *NEXT[-8:]]),
    "sends its first message and its newest seven": aligns([SYSTEM, NEXT[1], *NEXT[-7:]]),
}
OTHERS = {
    "asks for a title under the same id": forks(TITLE, stands=False),
    "has compacted by itself": forks([SYSTEM, SUMMARY, *NEXT[-6:]], stands=False),
    "has compacted by itself behind its first message": forks([SYSTEM, NEXT[1], SUMMARY, *NEXT[-6:]], stands=False),
    "begins with a short continue": forks([SYSTEM, {"role": "user", "content": "continue"}], stands=False),
    "continues with the last reply only": forks(
        [SYSTEM, HISTORY[16], {"role": "user", "content": "continue"}], stands=False
    ),
}
LEAVING = {**FORKS, **OTHERS}
BEHAVIOURS = {**GOES_ON, **FORKS, **WINDOWS, **OTHERS}
each_behaviour = pytest.mark.parametrize("behaviour", BEHAVIOURS.values(), ids=BEHAVIOURS.keys())


@contextmanager
def answering(window: int = WINDOW, **settings: Any) -> Iterator[Stage]:
    with proxy_with_upstream(window=window, strategy="extract", extract=SHORT, **settings) as stage:
        stage.upstream.answer(reply)
        yield stage


@pytest.fixture
def stage() -> Iterator[Stage]:
    with answering() as built:
        yield built


def forced(force: bool) -> list[tuple[str, str]]:
    return controls(force="true") if force else []


def begin(stage: Stage, behaviour: Behaviour, named: Sequence[tuple[str, str]], *, force: bool) -> Answer:
    """The client's requests so far; `force` condenses on the first. The last answer."""
    for place, messages in enumerate(behaviour.before):
        last = stage.ask(messages, [*named, *forced(force and place == 0)])
    return last


def condensed(stage: Stage, whole: Sequence[Message]) -> list[Message]:
    """The view of this history in which the record stands for its first messages."""
    head = stage.forwarded[0].json()["messages"][:3]
    assert is_replacement(head[2])
    assert stage.forwarded[0].json()["messages"][3] == HISTORY[1 + COVERED]
    return [whole[0], *head[1:], *whole[1 + COVERED :]]


@each_behaviour
@pytest.mark.parametrize("force", [False, True], ids=["nothing condensed", "condensed"])
def test_under_an_id_the_view_is_the_history_with_its_record_and_goes_on_so(
    stage: Stage, behaviour: Behaviour, force: bool
) -> None:
    begin(stage, behaviour, CHAT_ID, force=force)
    answered = stage.ask(behaviour.sent, CHAT_ID)
    whole, view, stands = list(behaviour.whole or behaviour.sent), stage.last_view, force and behaviour.stands
    assert view == (condensed(stage, whole) if stands else whole)
    assert answered.branch == behaviour.branch + "+" * stands
    assert answered.action == ("replayed" if stands else "passed")
    said_already = stands and behaviour.reason == "below-marks"
    assert answered.reason == (None if said_already else behaviour.reason)
    more = [answer("more"), ask("more")]
    later = stage.ask([*behaviour.sent, *more], CHAT_ID)
    assert (later.branch, stage.last_view) == (answered.branch, [*view, *more])


@each_behaviour
@pytest.mark.parametrize("force", [False, True], ids=["nothing condensed", "condensed"])
def test_without_an_id_it_is_one_session_or_another(stage: Stage, behaviour: Behaviour, force: bool) -> None:
    before = begin(stage, behaviour, (), force=force)
    answered = stage.ask(behaviour.sent)
    is_same = answered.session == before.session
    assert is_same is behaviour.same
    assert answered.branch == "main" + "+" * (force and is_same)
    sent = list(behaviour.sent)
    assert stage.last_view == (condensed(stage, sent) if force and is_same else sent)


@pytest.mark.parametrize("behaviour", LEAVING.values(), ids=LEAVING.keys())
def test_the_line_that_the_client_left_goes_on_as_it_was(stage: Stage, behaviour: Behaviour) -> None:
    begin(stage, behaviour, CHAT_ID, force=True)
    stage.ask(behaviour.sent, CHAT_ID)
    later = [*behaviour.before[-1], answer("later"), ask("later")]
    answered = stage.ask(later, CHAT_ID)
    assert stage.last_view == condensed(stage, later)
    assert answered.branch == "main+"
    assert answered.reason is None


# -- over many turns ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("force", [False, True], ids=["nothing condensed", "condensed"])
def test_a_client_trimmed_by_langchain_has_its_whole_history(force: bool) -> None:
    with answering(window=20_000, marks={"target": 0.2}) as stage:
        stage.ask(history_of(16)[:-1], [*CHAT_ID, *forced(force)])
        first = stage.last_view
        for turns in range(17, 24):
            whole = history_of(turns)[:-1]
            answered = stage.ask(trimmed(whole, max_tokens=9 + turns % 3, token_counter=len), CHAT_ID)
            assert stage.last_view == [*first, *whole[len(history_of(16)) - 1 :]]
            assert answered.branch == "main" + "+" * force
            assert answered.reason == "aligned"


# -- several agents under one id ---------------------------------------------------------------------------


def test_agents_under_one_id_each_see_their_own_history_and_nothing_else(stage: Stage) -> None:
    agents = {
        branch: [{"role": "system", "content": f"You are {name}."}, ask(f"of {name}")]
        for branch, name in (("main", "the planner"), ("b2", "the coder"), ("b3", "the critic"))
    }
    for turn in range(3):
        for branch, messages in agents.items():
            answered = stage.ask(messages, CHAT_ID)
            assert stage.last_view == messages
            assert answered.branch == branch
            messages += [answer(f"{branch} {turn}"), ask(f"{branch} {turn}")]


def test_a_window_of_one_agent_is_not_filled_up_from_another(stage: Stage) -> None:
    """Both have the same newest messages; which of the two histories is meant cannot be known."""
    planner, coder = ([SYSTEM, message, *HISTORY[2:16]] for message in (ask("plan"), ask("code")))
    stage.ask(planner, CHAT_ID)
    stage.ask(coder, CHAT_ID)
    window = [SYSTEM, *planner[-7:], answer(7), ask(8)]
    answered = stage.ask(window, CHAT_ID)
    assert stage.last_view == window
    assert answered.reason == "new-branch"
