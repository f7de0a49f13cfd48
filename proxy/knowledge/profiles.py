"""Profiles: the forms of a request that an upstream refuses, known from the settings or from its errors.

A lesson from an error holds for the tenant that met it (`LessonScope`), because an error may quote the request, and one
tenant must not teach another.

A form that a server names in a refusal holds for later requests to that model as long as this process runs, once the
request was accepted in it: the words of an error are no proof. A refusal names only forms that were not known, so a
request is sent again at most as often as there is something to learn.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from http import HTTPStatus
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from proxy.quoting import label, printable
from proxy.runtime.lru import Lru
from proxy.tokens.models import StatedWindow
from strategies.core.messages import Form

MAX_MODELS, MAX_SCOPES = 1_000, 4_000
SHOWN = 12  # characters of a tenant that logs and reports show
MAX_READ = 4_096  # bytes of an error; after them some servers repeat the whole request
REFUSING = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.INTERNAL_SERVER_ERROR)
"""The statuses with which servers refuse the form of a request; some chat templates fail with 500."""
_log = logging.getLogger(__name__)


# -- whom a lesson holds for ---------------------------------------------------------------------------


class LessonScope(NamedTuple):
    """A model, the tenant for whom a lesson about it holds, and the address of the upstream that taught it."""

    model: str
    tenant: str = ""
    upstream: str = ""

    @property
    def named(self) -> str:
        """For a line of the log: the model, and the tenant, whose digest is shortened."""
        return f"{label(self.model)} (tenant {printable(self.tenant, SHOWN) or 'none'})"


WindowLookup = Callable[[LessonScope], StatedWindow | None]
"""Gives the window that the server of a scope states for its model."""


# -- profiles ------------------------------------------------------------------------------------------


class Restriction(NamedTuple):
    """A member of a profile, with the value that an error names."""

    key: str
    value: bool | str


class Profile(BaseModel):
    """The form of requests that one upstream accepts; also the table `profile` of the settings."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    alternate_roles: bool = False  # user and assistant messages must take turns
    assistant_name: bool = True  # an assistant message may have a name
    compact_endpoint: bool = True  # `POST /v1/responses/compact` is served
    compaction_trigger: bool = True  # a last item `compaction_trigger` is answered with a compaction
    context_management: bool = True  # the member `context_management` of Responses is accepted
    empty_assistant: bool = True  # an assistant message may have no content
    middle_system: bool = True  # a system message may follow other messages
    reasoning: Literal["bound", "required"] | None = None
    """When reasoning may be sent back (`strategies.core.reasoning`). None: signed reasoning is bound."""
    stream_options: bool = True  # `stream_options` is accepted, which `usage_probe` adds
    token_limit: Literal["max_completion_tokens", "max_tokens"] | None = None
    """The parameter that bounds our own calls. None: the first, and the second if the first is refused."""

    @cached_property
    def form(self) -> Form | None:
        form = Form(self.alternate_roles, self.assistant_name, self.empty_assistant, self.middle_system)
        return None if form == Form() else form

    def under(self, restriction: Restriction) -> Profile:
        """The profile with one more restriction; a pydantic copy would keep the cached `form`."""
        return Profile(**{**self.model_dump(), restriction.key: restriction.value})


ANY = Profile()  # the profile of OpenAI's own API


_WORDS = {
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
    "context_management": (r"\bcontext_management\b",),
}
_LESSONS = {key: re.compile("|".join(words), re.IGNORECASE | re.DOTALL) for key, words in _WORDS.items()}
"""The words of the errors that name each restriction."""


@dataclass(slots=True, eq=False)
class Profiles:
    _set_for: Callable[[str], Profile] = lambda _: ANY
    _set: Lru[str, Profile] = field(default_factory=lambda: Lru(MAX_MODELS), init=False)
    _learned: Lru[LessonScope, Profile] = field(default_factory=lambda: Lru(MAX_SCOPES), init=False)

    def for_model(self, scope: LessonScope) -> Profile:
        """The profile of a model's server, as far as it is known in a scope."""
        model = scope.model
        return self._learned.get(scope) or self._set.use(model) or self._set.put(model, self._set_for(model))

    def renew(self, set_for: Callable[[str], Profile]) -> None:
        """Begins anew with other settings; what was learned is learned again, on top of what they say."""
        self._set_for = set_for
        self._set, self._learned = Lru(MAX_MODELS), Lru(MAX_SCOPES)

    def known(self) -> Iterator[tuple[LessonScope, Profile]]:
        """All profiles that were learned."""
        yield from self._learned.items()

    def learn(self, scope: LessonScope, restrictions: Iterable[Restriction]) -> None:
        """Learns the restrictions that a request was accepted under."""
        before = taught = self.for_model(scope)
        for restriction in restrictions:
            taught = taught.under(restriction)
        if taught != before:
            self._learned.put(scope, taught)
            _log.info("the upstream wants requests for %s in another form; from now on: %r", scope.named, taught)


NO_ENDPOINT, NO_TRIGGER = Restriction("compact_endpoint", False), Restriction("compaction_trigger", False)
_NO_PATH = (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED)
_UNKNOWN_PATH = re.compile(r"\b(?:unexpected|unknown|unsupported|invalid|no such) (?:endpoint|path|route|url)\b", re.I)


def lacks_compact_endpoint(status: int, body: bytes) -> bool:
    """Whether an answer says that the server has no endpoint for compactions, and not that it has no such model."""
    text = body[:MAX_READ].decode("utf-8", "replace")
    if status in _NO_PATH:
        return not re.search(r"\bmodel", text, re.I) or _UNKNOWN_PATH.search(text) is not None
    return status == HTTPStatus.BAD_REQUEST and _UNKNOWN_PATH.search(text) is not None


def refuses_trigger(status: int, body: bytes) -> bool:
    """Whether an error to a request that ends with a trigger for a compaction names that."""
    return status in (*REFUSING, *_NO_PATH) and b"compaction_trigger" in body[:MAX_READ]


def restriction_in(status: int, body: bytes, sent: Profile) -> Restriction | None:
    """The restriction that an error to a request in the form `sent` names; None if it names none, or a known one."""
    if status not in REFUSING:
        return None
    text = body[:MAX_READ].decode("utf-8", "replace")
    for key, words in _LESSONS.items():
        value = key == "alternate_roles"
        if getattr(sent, key) != value and words.search(text):
            return Restriction(key, value)
    return None
