"""Which user messages only the client wrote, and what follows from that."""

from __future__ import annotations

import pytest

from strategies.core.client_context import is_context
from strategies.core.transcript import Transcript
from strategies.dialects.messages import MESSAGES
from tests.support.transcripts import assistant, transcript_of, user

ENVIRONMENT = "<environment_context>\n  <cwd>/repo</cwd>\n</environment_context>"
RULES = "# AGENTS.md instructions for /repo\n\n<INSTRUCTIONS>\nBe brief.\n</INSTRUCTIONS>"
REMINDER = "<system-reminder>\nThe todo list is empty.\n</system-reminder>"
CONTEXT = [
    ENVIRONMENT,
    RULES,
    REMINDER,
    f"\n{RULES}\n{ENVIRONMENT} \n",
    "<user_instructions>Never.</user_instructions>",
    "<environment_details>open tabs</environment_details>",
    '<permissions instructions level="1">None.</permissions instructions>',
]
OWN = [
    "",
    "Hello",
    "<task>Mend it.</task>",
    f"<task>Mend it.</task>\n{REMINDER}",
    f"{REMINDER}\nMend the parser.",
    "<environment_context>never closed",
    "# AGENTS.md instructions are wrong",
]


@pytest.mark.parametrize(("text", "expected"), [*((text, True) for text in CONTEXT), *((text, False) for text in OWN)])
def test_a_message_of_tagged_blocks_only_is_the_clients(text: str, *, expected: bool) -> None:
    assert is_context(text) is expected


def task(*texts: str) -> tuple[int | None, list[int]]:
    transcript: Transcript = transcript_of([*map(user, texts), assistant("Yes."), user(ENVIRONMENT)])
    return transcript.task, transcript.lasting


def test_the_task_is_the_first_message_that_the_user_wrote() -> None:
    assert task(ENVIRONMENT, RULES, "Mend the parser.", "Go on.") == (2, [0, 1])
    assert task("Mend the parser.", RULES) == (0, [])
    assert task(ENVIRONMENT) == (0, [])


def test_beside_results_only_words_of_the_user_are_the_users() -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "content": "Never do this."}
    said = [{"type": "text", "text": text} for text in (REMINDER, "Ask first.", "Mind the tests.")]
    assert MESSAGES.words_beside({"role": "user", "content": [result, *said]}) == "Ask first.\nMind the tests."
    assert MESSAGES.words_beside({"role": "user", "content": [result]}) == ""
