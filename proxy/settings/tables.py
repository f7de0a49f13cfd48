"""The tables of the settings: one class for each, with its keys, their defaults and their bounds.

docs/reference/configuration.md describes each key. Times are in seconds; sizes are in bytes, or in tokens if the name
or the docs say so.

Values are checked beyond types and bounds. No message quotes a value that may be secret. An empty value is refused and
never means the default, because it usually comes from a shell variable that is not set.
"""

from __future__ import annotations

import os
import re
from base64 import b64decode
from datetime import UTC, datetime
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    model_validator,
)

from proxy.controls import MIN_WINDOW, pipeline_named
from proxy.quoting import CREDENTIALS, not_this
from proxy.settings.profile import ANY, Profile
from strategies import TABLE
from strategies.core.budget import Marks
from strategies.core.economics import Prices, PriceStep
from strategies.core.ledger import LedgerCaps
from strategies.dialects import DIALECTS
from strategies.dialects.chat import CHAT
from strategies.dialects.messages import MESSAGES
from strategies.dialects.responses import RESPONSES


class Table(BaseModel):
    """The base of all tables: an unknown key is an error, and values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


_BARE = re.compile(r"[A-Za-z0-9.-]+(?::[1-9]\d{0,3})?(?:/[A-Za-z0-9./-]*)?")  # an address without its scheme


def http_address(value: str) -> str:
    """The address without a slash at its end, and with `/v1` if it has no path.

    Raises `ValueError` if it is no address, or if it has a credential, because addresses are shown to everyone. Each
    call appends its own path, so nothing may follow the path of the address.
    """
    if "@" in re.split(r"[/?#]", value.partition("://")[2], maxsplit=1)[0]:
        raise ValueError("must hold no user and no password: a key belongs in api_key, which is beside it")
    try:
        parts = urlsplit(value)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False  # the error itself would quote the address
    if not is_address or not value.isprintable() or set(value) & set(" ?#"):
        meant = f"; did you mean {http_address(f'http://{value}')}?" if _BARE.fullmatch(value) else ""
        raise ValueError(f"must be http:// or https://, a host and a path, without white space, '?' and '#'{meant}")
    url = value.rstrip("/")
    return url if urlsplit(url).path else url + "/v1"


def known_strategy(value: str) -> str:
    """`value` if it names a pipeline; raises `ValueError` that says which stage is wrong."""
    pipeline_named(value)
    return value


def not_empty(value: object) -> object:
    """`value` unless it is an empty text; raises `ValueError`."""
    if value == "":
        raise ValueError("is empty; remove the key to use the default")
    return value


def network_address(value: str) -> str:
    """`value` if it is an IP address or a network; raises `ValueError`."""
    try:
        network(value)
    except ValueError:
        raise ValueError(f"must be an address, or a network such as 10.0.0.0/8{not_this(value)}") from None
    return value


def split_at_commas(value: object) -> object:
    """Splits a text at its commas; returns any other value unchanged."""
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


def matching(pattern: str, what: str) -> AfterValidator:
    """Checks that the whole text matches a pattern; `what` says what it must be."""

    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(f"must be {what}{not_this(value)}")
        return value

    return AfterValidator(check)


def of_32_bytes(value: SecretStr) -> SecretStr:
    """`value` if it is base64 of 32 bytes; raises `ValueError`."""
    try:
        size = len(b64decode(value.get_secret_value(), validate=True))
    except ValueError:
        size = 0
    if size != 32:
        raise ValueError("must be 32 bytes in base64, such as `openssl rand -base64 32` prints")
    return value


_LOWERED = AfterValidator(str.lower)
_LIST = BeforeValidator(split_at_commas)
_HEADER = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"
_HOST = matching(r"(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*", "a name without a port, or one such as *.example.com")
_ORIGIN = matching(
    r"\*|[a-z][a-z0-9+.-]*://[^\s/?#@*]+", "an origin such as https://app.example.com, without a path, or *"
)
HttpAddress = Annotated[str, AfterValidator(http_address)]
KnownStrategy = Annotated[str, AfterValidator(known_strategy)]
Text = Annotated[str, BeforeValidator(not_empty)]
Secret = Annotated[SecretStr, BeforeValidator(not_empty)]
EncryptionKey = Annotated[SecretStr, BeforeValidator(not_empty), AfterValidator(of_32_bytes)]
StoreUrl = Annotated[
    str,
    matching(
        r"memory://|sqlite:///.*[^/].*|rediss?(\+sentinel|\+cluster)?://.*",
        "memory://, sqlite:///relative/path, sqlite:////absolute/path, or the address of a Redis",
    ),
]
TenantSource = Annotated[str, matching(f"credential|fixed|header:{_HEADER}", "'credential', 'fixed' or 'header:NAME'")]
Networks = Annotated[tuple[Annotated[str, AfterValidator(network_address)], ...], _LIST]
_NAME_OF_HEADER = matching(_HEADER, "the name of a header")
HeaderNames = Annotated[tuple[Annotated[str, _NAME_OF_HEADER], ...], _LIST]
HostNames = Annotated[tuple[Annotated[str, _LOWERED, _HOST], ...], _LIST]
Origins = Annotated[tuple[Annotated[str, _LOWERED, _ORIGIN], ...], _LIST]
KeyName = Annotated[  # no digest of a tenant is one
    str, matching(r"(?![0-9a-f]{32}$)[A-Za-z0-9][A-Za-z0-9_-]{0,63}", "up to 64 letters, digits, '-' and '_'")
]
_PREFIX = matching(r"(/([A-Za-z0-9._~-]+|\*))+", "a path such as /api/coding/v1, with * for any one segment")
_PATH_RULE = matching(r"(\*|[A-Za-z]+) /?[A-Za-z0-9._~/*-]+", "a method and a path, such as GET models/*")
PathPrefixes = Annotated[tuple[Annotated[str, _PREFIX], ...], _LIST]
PathRules = Annotated[tuple[Annotated[str, _PATH_RULE], ...], _LIST]
_MAPPED_PREFIX = 96  # bits before the IPv4 address in an IPv4-mapped IPv6 address
Network = IPv4Network | IPv6Network


def network(text: str) -> Network:
    """Parses an address, or a network in CIDR notation; raises `ValueError`.

    An IPv4-mapped IPv6 network such as `::ffff:10.0.0.0/104` becomes the IPv4 network.
    """
    found = ip_network(text, strict=False)
    mapped = found.network_address.ipv4_mapped if isinstance(found, IPv6Network) else None
    return found if mapped is None else IPv4Network((mapped, found.prefixlen - _MAPPED_PREFIX))


PROTOCOLS = tuple(DIALECTS)
Protocol = Annotated[str, matching("|".join(PROTOCOLS), f"one of {', '.join(PROTOCOLS)}")]
_PASSABLE = matching(rf"(?i)(?!({'|'.join((*CREDENTIALS, 'cookie'))})$){_HEADER}", "a header without a credential")


class UpstreamEntry(Table):
    """One of several upstreams, and what goes there; `api_key_file` names a file with the key."""

    name: Annotated[str, matching(r"[a-z0-9][a-z0-9_-]{0,31}", "lower-case letters, digits, '-' and '_'")]
    base_url: HttpAddress
    api_key: Secret | None = None
    takes_credentials: bool = True
    headers: dict[Annotated[str, _LOWERED, _NAME_OF_HEADER], Secret] = Field(default_factory=dict)
    pass_headers: Annotated[tuple[Annotated[str, _LOWERED, _PASSABLE], ...], _LIST] = ()
    in_flight: int | None = Field(None, gt=0)
    protocols: Annotated[tuple[Protocol, ...], _LIST, Field(min_length=1)] = PROTOCOLS
    models: Annotated[tuple[Text, ...], _LIST] = ()

    @property
    def has_credential(self) -> bool:
        """Whether a credential of the operator goes there."""
        return self.api_key is not None or not self.headers.keys().isdisjoint(map(str.lower, CREDENTIALS))

    @property
    def fixed(self) -> list[tuple[bytes, bytes]]:
        """The headers that go there with each request."""
        return [(name.encode(), value.get_secret_value().encode()) for name, value in self.headers.items()]

    @model_validator(mode="before")
    @classmethod
    def _with_key_of_file(cls, given: Any) -> Any:
        if not isinstance(given, dict) or "api_key_file" not in given:
            return given
        rest = {key: value for key, value in given.items() if key != "api_key_file"}
        if "api_key" in rest:
            raise ValueError("api_key and api_key_file are both set; leave one of them out")
        try:
            return {**rest, "api_key": Path(given["api_key_file"]).read_text("utf-8").strip()}
        except (OSError, ValueError, TypeError):
            raise ValueError("api_key_file names no file that can be read") from None


DEFAULT_UPSTREAMS = (
    UpstreamEntry(name="openai", base_url="https://api.openai.com/v1", protocols=(CHAT.name, RESPONSES.name)),
    UpstreamEntry(name="anthropic", base_url="https://api.anthropic.com/v1", protocols=(MESSAGES.name,)),
)


class UpstreamSettings(Table):
    """Where all requests go, if that is one address, and how any upstream is called."""

    base_url: HttpAddress | None = None
    api_key: Secret | None = None
    connect_timeout: float = Field(5.0, gt=0)
    read_timeout: float = Field(600.0, gt=0)
    max_connections: int = Field(1_000, gt=0)
    discover: bool = True
    learned_ttl: int = Field(24 * 3600, gt=0)
    """Seconds for which the proxy trusts a learned window, or that a model accepts no tools."""
    profile: Profile = ANY

    @model_validator(mode="after")
    def _key_has_an_address(self) -> Self:
        if self.api_key is not None and self.base_url is None:
            raise ValueError("api_key needs base_url, so that the key goes to no other server than it is for")
        return self


class StoreSettings(Table):
    """Where sessions are kept."""

    url: StoreUrl = Field(default_factory=lambda: f"sqlite:///{data_directory() / 'condenser.db'}")
    ttl: int = Field(7 * 24 * 3600, gt=0)
    timeout: float = Field(1.0, gt=0)
    max_session_bytes: int = Field(64 * 1024 * 1024, ge=0)
    max_tenant_bytes: int | None = Field(None, ge=0)
    encryption_key: EncryptionKey | None = None
    encryption_old_keys: Annotated[tuple[EncryptionKey, ...], _LIST] = ()

    @model_validator(mode="after")
    def _has_a_key_to_write_with(self) -> Self:
        if self.encryption_old_keys and self.encryption_key is None:
            raise ValueError("encryption_old_keys only read: set encryption_key, which writes, too")
        return self

    @property
    def encryption_keys(self) -> tuple[bytes, ...]:
        """The keys of the store, the one that writes first; none if it is not encrypted."""
        keys = (self.encryption_key, *self.encryption_old_keys)
        return tuple(b64decode(key.get_secret_value()) for key in keys if key is not None)


class MarkShares(Table):
    """When to condense, in most cases as shares of the usable tokens; see `strategies.core.budget.Marks`."""

    prepare: float = Field(0.70, gt=0, le=1)
    trigger: float = Field(0.85, gt=0, le=1)
    target: float = Field(0.50, gt=0, le=1)
    step: float = Field(0.15, ge=0, le=1)
    most: int = Field(200_000, ge=0)
    """Tokens of the upstream at which a view is condensed, however large the window is; 0 for no such bound."""

    def to_marks(self) -> Marks:
        return Marks(self.prepare, self.trigger, self.target, self.step)


class MarkSettings(MarkShares):
    """The marks, and the tokens that are reserved for a reply."""

    reserve: int | None = Field(None, ge=0)


class ModelRole(Table):
    """A model that the proxy calls itself; if `base_url`, `api_key` or `model` is None, the request's own is used.

    One that names an `upstream` has the address and the key of that one's entry once it is `at` it.
    """

    upstream: Text | None = None
    base_url: HttpAddress | None = None
    api_key: Secret | None = None
    model: Text | None = None
    timeout: float = Field(300.0, gt=0)
    temperature: float | None = Field(None, ge=0, le=2)
    max_tokens: int | None = Field(None, gt=0)
    _entry: UpstreamEntry | None = PrivateAttr(None)  # that of the upstream that it names

    @model_validator(mode="after")
    def _has_one_server(self) -> Self:
        if self.upstream is not None and (self.base_url or self.api_key):
            raise ValueError("upstream names a server and its key; leave base_url and api_key unset")
        return self

    @property
    def protocol(self) -> str:
        """The protocol of a server other than the request's."""
        served = self._entry.protocols if self._entry is not None else (CHAT.name,)
        return CHAT.name if CHAT.name in served else served[0]

    @property
    def fixed(self) -> list[tuple[bytes, bytes]]:
        """The headers that go there with each call."""
        return self._entry.fixed if self._entry is not None else []

    def at(self, entry: UpstreamEntry) -> Self:
        """The same model at the upstream that it names."""
        placed = self.model_copy(update={"base_url": entry.base_url, "api_key": entry.api_key})
        placed._entry = entry  # noqa: SLF001
        return placed

    def of_request(self) -> Self:
        """These settings for the request's own server, account and model."""
        return self.model_copy(update={"upstream": None, "base_url": None, "api_key": None, "model": None})

    def is_at(self, upstream: str) -> bool:
        """Whether a call for a request to the upstream of this name goes there too."""
        return self.base_url is None or self.upstream == upstream


