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

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from proxy.learning.profiles import Profile
from proxy.settings.tables import (
    AdminSettings,
    BackgroundSettings,
    CostSettings,
    JudgeRole,
    LedgerSettings,
    LimitSettings,
    MarkSettings,
    MemorySettings,
    ModelSettings,
    SessionSettings,
    StoreSettings,
    SummarizerRole,
    TenantSettings,
    TokenizerSettings,
    UpstreamSettings,
)
from proxy.settings.values import KnownStrategy, Text
from strategies import DEFAULT, TABLE
from strategies.core.errors import OptionError
from strategies.core.options import filled

PREFIX = "CONDENSER_"
CONFIG_VARIABLE = "CONDENSER_CONFIG"
_NOT_SETTINGS = {CONFIG_VARIABLE}
_ALONE = {"background": "mode"}
"""Tables for which one of their keys may stand alone."""
_IN_OUR_WORDS = {"tuple_type": "must be a list; in the environment it is one in JSON"}


class SettingsError(Exception):
    """The settings cannot be used; the message names each key that is wrong."""


LogFormat = Literal["text", "json"]


class Settings(BaseSettings):
    """All settings of one proxy."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True)

    host: Text = "127.0.0.1"
    port: int = Field(8484, ge=0, le=65_535)
    workers: int = Field(1, ge=1)
    open_to_all: bool = False
    strategy: KnownStrategy = DEFAULT
    window: int | None = Field(None, ge=256)
    inline_timeout: float = Field(10.0, gt=0)
    keepalive: Literal["comment", "chunk", "off"] = "comment"
    keepalive_interval: float = Field(10.0, gt=0)
    usage_probe: bool = True
    report_usage: Literal["forwarded", "original"] = "forwarded"
    log_format: LogFormat = "text"
    upstream: UpstreamSettings = UpstreamSettings()
    store: StoreSettings = Field(default_factory=StoreSettings)
    marks: MarkSettings = MarkSettings()
    summarizer: SummarizerRole = SummarizerRole()
    judge: JudgeRole = JudgeRole()
    background: BackgroundSettings = BackgroundSettings()
    cost: CostSettings = CostSettings()
    ledger: LedgerSettings = LedgerSettings()
    memory: MemorySettings = MemorySettings()
    tokenizer: TokenizerSettings = TokenizerSettings()
    tenant: TenantSettings = TenantSettings()
    admin: AdminSettings = AdminSettings()
    sessions: SessionSettings = SessionSettings()
    limits: LimitSettings = LimitSettings()
    models: tuple[ModelSettings, ...] = ()
    options: dict[str, dict[str, Any]] = Field(default_factory=dict)

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

    def profile_of(self, model: str) -> Profile:
        """What the server of a model takes, as far as it is set."""
        entry = self.for_model(model)
        return ((entry.profile if entry else None) or self.upstream.profile).to_profile()

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
    """`data` with the tables of strategies under `options`, and what may be written in two ways written in one.

    `background = "idle"` is a table's `mode`, `reserve` is `marks.reserve`, which comes first where both are there.
    Each source is gathered before they are merged.
    """
    rest = dict(data)
    for name, key in _ALONE.items():
        if isinstance(rest.get(name), str):
            rest[name] = {key: rest[name]}
    if "reserve" in rest:
        rest["marks"] = _merged({"reserve": rest.pop("reserve")}, rest.get("marks", {}))
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
        return _of_environment()


def _of_environment() -> dict[str, Any]:
    return gathered(environment_tree(os.environ))


def environment_tree(environ: Mapping[str, str]) -> dict[str, Any]:
    """`CONDENSER_STORE__URL=x` as `{"store": {"url": "x"}}`; values that look like JSON are read as JSON."""
    tree: dict[str, Any] = {}
    for variable, text in sorted(environ.items()):
        if not variable.startswith(PREFIX) or variable in _NOT_SETTINGS:
            continue
        value = _of_file_named_by(variable, text) if variable.endswith("_FILE") else text
        *tables, key = variable.removeprefix(PREFIX).removesuffix("_FILE").lower().split("__")
        _put(tree, tables, key, _json(variable, value) if value[:1] in ("[", "{") else value)
    return tree


def _of_file_named_by(variable: str, path: str) -> str:
    try:
        return Path(path).read_text("utf-8").strip()
    except (OSError, ValueError) as error:
        raise SettingsError(f"{variable} names a file that cannot be read: {error}") from None


def _json(variable: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise SettingsError(f"{variable} begins as JSON does, but cannot be read as such: {error}") from None


def _put(tree: dict[str, Any], tables: Sequence[str], key: str, value: Any) -> None:
    for each in tables:
        if each in _ALONE and isinstance(tree.get(each), str):
            tree[each] = {_ALONE[each]: tree[each]}
        tree = tree.setdefault(each, {})
        if not isinstance(tree, dict):
            raise SettingsError(f"{PREFIX}{each.upper()} is given as a value and as a table")
    tree[key] = value


class _ConfigFile(PydanticBaseSettingsSource):
    """The TOML file that `CONDENSER_CONFIG` names."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        raise NotImplementedError("the whole file is read at once")

    def __call__(self) -> dict[str, Any]:
        return _of_file()


def _of_file() -> dict[str, Any]:
    path = os.environ.get(CONFIG_VARIABLE)
    return gathered(tomllib.loads(Path(path).read_text("utf-8"))) if path else {}


def sources(**given: Any) -> dict[str, dict[str, Any]]:
    """What each source sets for `load_settings` with the same arguments, by the source's name; the first wins."""
    return {"command line": gathered(given), "environment": _of_environment(), "file": _of_file()}


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
        return f"{key}: {_IN_OUR_WORDS.get(error['type'], error['msg'].removeprefix('Value error, '))}"
    nearest = difflib.get_close_matches(path[-1], _keys_beside(path), 1, 0)
    return f"unknown key '{key}'; did you mean '{'.'.join([*path[:-1], *nearest])}'?"


def _keys_beside(path: list[str]) -> list[str]:
    table: Any = Settings
    for part in path[:-1]:
        if not part.isdigit():
            table = _table_of(table.model_fields[part].annotation)
    keys = [info.alias or name for name, info in table.model_fields.items()]
    return [*keys, *((*TABLE, "reserve") if table is Settings else ())]


def _table_of(annotation: Any) -> Any:
    """The table class in `T`, `T | None` or `tuple[T, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(found for each in get_args(annotation) if (found := _table_of(each)) is not None)
