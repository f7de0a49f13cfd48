from __future__ import annotations

import json

from bench.history import agent_history
from bench.plan import Row
from strategies.core.messages import Reader
from strategies.core.transcript import Transcript
from tests.support.transcripts import WORDS


def row(rounds: int, milliseconds: float, what: str = "mask") -> Row:
    return Row("at the trigger", what, rounds, milliseconds, 1_000, 500)


def test_a_generated_history_is_the_same_every_time() -> None:
    assert agent_history(20) == agent_history(20)


def test_a_shorter_history_is_the_beginning_of_a_longer_one() -> None:
    assert agent_history(40)[: len(agent_history(20))] == agent_history(20)


def test_a_generated_history_has_as_many_rounds_as_were_asked_for_and_a_user_message_every_fourth() -> None:
    read = Reader()
    transcript = Transcript.of(read.read(json.dumps(body), body, WORDS.message(body)) for body in agent_history(40))

    roles = [message.role.value for message in transcript.chain]

    assert (roles.count("assistant"), roles.count("tool"), roles.count("user")) == (40, 40, 10)
