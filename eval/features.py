"""What each part of the ranking is worth, and whether its weights were fitted to these dialogues.

Measured by the share of questions whose whole evidence the memory block and the newest messages hold in a view of an
eighth. In the cross-validation the weights of the neighbours are chosen, for each dialogue, on all others of its
language from a grid, and then used on that dialogue: what comes out is what the choice is worth where nobody looked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from eval.arms import cases_of, injected
from eval.dialogues import Dialogue
from eval.measure import Figure
from strategies.core.messages import TokenCounter
from strategies.memory.ranking import DEFAULT, Weights

SHARE = 8
FEATURES: Mapping[str, Weights] = {
    "all": DEFAULT,
    "no neighbours": replace(DEFAULT, after=(), before=()),
    "no later neighbours": replace(DEFAULT, after=()),
    "no earlier neighbours": replace(DEFAULT, before=()),
    "no speakers": replace(DEFAULT, speaker=1.0),
    "no dates": replace(DEFAULT, dated=1.0),
    "no quotes, identifiers": replace(DEFAULT, quoted=1.0),
}
GRID: Mapping[str, Weights] = {
    f"{first} × {decay}": replace(DEFAULT, after=tuple(first * decay**steps for steps in range(5)))
    for first in (0.3, 0.5, 0.7)
    for decay in (0.5, 0.7)
}

ByDialogue = Mapping[str, Figure]


def features(dialogues: Sequence[Dialogue], counter: TokenCounter) -> dict[str, dict[str, Figure]]:
    """The figure of each language by what is left out."""
    return {name: summed(dialogues, by_dialogue(dialogues, each, counter)) for name, each in FEATURES.items()}


def cross_validated(dialogues: Sequence[Dialogue], counter: TokenCounter) -> dict[str, Figure]:
    """The figure of each language where each dialogue has the weights that are best on the others."""
    tried = {name: by_dialogue(dialogues, weights, counter) for name, weights in GRID.items()}
    held_out = {each.id: tried[_best(each, dialogues, tried)][each.id] for each in dialogues}
    return summed(dialogues, held_out)


def _best(left_out: Dialogue, dialogues: Sequence[Dialogue], tried: Mapping[str, ByDialogue]) -> str:
    others = [each.id for each in dialogues if each.language == left_out.language and each.id != left_out.id]
    return max(tried, key=lambda name: sum(tried[name][each].reached for each in others))


def by_dialogue(dialogues: Sequence[Dialogue], weights: Weights, counter: TokenCounter) -> ByDialogue:
    found: dict[str, Figure] = {}
    for dialogue in dialogues:
        cases = list(cases_of(dialogue, counter, (SHARE,), weights))
        found[dialogue.id] = Figure(sum(evidence <= injected(case) for _, evidence, case in cases), len(cases))
    return found


def summed(dialogues: Sequence[Dialogue], figures: ByDialogue) -> dict[str, Figure]:
    sums: dict[str, Figure] = defaultdict(lambda: Figure(0, 0))
    for dialogue in dialogues:
        before, figure = sums[dialogue.language], figures[dialogue.id]
        sums[dialogue.language] = Figure(before.reached + figure.reached, before.asked + figure.asked)
    return dict(sums)
