"""The tables of the settings: what each of them holds, its defaults and its bounds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from proxy.condensing.cost import Prices
from proxy.learning.profiles import Profile
from proxy.settings.values import (
    HeaderNames,
    HttpAddress,
    KnownStrategy,
    Networks,
    Secret,
    Text,
    header_name,
    not_empty,
)
from proxy.store import SCHEMES
from strategies.core.budget import Marks
from strategies.core.form import Form
from strategies.core.ledger import LedgerCaps


class Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ProfileSettings(Table):
    """What a server takes of what we put into a request; what it refuses is learned from its errors besides."""

    alternate_roles: bool = False
    assistant_name: bool = True
    empty_assistant: bool = True
    middle_system: bool = True
    stream_options: bool = True
    token_limit: Literal["max_completion_tokens", "max_tokens"] | None = None

    def to_profile(self) -> Profile:
        """The profile as it is gone by."""
        form = Form(self.alternate_roles, self.assistant_name, self.empty_assistant, self.middle_system)
        return Profile(form, self.stream_options, self.token_limit)


class UpstreamSettings(Table):
    """Where requests go; an address without a path gets `/v1`.

    Without `api_key` the caller's own credential is passed on. With `discover` the server at the address is asked which
    windows its models have. `profile` says what it takes.
    """

    base_url: HttpAddress = "https://api.openai.com/v1"
    api_key: Secret | None = None
    connect_timeout: float = Field(5.0, gt=0)
    read_timeout: float = Field(600.0, gt=0)
    max_connections: int = Field(1_000, gt=0)
    discover: bool = True
    learned_ttl: int = Field(24 * 3600, gt=0)
    profile: ProfileSettings = ProfileSettings()


class StoreSettings(Table):
    """Where sessions are kept. `ttl` in seconds, renewed by each turn; `timeout` for one request's store work.

    `content = "digests"` keeps no text of clients' messages: digests, counts and pieces of our own only. The quotas are
    bytes as they are stored; 0 means none.
    """

    url: str = Field(default_factory=lambda: f"sqlite:///{data_directory() / 'condenser.db'}")
    ttl: int = Field(7 * 24 * 3600, gt=0)
    timeout: float = Field(1.0, gt=0)
    content: Literal["full", "digests"] = "full"
    max_session_bytes: int = Field(0, ge=0)
    max_tenant_bytes: int = Field(0, ge=0)

    @field_validator("url")
    @classmethod
    def _known_scheme(cls, value: str) -> str:
        scheme, _, place = value.partition("://")
        if scheme not in SCHEMES:
            raise ValueError(f"must begin with one of {', '.join(f'{each}://' for each in SCHEMES)}")
        if scheme == "sqlite" and (not place.startswith("/") or place == "/"):
            raise ValueError("names no file; write sqlite:///relative/path or sqlite:////absolute/path")
        if scheme == "memory" and place:
            raise ValueError("memory:// takes nothing more")
        return value


class MarkSettings(Table):
    """Shares of usable; see `strategies.core.budget.Marks`. `reserve` is in tokens."""

    prepare: float = Field(0.70, gt=0, le=1)
    trigger: float = Field(0.85, gt=0, le=1)
    target: float = Field(0.50, gt=0, le=1)
    step: float = Field(0.15, ge=0, le=1)
    reserve: int | None = Field(None, ge=0)

    def to_marks(self) -> Marks:
        """The marks as the core has them."""
        return Marks(self.prepare, self.trigger, self.target, self.step)


class ModelRole(Table):
    """A model that we ask ourselves. What is not set is the request's own upstream, key and model.

    `timeout` in seconds for one call. `max_tokens` is the most that an answer may be asked to have; like `temperature`
    it is sent only where it is set.
    """

    base_url: HttpAddress | None = None
    api_key: Secret | None = None
    model: Text | None = None
    timeout: float = Field(300.0, gt=0)
    temperature: float | None = Field(None, ge=0, le=2)
    max_tokens: int | None = Field(None, gt=0)


class SummarizerRole(ModelRole):
    """The model that writes summaries. `window` in tokens is its own where it is another than the request's.

    `form = "continue"` has the request's model go on from the view itself, so that the upstream's cache is hit.
    """

    window: int | None = Field(None, ge=256)
    form: Literal["isolated", "continue"] = "isolated"

    @model_validator(mode="after")
    def _continues_with_the_same_model(self) -> Self:
        given = [name for name in ("base_url", "api_key", "model", "window") if getattr(self, name) is not None]
        if self.form == "continue" and given:
            raise ValueError(f"form = 'continue' asks the request's own model; leave {', '.join(given)} unset")
        return self


class JudgeRole(ModelRole):
    """The model that votes."""

    timeout: float = Field(60.0, gt=0)


Mode = Literal["on", "idle", "off"]


class BackgroundSettings(Table):
    """Model calls that no client waits for: when they may be made, and how many at once to one server.

    `idle` makes them only while no client's request is under way there. `allowance` is the share of a session's prompt
    tokens that votes and embeddings together may spend, besides one window.
    """

    mode: Mode = "on"
    concurrency: int = Field(8, gt=0)
    allowance: float = Field(0.10, ge=0)


class MemorySettings(Table):
    """How what was condensed away reaches the model again; what a request or a session says comes first.

    `max_tokens` and `top_k` bound a block that is put before a user message, `max_rounds` the searches for one reply.
    With `scopes` the sessions of a tenant may share cards. `embeddings_model` is asked for vectors, by which passages
    are ranked too; the vector of a query is waited for so many seconds in a search, and before a block is chosen.
    """

    default: Literal["off", "inject", "tool", "inject+tool"] = "off"
    max_tokens: int = Field(800, ge=64)
    top_k: int = Field(5, gt=0)
    max_rounds: int = Field(3, gt=0)
    scopes: bool = False
    embeddings_model: str = ""
    embeddings_search_wait: float = Field(0.3, ge=0)
    embeddings_inject_wait: float = Field(0.0, ge=0)


class LedgerSettings(Table):
    """The most tokens of what replacements carry word for word; see `strategies.core.ledger`."""

    rules_max_tokens: int = Field(1_000, ge=0)
    facts_max_tokens: int = Field(300, ge=0)

    def to_caps(self) -> LedgerCaps:
        """The caps as the core has them."""
        return LedgerCaps(self.rules_max_tokens, self.facts_max_tokens)


class TokenizerSettings(Table):
    """Where the rank files are; by default those that were installed with the program."""

    ranks_dir: Annotated[Path | None, BeforeValidator(not_empty)] = None


class TenantSettings(Table):
    """Whose sessions are whose: by `credential`, all one (`fixed`), or `header:NAME` from a trusted proxy."""

    source: str = Field("credential", alias="from")
    trusted_proxies: Networks = ("127.0.0.1", "::1")
    pepper: Secret | None = None

    @field_validator("source")
    @classmethod
    def _known(cls, value: str) -> str:
        kind, _, name = value.partition(":")
        if kind == "header" and name:
            header_name(name)
        elif value not in ("credential", "fixed"):
            raise ValueError("must be 'credential', 'fixed' or 'header:NAME'")
        return value


class AdminSettings(Table):
    """Who may see and delete sessions: whoever has the token. Unset: one is made where only this machine can ask."""

    token: Secret | None = None


class SessionSettings(Table):
    """Which headers of clients name a session, in order; `x-*-session-id` always comes after them."""

    headers: HeaderNames = (
        "x-session-id",
        "helicone-session-id",
        "x-litellm-session-id",
        "x-opencode-session",
        "x-claude-code-session-id",
        "thread-id",
        "session-id",
        "x-openwebui-chat-id",
        "x-conversation-id",
    )


class LimitSettings(Table):
    """The largest request body in bytes."""

    body: int = Field(64 * 1024 * 1024, gt=0)


class PriceSettings(Table):
    """What a million tokens cost: of a prompt, of what of it came from a cache, of a reply; in any one currency.

    Without `cached_input` what came from a cache costs as much as the rest.
    """

    input: float = Field(ge=0)
    cached_input: float | None = Field(None, ge=0)
    output: float = Field(0.0, ge=0)

    def to_prices(self) -> Prices:
        """The prices as they are reckoned with."""
        return Prices(self.input, self.input if self.cached_input is None else self.cached_input, self.output)


class CostSettings(Table):
    """When a condensation that is not needed yet pays, for models that have prices.

    It must have paid back after `payback_turns`. `cache_lifetime` is for how many seconds the upstream keeps a prompt
    in its cache.
    """

    payback_turns: float = Field(8.0, ge=0)
    cache_lifetime: float = Field(300.0, ge=0)


def background_mode(value: object) -> object:
    """A mode, for which `true` and `false` may stand too."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


class ModelSettings(Table):
    """Settings for models whose name matches; the first match wins."""

    match: Text
    window: int | None = Field(None, ge=256)
    max_input: int | None = Field(None, ge=256)
    reserve: int | None = Field(None, ge=0)
    strategy: KnownStrategy | None = None
    marks: MarkSettings | None = None
    summarizer: SummarizerRole | None = None
    judge: JudgeRole | None = None
    background: Annotated[Mode | None, BeforeValidator(background_mode)] = None
    prices: PriceSettings | None = None
    profile: ProfileSettings | None = None

    @property
    def held_back(self) -> int | None:
        """Tokens for the reply: `marks.reserve`, else `reserve`, which means the same."""
        named = self.marks.reserve if self.marks else None
        return self.reserve if named is None else named


def data_directory() -> Path:
    """Where the user's data lives."""
    home = os.environ.get("XDG_DATA_HOME")
    return (Path(home) if home else Path.home() / ".local" / "share") / "condenser"
