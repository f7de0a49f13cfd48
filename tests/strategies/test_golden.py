"""Golden cases: a small transcript in, the view out, one file for each strategy.

Each file holds `messages`, the `pipeline`, `window`, `goal` and `summary` (what the model answers), and what comes out:
`view` and `said`, the stages' metadata. With `judged`, judges have said YES to that many of the chain's messages; with
`options`, the one stage has these. With CONDENSER_UPDATE_GOLDEN=1 in the environment, outputs are written anew
instead of compared; review them as a diff.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from strategies import TABLE
from strategies.core.budget import Budget
from strategies.core.effects import Answer, Effect
from strategies.core.protocol import Past
from strategies.pipeline import run
from tests.strategies.driving import finish, judged_past, staged
from tests.strategies.invariants import faults
from tests.support.transcripts import bodies_of, view_of

GOLDEN = Path(__file__).parent / "golden"
CASES = sorted(GOLDEN.glob("*.json"))
UPDATE = "CONDENSER_UPDATE_GOLDEN"


def outcome(case: dict[str, Any]) -> dict[str, Any]:
    """What comes out of a case."""

    def reply(effect: Effect) -> Answer:
        return Answer(case["summary"])

    view, budget = view_of(case["messages"]), Budget.of(case["window"]).aiming(case["goal"])
    options = {case["pipeline"].replace("-", "_"): case["options"]} if "options" in case else {}
    past = judged_past(view, len(view.transcript.chain) - case["judged"]) if "judged" in case else Past()
    found = finish(run(staged(case["pipeline"], **options), (), view, budget, past), reply)
    assert faults(found.view, budget, shortened=True) == []
    return {"tokens": [view.tokens, found.view.tokens], "said": found.metadata, "view": bodies_of(found.view)}


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_a_golden_transcript_leads_to_its_golden_view(path: Path) -> None:
    case = json.loads(path.read_text("utf-8"))
    found = outcome(case)
    if os.environ.get(UPDATE):
        path.write_text(_written({**case, **found}), "utf-8")
    else:
        assert found == {key: case[key] for key in found}


def _written(case: dict[str, Any]) -> str:
    """JSON with one message a line, so that a change reads well in a diff."""
    lines = []
    for key, value in case.items():
        if key in ("messages", "view"):
            rows = ",\n".join("    " + json.dumps(each, ensure_ascii=False) for each in value)
            lines.append(f'  "{key}": [\n{rows}\n  ]')
        else:
            lines.append(f'  "{key}": {json.dumps(value, ensure_ascii=False)}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def test_every_strategy_has_a_golden_case() -> None:
    covered = {name for path in CASES for name in json.loads(path.read_text("utf-8"))["pipeline"].split("+")}
    assert set(TABLE) <= covered
