"""Anchors and scales: the estimate of a request, and what it means for views of another size."""

import json
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from proxy.runtime.lru import Lru
from proxy.servers import LessonScope
from proxy.servers.counting import (
    MAX_SLOPE,
    MIN_SLOPE,
    UNCALIBRATED,
    Anchor,
    CountedPrompt,
    Slope,
    calibration_for,
    from_row,
    growth,
    longest_anchor,
    slope_between,
    stands_in,
)
from proxy.servers.figures import OWN, Figures, Votes
from strategies.core.messages import Reader, Role, dump, literal
from strategies.core.pieces import Literal, Overlay, PieceKind
from strategies.core.transcript import Transcript
from strategies.core.view import fold
from strategies.dialects.chat import CHAT
from tests.support.transcripts import WORDS

SCOPE = LessonScope("m", "t")
LINE = OWN._replace(offset=700, slope=1.5, line=Votes(9))


def transcript(*texts: str, system: str = "Be brief.") -> Transcript:
    roles = ("user", "assistant")
    bodies: list[dict[str, Any]] = [{"role": "system", "content": system}]
    bodies += [{"role": roles[place % 2], "content": text} for place, text in enumerate(texts)]
    return Transcript.of([Reader().read(dump(body), body, len(str(body["content"])), CHAT) for body in bodies])


UNKNOWN = Slope()


def prompt_of(of: Transcript, *, counter: str = "c", frame: str = "f", overhead: int = 3) -> CountedPrompt:
    return CountedPrompt(of, overhead, counter, frame)


def anchored(request: CountedPrompt, counted: int, applied: str = "", slope: Slope = UNKNOWN) -> Anchor:
    digests, made_by = request.transcript.digests, (request.counter, request.frame, request.outside)
    return Anchor(digests[-1].hex(), len(digests), applied, counted, request.own, *made_by, request.pictures, slope)


def expected(
    request: CountedPrompt, figures: Figures, known: Anchor | None = None, stored: Anchor | None = None
) -> int:
    return calibration_for(request, figures, known, stored, 50_000).scale.upstream(request.own)


TALK = ("a" * 400, "b" * 300, "c" * 200)
FIRST = prompt_of(transcript(*TALK))
NEXT = prompt_of(transcript(*TALK, "d" * 500, "e" * 100))


def test_a_conversation_has_a_slope_of_its_own_for_what_is_new() -> None:
    assert abs(expected(NEXT, LINE, anchored(FIRST, 2_000)) - (2_000 + 1.5 * 600)) <= 1
    known = anchored(FIRST, 2_000, slope=Slope(2.5, 400))
    assert abs(expected(NEXT, LINE, known) - (2_000 + 2.5 * 600)) <= 1
    elsewhere = prompt_of(transcript("another", *TALK))
    assert abs(expected(elsewhere, LINE, None, stored=known) - (700 + 2.5 * elsewhere.own)) <= 1


def test_a_slope_follows_growth() -> None:
    slope = Slope(1.0, 100).after(300, 780)
    assert slope == Slope(2.2, 400)
    assert slope.after(0, 50) == slope
    assert slope.after(300, 60) == slope.after(300, 1_300) == slope


def test_a_slope_reaches_four_times_as_far_as_the_text_that_has_shown_it() -> None:
    shown = Slope(2.0, 100)
    assert [shown.tokens(text, LINE) for text in (-400, 0, 300, 400, 1_400)] == [-800, 0, 600, 800, 800 + 1_500]
    assert Slope(2.0).tokens(400, LINE) == 600
    known = anchored(FIRST, 2_000, slope=Slope(2.5, 100))
    assert abs(expected(NEXT, LINE, known) - (2_000 + 2.5 * 400 + 1.5 * 200)) <= 1
    elsewhere = prompt_of(transcript("another", *TALK))
    beyond = elsewhere.own - 400
    assert abs(expected(elsewhere, LINE, None, stored=known) - (700 + 2.5 * 400 + 1.5 * beyond)) <= 1


def test_text_that_is_far_off_moves_a_slope_only_when_there_is_as_much_of_it() -> None:
    slope = Slope(1.1, 500)
    once = slope.after(200, 500)
    assert once == Slope(1.1, 300)
    twice = once.after(200, 500)
    assert twice == Slope(1.1, 100)
    assert twice.after(200, 500).value > 1.9
    assert Slope(1.1, 5).after(200, 500).value > 2.2


def test_where_estimates_end_the_slope_is_that_of_counted_text() -> None:
    more = (*TALK, "d" * 300, "e" * 100)
    first = anchored(prompt_of(transcript(*TALK), counter="length"), 1_200)
    last = anchored(prompt_of(transcript(*more), counter="length"), 2_000, slope=Slope(3.0, 9_000))
    now = prompt_of(transcript(*more, "f" * 4_000))
    assert slope_between(first, last, now, LINE) == Slope(LINE.slope).after(400, 800)
    for other in (last, first._replace(applied="c1"), first._replace(frame="other")):
        assert slope_between(other, last, now, LINE) == Slope(LINE.slope)


