"""Loads the settings: command line > environment (`CONDENSER_`, nested with `__`) > TOML file > defaults.

Every key is declared here or in `tables`; any other key is an error. `CONDENSER_…_FILE` reads a value from a file, so
secrets need not be in the environment. The tables of strategies (`[mask]`, `[half-window]`, …) are checked against the
options that the strategies declare.
"""

from __future__ import annotations

from difflib import get_close_matches
from fnmatch import fnmatchcase
from operator import attrgetter
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from proxy.controls import KEYS, MIN_WINDOW, Controls
from proxy.errors import BadRequest, SettingsError
from proxy.quoting import quoted
from proxy.settings import tables
from proxy.settings.sources import from_environment, from_file, normalized, option_problems, problems_in_words
from proxy.settings.tables import ELSEWHERE, ModelSettings
from proxy.settings.values import KnownStrategy, Table, Text, split_at_commas
from strategies import DEFAULT, TABLE


def _known_control(name: str) -> str:
    if name not in ("*", *KEYS):
        near = get_close_matches(name, KEYS, 1)
        hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(KEYS)}, *"
        raise ValueError(f"there is no control {quoted(name)}; {hint}")
    return name


_Control = Annotated[str, AfterValidator(str.lower), AfterValidator(_known_control)]


class ControlSettings(Table):
    """The controls that clients may set, by header, member of the body or suffix of the model."""

    allow: Annotated[tuple[_Control, ...], BeforeValidator(split_at_commas)] = ("*",)
    max_window: int = Field(0, ge=0)
    own_calls: bool = True

    def check(self, controls: Controls) -> None:
        """Raises `BadRequest` if a client may not set one of these controls, or not to this value."""
        for key, param in controls.params.items():
            if key not in self.allow and "*" not in self.allow:
                raise BadRequest(f"{param}: this proxy accepts no {key} from clients.", param=param)
        stages = controls.strategy.names if controls.strategy and not controls.strategy.observe else ()
        asking = next((name for name in stages if TABLE[name].make.asks), "")
        if asking and not self.own_calls:
            param = controls.param("strategy")
            raise BadRequest(f"{param}: this proxy lets no client choose {asking}, which asks a model.", param=param)
        if 0 < self.max_window < (controls.window or 0):
            param = controls.param("window")
            raise BadRequest(f"{param} may be at most {self.max_window:,} at this proxy.", param=param)


class Settings(BaseSettings):
    """All settings of one proxy. docs/configuration.md describes every key."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True)

    host: Text = "127.0.0.1"
    port: int = Field(8484, ge=0, le=65_535)
    workers: int = Field(1, ge=1)
    open_to_all: bool = False
    strategy: KnownStrategy = DEFAULT
    window: int | None = Field(None, ge=MIN_WINDOW)
    strict: bool = False
    economy: tables.Economy = "advise"
    inline_timeout: float = Field(10.0, gt=0)
    keepalive_interval: float = Field(10.0, ge=0)
    usage_probe: bool = True
    server: tables.ServerSettings = tables.ServerSettings()
    controls: ControlSettings = ControlSettings()
    log: tables.LogSettings = tables.LogSettings()
    drain: tables.DrainSettings = tables.DrainSettings()
    upstream: tables.UpstreamSettings = tables.UpstreamSettings()
    store: tables.StoreSettings = Field(default_factory=tables.StoreSettings)
    marks: tables.MarkSettings = tables.MarkSettings()
    summarizer: tables.SummarizerRole = tables.SummarizerRole()
    judge: tables.JudgeRole = tables.JudgeRole()
    background: tables.BackgroundSettings = tables.BackgroundSettings()
    ledger: tables.LedgerSettings = tables.LedgerSettings()
    memory: tables.MemorySettings = tables.MemorySettings()
    tokenizer: tables.TokenizerSettings = tables.TokenizerSettings()
    tenant: tables.TenantSettings = tables.TenantSettings()
    admin: tables.AdminSettings = tables.AdminSettings()
    sessions: tables.SessionSettings = tables.SessionSettings()
    limits: tables.LimitSettings = tables.LimitSettings()
    models: tuple[ModelSettings, ...] = ()
    options: dict[str, dict[str, Any]] = Field(default_factory=dict)

    @field_validator("options")
    @classmethod
    def _known_options(cls, value: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        if problems := list(option_problems(value)):
            raise ValidationError.from_exception_data("options", problems)
        return value

    @property
    def operator_keys(self) -> list[str]:
        """The names of the settings that hold keys of the operator which are used for clients' calls."""
        holders: dict[str, Any] = {"upstream": self.upstream, "summarizer": self.summarizer, "judge": self.judge}
        for i, entry in enumerate(self.models):
            holders |= {f"models[{i}].summarizer": entry.summarizer, f"models[{i}].judge": entry.judge}
        return [f"{name}.api_key" for name, holder in holders.items() if holder and holder.api_key]

    def for_model(self, model: str) -> ModelSettings | None:
        return next((entry for entry in self.models if fnmatchcase(model, entry.match)), None)

    def own(self, key: str, model: str) -> Any:
        """The value of a key of `[[models]]` for a model: that of its entry, else the general setting."""
        value = getattr(self.for_model(model), key, None)
        return attrgetter(ELSEWHERE.get(key, key))(self) if value is None else value

    @classmethod
    def settings_customise_sources(  # type: ignore[override]  # pydantic passes the others by name
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        **_others: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        trees = normalized(init_settings()), from_environment(), from_file()
        return tuple(InitSettingsSource(settings_cls, tree) for tree in trees)


def load_settings(**given: Any) -> Settings:
    """The settings, overridden by `given` (from the command line); raises `SettingsError` in plain words."""
    try:
        return Settings(**given)
    except ValidationError as error:
        raise SettingsError("\n".join(problems_in_words(error, Settings, given))) from None
    except (OSError, ValueError) as error:
        raise SettingsError(f"the settings cannot be read: {error}") from None