class SummarizerRole(ModelRole):
    """The model that writes summaries."""

    window: int | None = Field(None, ge=MIN_WINDOW)
    form: Literal["isolated", "continue", "auto"] = "isolated"
    """`continue` makes the request's model continue the view itself, so that the upstream's prompt cache is hit; `auto`
    does so if no other model is set and it is cheaper."""

    @model_validator(mode="after")
    def _continues_with_the_same_model(self) -> Self:
        if self.form == "continue" and self.own_model:
            raise ValueError(f"form = 'continue' asks the request's own model; leave {', '.join(self.own_model)} unset")
        return self

    @property
    def own_model(self) -> list[str]:
        """The keys that make it a model other than the request's."""
        keys = ("upstream", "base_url", "api_key", "model", "window")
        return [name for name in keys if getattr(self, name) is not None]


class JudgeRole(ModelRole):
    """The model that votes."""

    timeout: float = Field(60.0, gt=0)


Mode = Literal["on", "idle", "off"]


class BackgroundSettings(Table):
    """The proxy's own model calls, for which no client waits."""

    mode: Mode = "on"
    concurrency: int = Field(8, gt=0)
    allowance: float = Field(0.10, ge=0)


class MemorySettings(Table):
    """How condensed messages reach the model again."""

    default: Literal["off", "inject", "tool", "inject+tool"] = "inject"
    max_tokens: int = Field(800, ge=64)
    top_k: int = Field(5, gt=0)
    max_rounds: int = Field(3, gt=0)
    scopes: bool = False


