"""Values on the command line: types for argparse, with their error messages."""

from __future__ import annotations

import argparse
from typing import NamedTuple

from proxy.errors import BadRequest
from proxy.request.controls import check_model, split_model
from proxy.settings.values import http_address, known_strategy
from strategies import Pipeline

MIN_WINDOW = 256


class NamedModel(NamedTuple):
    """A model's name without its suffix, and the pipeline that the suffix names."""

    name: str
    suffix: Pipeline | None = None


def strategy(text: str) -> str:
    """The name of a strategy or a pipeline."""
    try:
        return known_strategy(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def address(text: str) -> str:
    """The base URL of a model server."""
    try:
        return http_address(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def model(text: str) -> NamedModel:
    """A model as clients name it, perhaps with the suffix of a pipeline."""
    try:
        check_model(text)
    except BadRequest as error:
        raise argparse.ArgumentTypeError(error.message) from None
    name, suffix = split_model(text)
    if not name:
        raise argparse.ArgumentTypeError("is empty")
    return NamedModel(name, suffix)


def window(text: str) -> int:
    """A context length in tokens."""
    tokens = positive(text)
    if tokens < MIN_WINDOW:
        raise argparse.ArgumentTypeError(f"must be at least {MIN_WINDOW}")
    return tokens


def positive(text: str) -> int:
    """A whole number above 0."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' must be a whole number of at least 1")
    return int(text)
