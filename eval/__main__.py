"""`python -m eval`: measure what of annotated dialogues reaches the model, and write docs/quality.md.

Takes some minutes: every question is asked of every strategy, in views of three sizes. Times do not matter here, so
other work may go on beside it; the figures are the same every time.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path

from eval import arms, condensed, money, summaries
from eval.dialogues import SHARES, Dialogue, load
from eval.features import cross_validated, features
from eval.measure import Cell, Figure, measured
from proxy.endpoints.chat.counter import ChatCounter
from proxy.replaying.recorded import Unreadable
from proxy.replaying.report import markdown
from proxy.tokens.counter import Tokenizers
from strategies.core.messages import TokenCounter
from tests.support.data import LONG, SHORT

PAGE = Path(__file__).resolve().parents[1] / "docs" / "quality.md"
TEMPLATE = Path(__file__).with_name("quality.md")
ARMS: Mapping[str, arms.Arm] = {
    "trimmed": arms.trimmed,
    "five hits": arms.five_hits,
    "whole budget": arms.whole_budget,
    "inject": arms.injected,
    "inject, tight": partial(arms.injected, part=arms.TIGHT),
    "search": arms.searched,
    "search, tight": partial(arms.searched, part=arms.TIGHT),
}
_NOT_MEASURED = "Not measured: the long conversations are missing."
LANGUAGES = {"en": "English", "zh": "Chinese"}
ROWS = {
    "trimmed": "the newest messages only",
    "five hits": "textbook BM25: five hits in 800 tokens, and the newest messages",
    "whole budget": "textbook BM25: hits only",
    "inject": "**memory block**, and the newest messages",
    "inject, tight": "the same, block of a seventh of the view",
    "search": "**memory block and one search**",
    "search, tight": "the same, block of a seventh of the view",
}


class Remembering:
    """A counter that counts each text once: the same lines are weighed for every question."""

    def __init__(self, counter: TokenCounter) -> None:
        self.dialect = counter.dialect
        self.text = cache(counter.text)
        self.message = counter.message


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints the page, and writes it where that is wanted; 1 where there are no dialogues."""
    arguments = _parser().parse_args(argv)
    counter = Remembering(Tokenizers().for_model("gpt-4o", ChatCounter))
    try:
        dialogues = load(arguments.data, counter)
    except Unreadable as error:
        print(f"eval: {error}; name a file with --data", file=sys.stderr)
        return 1
    if not dialogues:
        print(f"eval: no dialogue in {arguments.data} has questions and enough tokens", file=sys.stderr)
        return 1
    is_whole = LONG.exists() and arguments.data == SHORT
    asked = summaries.Summarizer(arguments.summarizer_url, arguments.model) if arguments.summarizer_url else None
    # The recorded conversations are played in processes of their own, beside the questions.
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        played = [pool.submit(money.page, LONG), pool.submit(summaries.page, LONG, asked)] if is_whole else []
        text = page(dialogues, counter, lambda: [part.result() for part in played] or ["", ""])
    print(text, end="")
    if arguments.write:
        PAGE.write_text(text, "utf-8")
    return 0


def page(
    dialogues: Sequence[Dialogue], counter: TokenCounter, played: Callable[[], Sequence[str]] = lambda: ("", "")
) -> str:
    """The whole page; `played` gives the tables of `eval.money` and `eval.summaries`, and is called last."""
    tables = {
        "corpus": corpus(dialogues),
        "arms": arms_table(measured(dialogues, ARMS, counter)),
        "features": features_table(features(dialogues, counter), cross_validated(dialogues, counter)),
        "strategies": strategies_table(condensed.measured_with(dialogues, counter)),
    }
    money_page, summaries_page = (text or _NOT_MEASURED for text in played())
    return TEMPLATE.read_text("utf-8").format(**tables, money=money_page, summaries=summaries_page)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m eval", description=__doc__)
    parser.add_argument("--data", type=Path, default=SHORT, metavar="FILE", help=f"JSON lines; by default {SHORT.name}")
    parser.add_argument(
        "--summarizer-url", metavar="URL", help="a chat server that writes the summaries that are scored"
    )
    parser.add_argument("--model", default="gpt-4o-mini", metavar="NAME", help="the model that it is asked for")
    parser.add_argument("--write", action="store_true", help=f"write docs/{PAGE.name} too")
    return parser


def arms_table(figures: Mapping[Cell, Figure]) -> str:
    """The figures of each way to fill a view."""
    rows = [[told, *_figures(figures, arm)] for arm, told in ROWS.items()]
    return markdown(" | ".join(["what is read", *_columns(figures)]), rows)


def strategies_table(figures: Mapping[Cell, Figure]) -> str:
    """The figures of each strategy, alone and with memory."""
    rows = [
        [f"`{name}`", arm, *_figures(figures, f"{name}, {arm}")]
        for name in condensed.STRATEGIES
        for arm in condensed.ARMS
    ]
    return markdown(" | ".join(["strategy", "memory", *_columns(figures)]), rows, texts=(0, 1))


def features_table(figures: Mapping[str, Mapping[str, Figure]], held_out: Mapping[str, Figure]) -> str:
    """What is left when a part of the ranking is left out, and the cross-validation."""
    rows = {**figures, "weights chosen on the other dialogues": held_out}
    present = [each for each in LANGUAGES if each in held_out]
    cells = [[name, *(figure(each[language]) for language in present)] for name, each in rows.items()]
    return markdown(" | ".join(["ranking", *(LANGUAGES[each] for each in present)]), cells)


def corpus(dialogues: Sequence[Dialogue]) -> str:
    """How many questions about how many dialogues there are."""
    told = []
    for language in (each for each in LANGUAGES if any(found.language == each for found in dialogues)):
        of = [each for each in dialogues if each.language == language]
        questions = sum(len(each.questions) for each in of)
        told.append(f"{LANGUAGES[language]}: {questions:,} questions to {len(of)} dialogues")
    return "; ".join(told)


def figure(measured: Figure) -> str:
    """As `83 (80-86)`."""
    low, high = measured.interval
    return f"{measured.percent:.0f} ({low:.0f}-{high:.0f})"


def _columns(figures: Mapping[Cell, Figure]) -> list[str]:
    return [f"{LANGUAGES[language]} 1/{share}" for language in _present(figures) for share in SHARES]


def _figures(figures: Mapping[Cell, Figure], arm: str) -> list[str]:
    return [figure(figures[Cell(arm, language, share)]) for language in _present(figures) for share in SHARES]


def _present(figures: Mapping[Cell, Figure]) -> list[str]:
    return [each for each in LANGUAGES if any(cell.language == each for cell in figures)]


if __name__ == "__main__":
    sys.exit(main())