class LedgerSettings(Table):
    """Maximum tokens that replacements repeat word for word; see `strategies.core.ledger`."""

    said_max_tokens: int = Field(1_000, ge=0)
    names_max_tokens: int = Field(700, ge=0)

    def to_caps(self) -> LedgerCaps:
        return LedgerCaps(self.said_max_tokens, self.names_max_tokens)


class TokenizerSettings(Table):
    """The folder of the tokenizers' rank files; by default the one that is installed with the program."""

    ranks_dir: Annotated[Path | None, BeforeValidator(not_empty)] = None


class TenantSettings(Table):
    """The tenant of a request: by its `credential`, one for all (`fixed`), or by `header:NAME` of a trusted proxy."""

    source: TenantSource = Field("credential", alias="from")
    headers: HeaderNames = ()  # those with credentials, besides `CREDENTIALS`
    pepper: Secret | None = None
    names: dict[Annotated[str, matching("[0-9a-f]{32}", "the 32 digits of a tenant")], KeyName] = Field(
        default_factory=dict
    )


def digest_of_key(value: str) -> str:
    """`value` in lower case if it is a SHA-256 digest; the error does not quote it: it may be the key itself."""
    if not re.fullmatch("[0-9a-fA-F]{64}", value):
        raise ValueError("must be the 64 hexadecimal digits of a digest; `condenser keys new NAME` prints an entry")
    return value.lower()


