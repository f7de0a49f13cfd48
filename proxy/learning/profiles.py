"""Profiles: what an upstream refuses, by settings, or because it has said so in an error.

What a server says of one request holds for all that follow with that model, as long as this process runs: what is
written in a form that is taken by stricter servers harms none. A refusal teaches only what was not known, so a request
is sent again at most as often as there is something left to learn.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, NamedTuple

from proxy.runtime.lru import Lru
from strategies.core.form import Form

MOST_MODELS = 1_000
MOST_READ = 4_096  # bytes of an error; behind them some servers repeat the whole request
STREAM_OPTIONS = "stream_options"
REFUSING = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.INTERNAL_SERVER_ERROR)
"""With these servers refuse the form of a request; some chat templates fail with 500."""

_PLAIN = Form()

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Profile:
    """What one upstream takes: `messages` in which form, `stream_options`, and under which name the length of a reply,
    where that is known."""

    messages: Form = _PLAIN
    stream_options: bool = True
    token_limit: str | None = None

    @property
    def form(self) -> Form | None:
        """The form of messages; None where any is taken."""
        return None if self.messages == _PLAIN else self.messages


ANY = Profile()
"""What OpenAI's own API takes."""


class _Lesson(NamedTuple):
    """What an error in these words says of the form of messages."""

    words: re.Pattern[str]
    learned: Callable[[Form], Form]


def _lesson(learned: Callable[[Form], Form], *words: str) -> _Lesson:
    return _Lesson(re.compile("|".join(words), re.IGNORECASE | re.DOTALL), learned)


_REFUSED = r"(?:unsupported|not supported|not permitted|not allowed|forbidden|unknown|unrecognized|unexpected|extra)"
_UNKNOWN = (
    rf"(?:\b{_REFUSED}\b|\b(?:invalid|unrecognised|not recogni[sz]ed|cannot find)\b|(?:\bnot|n.t|\bcannot) support\b)"
)
_NO_OPTIONS = re.compile(
    rf"{_UNKNOWN}.{{0,80}}\b{STREAM_OPTIONS}\b|\b{STREAM_OPTIONS}\b.{{0,80}}{_UNKNOWN}", re.IGNORECASE | re.DOTALL
)
_LESSONS = (
    _lesson(
        lambda form: replace(form, alternate_roles=True),
        r"\b(?:roles?|turns?|requests?|messages?|conversations?|user)\b[^.]{0,80}\balternat",
        r"\balternat\w*[^.]{0,80}\b(?:roles?|user|assistant)\b",
        r"\b(?:successive|consecutive)\b[^.]{0,40}\b(?:user|assistant|role|messages?)\b",
        r"unexpected role\W{1,4}(?:user|assistant)\W{1,4}after role",
    ),
    _lesson(
        lambda form: replace(form, middle_system=False),
        r"\bsystem\W{0,3}(?:message|role|prompt)s?\b[^.]{0,60}\b(?:beginning|first|start|precede)\b",
        r"unexpected role\W{1,4}system\W{1,4}after role",
        r"only the first message can\b[^.]{0,20}\bsystem",
    ),
    _lesson(
        lambda form: replace(form, assistant_name=False),
        rf"\bmessages?\b.{{0,80}}\bname\b.{{0,80}}\b{_REFUSED}\b",
        rf"\b{_REFUSED}\b.{{0,60}}\bname\b.{{0,60}}\b(?:messages?|assistant)\b",
        rf"\b{_REFUSED}\b.{{0,60}}\bmessages?\b.{{0,40}}\bname\b",
    ),
    _lesson(
        lambda form: replace(form, empty_assistant=False),
        r"non-?empty content",
        r"content blocks? must be non-?empty",
        r"\bcontent\b.{0,80}\bis blank\b",
        r"\bcontent\b.{0,40}expected a string, got null",
        r"assistant.{0,60}\bmust\b.{0,30}\b(?:content|not be empty)",
        r"\bmessages?\b.{0,60}\bcontent\b.{0,60}(?:valid string|field required|none is not an allowed)",
    ),
)


class Profiles:
    """The profiles of the models behind one upstream; one per app. `set_for` gives what the settings say of a model."""

    def __init__(self, set_for: Callable[[str], Profile] = lambda _: ANY) -> None:
        self._set_for = set_for
        self._set: Lru[str, Profile] = Lru(MOST_MODELS)
        self._learned: Lru[str, Profile] = Lru(MOST_MODELS)

    def of(self, model: str) -> Profile:
        """What is known of a model's server."""
        return self._learned.get(model) or self._set.use(model, lambda: self._set_for(model))

    def refused(self, model: str, status: int, body: bytes, sent: Profile, *, options: bool) -> Profile | None:
        """What is known after an error to what was written for the profile `sent`; None where it teaches nothing that
        was not known there. `options` as `sends_options` gives it.

        It may be known by now from a request that was under way at the same time.
        """
        if taught_by(status, body, sent, options=options) == sent:
            return None
        known = self.of(model)
        taught = taught_by(status, body, known, options=options)
        if taught != known:
            self._learned.put(model, taught)
            _log.info("the upstream refuses the form of a request for %s; from now on: %s", model, taught)
        return taught


def sends_options(values: Mapping[str, Any], *, probed: bool) -> bool:
    """Whether a request has `stream_options` that only a server refuses which knows none: those that we put into it
    (`probed`), or the client's own as we would write them. `values` are the members of the client's body."""
    own = values.get(STREAM_OPTIONS)
    if values.get("stream") is not True:
        return False
    if own is None:
        return probed
    return isinstance(own, Mapping) and all(key == "include_usage" and isinstance(own[key], bool) for key in own)


def taught_by(status: int, body: bytes, known: Profile = ANY, *, options: bool) -> Profile:
    """What is known after an error: one thing more, or the same; of `stream_options` only where it was to an `options`
    that a server takes which knows them."""
    if status not in REFUSING:
        return known
    said = body[:MOST_READ].decode("utf-8", "replace")
    if options and known.stream_options and _NO_OPTIONS.search(said):
        return replace(known, stream_options=False)
    for lesson in _LESSONS:
        messages = lesson.learned(known.messages)
        if messages != known.messages and lesson.words.search(said):
            return replace(known, messages=messages)
    return known
