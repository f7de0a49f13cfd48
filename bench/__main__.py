"""`python -m bench`: measure what the proxy adds.

Each measurement is a module with `measure(**options) -> rows`; the parameters of its `measure` are its options, and a
row has a value for each title of the table. Without a name `load` is run. Times are of this machine; look at how they
grow and at their ratios.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

from proxy.commands.replaying.report import markdown

NAMES = (
    *("load", "cpu", "lag", "waiting", "footprint", "soak", "plan", "scale", "encryption", "patterns", "hostile"),
    "agents",
)


def main(argv: Sequence[str]) -> int:
    name, *options = argv or NAMES[:1]
    if name not in NAMES:
        print(f"bench: there is no measurement '{name}'; known: {', '.join(NAMES)}", file=sys.stderr)
        return 2
    module, raw = import_module(f"bench.{name}"), argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog=f"python -m bench {name}", description=module.__doc__, formatter_class=raw)
    for option, parameter in signature(module.measure).parameters.items():
        kind = next(kind for kind in (int, float, Path, str) if kind.__name__ in parameter.annotation)
        several: dict[str, Any] = {"nargs": "+"} if "Sequence" in parameter.annotation else {}
        default = {"default": parameter.default, "help": "by default %(default)s"}
        parser.add_argument(f"--{option.replace('_', '-')}", type=kind, **default, **several)
    print(table(module.measure(**vars(parser.parse_args(options)))))
    return 0


def table(rows: Sequence[Mapping[str, object]]) -> str:
    if not rows:
        return "nothing was measured"
    texts = [place for place, value in enumerate(rows[0].values()) if isinstance(value, str)]
    return markdown(" | ".join(rows[0]), [list(map(_shown, row.values())) for row in rows], texts=texts)


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.{2 if abs(value) < 10 else 1 if abs(value) < 100 else 0}f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
