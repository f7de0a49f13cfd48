"""`python -m bench`: measure what the proxy adds.

Each measurement is a module with `measure(**options) -> rows`; the parameters of its `measure` are its options, and a
row has a value for each title of the table. Without a name `load` is run. Times are of this machine; look at how they
grow and at their ratios.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any

from proxy.replaying.report import markdown

NAMES = ("load", "cpu", "lag", "waiting", "footprint", "attacks", "plan", "repeats")
DEFAULT = "load"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs measurements, prints their tables, and writes them as JSON where that is wanted."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__, add_help=False, allow_abbrev=False)
    names = f"of {', '.join(NAMES)}; by default {DEFAULT}"
    parser.add_argument("names", nargs="*", type=_name, metavar="NAME", help=names)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    arguments, rest = parser.parse_known_args(argv)
    if not arguments.names and {"-h", "--help"} & set(rest):
        parser.print_help()
        return 0
    documents = {}
    for name in arguments.names or [DEFAULT]:
        module = import_module(f"bench.{name}")
        documents[name] = module.measure(**_options(name, module, rest))
        print(table(documents[name]))
    if arguments.json:
        arguments.json.write_text(json.dumps(documents, indent=1) + "\n", "utf-8")
    return 0


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """A Markdown table of rows with the same titles."""
    if not rows:
        return "nothing was measured"
    texts = [place for place, value in enumerate(rows[0].values()) if isinstance(value, str)]
    return markdown(" | ".join(rows[0]), [list(map(_shown, row.values())) for row in rows], texts=texts)


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.{2 if abs(value) < 10 else 1 if abs(value) < 100 else 0}f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _options(name: str, module: ModuleType, arguments: Sequence[str]) -> dict[str, Any]:
    """The options given for a measurement, by the parameters of its `measure`."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog=f"python -m bench {name}", description=module.__doc__, formatter_class=raw)
    for option, parameter in signature(module.measure).parameters.items():
        kind = next(kind for kind in (int, float, Path, str) if kind.__name__ in parameter.annotation)
        several: dict[str, Any] = {"nargs": "+"} if "Sequence" in parameter.annotation else {}
        parser.add_argument(
            f"--{option.replace('_', '-')}", type=kind, help=f"by default {parameter.default}", **several
        )
    return {option: value for option, value in vars(parser.parse_args(arguments)).items() if value is not None}


def _name(text: str) -> str:
    if text not in NAMES:
        raise argparse.ArgumentTypeError(f"there is no measurement '{text}'; known: {', '.join(NAMES)}")
    return text


if __name__ == "__main__":
    sys.exit(main())