def test_system_messages_and_tools_may_change_behind_an_anchor() -> None:
    later = prompt_of(transcript(*TALK, "d" * 500, system="It is a quarter past ten."), overhead=43)
    longer = len("It is a quarter past ten.") - len("Be brief.")
    assert abs(expected(later, OWN, anchored(FIRST, 2_000)) - (2_000 + 500 + longer + 40)) <= 1


def test_an_anchor_holds_with_another_counter_unless_that_counted_a_change() -> None:
    now = prompt_of(transcript(*TALK, "d" * 500), counter="another")
    grown = growth(anchored(FIRST, 2_000), now)
    assert grown is not None
    assert grown.text == 500
    now = prompt_of(transcript(*TALK, "d" * 500), counter="another", frame="other tools")
    assert growth(anchored(FIRST, 2_000), now) is None
    assert growth(anchored(FIRST, 2_000, "c1"), replace(now, frame="f")) is None


def test_a_view_grows_from_an_anchor_that_it_contains() -> None:
    known = calibration_for(NEXT, LINE, anchored(FIRST, 2_000, "c1"), None, 50_000)
    assert known.growth_since("c1", NEXT.own) is not None
    assert known.growth_since("", NEXT.own) is None
    assert known.growth_since("c1", NEXT.own - 300) is None  # another session's record, or messages that were left out


def picture(number: int) -> dict[str, Any]:
    part = {"type": "image_url", "image_url": {"url": f"https://example.test/{number}.png"}}
    return {"role": "user", "content": [{"type": "text", "text": "See this."}, part]}


def test_a_condensed_view_with_fewer_pictures_is_estimated() -> None:
    bodies = [picture(number) for number in range(10)]
    whole = Transcript.of([Reader().read(dump(body), body, 1_100, CHAT) for body in bodies])
    text = literal({"role": "user", "content": "w " * 200}, WORDS, Role.USER)
    request = replace(prompt_of(whole, overhead=0), has_media=True)
    known = calibration_for(request, OWN._replace(picture=250), None, None, None)
    view = fold(whole, [Overlay(whole.digests[7], 8, 8, (Literal(text.raw, PieceKind.REPLACEMENT),))], 0, WORDS)
    assert abs(known.expected(fold(whole, (), 0, WORDS), "") - 10 * 256) <= 50
    assert abs(known.expected(view, "c1") - (2 * 256 + text.tokens)) <= 20


def test_what_is_not_learned_changes_little() -> None:
    assert calibration_for(NEXT, OWN, None, None, 50_000) == UNCALIBRATED
    scale = calibration_for(NEXT, OWN, anchored(FIRST, FIRST.own), None, 50_000).scale
    assert (scale.offset, scale.slope) == (0, 1.0)
    assert calibration_for(NEXT, LINE._replace(offset=30_000), None, None, 4_000).scale.offset <= 1_000


@given(st.integers(1, 400_000), st.integers(1, 2_000), st.integers(0, 2_000))
def test_a_scale_is_steady_and_goes_through_what_is_known(counted: int, first: int, then: int) -> None:
    before = prompt_of(transcript("a" * first))
    after = prompt_of(transcript("a" * first, "b" * then))
    scale = calibration_for(after, OWN, anchored(before, counted), None, None).scale
    assert MIN_SLOPE <= scale.slope <= MAX_SLOPE
    assert abs(scale.upstream(after.own) - (counted + then)) <= 1
    assert scale.upstream(after.own - 1) <= scale.upstream(after.own)


def test_the_newest_anchor_of_a_transcript_is_found_and_strangers_find_none() -> None:
    anchors: Lru[tuple[LessonScope, bytes], Anchor] = Lru(2)
    anchors.put((SCOPE, FIRST.transcript.digests[-1]), anchored(FIRST, 2_000))
    assert longest_anchor(anchors, SCOPE, NEXT.transcript.digests) == anchored(FIRST, 2_000)
    assert longest_anchor(anchors, LessonScope("m", "other"), NEXT.transcript.digests) is None
    assert longest_anchor(anchors, LessonScope("other", "t"), NEXT.transcript.digests) is None
    assert longest_anchor(anchors, SCOPE, transcript("x", *TALK).digests) is None
    for number in range(2):
        anchor = anchored(prompt_of(transcript(str(number))), 1)
        anchors.put((SCOPE, bytes.fromhex(anchor.node)), anchor)
    assert longest_anchor(anchors, SCOPE, NEXT.transcript.digests) is None


def test_an_anchor_stands_in_its_view_and_comes_back_from_the_store() -> None:
    anchor = anchored(FIRST, 2_000)
    assert stands_in(anchor, NEXT.transcript.digests)
    assert not stands_in(anchor, transcript("x", *TALK).digests)
    assert not stands_in(anchor, FIRST.transcript.digests[:2])
    anchor = anchored(FIRST, 2_000, "c1")
    row = json.loads(json.dumps(anchor))
    assert from_row(row) == anchor
    assert isinstance(from_row(row).slope, Slope)
