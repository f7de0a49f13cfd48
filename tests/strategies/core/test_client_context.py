"""Which user messages only the client wrote, and what follows from that."""

import pytest

from strategies.core.client_context import is_context, users_words
from strategies.core.covered import covered, ledger_of
from strategies.core.ledger import LEDGER, Ledger
from strategies.core.transcript import Transcript
from strategies.dialects.messages import MESSAGES
from tests.support.transcripts import WORDS, Body, assistant, transcript_of, user, view_of

ENVIRONMENT = "<environment_context>\n  <cwd>/repo</cwd>\n</environment_context>"
RULES = "# AGENTS.md instructions for /repo\n\n<INSTRUCTIONS>\nBe brief.\n</INSTRUCTIONS>"
OPEN, CLOSE = "<system-reminder>", "</system-reminder>"
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
MARKUP = [
    "<instructions>Never push.</instructions>",
    "<rules>Be brief.</rules>",
    "<context>We run on Postgres 14.</context>",
    "<project_rules>Use tabs.</project_rules>",
    "<bug-details>It fails on Mondays.</bug-details>",
]


@pytest.mark.parametrize(("text", "expected"), [*((text, True) for text in CONTEXT), *((text, False) for text in OWN)])
def test_a_message_of_tagged_blocks_only_is_the_clients(text: str, *, expected: bool) -> None:
    assert is_context(text) is expected


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"Mend it. {REMINDER} Please.", "Mend it.  Please."),
        (f"{REMINDER}{ENVIRONMENT}", ""),
        (f"A <system-reminder> and {ENVIRONMENT}.", "A <system-reminder> and ."),
        # What stands in a block cannot end it.
        (f"{OPEN}a{CLOSE} no {CLOSE} yes", " yes"),
        (f"{OPEN}a{OPEN}{CLOSE} no {OPEN}b{CLOSE} no {CLOSE} yes", " yes"),
        (f"{OPEN}a{OPEN} no {CLOSE} yes {ENVIRONMENT}.", " yes ."),
        (f"{OPEN}a<session_context>{CLOSE} yes </session_context>", " yes </session_context>"),
    ],
)
def test_blocks_of_the_client_are_no_words_of_the_user(text: str, left: str) -> None:
    assert users_words(text) == left


@pytest.mark.parametrize("markup", MARKUP)
def test_tags_that_no_client_is_known_for_are_the_users_own(markup: str) -> None:
    assert not is_context(markup)
    assert users_words(f"{markup} Go on.") == f"{markup} Go on."


def test_many_tags_that_never_close_cost_linear_time() -> None:
    text = OPEN * 50_000
    assert users_words(f"{text}</session_context>") == f"{text}</session_context>"


def handed_on(*bodies: Body) -> Ledger:
    view = view_of([user("Begin."), *bodies, user("And now?")])
    end = len(view.items) - 1
    return ledger_of(covered(view, view.items[:end], end, 1_000), LEDGER, WORDS)


def test_what_a_client_puts_into_a_message_was_not_said_by_the_user() -> None:
    block = "<system-reminder>\n<push_policy>Always push to prod.</push_policy> See deploy_key_7.\n</system-reminder>"
    said = f"{block}\nNever touch api_v2."
    own = "<rules>\nOnly use tabs.\n</rules>"
    made = handed_on(user(said), user("<user_instructions>Always lie.</user_instructions>"), user(own))
    assert made.said == ("- Never touch api_v2.", "- Only use tabs.")
    assert ("deploy_key_7" in made.names, "push_policy" in made.names, "user_instructions" in made.names) == (
        True,
        False,
        False,
    )


def test_beside_a_reminder_the_users_words_count_once() -> None:
    made = handed_on(user(f"Never touch api_v2. The host is db_host_3.\n{REMINDER}"))
    assert made == Ledger(("- Never touch api_v2.", "- The host is db_host_3."))


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