def in_utc(value: datetime) -> datetime:
    """`value` in UTC, which a time without a zone is taken to be in."""
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


StrategyNames = Annotated[tuple[Annotated[str, matching("|".join(TABLE), "a strategy")], ...], _LIST]


class KeyEntry(Table):
    """A key that a caller of the proxy has. Its digest alone is known here; None sets no bound to what it may ask."""

    name: KeyName
    sha256: Annotated[str, AfterValidator(digest_of_key)]
    tenant: KeyName | None = None
    models: Annotated[tuple[Text, ...] | None, _LIST] = None
    strategies: StrategyNames | None = None
    expires: Annotated[datetime, AfterValidator(in_utc)] | None = None
    admin: bool = False  # whether it may do all that the admin token may
    read_only: bool = False  # whether it may read what the admin token may

    @model_validator(mode="after")
    def _has_one_role(self) -> Self:
        if self.admin and self.read_only:
            raise ValueError("has two roles; leave admin or read_only out")
        return self

    @property
    def role(self) -> str:
        return "admin" if self.admin else "read_only" if self.read_only else ""

    @property
    def owner(self) -> str:
        """The name of its tenant: by default its own."""
        return self.tenant or self.name


class AuthSettings(Table):
    """Who may use the proxy: whoever the upstream accepts, or the holders of `keys`."""

    mode: Literal["passthrough", "keys"] = "passthrough"
    keys: tuple[KeyEntry, ...] = ()

    @model_validator(mode="after")
    def _each_key_is_one(self) -> Self:
        if self.keys and self.mode != "keys":
            raise ValueError('has keys, which count only with mode = "keys"')
        for what, values in (("name", [key.name for key in self.keys]), ("digest", [key.sha256 for key in self.keys])):
            if len(set(values)) < len(values):
                raise ValueError(f"two of its keys have one {what}")
        return self


