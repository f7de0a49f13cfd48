"""Recognising a history whose client has dropped its oldest messages."""

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.core.alignment import MIN_RUN, Alignment, Tree, align
from strategies.core.messages import ROOT, chain


class Letter(NamedTuple):
    before: bytes
    digest: bytes


def tree_of(*lines: str) -> Tree[Letter]:
    """The tree of some histories; one letter is one message."""
    tree: Tree[Letter] = Tree()
    for line in lines:
        node = ROOT
        for letter in line:
            node = tree.add(Letter(node, letter.encode()))
    return tree


def node(line: str) -> bytes:
    """The node that a history ends with."""
    return chain(letter.encode() for letter in line)[-1] if line else ROOT


def aligned(tree: Tree[Letter], heads: list[str], sent: str) -> Alignment | None:
    """Capitals are the assistant's."""
    letters = [each.encode() for each in sent]
    return align(tree, {node(head) for head in heads if head}, letters, [each.isupper() for each in sent])


@pytest.mark.parametrize(
    ("stored", "sent", "dropped", "kept_first"),
    [
        ("aBcDeFg", "cDeFg", "aB", False),
        ("aBcDeFg", "cDeFgHi", "aB", False),
        ("aBcDeFg", "DeFg", "aBc", False),
        ("aBcDeFgHi", "aeFgHi", "aBcD", True),
        ("aBcDeFgHi", "aeFgHiJk", "aBcD", True),
        ("abCdEfGh", "aCdEfGh", "ab", True),
    ],
)
def test_a_run_that_reaches_the_stored_head_is_found(stored: str, sent: str, dropped: str, kept_first: bool) -> None:
    assert aligned(tree_of(stored), [stored], sent) == Alignment(node(dropped), kept_first)


@pytest.mark.parametrize(
    ("stored", "sent"),
    [
        ("aBcDeFg", "eFg"),
        ("aBcDeFg", "aeFgHij"),
        ("aBcDeFg", "cDeF"),
        ("aBcDeFg", "cDxFg"),
        ("abcdefg", "cdefg"),
        ("aBcDeFg", "xcDeFg"),
        ("aBcDeFg", "aBcDeFg"),
        ("aBcDeFg", ""),
        ("", "aBcD"),
        ("xAAAAAA", "AAAAAA"),
        ("aBcDeFg", "aBcDxFg"),
        ("aBcDeFgH", "xeFgH"),
    ],
    ids=[
        "too short",
        "too short behind a kept first message",
        "short of the head",
        "changed inside",
        "no assistant",
        "a front that was never stored",
        "the whole",
        "nothing sent",
        "nothing stored",
        "more than one way",
        "a fork",
        "a first message of another history",
    ],
)
def test_what_is_no_single_run_is_not_aligned(stored: str, sent: str) -> None:
    assert aligned(tree_of(stored), [stored], sent) is None


def test_a_run_in_two_histories_of_the_session_is_not_aligned() -> None:
    lines = ["aBcDeFg", "xYcDeFgHi"]
    assert aligned(tree_of(*lines), lines, "cDeFgHi") is None


def test_a_run_that_hangs_on_no_head_is_no_second_history() -> None:
    tree = tree_of("aBcDeFg", "xYcDeF")
    assert aligned(tree, ["aBcDeFg"], "cDeFg") == Alignment(node("aB"), kept_first=False)


def test_the_farthest_head_that_is_reached_counts() -> None:
    lines = ["aBcDeFgHi", "aBcDe"]
    assert aligned(tree_of(*lines), lines, "BcDeFgHi") == Alignment(node("a"), kept_first=False)


def test_a_line_with_a_hole_is_no_line() -> None:
    tree = tree_of("aBcDeFg")
    del tree.messages[node("aB")]
    assert tree.line(node("aBcDeFg")) == []
    assert aligned(tree, ["aBcDeFg"], "acDeFg") is None


def test_what_was_added_twice_stands_once() -> None:
    tree = tree_of("aBc", "aBc")
    assert [each.digest for each in tree.line(node("aBc"))] == [b"a", b"B", b"c"]
    assert tree.places == {b"a": [node("a")], b"B": [node("aB")], b"c": [node("aBc")]}


HISTORIES = st.lists(st.text("aBcD", max_size=12), max_size=4)


@given(HISTORIES, st.data())
def test_it_finds_what_a_search_of_every_place_in_every_line_finds(lines: list[str], data: st.DataObject) -> None:
    windows = [line[i:] for line in lines for i in range(len(line))] or [""]
    sent = data.draw(st.sampled_from(windows)) + data.draw(st.text("aBcD", max_size=3))
    sent = data.draw(st.sampled_from(["", *(line[:1] for line in lines)])) + sent
    assert aligned(tree_of(*lines), lines, sent) == _searched(lines, sent)


def _searched(lines: list[str], sent: str) -> Alignment | None:
    """The rule as the design words it, without regard for its price."""
    for kept, run in ((False, sent), (True, sent[1:])):
        histories = {line[:i] for line in lines for i in range(1, len(line)) if line[i : i + MIN_RUN] == run[:MIN_RUN]}
        found = [
            line[:i]
            for line in lines
            for i in range(1, len(line) - MIN_RUN + 1)
            if run.startswith(line[i:]) and line[i:].lower() != line[i:]
        ]
        if kept:
            found = [each for each in found if len(each) > 1 and each[0] == sent[0]]
        if len(run) >= MIN_RUN and len(histories) == 1 and found:
            return Alignment(node(found[0]), kept)
    return None
