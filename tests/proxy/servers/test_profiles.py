"""What an error says of the form that a server takes, and what is remembered of it."""

import json

import pytest

from proxy.condensing.ladder.form import restriction_in
from proxy.servers import MAX_SCOPES, LessonScope, refusals
from proxy.servers.known import Profiles
from proxy.servers.refusals import MAX_READ
from proxy.settings.profile import ANY, Profile, Restriction

ALTERNATING = Profile(alternate_roles=True)
NAMELESS = Profile(assistant_name=False)
SYSTEMS_FIRST = Profile(middle_system=False)

SAID: list[tuple[str, Profile]] = [
    ("Conversation roles must alternate user/assistant/user/assistant/...", ALTERNATING),
    ("After the optional system message, conversation roles must alternate user/assistant/user/...", ALTERNATING),
    ('messages: roles must alternate between "user" and "assistant", but found multiple "user" roles', ALTERNATING),
    ("A conversation must alternate between user and assistant roles. Make sure that it alternates", ALTERNATING),
    ("user or tool message(s) should alternate with assistant message(s)", ALTERNATING),
    ("deepseek-reasoner does not support successive user or assistant messages (messages[1] and ...)", ALTERNATING),
    ("Please ensure that multiturn requests alternate between user and model.", ALTERNATING),
    ("Unexpected role 'user' after role 'tool'", ALTERNATING),
    ("System message must be at the beginning.", SYSTEMS_FIRST),
    ("Unexpected role 'system' after role 'user'", SYSTEMS_FIRST),
    ("The system message must come first in the conversation", SYSTEMS_FIRST),
]  # fmt: skip

ORDINARY = [
    "This model's maximum context length is 4096 tokens. However, your messages resulted in 9000 tokens.",
    "max_tokens is too large: 100000. This model supports at most 4096 completion tokens",
    "Invalid 'tools[0].function.name': string does not match pattern.",
    "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'.",
    "messages with role 'tool' must be a response to a preceding message with 'tool_calls'.",
    "The model `gpt-9` does not exist or you do not have access to it.",
    "Incorrect API key provided.",
    "Your request was rejected as a result of our safety system.",
    "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
    "Invalid image: the image is too large.",
    "'messages.2' : for 'role:assistant' the following must be satisfied[(property 'name' is unsupported)]",
    "messages.1: all messages must have non-empty content except for the optional final assistant message",
    "Unrecognized request argument supplied: stream_options",
]


ALTERNATES = Restriction("alternate_roles", True)


def profile_after(status: int, body: bytes) -> Profile:
    """The profile of a request that is sent again for this error."""
    named = restriction_in(refusals.read(status, body), ANY)
    return ANY if named is None else ANY.under(named)


def error(message: str) -> bytes:
    return json.dumps({"error": {"message": message, "type": "invalid_request_error", "code": None}}).encode()


@pytest.mark.parametrize(("message", "taught"), SAID, ids=lambda each: each[:40] if isinstance(each, str) else "")
def test_what_is_refused_is_read_in_every_wording(message: str, taught: Profile) -> None:
    assert profile_after(400, error(message)) == taught
    assert profile_after(500, error(message)) == taught


def test_other_errors_and_statuses_teach_nothing() -> None:
    for message in ORDINARY:
        assert profile_after(400, error(message)) == ANY
    for status in (200, 401, 404, 429, 502, 503):
        assert profile_after(status, error(SAID[0][0])) == ANY
    body = error("Bad request: " + "x" * MAX_READ + " Conversation roles must alternate user/assistant")
    assert profile_after(400, body) == ANY


def test_what_is_refused_is_learned_for_its_model_beside_the_settings() -> None:
    assert restriction_in(refusals.read(400, error(SAID[0][0])), ANY) == ALTERNATES
    assert restriction_in(refusals.read(400, error(SAID[0][0])), ALTERNATING) is None
    profiles = Profiles(lambda _: NAMELESS)
    profiles.learn(LessonScope("m", "t"), [ALTERNATES])
    profiles.learn(LessonScope("m", "t"), [])
    assert profiles.for_model(LessonScope("m", "t")) == Profile(alternate_roles=True, assistant_name=False)
    assert profiles.for_model(LessonScope("another", "t")) == NAMELESS
    alone = Profiles()
    for named in (ALTERNATES, Restriction("middle_system", False), ALTERNATES):
        alone.learn(LessonScope("m", "t"), [named])
    assert alone.for_model(LessonScope("m", "t")) == Profile(alternate_roles=True, middle_system=False)


def test_only_so_many_scopes_are_remembered() -> None:
    profiles = Profiles()
    for number in range(MAX_SCOPES + 1):
        profiles.learn(LessonScope(f"m{number}", "t"), [ALTERNATES])
    assert profiles.for_model(LessonScope("m0", "t")) == ANY
    assert profiles.for_model(LessonScope("m1", "t")) == ALTERNATING


def test_a_model_name_forges_no_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    Profiles().learn(LessonScope("evil\nWARNING: \x1b[31mforged", "t"), [ALTERNATES])
    assert "for 'evil?WARNING: ?[31mforged' (tenant t) in another form; from now on:" in caplog.text
