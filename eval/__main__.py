"""`python -m eval`: measure what of annotated dialogues reaches the model, and write docs/quality.md.

Takes some minutes: every question is asked of every strategy, in views of three sizes. Times do not matter here, so
other work may go on beside it; the figures are the same every time.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from eval import arms
from eval.condensed import measured_with
from eval.dialogues import Dialogue, load
from eval.features import cross_validated, features
from eval.measure import measured
from eval.report import arms_table, corpus, features_table, strategies_table
from proxy.replaying.recorded import Unreadable
from proxy.tokens.counter import Tokenizers
from strategies.core.messages import Counter
from tests.support.data import SHORT

PAGE = Path(__file__).resolve().parents[1] / "docs" / "quality.md"
TEMPLATE = Path(__file__).with_name("quality.md")
ARMS: Mapping[str, arms.Arm] = {
    "trimmed": arms.trimmed,
    "five hits": arms.five_hits,
    "whole budget": arms.whole_budget,
    "inject": arms.injected,
    "inject, tight": arms.injected_tight,
    "search": arms.searched,
    "search, tight": arms.searched_tight,
}


class Remembering:
    """A counter that counts each text once: the same lines are weighed for every question."""

    def __init__(self, counter: Counter) -> None:
        self.text = cache(counter.text)
        self.message = counter.message


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints the page, and writes it where that is wanted; 1 where there are no dialogues."""
    arguments = _parser().parse_args(argv)
    counter = Remembering(Tokenizers().for_model("gpt-4o"))
    try:
        dialogues = load(arguments.data, counter)
    except Unreadable as error:
        print(f"eval: {error}; name a file with --data", file=sys.stderr)
        return 1
    if not dialogues:
        print(f"eval: no dialogue in {arguments.data} has questions and enough tokens", file=sys.stderr)
        return 1
    text = page(dialogues, counter)
    print(text, end="")
    if arguments.write:
        PAGE.write_text(text, "utf-8")
    return 0


def page(dialogues: Sequence[Dialogue], counter: Counter) -> str:
    """The whole page."""
    return TEMPLATE.read_text("utf-8").format(
        corpus=corpus(dialogues),
        arms=arms_table(measured(dialogues, ARMS, counter)),
        features=features_table(features(dialogues, counter), cross_validated(dialogues, counter)),
        strategies=strategies_table(measured_with(dialogues, counter)),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m eval", description=__doc__)
    parser.add_argument("--data", type=Path, default=SHORT, metavar="FILE", help=f"JSON lines; by default {SHORT.name}")
    parser.add_argument("--write", action="store_true", help=f"write docs/{PAGE.name} too")
    return parser


if __name__ == "__main__":
    sys.exit(main())
