"""Settings: init > command line > environment (`CONDENSER_`, nested with `__`) > TOML file > defaults.

Every key that is read is declared here, and a key that is not declared is an error that names the nearest one that
is. `CONDENSER_…_FILE` reads a value from a file, so that secrets need not stand in the environment. The tables of
the strategies (`[mask]`, `[half-window]`, …) are checked against the options that the strategies declare.
"""

from __future__ import annotations

import difflib
import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from proxy.store import SCHEMES
from strategies import DEFAULT, TABLE, parse
from strategies.core.budget import Marks
from strategies.core.errors import OptionError
from strategies.core.options import filled

PREFIX = "CONDENSER_"
CONFIG_VARIABLE = "CONDENSER_CONFIG"
_NOT_SETTINGS = {CONFIG_VARIABLE}


class SettingsError(Exception):
    """The settings cannot be used; the message names each key that is wrong."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class UpstreamSettings(_Table):
    """Where requests go; an address without a path gets `/v1`.

    Without `api_key` the caller's own credential is passed on.
    """

    base_url: str = "https://api.openai.com/v1"
    api_key: SecretStr | None = None
    connect_timeout: float = Field(5.0, gt=0)
    read_timeout: float = Field(600.0, gt=0)
    max_connections: int = Field(1_000, gt=0)

    @field_validator("base_url")
    @classmethod
    def _is_http(cls, value: str) -> str:
        if not value.startswith(("http://", "https://")):
            raise ValueError("must start with http:// or https://")
        url = value.rstrip("/")
        return url if urlsplit(url).path else url + "/v1"


class StoreSettings(_Table):
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


class MarkSettings(_Table):
    """Shares of usable; see `strategies.core.budget.Marks`."""

    prepare: float = Field(0.70, gt=0, le=1)
    trigger: float = Field(0.85, gt=0, le=1)
    target: float = Field(0.50, gt=0, le=1)
    step: float = Field(0.15, ge=0, le=1)

    def to_marks(self) -> Marks:
        """The marks as the core has them."""
        return Marks(self.prepare, self.trigger, self.target, self.step)


class ModelRole(_Table):
    """A model that we ask ourselves. What is not set is the request's own upstream, key and model."""

    base_url: str | None = None
    api_key: SecretStr | None = None
    model: str | None = None
    timeout: float = Field(300.0, gt=0)


class TokenizerSettings(_Table):
    """Where the rank files are; by default those that were installed with the program."""

    ranks_dir: Path | None = None


class TenantSettings(_Table):
    """Whose sessions are whose: by `credential`, all one (`fixed`), or `header:NAME` from a trusted proxy."""

    source: str = Field("credential", alias="from")
    trusted_proxies: tuple[str, ...] = ("127.0.0.1", "::1")
    pepper: SecretStr | None = None

    @field_validator("source")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in ("credential", "fixed") and not value.startswith("header:"):
            raise ValueError("must be 'credential', 'fixed' or 'header:NAME'")
        return value


class AdminSettings(_Table):
    """Who may see and delete sessions: whoever has the token. Unset: one is made where only this machine can ask."""

    token: SecretStr | None = Field(None, min_length=1)


