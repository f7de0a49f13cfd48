"""Profiles: the forms of a request that an upstream refuses, known from the settings or from its errors.

A lesson from an error holds at once for the tenant that met it (`LessonScope`). It holds for everyone only if the error
still teaches it without all that it may have quoted from the request (`CallersText`): values, runs of two words or
more, and numbers.

What a server says about the form of one request holds for later requests to that model as long as this process runs. A
refusal teaches only what was not known, so a request is sent again at most as often as there is something to learn.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from http import HTTPStatus
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from proxy.quoting import label
from proxy.runtime.lru import Lru
from proxy.values import json_or_none
from strategies.core.messages import Form

MAX_MODELS, MAX_SCOPES = 1_000, 4_000
MAX_READ = 4_096  # bytes of an error; after them some servers repeat the whole request
STREAM_OPTIONS = "stream_options"
REFUSING = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.INTERNAL_SERVER_ERROR)
"""The statuses with which servers refuse the form of a request; some chat templates fail with 500."""
MAX_COMPARED = 256 * 1024
"""Bytes of a request that are compared with an error; an error to a longer request proves nothing."""
MAX_WORDS = 400
"""Words of an error that are compared with the request; a longer error proves nothing."""
_DEEPEST = 32
_PROTOCOL = frozenset(
    """
    messages role content name type text id model user assistant system developer tool tools function functions
    tool_calls tool_call_id arguments parameters description properties required object string stream stream_options
    include_usage max_tokens max_completion_tokens temperature
    """.split()  # noqa: SIM905 - a table of words
)
"""Words of the protocol: an error may contain them without quoting the request."""
_SHORT = 64  # characters of a value that an error may quote as one word
_MARKS = re.compile(r"[`'\"*\\“”‘’]+|(?<=\d),(?=\d{3})")
_WORD = re.compile(r"[^\W_]+")

_log = logging.getLogger(__name__)


# -- whom a lesson holds for ---------------------------------------------------------------------------


class LessonScope(NamedTuple):
    """A model, and the tenant for whom a lesson about it holds; None for everyone."""

    model: str
    tenant: str | None = None

    @property
    def everyone(self) -> LessonScope:
        return LessonScope(self.model)


class CallersText:
    """The text of one request that its caller controls, to be removed from errors."""

    def __init__(self, body: bytes) -> None:
        self._is_known = len(body) <= MAX_COMPARED
        values = list(_values(json_or_none(body), _DEEPEST)) if self._is_known else []
        self._values = {_plain(value) for value in values if len(value) <= _SHORT}
        self._text = f" {_plain(' '.join(values))} "

    def removed_from(self, text: str) -> str:
        """The text with a semicolon for each word that may come from the request; "" if it is too long to tell."""
        text = _unmarked(text)
        words = [word.lower() for word in _WORD.findall(text)]
        if not self._is_known or len(words) > MAX_WORDS:
            return ""
        quoted = [word in self._values or (word.isdigit() and f" {word} " in self._text) for word in words]
        for at, pair in enumerate(pairwise(words)):
            if " {} {} ".format(*pair) in self._text:
                quoted[at] = quoted[at + 1] = True
        left = iter(quoted)
        return _WORD.sub(lambda word: ";" if next(left) else word.group(), text)


def _plain(text: str) -> str:
    return " ".join(_WORD.findall(_unmarked(text).lower()))


def _unmarked(text: str) -> str:
    """The text without quotation marks, and without the commas in numbers."""
    return _MARKS.sub("", text)


def _values(value: Any, depth: int) -> Iterator[str]:
    """All keys, strings and numbers of a body, except the model's name: lessons are kept by that."""
    match value:
        case dict() if depth:
            for key, inner in value.items():
                if depth < _DEEPEST or key != "model":
                    yield from _values(key, depth)
                    yield from _values(inner, depth - 1)
        case list() if depth:
            for inner in value:
                yield from _values(inner, depth - 1)
        case str() | int() | float() if value not in _PROTOCOL:
            yield str(value)


# -- profiles ------------------------------------------------------------------------------------------


class Profile(BaseModel):
    """The form of requests that one upstream accepts; also the table `profile` of the settings."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    alternate_roles: bool = False
    """User and assistant messages must take turns."""
    assistant_name: bool = True
    """An assistant message may have a name."""
    empty_assistant: bool = True
    """An assistant message may have no content."""
    middle_system: bool = True
    """A system message may follow other messages."""
    stream_options: bool = True
    """`stream_options` is accepted, which `usage_probe` adds."""
    token_limit: Literal["max_completion_tokens", "max_tokens"] | None = None
    """The parameter that bounds our own calls. None: the first, and the second if the first is refused."""

    @cached_property
    def form(self) -> Form | None:
        form = Form(self.alternate_roles, self.assistant_name, self.empty_assistant, self.middle_system)
        return None if form == Form() else form

    def learned(self, key: str, *, value: bool) -> Profile:
        """The profile with one more lesson; a pydantic copy would keep the cached `form`."""
        return Profile(**{**self.model_dump(), key: value})


ANY = Profile()
"""The profile of OpenAI's own API."""


