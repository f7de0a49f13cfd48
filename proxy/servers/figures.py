"""How one upstream counts the prompts of one model, in three figures: offset, slope, and price of a picture. No I/O.

The offset is what the upstream adds to each prompt, such as a hidden system prompt. The slope is how many tokens it
counts for one of ours. A picture costs what its vendor has published, until a reply shows another price.

Only prompts that we counted exactly teach. A new conversation teaches offset and slope: one reply cannot tell them
apart, so its error goes mostly to the offset where the prompt is short, and to the slope where it is long. A
conversation's growth shows the slope alone; once that is known well, the rest of the whole prompt shows the offset. The
figures contain no text, and belong to all tenants of the upstream, so none may set them at will: one prompt, also the
first, moves what is expected of it by at most 5 %. One whose count is not plausible teaches nothing; when many have
taught, nor does one that is off by more than a factor of two, until nine of them come in a row. Only the price of a
picture is set at once, by the first few prompts that show another than the published one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple

from strategies.core.messages import NO_PICTURES, Message, Pictures

STEP = 0.05  # the share by which one prompt may move what is expected of it
FAR = 2.0
MAX_ODD = 8  # after so many prompts in a row that are off by more than `FAR`, the figures follow such prompts too
_MANY = 20
"""So many prompts bring the figures, by one step each, to what most upstreams count; only then is `FAR` a sign."""
MIN_SLOPE, MAX_SLOPE = 0.5, 4.0
MAX_FIRST_OFFSET, MAX_OFFSET = 1_000, 64_000
MAX_PICTURE = 20_000
MIN_GROWTH = 64  # tokens; less teaches nothing
_BALANCED = 600  # the tokens of a prompt whose error is as likely to lie in the offset as in the slope
_MOST_TEXT = 4
"""Text of so many times what the pictures next to it cost still shows what these cost, if its slope is known."""
_FIRST = 3  # so many whole prompts with pictures may set their price anew
_NEWEST, _USUAL = 16, 0.10
"""An error counts for one in so many; the others are the earlier ones, at first the usual one."""


class Lesson(NamedTuple):
    """The upstream's count of a prompt, or of what one has more than another."""

    text: int  # tokens of all but pictures, by our own count
    pictures: Pictures
    counted: int
    is_whole: bool
    slope: float = 1.0  # that of its text, as far as its conversation has shown it (`proxy.servers.counting`)
    is_sure: bool = False  # whether enough of the conversation has shown it


class Votes(NamedTuple):
    """How many prompts have taught something, and how many in a row have contradicted it since."""

    taught: int = 0
    odd: int = 0

    @property
    def is_firm(self) -> bool:
        return self.taught >= _FIRST

    @property
    def agreed(self) -> Votes:
        return Votes(self.taught + 1)

    @property
    def contradicted(self) -> Votes:
        """The votes after one more prompt that is far off: none if such prompts are more than those that taught."""
        return Votes() if self.odd >= min(self.taught, MAX_ODD) else Votes(self.taught, self.odd + 1)


