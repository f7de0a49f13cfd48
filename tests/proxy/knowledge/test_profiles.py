"""What an error says of the form that a server takes, in the words of those that refuse it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.knowledge.profiles import (
    ANY,
    MAX_READ,
    MAX_SCOPES,
    LessonScope,
    Profile,
    Profiles,
    profile_after,
    sends_options,
)

ALTERNATING = Profile(alternate_roles=True)
NAMELESS = Profile(assistant_name=False)
NO_EMPTY = Profile(empty_assistant=False)
SYSTEMS_FIRST = Profile(middle_system=False)
NO_OPTIONS = Profile(stream_options=False)

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
    ("'messages.2' : for 'role:assistant' the following must be satisfied[(property 'name' is unsupported)]", NAMELESS),
    ("Unrecognized key in messages[1]: 'name' is not supported for role assistant", NAMELESS),
    ("messages.1: all messages must have non-empty content except for the optional final assistant message", NO_EMPTY),
    ("messages: text content blocks must be non-empty", NO_EMPTY),
    ("Assistant message must have either content or tool_calls, but not none.", NO_EMPTY),
    ("Assistant message must contain either 'content' or 'tool_calls'!", NO_EMPTY),
    ("The text field in the ContentBlock object at messages.1.content.0 is blank. Add text to it", NO_EMPTY),
    ("Invalid value for 'content': expected a string, got null.", NO_EMPTY),
    ("Invalid request: message at position 3 with role 'assistant' must not be empty", NO_EMPTY),
    ("Unrecognized request argument supplied: stream_options", NO_OPTIONS),
    ("property 'stream_options' is unsupported", NO_OPTIONS),
]  # fmt: skip

DETAILS: list[tuple[dict[str, Any], Profile]] = [
    (
        {
            "type": "extra_forbidden",
            "loc": ["body", "messages", 2, "assistant", "name"],
            "msg": "Extra inputs are not permitted",
            "input": "context_summary",
        },
        NAMELESS,
    ),
    (
        {
            "type": "string_type",
            "loc": ["body", "messages", 1, "assistant", "content"],
            "msg": "Input should be a valid string",
            "input": None,
        },
        NO_EMPTY,
    ),
    ({"type": "extra_forbidden", "loc": ["body", "stream_options"], "msg": "Extra inputs not permitted"}, NO_OPTIONS),
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
]


def error(message: str) -> bytes:
    return json.dumps({"error": {"message": message, "type": "invalid_request_error", "code": None}}).encode()


@pytest.mark.parametrize(("message", "taught"), SAID, ids=lambda each: each[:40] if isinstance(each, str) else "")
def test_what_is_refused_is_read_in_every_wording(message: str, taught: Profile) -> None:
    assert profile_after(400, error(message), options=True) == taught
    assert profile_after(500, error(message), options=True) == taught


@pytest.mark.parametrize(("detail", "taught"), DETAILS)
def test_what_is_refused_is_read_in_a_list_of_details(detail: dict[str, Any], taught: Profile) -> None:
    assert profile_after(422, json.dumps({"detail": [detail]}).encode(), options=True) == taught


SAID_OF_OPTIONS = [
    "Unrecognized request argument supplied: stream_options",
    "property 'stream_options' is unsupported",
    "Unknown parameter: 'stream_options'.",
    "Additional properties are not allowed ('stream_options' was unexpected)",
    "azure does not support parameters: {'stream_options': {'include_usage': True}}",
    "This model doesn't support stream_options",
    "Argument not supported on this model: stream_options",
    "Extra inputs are not permitted, field: 'stream_options', value: {'include_usage': True}",
    "create() got an unexpected keyword argument 'stream_options'",
    'json: unknown field "stream_options"',
    'Invalid JSON payload received. Unknown name "stream_options": Cannot find field.',
    "Invalid parameter: stream_options",
    "stream_options: not recognised",
]
MALFORMED = [
    "'stream_options' must be an object.",
    "stream_options: Input should be a valid dictionary",
    "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
    "An internal error occurred while reading stream_options",
]


@pytest.mark.parametrize("message", SAID_OF_OPTIONS)
def test_stream_options_are_refused_in_every_wording(message: str) -> None:
    assert profile_after(400, error(message), options=True) == NO_OPTIONS


@pytest.mark.parametrize("message", MALFORMED)
def test_an_error_that_only_mentions_stream_options_teaches_nothing(message: str) -> None:
    assert profile_after(400, error(message), options=True) == ANY


@pytest.mark.parametrize("message", SAID_OF_OPTIONS)
def test_a_refusal_of_stream_options_that_were_not_to_be_taken_teaches_nothing(message: str) -> None:
    assert profile_after(400, error(message), options=False) == ANY


@pytest.mark.parametrize(
    ("body", "probed", "sent"),
    [
        ({"stream": True}, True, True),
        ({"stream": True}, False, False),
        ({"stream": True, "stream_options": {}}, True, True),
        ({"stream": True, "stream_options": {"include_usage": False}}, True, True),
        ({"stream": True, "stream_options": {"include_usage": True}}, False, True),
        ({"stream": True, "stream_options": {"include_usage": "yes"}}, True, False),
        ({"stream": True, "stream_options": {"include_usage": True, "other": 1}}, False, False),
        ({"stream": True, "stream_options": "usage"}, False, False),
        ({"stream_options": {"include_usage": True}}, False, False),
    ],
)
def test_stream_options_are_to_be_taken_where_they_are_ours_or_well_formed(
    body: dict[str, Any], *, probed: bool, sent: bool
) -> None:
    assert sends_options(body, probed=probed) == sent


@pytest.mark.parametrize("message", ORDINARY)
def test_other_errors_teach_nothing(message: str) -> None:
    assert profile_after(400, error(message), options=True) == ANY


@pytest.mark.parametrize("status", [200, 401, 404, 429, 502, 503])
def test_a_status_of_another_kind_teaches_nothing(status: int) -> None:
    assert profile_after(status, error(SAID[0][0]), options=True) == ANY


def test_a_conversation_that_an_error_repeats_is_not_read() -> None:
    body = error("Bad request: " + "x" * MAX_READ + " Conversation roles must alternate user/assistant")
    assert profile_after(400, body, options=True) == ANY


def test_the_same_refusal_teaches_once() -> None:
    profiles = Profiles()
    assert profiles.learn_from_refusal(LessonScope("m", "t"), 400, error(SAID[0][0]), ANY, options=True) == ALTERNATING
    assert profiles.learn_from_refusal(LessonScope("m", "t"), 400, error(SAID[0][0]), ALTERNATING, options=True) is None
    assert profiles.for_model(LessonScope("m", "t")) == ALTERNATING
    assert profiles.for_model(LessonScope("another", "t")) == ANY


def test_who_was_under_way_when_it_was_learned_is_told_all_that_is_known() -> None:
    profiles = Profiles(lambda _: NAMELESS)
    both = profiles.learn_from_refusal(LessonScope("m", "t"), 400, error(SAID[0][0]), NAMELESS, options=True)
    assert profiles.learn_from_refusal(LessonScope("m", "t"), 400, error(SAID[0][0]), NAMELESS, options=True) == both
    assert profiles.learn_from_refusal(LessonScope("m", "t"), 400, error("no such model"), ANY, options=True) is None


def test_what_is_learned_adds_to_what_is_set() -> None:
    profiles = Profiles(lambda _: NAMELESS)
    taught = profiles.learn_from_refusal(LessonScope("m", "t"), 400, error(SAID[0][0]), NAMELESS, options=True)
    assert taught == Profile(alternate_roles=True, assistant_name=False)


def test_only_so_many_scopes_are_remembered() -> None:
    profiles = Profiles()
    for number in range(MAX_SCOPES + 1):
        profiles.learn_from_refusal(LessonScope(f"m{number}", "t"), 400, error(SAID[0][0]), ANY, options=True)
    assert profiles.for_model(LessonScope("m0", "t")) == ANY
    assert profiles.for_model(LessonScope("m1", "t")) == ALTERNATING


def test_a_model_name_forges_no_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    Profiles().learn_from_refusal(
        LessonScope("evil\nWARNING: \x1b[31mforged", "t"), 400, error(SAID[0][0]), ANY, options=True
    )
    assert "for 'evil?WARNING: ?[31mforged' (tenant t); from now on:" in caplog.text
