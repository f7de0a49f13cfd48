"""To come."""

from __future__ import annotations

import argparse


def add_arguments(command: argparse.ArgumentParser) -> None: ...
def run(arguments: argparse.Namespace) -> int:
    return 1
