"""Print the script by which a shell completes these commands: eval "$(condenser completion bash)"."""

from __future__ import annotations

import argparse

import shtab

from proxy.cli import COMMANDS, parser


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("shell", choices=shtab.SUPPORTED_SHELLS, help="the shell")


def run(arguments: argparse.Namespace) -> None:
    print(shtab.complete(parser(COMMANDS), arguments.shell))
