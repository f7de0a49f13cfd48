"""Values on the command line: what may be given, and what a person is told who gives something else."""

from __future__ import annotations

import argparse

from proxy.setting_tables import known_strategy

LEAST_WINDOW = 256


def strategy(text: str) -> str:
    """The name of a strategy or a pipeline."""
    try:
        return known_strategy(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def window(text: str) -> int:
    """A context length in tokens."""
    tokens = positive(text)
    if tokens < LEAST_WINDOW:
        raise argparse.ArgumentTypeError(f"must be at least {LEAST_WINDOW}")
    return tokens


def positive(text: str) -> int:
    """A whole number above 0."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no whole number above 0")
    return int(text)