_REFUSED = r"(?:unsupported|not supported|not permitted|not allowed|forbidden|unknown|unrecognized|unexpected|extra)"
_UNKNOWN = (
    rf"(?:\b{_REFUSED}\b|\b(?:invalid|unrecognised|not recogni[sz]ed|cannot find)\b|(?:\bnot|n.t|\bcannot) support\b)"
)
_WORDS = {
    STREAM_OPTIONS: (
        rf"{_UNKNOWN}.{{0,80}}\b{STREAM_OPTIONS}\b",
        rf"\b{STREAM_OPTIONS}\b.{{0,80}}{_UNKNOWN}",
    ),
    "alternate_roles": (
        r"\b(?:roles?|turns?|requests?|messages?|conversations?|user)\b[^.]{0,80}\balternat",
        r"\balternat\w*[^.]{0,80}\b(?:roles?|user|assistant)\b",
        r"\b(?:successive|consecutive)\b[^.]{0,40}\b(?:user|assistant|role|messages?)\b",
        r"unexpected role\W{1,4}(?:user|assistant)\W{1,4}after role",
    ),
    "middle_system": (
        r"\bsystem\W{0,3}(?:message|role|prompt)s?\b[^.]{0,60}\b(?:beginning|first|start|precede)\b",
        r"unexpected role\W{1,4}system\W{1,4}after role",
        r"only the first message can\b[^.]{0,20}\bsystem",
    ),
    "assistant_name": (
        rf"\bmessages?\b.{{0,80}}\bname\b.{{0,80}}\b{_REFUSED}\b",
        rf"\b{_REFUSED}\b.{{0,60}}\bname\b.{{0,60}}\b(?:messages?|assistant)\b",
        rf"\b{_REFUSED}\b.{{0,60}}\bmessages?\b.{{0,40}}\bname\b",
    ),
    "empty_assistant": (
        r"non-?empty content",
        r"content blocks? must be non-?empty",
        r"\bcontent\b.{0,80}\bis blank\b",
        r"\bcontent\b.{0,40}expected a string, got null",
        r"assistant.{0,60}\bmust\b.{0,30}\b(?:content|not be empty)",
        r"\bmessages?\b.{0,60}\bcontent\b.{0,60}(?:valid string|field required|none is not an allowed)",
    ),
}
_LESSONS = {key: re.compile("|".join(words), re.IGNORECASE | re.DOTALL) for key, words in _WORDS.items()}
"""The words of the errors that teach each restriction."""


@dataclass(slots=True, eq=False)
class Profiles:
    _set_for: Callable[[str], Profile] = lambda _: ANY
    _set: Lru[str, Profile] = field(default_factory=lambda: Lru(MAX_MODELS), init=False)
    _learned: Lru[LessonScope, Profile] = field(default_factory=lambda: Lru(MAX_SCOPES), init=False)

    def for_model(self, scope: LessonScope) -> Profile:
        """The profile of a model's server, as far as it is known in a scope."""
        learned = self._learned.get(scope) or self._learned.get(scope.everyone)
        return learned or self._set.use(scope.model) or self._set.put(scope.model, self._set_for(scope.model))

    def learn_from_refusal(
        self, scope: LessonScope, status: int, body: bytes, sent: Profile, *, options: bool, request: bytes
    ) -> Profile | None:
        """Learns from an error to a request that was written for the profile `sent`.

        Returns the profile to write it for now; None if the error teaches nothing that `sent` did not say. Another
        request may have taught it meanwhile. `options` is the value of `sends_options` for the request, and `request`
        are the bytes that were sent.
        """
        if profile_after(status, body, sent, options=options) == sent:
            return None
        said = CallersText(request).removed_from(body[:MAX_READ].decode("utf-8", "replace")).encode()
        taught = profile_after(status, body, self.for_model(scope), options=options)
        self._learn(scope.everyone, profile_after(status, said, self.for_model(scope.everyone), options=options))
        self._learn(scope, taught)
        return taught

    def _learn(self, scope: LessonScope, taught: Profile) -> None:
        if taught != self.for_model(scope):
            self._learned.put(scope, taught)
            holds_for = "one tenant" if scope.tenant else "everyone"
            refuses = "the upstream refuses the form of a request for %s; from now on, for %s: %r"
            _log.info(refuses, label(scope.model), holds_for, taught)


def sends_options(values: Mapping[str, Any], *, probed: bool) -> bool:
    """Whether a request has `stream_options` that every server which knows them accepts.

    That is so if we put them in (`probed`), or if the client's own are as we would write them. `values` are the members
    of the client's body.
    """
    own = values.get(STREAM_OPTIONS)
    if values.get("stream") is not True:
        return False
    if own is None:
        return probed
    return isinstance(own, Mapping) and all(key == "include_usage" and isinstance(own[key], bool) for key in own)


def profile_after(status: int, body: bytes, known: Profile = ANY, *, options: bool) -> Profile:
    """The profile after an error: with one more lesson, or the same.

    That a server does not know `stream_options` is learned only if the request had acceptable ones (`options`).
    """
    if status not in REFUSING:
        return known
    text = body[:MAX_READ].decode("utf-8", "replace")
    for key, words in _LESSONS.items():
        value = key == "alternate_roles"
        may_be_learned = getattr(known, key) != value and (options or key != STREAM_OPTIONS)
        if may_be_learned and words.search(text):
            return known.learned(key, value=value)
    return known
