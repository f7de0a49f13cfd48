"""`python -m bench`: measure what the proxy adds.

Each measurement is a module with `measure() -> rows`, `markdown(rows)` and `document(rows)`. Without a name all are
run. Times are of this machine; look at how they grow and at what they are to each other.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

NAMES = ("plan", "session")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs measurements, prints their tables, and writes them as JSON where that is wanted."""
    arguments = _parser().parse_args(argv)
    documents = {}
    for name in arguments.names or NAMES:
        module = import_module(f"bench.{name}")
        rows = module.measure()
        print(module.markdown(rows))
        documents[name] = module.document(rows)
    if arguments.json:
        arguments.json.write_text(json.dumps(documents, indent=1) + "\n", "utf-8")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", type=_name, metavar="NAME", help=f"of {', '.join(NAMES)}; by default all")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    return parser


def _name(text: str) -> str:
    if text not in NAMES:
        raise argparse.ArgumentTypeError(f"there is no measurement '{text}'; known: {', '.join(NAMES)}")
    return text


if __name__ == "__main__":
    sys.exit(main())
