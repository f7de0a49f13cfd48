"""Loads the settings: command line > environment (`CONDENSER_`, nested with `__`) > TOML file > defaults.

Every key is declared here or in `tables`; any other key is an error. `CONDENSER_…_FILE` reads a value from a file, so
secrets need not be in the environment. The tables of strategies (`[mask]`, `[half-window]`, …) are checked against the
options that the strategies declare.

Every source (the command line, the environment, the TOML file) becomes a tree of tables (`normalized`); then the trees
are merged. pydantic says what is wrong with a value. The error has a line for each wrong key, with the
nearest known key, the value itself if it cannot be a secret, and the option, variable or file that set it.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from fnmatch import fnmatchcase
from operator import attrgetter
from pathlib import Path
from secrets import token_urlsafe
from typing import Annotated, Any, NamedTuple, Self, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from proxy import config_directory
from proxy.controls import KEYS, MIN_WINDOW, Controls
from proxy.errors import BadRequest, SettingsError
from proxy.quoting import not_this, printable, quoted
from proxy.settings import tables
from proxy.settings.tables import (
    BUNDLED_CURRENCY,
    ELSEWHERE,
    KnownStrategy,
    ModelSettings,
    Table,
    Text,
    data_directory,
    split_at_commas,
)
from proxy.tokens.models import ModelTable, newest_table
from strategies import DEFAULT, TABLE
from strategies.core.errors import OptionError
from strategies.core.protocol import Options, expand_mode, fill_options

PREFIX = "CONDENSER_"
CONFIG_VARIABLE, MODELS = "CONDENSER_CONFIG", "models.toml"
_MAX_SHOWN = 400  # maximum characters of a line of the error
_STRATEGIES = {name.replace("-", "_"): name for name in TABLE}
"""The tables of strategies by their spelling in environment variables."""
COMMAND_LINE: Mapping[tuple[str, ...], str] = {  # the options of the command line, by the path of the key that they set
    **{(key,): f"--{key}" for key in ("host", "port", "workers", "strategy", "window", "economy")},
    ("single_user",): "--single-user",
    ("upstream", "base_url"): "--upstream",
    ("store", "url"): "--store",
}


_ONE = ("upstream", "base_url")


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Takes the place of a value that could not be read, so that validation reports it with all other errors."""

    problem: str


def normalized(data: Mapping[str, Any]) -> dict[str, Any]:
    """`data` with the tables of strategies in `options`, as the settings declare them."""
    rest = dict(data)
    options = {name: rest.pop(name) for name in TABLE if name in rest}
    if "options" in rest:
        rest["options"] = Unreadable("there is no table 'options'; tables of strategies such as [mask] have none above")
    elif options:
        rest["options"] = options
    return rest


