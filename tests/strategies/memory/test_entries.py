import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from strategies.core.cards import MemoryCard
from strategies.core.messages import Message, Reader, Role
from strategies.core.terms import width
from strategies.dialects.chat import CHAT
from strategies.memory.ranking import NOWHERE, PART_WIDTH, card_entry, message_entries, split, text_entries


def message(**body: Any) -> Message:
    return Reader().read(json.dumps(body), body, 1, CHAT)


def test_a_short_message_is_one_entry_with_its_role_and_place() -> None:
    (entry,) = message_entries("k", message(role="user", content="keep it short"), 4)

    assert (entry.key, entry.role, entry.place, entry.text, entry.parts) == ("k", Role.USER, 4, "keep it short", 1)


def test_a_long_message_is_found_by_its_parts() -> None:
    found = text_entries("k", Role.TOOL, "\n".join(f"line {n} of the log" for n in range(200)), 3)

    assert [(entry.part, entry.parts) for entry in found] == [(n, len(found)) for n in range(len(found))]
    assert all(entry.text.endswith("\n") for entry in found[:-1])


def test_calls_of_an_assistant_are_found_too() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "read_file", "arguments": '{"path":"a.py"}'}}

    (entry,) = message_entries("k", message(role="assistant", content=None, tool_calls=[call]), 0)

    assert entry.text == 'read_file({"path":"a.py"})'


def test_what_has_no_text_of_the_conversation_is_no_entry() -> None:
    assert message_entries("k", message(role="system", content="be brief"), 0) == []
    assert message_entries("k", message(role="assistant", content="  "), 0) == []


def test_a_card_has_no_place_and_the_role_of_its_source() -> None:
    entry = card_entry("c", MemoryCard("Use tabs", "constraint", role=Role.USER))

    assert (entry.place, entry.role, entry.card) == (NOWHERE, Role.USER, "constraint")


@given(st.text(alphabet="ab .。\n缓存", max_size=4_000))
def test_parts_of_a_text_are_narrow_and_complete(text: str) -> None:
    parts = split(text)

    assert "".join(parts) == text
    assert all(part and width(part) <= PART_WIDTH for part in parts)
