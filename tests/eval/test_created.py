"""What an agent has created: which labelled names count, and where they are looked for."""

from collections.abc import Mapping
from typing import Any

from eval import created
from eval.created import Created, Label
from eval.rules import digest
from proxy.commands.replaying.recorded import Conversation
from tests.support.transcripts import assistant, call, tool, user


def session(*more: Mapping[str, Any], given: str = "nightly") -> Conversation:
    called = assistant(None, call("c1", "schedule", {"job": given}))
    return Conversation("a", [user("Schedule the copy."), called, tool("c1", "made job-4711"), *more])


LABELS = [Label("a", 2, digest("job-4711"))]


def test_a_thing_is_created_if_its_result_names_it_first_and_a_later_message_uses_it() -> None:
    assert created.created(session(assistant("job-4711 runs.")), LABELS) == [Created(2, "job-4711")]
    assert created.created(session(assistant("It runs.")), LABELS) == []
    assert created.created(session(assistant("job-4711 runs."), given="job-4711"), LABELS) == []
    assert created.created(session(assistant("job-4711 runs.")), [Label("b", 2, digest("job-4711"))]) == []


def test_things_are_looked_for_once_they_are_older_than_the_newest_messages() -> None:
    conversation = session(*[assistant("job-4711 runs."), user("Good.")] * 10)
    found = created.wanted(conversation, LABELS)
    assert found[5] == []
    assert found[7] == ["job-4711"]
