"""The command line: the options that several commands share, the settings that they set, and types for argparse."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from math import inf
from pathlib import Path
from typing import Any, get_args

from proxy.controls import MIN_WINDOW, check_model, pipeline_named, split_model
from proxy.errors import BadRequest, SettingsError
from proxy.quoting import redacted
from proxy.settings import CONFIG_VARIABLE, Settings, load_settings
from proxy.settings.loading import COMMAND_LINE
from proxy.settings.tables import Economy
from strategies import TABLE, Pipeline

_IN_PROCESS_LIST = (
    "condenser: the list of processes of this machine shows the password in --store;"
    " CONDENSER_STORE__URL_FILE names a file with the URL"
)


def add_settings_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--config", metavar="FILE", help=f"a TOML file ({CONFIG_VARIABLE})")
    command.add_argument("--upstream", metavar="URL", help="the upstream's base URL, with its /v1")
    command.add_argument(
        "--store", metavar="URL", help="where sessions are kept: sqlite:///FILE, memory:// or redis://HOST:PORT/0"
    )
    command.add_argument("--strategy", metavar="NAME", help=f"one of {', '.join(TABLE)}; or several joined with '+'")
    command.add_argument("--window", metavar="TOKENS", type=int, help="the context length to assume")
    add_economy(command)


def add_economy(command: argparse.ArgumentParser) -> None:
    told = "auto: condense where that is cheapest; advise: only say where that is"
    command.add_argument("--economy", choices=get_args(Economy), help=told)


def settings_from(arguments: argparse.Namespace) -> Settings:
    """The settings, overridden by the command line; raises `SettingsError`, including for an empty option."""
    use_config(arguments.config)
    if "***@" in redacted(arguments.store or "://"):
        print(_IN_PROCESS_LIST, file=sys.stderr)
    return load_settings(**command_line_settings(arguments))


def command_line_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings that the command line sets, in the form that `load_settings` takes."""
    values: dict[str, Any] = {}
    for (*tables, key), option in COMMAND_LINE.items():
        value = getattr(arguments, option.removeprefix("--").replace("-", "_"), None)
        if value is not None:
            table = values.setdefault(tables[0], {}) if tables else values
            table[key] = value
    return values


def use_config(file: str | None) -> None:
    """Makes `file` the settings file, unless it is None; raises `SettingsError` for an empty name."""
    if file == "":
        raise SettingsError("--config is empty; leave it out where no file is meant")
    if file is not None:
        os.environ[CONFIG_VARIABLE] = file


def program() -> list[str]:
    """How this program is called from here: it need not be on the path, as in a checkout."""
    called = Path(sys.argv[0])
    if called.name != "condenser":
        return [sys.executable, "-m", "proxy"]
    found, called = shutil.which(called.name), called.absolute()
    is_on_path = found is not None and Path(found).absolute() == called
    return [
        called.name
        if is_on_path
        else str(called.relative_to(Path.cwd()) if called.is_relative_to(Path.cwd()) else called)
    ]


def strategy(text: str) -> str:
    return pipeline(text).text


def pipeline(text: str) -> Pipeline:
    try:
        return pipeline_named(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def model(text: str) -> tuple[str, Pipeline | None]:
    """The name of a model without its suffix, and the pipeline that the suffix names."""
    try:
        check_model(text)
    except BadRequest as error:
        raise argparse.ArgumentTypeError(error.message) from None
    name, suffix = split_model(text)
    if not name:
        raise argparse.ArgumentTypeError("is empty")
    return name, suffix


def window(text: str) -> int:
    tokens = positive(text)
    if tokens < MIN_WINDOW:
        raise argparse.ArgumentTypeError(f"must be at least {MIN_WINDOW}")
    return tokens


def positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' must be a whole number of at least 1")
    return int(text)


def amount(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < inf:
        raise argparse.ArgumentTypeError(f"'{text}' must be a number above 0")
    return number
