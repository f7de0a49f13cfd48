"""What a branch remembers of the heads of its views, and which reasoning is signed."""

from strategies.core.reasoning import OWN, UNKNOWN, Bound
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