def from_environment(environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    return normalized({_STRATEGIES.get(name, name): value for name, value in environment_tree(environ).items()})


def environment_tree(environ: Mapping[str, str]) -> dict[str, Any]:
    """`CONDENSER_STORE__URL=x` as `{"store": {"url": "x"}}`; values that look like JSON are read as JSON."""
    tree: dict[str, Any] = {}
    for variable, text in _variables(environ):
        plain = variable.removesuffix("_FILE")
        *tables, key = plain.removeprefix(PREFIX).lower().split("__")
        if plain != variable and plain in environ:
            value: Any = Unreadable(f"{plain} and {variable} are both set; leave one of them out")
        else:
            value = _value(variable, text, is_file=plain != variable)
        _put(tree, tables, key, value)
    return tree


def _variables(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    return sorted(pair for pair in environ.items() if pair[0].startswith(PREFIX) and pair[0] != CONFIG_VARIABLE)


def _value(variable: str, text: str, *, is_file: bool) -> Any:
    """The value of a variable: its text or that of the file that it names, parsed if it looks like JSON."""
    try:
        read = Path(text).read_text("utf-8").strip() if is_file else text
    except (OSError, ValueError) as error:
        return Unreadable(f"{variable} names {_unreadable(text, error)}")
    try:
        return json.loads(read) if read[:1] in ("[", "{") else read
    except (ValueError, RecursionError) as error:
        return Unreadable(f"{variable} begins as JSON does, but cannot be read as such: {error}")


def _unreadable(path: str, error: OSError | ValueError) -> str:
    """The words for a file that cannot be read. Its content may be secret, so it is not quoted."""
    why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
    return f"{path}, which cannot be read: {why}"


def _put(tree: dict[str, Any], tables: Sequence[str], key: str, value: Any) -> None:
    for name in tables:
        table = tree.setdefault(name, {})
        if not isinstance(table, dict):
            tree[name] = Unreadable(f"{PREFIX}{name.upper()} is given as a value and as a table")
            return
        tree = table
    tree[key] = value


def model_table() -> ModelTable:
    """What is known of models: the bundled table, or `models.toml` beside the settings if that is no older.

    Raises `SettingsError` if the file there cannot be read.
    """
    try:
        return newest_table(config_directory() / MODELS, models_file())
    except (OSError, ValueError) as error:
        raise SettingsError(f"the table of models cannot be read: {error}") from None


def models_file() -> Path:
    """The file of the renewed table: beside the settings, or with the user's data if no file has settings."""
    path = os.environ.get(CONFIG_VARIABLE)
    return (Path(path).parent if path else data_directory()) / MODELS


def from_file() -> dict[str, Any]:
    """The settings in the TOML file that `CONDENSER_CONFIG` names."""
    path = os.environ.get(CONFIG_VARIABLE)
    if not path:
        return {}
    try:
        return normalized(tomllib.loads(Path(path).read_text("utf-8")))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        problem = f"{path} is not valid TOML: {error}"
    except (OSError, ValueError) as error:
        problem = f"the settings are in {_unreadable(path, error)}"
    return {"config": Unreadable(problem)}  # there is no setting with this name


def trees_by_source(**given: Any) -> dict[str, dict[str, Any]]:
    """The settings of each source, by its name, for the arguments of `load_settings`; the first source wins."""
    return {"command line": normalized(given), "environment": from_environment(), "file": from_file()}


def _with_upstreams_of_one(trees: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """The trees, of which only the first that names upstreams still does: one source, or none, says where keys go."""
    first = next((n for n, tree in enumerate(trees) if sets(tree, _ONE) or "upstreams" in tree), len(trees))
    for tree in trees[first + 1 :]:
        tree.pop("upstreams", None)
        if "upstreams" in trees[first] and isinstance(tree.get("upstream"), dict):
            others = {key: value for key, value in tree["upstream"].items() if key not in ("base_url", "api_key")}
            tree["upstream"] = others
    return trees


def sets(tree: Any, path: Sequence[str | int]) -> bool:
    """Whether a tree has the key at a path, or a value in place of one of its tables."""
    if not tree:
        return False
    for part in path:
        try:
            tree = None if isinstance(tree, str) else tree[part]
        except LookupError:
            return False
        except TypeError:
            return True  # a value, or a list, in place of a table
    return True


# What is wrong

_LIKENESS = 0.6
_SECRETS = frozenset(
    {"api_key", "token", "pepper", "url", "base_url", "sha256", "encryption_key", "encryption_old_keys"}
)
_WORDS = {
    "missing": "is missing",
    "tuple_type": "must be a list; in the environment it is one in JSON",
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "must be a table"),
}
"""Kinds of errors for which pydantic's words do not suit settings.

A value in the place of a table may be one of its secrets, so it is not shown.
"""
_WHY = re.compile(r", (?:unable|got) .*")


def option_problems(options: Mapping[str, Mapping[str, Any]]) -> Iterator[InitErrorDetails]:
    """What is wrong with options of strategies: with each by itself, else with those of a table together."""
    for strategy, values in options.items():
        if strategy not in TABLE:
            yield InitErrorDetails(type="extra_forbidden", loc=(strategy,), input=values)
            continue
        declared = TABLE[strategy].options
        checked = [_option_problem((strategy, key), {key: value}, declared) for key, value in values.items()]
        if not any(checked):
            checked = [_option_problem((strategy,), expand_mode(declared, values), declared)]
        yield from filter(None, checked)


def _option_problem(path: tuple[str, ...], values: Mapping[str, Any], declared: Options) -> InitErrorDetails | None:
    """What is wrong with these options together; `path` is that of their table, or of the option if it is only one."""
    value, problem = values.get(path[-1], values), PydanticCustomError("extra_forbidden", "")
    if len(path) == 1 or (path[-1] in _keys_of_options(path[0]) and not isinstance(value, Unreadable)):
        try:
            fill_options(declared, values)
        except OptionError as error:
            problem = PydanticCustomError("option", "{text}", {"text": error.detail.removeprefix(f"'{path[-1]}' ")})
        else:
            return None
    return InitErrorDetails(type=problem, loc=path, input=value)


def problems_in_words(error: ValidationError, model: type[BaseModel], given: Mapping[str, Any]) -> list[str]:
    """A line for each wrong key, in the order of their declaration; `given` are the settings of the command line."""
    # If a key is wrong, a default that depends on it is missing too. The key has an error of its own.
    details = [detail for detail in error.errors() if detail["type"] != "default_factory_not_called"]
    return [line for detail in details for line in _lines(detail, model, given)]


def _lines(detail: Any, model: type[BaseModel], given: Mapping[str, Any]) -> Iterator[str]:
    if isinstance(detail["input"], Unreadable):
        yield printable(detail["input"].problem, _MAX_SHOWN)
        return
    path: tuple[str | int, ...] = detail["loc"]
    if not path:  # keys that contradict each other, which the message names
        yield printable(_translated(detail), _MAX_SHOWN)
        return
    # The user writes the tables of strategies at the top level.
    written = path[1:] if path[0] == "options" and len(path) > 1 else path
    key = ".".join(map(str, written))
    # A missing key is set nowhere, so its table's origin is shown.
    origins = _origins(given, path[:-1] if detail["type"] == "missing" else path)
    if detail["type"] != "extra_forbidden":
        where = f" ({origins[0]})" if origins else ""
        yield f"{key}: {printable(_translated(detail), _MAX_SHOWN)}{where}"
        return
    near = get_close_matches(str(written[-1]), _keys_beside(written, model), 1, _LIKENESS)
    place = len(written) - 1
    for origin in origins or [""]:
        words = origin.removeprefix(PREFIX).split("__")
        if origin.startswith(PREFIX) and place < len(words):
            name, where = f"variable {origin}", ""
            if near:
                words[place] = words[place].replace(_in_capitals(str(written[-1])), _in_capitals(near[0]))
            meant = PREFIX + "__".join(words)
        else:
            name, where = f"key '{printable(key, _MAX_SHOWN)}'", f" ({origin})" if origin else ""
            meant = f"'{'.'.join(map(str, (*written[:-1], *near)))}'"
        yield f"unknown {name}{f'; did you mean {meant}?' if near else ''}{where}"


def _in_capitals(key: str) -> str:
    """A key in the spelling of environment variables."""
    return key.upper().replace("-", "_").replace(".", "__")


def _translated(detail: Any) -> str:
    if detail["type"] == "value_error":
        return str(detail["ctx"]["error"])
    if detail["type"] in _WORDS:
        return _WORDS[detail["type"]]
    text = _WHY.sub("", detail["msg"].replace("Input should ", "must "))
    is_secret = not _SECRETS.isdisjoint(detail["loc"]) or {"upstreams", "headers"}.issubset(detail["loc"])
    return text if detail["type"] == "option" or is_secret else text + not_this(detail["input"])


def _origins(given: Mapping[str, Any], path: Sequence[str | int]) -> list[str]:
    """Where the key at `path`, or a key of the table there, is set: the option, the variables or the file.

    The list is empty for a value that a program has passed.
    """
    if sets(normalized(given), path):
        option = COMMAND_LINE.get(tuple(map(str, path)))
        return [option] if option else []
    variables = [name for name, text in _variables(os.environ) if sets(from_environment({name: text}), path)]
    return variables or ([os.environ[CONFIG_VARIABLE]] if sets(from_file(), path) else [])


def _keys_beside(written: Sequence[str | int], model: type[BaseModel]) -> Sequence[str]:
    if len(written) > 1 and written[0] in TABLE:
        return _keys_of_options(str(written[0]))
    table: Any = model
    for part in written[:-1]:
        if isinstance(part, str):
            table = _table_of(table.model_fields[part].annotation)
    keys = [info.alias or name for name, info in table.model_fields.items()]
    return [*keys, *TABLE, *_keys_in_tables(model)] if table is model else keys


def _keys_in_tables(model: type[BaseModel]) -> Iterator[str]:
    """The keys of all tables with their table's name, for those who leave out what stands between the two."""
    for name, info in model.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            yield from (f"{name}.{inner.alias or key}" for key, inner in info.annotation.model_fields.items())


def _keys_of_options(strategy: str) -> list[str]:
    return [option.name for option in fields(TABLE[strategy].options)]


def _table_of(annotation: Any) -> Any:
    """The table class in `T`, `T | None` or `tuple[T, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(found for part in get_args(annotation) if (found := _table_of(part)) is not None)


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


class Handles(NamedTuple):
    """Opens what handles stand for in one person's sessions, and nothing else; no setting: it ends with its proxy."""

    token: str = ""  # none where the sessions may be several people's
    of_run: bool = False  # only in sessions that this proxy has served


class Settings(BaseSettings):
    """All settings of one proxy. docs/reference/configuration.md describes every key."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True)

    host: Text = "127.0.0.1"
    port: int = Field(8484, ge=0, le=65_535)
    workers: int = Field(1, ge=1)
    open_to_all: bool = False
    single_user: bool = False
    strategy: KnownStrategy = DEFAULT
    window: int | None = Field(None, ge=MIN_WINDOW)
    strict: bool = False
    economy: tables.Economy = "advise"
    currency: tables.Currency = BUNDLED_CURRENCY
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
    upstreams: tuple[tables.UpstreamEntry, ...] = ()
    auth: tables.AuthSettings = Field(default_factory=tables.AuthSettings, validate_default=True)
    models: tuple[ModelSettings, ...] = ()
    options: dict[str, dict[str, Any]] = Field(default_factory=dict)
    _handles: Handles = PrivateAttr(Handles())

    @field_validator("options")
    @classmethod
    def _known_options(cls, value: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        if problems := list(option_problems(value)):
            raise ValidationError.from_exception_data("options", problems)
        return value

    @field_validator("upstreams")
    @classmethod
    def _each_by_its_name(
        cls, value: tuple[tables.UpstreamEntry, ...], known: ValidationInfo
    ) -> tuple[tables.UpstreamEntry, ...]:
        names, one = {entry.name for entry in value}, known.data.get("upstream")
        if len(names) < len(value):
            raise ValueError("two of them have one name")
        if one is not None and one.base_url is not None and "upstream" in names:
            raise ValueError("'upstream' is the name of the one at upstream.base_url")
        return value

    @field_validator("admin")
    @classmethod
    def _at_a_port_of_its_own(cls, value: tables.AdminSettings, info: ValidationInfo) -> tables.AdminSettings:
        if value.address is not None and 0 != value.address[1] == info.data.get("port"):
            raise ValueError(f"listen needs another port than the one for requests, {value.address[1]}")
        return value

    @field_validator("auth")
    @classmethod
    def _keys_stand_alone(cls, value: tables.AuthSettings, info: ValidationInfo) -> tables.AuthSettings:
        """No key of a caller goes to an upstream, so each has one of its own; and a key says whose a request is."""
        if value.mode != "keys":
            return value
        one, named = info.data.get("upstream"), info.data.get("upstreams", ())
        missing = [
            f"upstreams.{each.name}.api_key" for each in named if each.api_key is None and each.takes_credentials
        ]
        if one is not None and (one.base_url is not None or not named) and one.api_key is None:
            missing.append("upstream.api_key")
        if missing:
            raise ValueError(f'mode = "keys" forwards no key of a caller; what is missing: {", ".join(missing)}')
        tenant = info.data.get("tenant")
        if info.data.get("single_user") or (tenant is not None and tenant.source != "credential"):
            raise ValueError(
                'mode = "keys" gives each key its tenant; so tenant.from must be "credential", and single_user false'
            )
        return value

    @property
    def admin_host(self) -> str:
        """The host at which pages and the admin API are."""
        return self.admin.address[0] if self.admin.address is not None else self.host

    @property
    def tenant_source(self) -> str:
        """How the tenant of a request is found; what `tenant.from` says comes first."""
        is_set = "source" in self.tenant.model_fields_set
        return "fixed" if self.single_user and not is_set else self.tenant.source

    @property
    def handles(self) -> Handles:
        return self._handles

    def with_handles(self, *, of_run: bool) -> Self:
        """The settings with a new token for handles, where all sessions are one person's."""
        made = self.model_copy()
        if self.single_user and self.tenant_source == "fixed":
            made._handles = Handles(token_urlsafe(), of_run)  # noqa: SLF001
        return made

    @model_validator(mode="after")
    def _with_known_upstreams(self) -> Self:
        return self.known_upstreams()

    def known_upstreams(self) -> Self:
        """The settings; raises `ValueError` if the proxy's own calls are to go to an upstream that there is not."""
        known = [entry.name for entry in self.named_upstreams]
        for key, role in self._roles.items():
            if role.upstream is not None and role.upstream not in known:
                raise ValueError(f"{key}.upstream must be one of {', '.join(known)}{not_this(role.upstream)}")
        return self

    @property
    def named_upstreams(self) -> tuple[tables.UpstreamEntry, ...]:
        """All upstreams: of `[[upstreams]]`, then that of `upstream.base_url`; two defaults if there is none."""
        address, key = self.upstream.base_url, self.upstream.api_key
        one = [tables.UpstreamEntry(name="upstream", base_url=address, api_key=key)] if address is not None else []
        return (*self.upstreams, *one) or tables.DEFAULT_UPSTREAMS

    @property
    def _roles(self) -> dict[str, tables.ModelRole]:
        """The models of own calls, by where they are set."""
        found: dict[str, tables.ModelRole | None] = {"summarizer": self.summarizer, "judge": self.judge}
        for i, entry in enumerate(self.models):
            found |= {f"models[{i}].summarizer": entry.summarizer, f"models[{i}].judge": entry.judge}
        return {name: role for name, role in found.items() if role is not None}

    def role(self, key: str, model: str) -> Any:
        """The `summarizer` or `judge` of a model, at the upstream that it names."""
        role = self.own(key, model)
        named = (entry for entry in self.named_upstreams if entry.name == role.upstream)
        return next(map(role.at, named), role)

    @property
    def operator_keys(self) -> list[str]:
        """The names of the settings that hold keys of the operator which are used for clients' calls."""
        holders: dict[str, Any] = {"upstream": self.upstream, **self._roles}
        holders |= {f"upstreams[{i}]": entry for i, entry in enumerate(self.upstreams)}
        keys = [f"{name}.api_key" for name, holder in holders.items() if holder.api_key]
        others = (i for i, entry in enumerate(self.upstreams) if entry.has_credential and not entry.api_key)
        return [*keys, *(f"upstreams[{i}].headers" for i in others)]

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
        trees = _with_upstreams_of_one([normalized(init_settings()), from_environment(), from_file()])
        return tuple(InitSettingsSource(settings_cls, tree) for tree in trees)


def load_settings(**given: Any) -> Settings:
    """The settings, overridden by `given` (from the command line); raises `SettingsError` in plain words."""
    try:
        return Settings(**given)
    except ValidationError as error:
        raise SettingsError("\n".join(problems_in_words(error, Settings, given))) from None
    except (OSError, ValueError) as error:
        raise SettingsError(f"the settings cannot be read: {error}") from None
