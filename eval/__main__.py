"""`python -m eval`: measure what of annotated dialogues reaches the model, and write docs/internals/quality.md.

Takes some minutes: every question is asked of every strategy, in views of three sizes. Times do not matter here, so
other work may go on beside it; the figures are the same every time. Each option of `ON_PEOPLE` prints its own table
instead, in a few minutes: what is kept of recorded sessions and of what users say.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path

from eval import arms, created, depth, economy, flagship, hermes, languages, needs, quoted, rot, rules
from eval.measure import SHARES, Cell, Dialogue, Figure, load
from eval.played import money_page, summaries_page
from proxy.commands.replaying.recorded import Unreadable
from proxy.commands.replaying.report import markdown
from proxy.protocols.chat import ChatCounter
from proxy.tokens.counter import Tokenizers
from strategies.core.messages import TokenCounter
from tests.support.data import LONG, SHORT

PAGE = Path(__file__).resolve().parents[1] / "docs" / "internals" / "quality.md"
TEMPLATE = Path(__file__).with_name("quality.md")
LANGUAGES = {"en": "English", "zh": "Chinese"}
KITS = Path(__file__).resolve().parents[1] / ".venv-kits" / "bin" / "python"
ON_PEOPLE: Mapping[str, tuple[Callable[[], str], str]] = {
    "needs": (needs.table, "the names that an agent uses next, in the view at a quarter"),
    "created": (created.table, "the things that an agent created, in the view at a quarter"),
    "depth": (depth.table, "`extract.depth` against the bill: names used next, created things, quoted units"),
    "economy": (economy.table, "`economy = auto` against the bill: names used next, in two windows"),
    "flagship": (flagship.table, "the input bill of a session of 780,000 tokens on a flagship"),
    "hermes": (hermes.table, "the anchors of hermes-agent's compression_eval, where the kit is at hand"),
    "quoted": (quoted.table, "whether what a record quotes stands so in a message"),
    "languages": (languages.table, "rules in eight languages, and statements side by side"),
    "rot": (rot.table, "rules that a text orders a summarizer to drop, over five condensations"),
    "rules": (rules.table, "labelled rules in the view, after three windows of other talk"),
}
"""What is measured alone, by its option, and what that is."""
_NOT_MEASURED = "Not measured: the long conversations are missing."
_NO_KITS = "Not measured: `make eval` installs the kits."


class Remembering:
    """A counter that counts each text once: the same lines are weighed for every question."""

    def __init__(self, counter: TokenCounter) -> None:
        self.dialect = counter.dialect
        self.text = cache(counter.text)
        self.message, self.factor = counter.message, counter.factor


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints the page, and writes it where that is wanted; 1 where there are no dialogues."""
    parser = argparse.ArgumentParser(prog="python -m eval", description=__doc__)
    parser.add_argument("--data", type=Path, default=SHORT, metavar="FILE", help=f"JSON lines; by default {SHORT.name}")
    parser.add_argument("--summarizer-url", metavar="URL", help="a server whose model writes the summaries")
    parser.add_argument("--model", default="gpt-4o-mini", metavar="NAME", help="that model; by default %(default)s")
    parser.add_argument("--write", action="store_true", help=f"write docs/{PAGE.name} too")
    for name, (_, told) in ON_PEOPLE.items():
        parser.add_argument(f"--{name}", action="store_true", help=f"measure only {told}")
    arguments = parser.parse_args(argv)
    alone = [measure for name, (measure, _) in ON_PEOPLE.items() if getattr(arguments, name)]
    if alone:
        print("\n\n".join(measure() for measure in alone))
        return 0
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
    url = arguments.summarizer_url
    summarizer = {"base_url": url, "model": arguments.model} if url else {}
    # The recorded conversations are played in processes of their own, beside the questions.
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        played = [pool.submit(money_page, LONG), pool.submit(summaries_page, LONG, summarizer)] if is_whole else []
        kits = public_kits() if is_whole and KITS.exists() else _NO_KITS
        text = page(dialogues, counter, lambda: [part.result() for part in played], kits)
    print(text, end="")
    if arguments.write:
        PAGE.write_text(text, "utf-8")
    return 0


def page(
    dialogues: Sequence[Dialogue],
    counter: TokenCounter,
    played: Callable[[], Sequence[str]] = lambda: (),
    kits: str = _NO_KITS,
) -> str:
    """The whole page; `played` gives the tables of `eval.played` about money and summaries, and is called last."""
    filled, views = arms.measured(dialogues, counter), arms.measured_beside(dialogues, counter)
    languages = [each for each in LANGUAGES if any(found.language == each for found in dialogues)]
    columns = [f"{LANGUAGES[language]} 1/{share}" for language in languages for share in SHARES]

    def cells(figures: Mapping[Cell, Figure], arm: str) -> list[str]:
        return [figure(figures[arm, language, share]) for language in languages for share in SHARES]

    by_arm = [[told, *cells(filled, arm)] for arm, (told, _) in arms.ARMS.items()]
    by_strategy = [
        [f"`{name}`", arm, *cells(views, f"{name}, {arm}")] for name in arms.STRATEGIES for arm in arms.MEMORY
    ]
    money, summaries = played() or [_NOT_MEASURED] * 2
    return TEMPLATE.read_text("utf-8").format(
        corpus="; ".join(corpus(each, dialogues) for each in languages),
        arms=markdown(" | ".join(["what is read", *columns]), by_arm),
        strategies=markdown(" | ".join(["strategy", "memory", *columns]), by_strategy, texts=(0, 1)),
        money=money,
        summaries=summaries,
        kits=kits,
    )


def public_kits() -> str:
    """The table of `eval.kits`, which runs in an environment of its own."""
    told = [str(KITS), "-m", "eval.kits", "--condenser", str(Path(sys.executable).with_name("condenser"))]
    return subprocess.run(told, cwd=KITS.parents[2], text=True, stdout=subprocess.PIPE, check=True).stdout.strip()


def corpus(language: str, dialogues: Sequence[Dialogue]) -> str:
    asked = [len(each.questions) for each in dialogues if each.language == language]
    return f"{LANGUAGES[language]}: {sum(asked):,} questions to {len(asked)} dialogues"


def figure(measured: Figure) -> str:
    """As `83 (80-86)`."""
    low, high = measured.interval
    return f"{measured.percent:.0f} ({low:.0f}-{high:.0f})"


if __name__ == "__main__":
    sys.exit(main())
