"""The form of requests that one upstream accepts; the table `profile` of the settings."""

from __future__ import annotations

from functools import cached_property
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from strategies.core.messages import Form


class Restriction(NamedTuple):
    """A member of a profile, with the value that an error names."""

    key: str
    value: bool | str


class Profile(BaseModel):
    """The form of requests that one upstream accepts, known from the settings or from its errors."""

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
