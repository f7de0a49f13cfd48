"""Recognising a history whose client has dropped its oldest messages."""

from __future__ import annotations

import pytest

from strategies.core.alignment import Alignment, align


def aligned(stored: str, sent: str) -> Alignment | None:
    """One letter is one message; capitals are the assistant's."""
    return align(
        [each.encode() for each in stored], [each.encode() for each in sent], [each.isupper() for each in sent]
    )


@pytest.mark.parametrize(
    ("stored", "sent", "dropped", "kept_first"),
    [
        ("aBcDeFg", "cDeFg", 2, False),
        ("aBcDeFg", "cDeFgHi", 2, False),
        ("aBcDeFg", "DeFg", 3, False),
        ("aBcDeFg", "aeFgHij", None, False),
        ("aBcDeFgHi", "aeFgHi", 4, True),
        ("aBcDeFgHi", "aeFgHiJk", 4, True),
    ],
)
def test_a_run_that_reaches_the_stored_head_is_found(
    stored: str, sent: str, dropped: int | None, kept_first: bool
) -> None:
    found = aligned(stored, sent)
    assert found == (None if dropped is None else Alignment(dropped, kept_first))


@pytest.mark.parametrize(
    ("stored", "sent"),
    [
        ("aBcDeFg", "eFg"),
        ("aBcDeFg", "cDeF"),
        ("aBcDeFg", "cDxFg"),
        ("abcdefg", "cdefg"),
        ("aBcDeFg", "xcDeFg"),
        ("aBcDeFg", "aBcDeFg"),
        ("aBcDeFg", ""),
        ("", "aBcD"),
        ("xAAAAAA", "AAAAAA"),
        ("aBcDeFg", "aBcDxFg"),
    ],
    ids=[
        "too short",
        "short of the head",
        "changed inside",
        "no assistant",
        "a front that was never stored",
        "the whole",
        "nothing sent",
        "nothing stored",
        "more than one way",
        "a fork",
    ],
)
def test_what_is_no_single_run_is_not_aligned(stored: str, sent: str) -> None:
    assert aligned(stored, sent) is None


def test_what_is_missing_are_the_stored_messages_that_were_not_sent() -> None:
    assert list(Alignment(3, kept_first=False).missing()) == [0, 1, 2]
    assert list(Alignment(3, kept_first=True).missing()) == [1, 2]
