"""docs/quality.md, written from what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from eval.condensed import ARMS, STRATEGIES
from eval.dialogues import SHARES, Dialogue
from eval.measure import Cell, Figure
from proxy.replaying.table import markdown

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


def arms_table(figures: Mapping[Cell, Figure]) -> str:
    """The figures of each way to fill a view."""
    rows = [[told, *_figures(figures, arm)] for arm, told in ROWS.items()]
    return markdown(_head("what is read", *_columns(figures)), rows)


def strategies_table(figures: Mapping[Cell, Figure]) -> str:
    """The figures of each strategy, alone and with memory."""
    rows = [[f"`{name}`", arm, *_figures(figures, f"{name}, {arm}")] for name in STRATEGIES for arm in ARMS]
    return markdown(_head("strategy", "memory", *_columns(figures)), rows, texts=(0, 1))


def features_table(figures: Mapping[str, Mapping[str, Figure]], held_out: Mapping[str, Figure]) -> str:
    """What is left when a part of the ranking is left out, and the cross-validation."""
    rows = {**figures, "weights chosen on the other dialogues": held_out}
    present = [each for each in LANGUAGES if each in held_out]
    cells = [[name, *(figure(each[language]) for language in present)] for name, each in rows.items()]
    return markdown(_head("ranking", *(LANGUAGES[each] for each in present)), cells)


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


def _head(*titles: str) -> str:
    return " | ".join(titles)


def _columns(figures: Mapping[Cell, Figure]) -> list[str]:
    return [f"{LANGUAGES[language]} 1/{share}" for language in _present(figures) for share in SHARES]


def _figures(figures: Mapping[Cell, Figure], arm: str) -> list[str]:
    return [figure(figures[Cell(arm, language, share)]) for language in _present(figures) for share in SHARES]


def _present(figures: Mapping[Cell, Figure]) -> list[str]:
    return [each for each in LANGUAGES if any(cell.language == each for cell in figures)]
