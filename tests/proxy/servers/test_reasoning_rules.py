"""The rule for reasoning that an error names."""

import json

import pytest

from proxy.condensing.ladder.reasoning import rule_in
from proxy.servers import refusals
from strategies.core.reasoning import BOUND, REQUIRED

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
    error = {"error": {"message": message, "type": "invalid_request_error"}}
    for body in (message.encode(), json.dumps(error).encode()):
        assert rule_in(refusals.read(400, body)) == rule