def listen_address(value: str) -> str:
    """`value` if it is a host and a port to listen on, such as `127.0.0.1:9090`; raises `ValueError`."""
    try:
        parts = urlsplit(f"//{value}")
        is_address = parts.netloc == value and bool(parts.hostname) and parts.port is not None and "@" not in value
    except ValueError:
        is_address = False
    if not is_address:
        raise ValueError(f"must be a host and a port, such as 127.0.0.1:9090{not_this(value)}")
    return value


class AdminSettings(Table):
    """Holders of the token may see and delete sessions. The default is none, or a token file on a loopback address.

    Metrics, pages and the admin API are at `listen`, if that is set, and at no other address.
    """

    token: Secret | None = None
    listen: Annotated[str, AfterValidator(listen_address)] | None = None

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port of `listen`; port 0 takes any free one."""
        parts = urlsplit(f"//{self.listen or ''}")
        return (parts.hostname, parts.port) if parts.hostname and parts.port is not None else None


class SessionSettings(Table):
    """How a request names its session."""

    headers: HeaderNames = (
        *("x-session-id", "helicone-session-id", "x-litellm-session-id", "x-opencode-session", "thread-id"),
        *("session-id", "x-openwebui-chat-id", "x-conversation-id"),
    )


class ServerSettings(Table):
    """The hosts, web pages and paths that the server serves; docs/internals/security.md says what each is for."""

    trusted_proxies: Networks = ("127.0.0.1", "::1")
    hosts: HostNames = ()
    origins: Origins = ()
    prefixes: PathPrefixes = ()
    paths: PathRules | None = None


class LogSettings(Table):
    """The form of the log on standard error, and its lowest level."""

    format: Literal["text", "json"] = "text"
    level: Literal["debug", "info", "warning", "error"] = "info"


class DrainSettings(Table):
    """The time between a signal to stop and the end, in seconds."""

    delay: float = Field(0.0, ge=0)
    timeout: float = Field(30.0, ge=0)


class LimitSettings(Table):
    """Upper bounds for requests and connections; docs/internals/security.md says what each is for."""

    body: int = Field(32 * 1024 * 1024, gt=0)
    messages: int = Field(50_000, gt=0)
    members: int = Field(1_000, gt=0)
    values: int = Field(500_000, ge=1_000)
    header_bytes: int = Field(64 * 1024, ge=1_024)
    header_timeout: float = Field(15.0, gt=0)
    body_timeout: float = Field(30.0, gt=0)
    body_rate: int = Field(8 * 1024, gt=0)
    connections: int = Field(1_000, gt=0)
    per_address: int = Field(512, gt=0)
    in_flight: int = Field(512, gt=0)
    per_tenant: int = Field(256, gt=0)
    queue: int = Field(512, ge=0)
    queue_timeout: float = Field(10.0, gt=0)
    bodies: int = Field(512 * 1024 * 1024, gt=0)
    tokens_per_minute: int = Field(0, ge=0)
    own_tokens_per_minute: int = Field(0, ge=0)


Economy = Literal["off", "advise", "auto"]
Currency = Annotated[str, Field(pattern=r"^[^\s\d]{1,8}$")]
BUNDLED_CURRENCY = "USD"  # of the prices in config/models.toml


class PriceStepSettings(Table):
    """The size in tokens above which a whole prompt costs more, and by which factors."""

    above: int = Field(ge=1)
    input: float = Field(2.0, ge=0)
    output: float = Field(1.5, ge=0)


class ModelPrices(Table):
    """The prices of a million tokens, in the currency of the settings."""

    input: float = Field(ge=0)
    cached_input: float = Field(default_factory=lambda data: data["input"], ge=0)
    cache_write: float = Field(default_factory=lambda data: data["input"], ge=0)
    output: float = Field(0.0, ge=0)
    step: PriceStepSettings | None = None

    def to_prices(self) -> Prices:
        step = PriceStep(**self.step.model_dump()) if self.step else None
        return Prices(self.input, self.cached_input, self.cache_write, self.output, step)


class ModelSettings(Table):
    """Settings for models whose name matches; the first match wins. None leaves a key to the general setting."""

    match: Text
    window: int | None = Field(None, ge=MIN_WINDOW)
    max_input: int | None = Field(None, ge=MIN_WINDOW)
    reserve: int | None = Field(None, ge=0)
    strategy: KnownStrategy | None = None
    marks: MarkShares | None = None
    summarizer: SummarizerRole | None = None
    judge: JudgeRole | None = None
    background: Mode | None = None
    prices: ModelPrices | None = None
    economy: Economy | None = None
    strict: bool | None = None
    profile: Profile | None = None


ELSEWHERE = {"reserve": "marks.reserve", "background": "background.mode", "profile": "upstream.profile"}
"""Keys of `[[models]]` whose general setting has another path."""


def data_directory() -> Path:
    """The folder for this user's data: `$XDG_DATA_HOME/condenser`, by default `~/.local/share/condenser`."""
    home = os.environ.get("XDG_DATA_HOME")
    return (Path(home) if home else Path.home() / ".local" / "share") / "condenser"
