"""What Anthropic's servers check of compaction on demand, in their words (beta `compact-2026-09-04`).

A compaction is one signed block: `compaction_of` makes it, and `refusal_of_request` and `refusal_of_block` are what the
server says to a request for one and to a list with one. The signature holds the prefix that the block stands for, so
that thinking which was made behind that prefix is still valid behind the block (`continued`), as long as nothing stands
between. Each rule names the page that has it; all are at platform.claude.com/docs/en/build-with-claude.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.support.prefixes import Prefix, canonical, name_of, sealed, tokens, unsealed
from tests.support.replies import Json

BETA = "compact-2026-09-04"
CODE = {"signature": "compaction_signature_invalid", "content": "compaction_content_mismatch"}
_KNOWN = {"type", "content", "signature", "cache_control", "encrypted_content", "tool_changes"}
Body = Mapping[str, Any]


def blocks_of(messages: Sequence[Body]) -> Iterator[tuple[int, int, Json]]:
    """The compactions of a list, each with the places of its message and block."""
    for index, message in enumerate(messages):
        content = message.get("content")
        for place, block in enumerate(content if isinstance(content, list) else ()):
            if block.get("type") == "compaction":
                yield index, place, block


def refusal_of_request(body: Body, beta: str) -> str:
    """What is wrong with a request for a compaction; page `compaction-on-demand`, "Errors" and "Limits"."""
    if BETA not in beta:
        return "compaction: Extra inputs are not permitted"
    for member in ("context_management", "stop_sequences"):
        if body.get(member):
            return f"{member}: not supported together with compaction"
    if (body.get("output_config") or {}).get("format"):
        return "output_config.format: not supported together with compaction"
    if (body.get("tool_choice") or {}).get("type") in ("any", "tool"):
        return "tool_choice: forced tool use is not supported together with compaction"
    last = body["messages"][-1]
    content = last.get("content")
    if last["role"] == "assistant" and any(
        block.get("type") == "tool_use" for block in (content if isinstance(content, list) else ())
    ):
        return "compaction_incomplete_turn: the last assistant turn has an open tool call"
    return ""


def refusal_of_block(body: Body, beta: str, account: str) -> str:
    """What is wrong with the compaction in a list, "" if nothing is or there is none; page `compaction-on-demand`."""
    found = list(blocks_of(body["messages"]))
    if not found:
        return ""
    index, place, block = found[0]
    path = f"messages.{index}.content.{place}"
    if BETA not in beta:
        return f"{path}: 'compaction' is not one of the expected content block types"
    if len(found) > 1:
        return "compaction_block_ambiguous: exactly one compaction block may be sent"
    if (index, place) != (0, 0):
        return "compaction_block_misplaced: the block must be sent first, in place of the messages it summarizes"
    for member in block.keys() - _KNOWN:
        return f"{path}.compaction.{member}: Extra inputs are not permitted"
    fields = unsealed(block.get("signature"))
    if fields is None or len(fields) != 4 or fields[0] != account:
        return f"{CODE['signature']}: invalid signature in compaction block"
    if fields[3] != name_of(str(block.get("content"))):
        return f"{CODE['content']}: compaction block content does not match its signature"
    return ""


def compaction_of(body: Body, prefix: Prefix, head: str, account: str, said: str) -> Json:
    """The reply to a request for a compaction of the list that `prefix` is the end of."""
    seal = sealed(account, prefix.state, head, name_of(said))
    used = {"type": "compaction", "input_tokens": tokens(list(body["messages"])), "output_tokens": tokens(said)}
    return {
        "id": "msg_" + name_of(seal),
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": [{"type": "compaction", "content": said, "signature": seal}],
        "stop_reason": "compaction",
        "stop_sequence": None,
        "usage": {"input_tokens": 0, "output_tokens": 0, "iterations": [used]},
    }


def continued(block: Json, head: Prefix) -> Prefix:
    """The prefix behind a compaction: that of what it stands for, if system and tools are the same."""
    fields = unsealed(block.get("signature"))
    if fields is None or len(fields) != 4:
        return head
    prefix = Prefix(fields[1])
    if fields[2] != head.name:
        prefix.add(canonical({"other": head.name}))
    return prefix