class SessionSettings(_Table):
    """Which headers of clients name a session, in order; `x-*-session-id` always comes after them."""

    headers: tuple[str, ...] = (
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


class LimitSettings(_Table):
    """The largest request body in bytes."""

    body: int = Field(64 * 1024 * 1024, gt=0)


class ModelSettings(_Table):
    """Settings for models whose name matches; the first match wins."""

    match: str
    window: int | None = Field(None, ge=256)
    max_input: int | None = Field(None, ge=256)
    reserve: int | None = Field(None, ge=0)
    strategy: str | None = None
    marks: MarkSettings | None = None
    summarizer: ModelRole | None = None

    @field_validator("strategy")
    @classmethod
    def _parses(cls, value: str | None) -> str | None:
        return value if value is None else known_strategy(value)


LogFormat = Literal["text", "json"]


class Settings(BaseSettings):
    """All settings of one proxy."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True)

    host: str = "127.0.0.1"
    port: int = Field(8484, ge=0, le=65_535)
    open_to_all: bool = False
    strategy: str = DEFAULT
    window: int | None = Field(None, ge=256)
    inline_timeout: float = Field(10.0, gt=0)
    log_format: LogFormat = "text"
    upstream: UpstreamSettings = UpstreamSettings()
    store: StoreSettings = Field(default_factory=StoreSettings)
    marks: MarkSettings = MarkSettings()
    reserve: int | None = Field(None, ge=0)
    summarizer: ModelRole = ModelRole()
    tokenizer: TokenizerSettings = TokenizerSettings()
    tenant: TenantSettings = TenantSettings()
    admin: AdminSettings = AdminSettings()
    sessions: SessionSettings = SessionSettings()
    limits: LimitSettings = LimitSettings()
    models: tuple[ModelSettings, ...] = ()
    options: dict[str, dict[str, Any]] = Field(default_factory=dict)

    @field_validator("strategy")
    @classmethod
    def _parses(cls, value: str) -> str:
        return known_strategy(value)

    @model_validator(mode="before")
    @classmethod
    def _gather_strategy_tables(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Moves `[mask]`, `[half-window]` and so on into `options`."""
        return gathered(data)

    @field_validator("options")
    @classmethod
    def _known_options(cls, value: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        for name, values in value.items():
            if name not in TABLE:
                raise ValueError(f"there is no strategy '{name}'")
            try:
                filled(TABLE[name].options, values)
            except OptionError as error:
                raise ValueError(f"[{name}] {error.detail}") from None
        return value

    def for_model(self, model: str) -> ModelSettings | None:
        """The first entry of `[[models]]` that matches."""
        return next((entry for entry in self.models if fnmatchcase(model, entry.match)), None)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments, then the environment, then the file."""
        return init_settings, _Environment(settings_cls), _ConfigFile(settings_cls)


def gathered(data: Mapping[str, Any]) -> dict[str, Any]:
    """`data` with the tables of strategies under `options`; each source is gathered before they are merged."""
    rest = dict(data)
    options: dict[str, Any] = {}
    for name in TABLE:
        for spelling in dict.fromkeys((name, name.replace("-", "_"))):
            if spelling in rest:
                options[name] = _merged(options.get(name, {}), rest.pop(spelling))
    return {**rest, "options": {**rest.get("options", {}), **options}} if options else rest


def _merged(table: Any, values: Any) -> Any:
    """Two spellings of one table; what is no table is left for the validation to refuse."""
    return {**table, **values} if isinstance(table, Mapping) and isinstance(values, Mapping) else values


class _Environment(PydanticBaseSettingsSource):
    """All variables with the prefix, as nested tables; an unknown one is an error like any other key."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        raise NotImplementedError("the whole tree is read at once")

    def __call__(self) -> dict[str, Any]:
        return gathered(environment_tree(os.environ))


def environment_tree(environ: Mapping[str, str]) -> dict[str, Any]:
    """`CONDENSER_STORE__URL=x` as `{"store": {"url": "x"}}`; values that look like JSON are read as JSON."""
    tree: dict[str, Any] = {}
    for variable, text in sorted(environ.items()):
        if not variable.startswith(PREFIX) or variable in _NOT_SETTINGS:
            continue
        name = variable.removeprefix(PREFIX)
        value = Path(text).read_text("utf-8").strip() if name.endswith("_FILE") else text
        *tables, key = name.removesuffix("_FILE").lower().split("__")
        _put(tree, tables, key, json.loads(value) if value[:1] in ("[", "{") else value)
    return tree


def _put(tree: dict[str, Any], tables: Sequence[str], key: str, value: Any) -> None:
    for each in tables:
        tree = tree.setdefault(each, {})
        if not isinstance(tree, dict):
            raise SettingsError(f"{PREFIX}{each.upper()} is given as a value and as a table")
    tree[key] = value


class _ConfigFile(PydanticBaseSettingsSource):
    """The TOML file that `CONDENSER_CONFIG` names."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        raise NotImplementedError("the whole file is read at once")

    def __call__(self) -> dict[str, Any]:
        path = os.environ.get(CONFIG_VARIABLE)
        return gathered(tomllib.loads(Path(path).read_text("utf-8"))) if path else {}


def load_settings(**given: Any) -> Settings:
    """The settings with `given` (from the command line) on top; raises `SettingsError` in plain words."""
    try:
        return Settings(**given)
    except ValidationError as error:
        raise SettingsError("\n".join(_in_words(each) for each in error.errors())) from None
    except (OSError, ValueError) as error:
        raise SettingsError(f"the settings cannot be read: {error}") from None


def _in_words(error: Any) -> str:
    path = [str(part) for part in error["loc"]]
    key = ".".join(path)
    if error["type"] != "extra_forbidden":
        return f"{key}: {error['msg'].removeprefix('Value error, ')}"
    nearest = difflib.get_close_matches(path[-1], _keys_beside(path), 1, 0)
    return f"unknown key '{key}'; did you mean '{'.'.join([*path[:-1], *nearest])}'?"


def _keys_beside(path: list[str]) -> list[str]:
    table: Any = Settings
    for part in path[:-1]:
        if not part.isdigit():
            table = _table_of(table.model_fields[part].annotation)
    keys = [info.alias or name for name, info in table.model_fields.items()]
    return [*keys, *(TABLE if table is Settings else ())]


def _table_of(annotation: Any) -> Any:
    """The table class in `T`, `T | None` or `tuple[T, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(found for each in get_args(annotation) if (found := _table_of(each)) is not None)


def known_strategy(value: str) -> str:
    """`value` if it is a pipeline; raises `ValueError` that lists the names."""
    if parse(value) is None:
        raise ValueError(f"unknown strategy '{value}'; known: {', '.join(TABLE)}, joined with '+'")
    return value


def data_directory() -> Path:
    """Where the user's data lives."""
    home = os.environ.get("XDG_DATA_HOME")
    return (Path(home) if home else Path.home() / ".local" / "share") / "condenser"