class Figures(NamedTuple):
    offset: float = 0.0
    slope: float = 1.0
    line: Votes = Votes()  # the votes for offset and slope
    picture: float | None = None  # tokens of a picture; None while the published price holds
    price: Votes = Votes()  # the votes for the price of a picture
    first_error: float | None = None
    """The mean relative error of what was expected of first requests; None until a reply has shown one."""
    later_error: float | None = None  # the same, of requests whose beginning the upstream had counted

    @property
    def is_taught(self) -> bool:
        return (self.offset, self.slope, self.picture) != (0.0, 1.0, None)

    def expected(self, text: int, pictures: Pictures, *, is_whole: bool) -> float:
        """Tokens that the upstream is expected to count."""
        return (self.offset if is_whole else 0.0) + self.slope * text + self.cost(pictures)

    def cost(self, pictures: Pictures) -> float:
        return pictures.tokens if self.picture is None else self.picture * pictures.number

    def slope_shown(self, text: int, counted: int) -> tuple[float, float]:
        """The slope that a prompt of so much text shows, and how certain that is, from 0 to 1."""
        certainty = _for_slope(text)
        return self.slope + certainty * ((counted - self.offset) / max(text, 1) - self.slope), certainty

    def with_error(self, error: float, *, is_first: bool) -> Figures:
        """The figures after one more relative error; those above a half count as one half."""
        known = self.first_error if is_first else self.later_error
        mean = _USUAL if known is None else known
        mean = round(mean + (min(error, 0.5) - mean) / _NEWEST, 5)
        return self._replace(first_error=mean) if is_first else self._replace(later_error=mean)

    def taught_by(self, lesson: Lesson) -> Figures:
        """The figures after one more lesson; only their votes differ if it teaches nothing."""
        if lesson.pictures.number:
            return self._with_price(lesson)
        if lesson.text < MIN_GROWTH and not lesson.is_whole:
            return self
        expected = self.expected(lesson.text, NO_PICTURES, is_whole=lesson.is_whole)
        if self.line.taught < _MANY:
            most = MAX_SLOPE * lesson.text + (MAX_FIRST_OFFSET if lesson.is_whole else 0)
            if not MIN_SLOPE * lesson.text <= lesson.counted <= most:
                return self
        elif not _is_near(lesson.counted, expected):
            return self._replace(line=self.line.contradicted)
        offset, slope = self._moved(lesson, _bounded(lesson.counted - expected, -STEP * expected, STEP * expected))
        slope = _bounded(slope, (1 - STEP) * self.slope, (1 + STEP) * self.slope)
        return self._replace(
            offset=_bounded(offset, 0, MAX_OFFSET), slope=_bounded(slope, MIN_SLOPE, MAX_SLOPE), line=self.line.agreed
        )

    def with_offset(self, shown: float, before: Figures) -> Figures:
        """The figures after a conversation has shown an offset too; `before` they learned anything from this prompt.

        A prompt of `_BALANCED` tokens is then expected to have at most a step more or less than before, and a longer
        one too.
        """
        was, text = before.offset + before.slope * _BALANCED, self.slope * _BALANCED
        moved = _bounded(shown, (1 - STEP) * was - text, (1 + STEP) * was - text)
        return self._replace(offset=_bounded(moved, 0, MAX_OFFSET))

    def _moved(self, lesson: Lesson, error: float) -> tuple[float, float]:
        """Offset and slope after a share of the error each; of a short growth the slope takes but a share."""
        for_slope = _for_slope(lesson.text)
        offset = self.offset + error * (1 - for_slope) if lesson.is_whole else self.offset
        return offset, self.slope + error * for_slope / max(lesson.text, 1)

    def _with_price(self, lesson: Lesson) -> Figures:
        """The figures with the price that a lesson shows, unless its text may be off by more than its pictures cost.

        While the published price is right, it stays: unlike one price for all, it goes by the size of a picture.
        """
        number, published = lesson.pictures
        rest = lesson.counted - lesson.slope * lesson.text - (self.offset if lesson.is_whole else 0.0)
        shown = rest / number
        most = abs(rest) * (_MOST_TEXT if lesson.is_sure else 1 / _MOST_TEXT)
        if abs(lesson.text) > most or not 0 < shown <= MAX_PICTURE:
            return self
        if not self.price.is_firm:
            # A picture with new text alone is a clean proof; a whole prompt is not, so the next ones may correct it.
            price = Votes(self.price.taught + 1 if lesson.is_whole else _FIRST)
            is_right = abs(rest - published) <= 2 * STEP * abs(published)
            return self._replace(picture=None if is_right else round(shown, 1), price=Votes() if is_right else price)
        if self.picture is None or not _is_near(shown, self.picture):
            price = self.price.contradicted
            return self._replace(price=price, picture=self.picture if price.taught else None)
        moved = _bounded(shown, (1 - STEP) * self.picture, (1 + STEP) * self.picture)
        return self._replace(picture=moved, price=self.price.agreed)


OWN = Figures()  # the figures of an upstream that counts as we do


def pictures_in(messages: Iterable[Message]) -> Pictures:
    number = tokens = 0
    for message in messages:
        if message.pictures.number:
            number += message.pictures.number
            tokens += message.pictures.tokens
    return Pictures(number, tokens)


def encoded(figures: Figures) -> bytes:
    return json.dumps(figures, separators=(",", ":")).encode()


def decoded(data: bytes) -> Figures:
    """The figures in bytes; raises `ValueError` or `TypeError` if it has none, or impossible ones."""
    offset, slope, line, picture, price, first, later = json.loads(data)
    if not (0 <= offset <= MAX_OFFSET and MIN_SLOPE <= slope <= MAX_SLOPE and 0 <= (picture or 0) <= MAX_PICTURE):
        raise ValueError("figures out of their bounds")
    return Figures(offset, slope, Votes(*line), picture, Votes(*price), first, later)


def _is_near(counted: float, expected: float) -> bool:
    return expected <= FAR * counted and counted <= FAR * expected


def _bounded(value: float, least: float, most: float) -> float:
    return round(min(max(value, least), most), 6)


def _for_slope(text: int) -> float:
    """The share of a prompt's error that is the slope's; the rest is the offset's."""
    return text * text / (text * text + _BALANCED * _BALANCED)
