"""`condenser`: the commands. Each lives in a module of its own and is imported when it is used."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from proxy.settings import CONFIG_VARIABLE, Settings, SettingsError, load_settings
from proxy.version import VERSION

OK, FAILED, USAGE = 0, 1, 2
COMMANDS = ("serve", "check", "demo", "replay", "status", "sessions", "memory", "healthcheck")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code: 0 for success, 1 for failure, 2 for wrong usage or settings."""
    arguments = parser().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
    except SettingsError as error:
        print("\n".join(f"condenser: {line}" for line in str(error).splitlines()), file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        return 130
    return code


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="condenser", description="Condenses conversation history on the fly.")
    top.add_argument("--version", action="version", version=f"condenser {VERSION}")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name in COMMANDS:
        module = import_module(f"proxy.commands.{name}")
        command = commands.add_parser(name, help=(module.__doc__ or "").splitlines()[0], description=module.__doc__)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return top


def add_settings_arguments(command: argparse.ArgumentParser) -> None:
    """The options that every command with settings takes."""
    command.add_argument("--config", metavar="FILE", help=f"a TOML file ({CONFIG_VARIABLE})")
    command.add_argument("--upstream", metavar="URL", help="the upstream's base URL, with its /v1")
    command.add_argument("--store", metavar="URL", help="where sessions are kept")
    command.add_argument("--strategy", metavar="NAME", help="a strategy, or several joined with '+'")
    command.add_argument("--window", metavar="TOKENS", type=int, help="the context length to assume")


def settings_from(arguments: argparse.Namespace) -> Settings:
    """The settings with the command line on top; raises `SettingsError`, also for an option that is given and empty."""
    use_config(arguments.config)
    return load_settings(**command_line_settings(arguments))


def command_line_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings that the command line sets, as `load_settings` takes them."""
    given: dict[str, Any] = {
        key: value
        for key in ("host", "port", "workers", "strategy", "window")
        if (value := getattr(arguments, key, None)) is not None
    }
    if arguments.upstream is not None:
        given["upstream"] = {"base_url": arguments.upstream}
    if arguments.store is not None:
        given["store"] = {"url": arguments.store}
    return given


def use_config(file: str | None) -> None:
    """Makes `file` the settings file, unless it is None; raises `SettingsError` for an empty name."""
    if file == "":
        raise SettingsError("--config is empty; leave it out where no file is meant")
    if file is not None:
        os.environ[CONFIG_VARIABLE] = file


if __name__ == "__main__":
    sys.exit(main())
