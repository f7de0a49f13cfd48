"""The judge of the fault runs knows a wrong view from a right one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from tests.torture.clients import Run, run_all
from tests.torture.judging import WRONG, Reference, judged, references
from tests.torture.talks import Message, Talk, talks

pytestmark = [pytest.mark.torture, pytest.mark.timeout(240)]

TALKS = 15
"""Of these, the first one that grows for some turns after its condensation is judged."""
LATER = 3
"""Turns between the condensation and the view that is spoiled."""


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reference]:
    with references(tmp_path_factory.mktemp("alone")) as reference:
        yield reference


@pytest.fixture(scope="module")
def spoilt(reference: Reference) -> tuple[Talk, Run, int]:
    """A conversation, what a single process forwards for it, and a turn some time after the first condensation."""
    many = talks(TALKS)
    alone = run_all(reference.remembering, many)
    for talk in many:
        ends = [end for end in talk.ends if alone.outcomes[talk.index, end].depth == 1]
        if len(ends) > LATER:
            return talk, alone, ends[LATER]
    raise AssertionError("no conversation goes on after its condensation")


Spoil = Callable[[Sequence[Message]], Sequence[Message]]
SPOILS: dict[str, Spoil] = {
    "a message is missing": lambda view: [*view[:-2], *view[-1:]],
    "a message is there twice": lambda view: [*view[:-1], *view[-2:]],
    "the cut is a round too late": lambda view: [*view[:3], *view[5:]],
    "a message comes from elsewhere": lambda view: [*view[:-1], {"role": "user", "content": "of somebody else"}],
    "the record is of another history": lambda view: [
        {**each, "content": str(each["content"]).replace("Done: ", "Done: 0")} for each in view
    ],
    "the condensed messages are there as well": lambda view: [*view[:2], *view[1:]],
}


@pytest.mark.parametrize("spoil", SPOILS.values(), ids=SPOILS)
def test_an_impossible_view_is_wrong(spoil: Spoil, spoilt: tuple[Talk, Run, int], reference: Reference) -> None:
    talk, alone, end = spoilt
    right = alone.outcomes[talk.index, end]
    body = {**json.loads(right.body), "messages": spoil(right.view)}
    wrong = replace(right, body=json.dumps(body).encode())
    run = Run({**alone.outcomes, (talk.index, end): wrong})
    verdicts = judged(run, alone, [talk], reference)
    assert [turn for turn, verdict in verdicts.items() if verdict == WRONG] == [(talk.index, end)]


def test_a_view_is_right_for_any_stored_turn(spoilt: tuple[Talk, Run, int], reference: Reference) -> None:
    talk, alone, _ = spoilt
    first = next(end for end in talk.ends if alone.outcomes[talk.index, end].depth == 1)
    before = [end for end in talk.ends if end < first]
    for last_known in before[-3:]:
        body = reference.remembered(talk, [last_known, first])
        run = Run({**alone.outcomes, (talk.index, first): replace(alone.outcomes[talk.index, first], body=body)})
        assert judged(run, alone, [talk], reference)[talk.index, first] in ("same", "rebuilt")
