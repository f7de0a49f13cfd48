"""The message that stands for condensed history."""

import json
from collections.abc import Callable

import pytest

from strategies.core.excerpt import cut_text
from strategies.core.pieces import Literal, PieceKind
from strategies.core.plan import Plan, apply, replace_before
from strategies.core.replacement import (
    OPENING,
    context_summary,
    frame_tokens,
    previous_text,
    replaced_count,
    replacement,
    text_room,
)
from strategies.core.view import View
from strategies.dialects.chat import CHAT
from tests.support.transcripts import WORDS, chat, view_of, words


def with_record(text: str, end: int = 6) -> View:
    view = view_of(chat(8))
    edit = replace_before(view, end, replacement(text, replaced_count(view, end), CHAT), 100)
    return apply(view, Plan((edit,)))


def test_it_is_a_user_message_that_says_what_it_is() -> None:
    piece = replacement("the record", 12, CHAT)
    body = json.loads(piece.raw)
    assert piece.kind is PieceKind.REPLACEMENT
    assert piece.source is None
    assert body["role"] == "user"
    assert body["content"].startswith(f"{OPENING} The 12 earlier messages")
    assert body["content"].endswith("\n\nthe record")
    assert "not a new request" in body["content"]
    assert "Look up exact values that are not in it" in body["content"]


@pytest.mark.parametrize("made", [replacement, context_summary])
def test_in_chinese_it_says_the_same_behind_the_same_label(made: Callable[..., Literal]) -> None:
    piece = made("记录", 12, CHAT, chinese=True)
    label, _, rest = json.loads(made("记录", 12, CHAT).raw)["content"].partition("]" if made is replacement else "\n")
    content = json.loads(piece.raw)["content"]
    assert content.startswith(label)
    assert content.endswith("\n\n记录")
    assert "12 条消息" in content
    assert "不是新的请求" in content
    assert "earlier messages" in rest
    assert "earlier messages" not in content


@pytest.mark.parametrize("chinese", [False, True])
@pytest.mark.parametrize("made", [replacement, context_summary])
def test_the_text_of_either_frame_is_found_again(made: Callable[..., Literal], chinese: bool) -> None:
    view = view_of(chat(8))
    edit = replace_before(view, 6, made("so far\n\nso good", 5, CHAT, chinese=chinese), 100)
    assert previous_text(apply(view, Plan((edit,)))) == "so far\n\nso good"


@pytest.mark.parametrize("text", ["one line", "two\n\nlines", "", "{count} {text} %s", "[Condensed history] x\n\ny"])
def test_its_text_is_found_again(text: str) -> None:
    assert previous_text(with_record(text)) == text


def test_a_view_without_one_has_no_text() -> None:
    assert previous_text(view_of(chat(2))) == ""


def test_frame_and_text_stay_within_the_cap() -> None:
    cap = 200
    text = cut_text(words(1_000), text_room(cap, WORDS), WORDS)
    assert WORDS.message(json.loads(replacement(text, 9_999, CHAT).raw)) <= cap
    assert WORDS.message(json.loads(replacement(text, 9_999, CHAT, chinese=True).raw)) <= cap
    assert text_room(cap, WORDS) == cap - frame_tokens(WORDS)
    assert text_room(1, WORDS) == 0


def test_it_counts_the_messages_it_stands_for_without_the_users_that_stay() -> None:
    view = view_of(chat(8))
    assert replaced_count(view, 6) == 5
    again = with_record("so far")
    assert replaced_count(again, 6) == 9
    assert replaced_count(view_of(chat(8, pending=False)), 16) == 14
