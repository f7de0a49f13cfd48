"""What a branch remembers of the heads of its views, and which rule a refusal names."""

import json

import pytest

from strategies.core.reasoning import BOUND, OWN, REQUIRED, UNKNOWN, Bound, rule_named_in
from strategies.dialects.chat import CHAT


def test_reasoning_stays_from_where_its_head_was_first_sent() -> None:
    bound, seen = Bound(), []
    views = [(OWN, 1), (OWN, 3), ("c1", 5), ("c1", 7), (OWN, 9), (OWN, 11), ("c1", 13), ("c2", 15), ("c2", 17)]
    for head, length in views:
        bound = bound.behind(head, length)
        seen.append(bound.until)
    assert seen == [0, 0, 5, 5, 9, 9, 13, 15, 15]


def test_a_client_that_goes_back_keeps_what_it_thinks_from_there() -> None:
    assert Bound("c1", 20).behind("c1", 12) == Bound("c1", 12)


def test_behind_an_unknown_head_nothing_is_kept() -> None:
    assert Bound(UNKNOWN).behind(OWN, 7) == Bound(OWN, 7)


SAYS_BOUND = [
    "messages.1.content.0: Invalid `signature` in `thinking` block. The block is bound to a different conversation.",
    "messages.3.content.0: Invalid `signature` in `thinking` block",
    "`thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified. These must remain.",
    'litellm.BadRequestError: AnthropicException - {"message":"messages.1: Invalid `signature` in `thinking` block"}',
    "Thought signature is not valid",
    "The signature of the reasoning block could not be verified",
    "reasoning_details[0]: signature does not match the conversation prefix",
    "thinking block at messages.5 does not belong to this conversation",
    "thinking: prefix_binding_mismatch at messages.3.content.0",
]
SAYS_REQUIRED = [
    "The `content[].thinking` in the thinking mode must be passed back to the API.",
    "thinking is enabled but reasoning_content is missing in assistant tool call message at index 2",
    "Missing `reasoning_content` field in the assistant message at message index 4.",
    "Expected `thinking` or `redacted_thinking`, but found `tool_use`. When `thinking` is enabled, a last one must",
    "Function call is missing a thought_signature in functionCall parts.",
    "assistant messages with tool calls must include reasoning_content",
    "reasoning_details must be preserved and passed back",
    "thinking blocks of assistant messages with tool_use are required",
]
SAYS_NEITHER = [
    "prompt is too long: 30 tokens > 20 maximum",
    "`max_tokens` must be greater than `thinking.budget_tokens`. Please consult our documentation",
    "thinking.type: Field required",
    "messages.1.thinking_blocks: Extra inputs are not permitted",
    "Unsupported parameter: reasoning_effort is not supported",
    "adaptive thinking is not supported on this model",
    "`temperature` may only be set to 1 when thinking is enabled.",
    "Thinking may not be enabled when tool_choice forces tool use.",
    "messages.2: `tool_use` ids were found without `tool_result` blocks immediately after: toolu_1.",
]
SAID = [(SAYS_BOUND, BOUND), (SAYS_REQUIRED, REQUIRED), (SAYS_NEITHER, None)]


@pytest.mark.parametrize(("message", "rule"), [(message, rule) for messages, rule in SAID for message in messages])
def test_the_rule_is_read_in_every_wording(message: str, rule: str | None) -> None:
    assert rule_named_in(message) == rule
    assert rule_named_in(json.dumps({"error": {"message": message, "type": "invalid_request_error"}})) == rule


SIGNED = {"type": "thinking", "thinking": "Look.", "signature": "s"}
PLAIN = {"type": "reasoning.text", "text": "Look."}
SEALED = {"type": "reasoning.encrypted", "data": "x", "format": "anthropic-claude-v1"}
FOREIGN = {"type": "reasoning.encrypted", "data": "x", "format": "google-gemini-v1"}
CALL = {"id": "c", "type": "function", "function": {"name": "read", "arguments": "{}"}}


def test_in_chat_only_what_is_signed_leaves() -> None:
    said = {"role": "assistant", "content": "", "reasoning_content": "Look.", "tool_calls": [CALL]}
    assert CHAT.unbound({**said, "thinking_blocks": [SIGNED]}) == said
    kept = {**said, "reasoning_details": [PLAIN, FOREIGN]}
    assert CHAT.unbound({**said, "reasoning_details": [PLAIN, SIGNED, FOREIGN, SEALED]}) == kept
    assert CHAT.unbound(kept) is kept
    alone = {"role": "assistant", "content": [SIGNED]}
    assert CHAT.unbound(alone) == {"role": "assistant", "content": "Understood."}


def test_a_message_tells_whether_it_has_signed_reasoning() -> None:
    said = {"role": "assistant", "content": "Yes."}
    assert CHAT.read({**said, "thinking_blocks": [SIGNED]}).is_signed
    assert CHAT.read({**said, "reasoning_details": [SEALED]}).is_signed
    assert not CHAT.read({**said, "reasoning_details": [PLAIN, FOREIGN], "reasoning_content": "Look."}).is_signed
    assert not CHAT.read({"role": "user", "content": [SIGNED]}).is_signed
