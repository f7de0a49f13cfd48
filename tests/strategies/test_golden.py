"""Golden cases: a small transcript in, the view out, for each strategy and for each option that changes a view.

Each file of `golden` holds `messages`, the `pipeline`, `window`, `goal` and `summary` (what the model answers), and
what comes out: `view` and `said`, the stages' metadata. With `judged`, judges have said YES to that many of the chain's
messages; with `options`, the one stage has these. A `goal` of null is what the marks of the pipeline say.

Each file of `golden/options` holds variants of the case of its name: other `options`, and what else is other, and the
`view`, in which a number stands for the message of the transcript at that place, systems included. A variant must lead
to another view than the same case without its options.

With CONDENSER_UPDATE_GOLDEN=1 in the environment, outputs are written anew instead of compared; review them as a diff.
"""

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from strategies import TABLE
from strategies.core.budget import Budget
from strategies.core.effects import Answer, Compact, Effect, Result
from strategies.core.protocol import SessionFacts
from strategies.core.view import View
from strategies.pipeline import Outcome, run, with_stage_marks
from tests.strategies.driving import compacted, finish, judged_session, stages_of
from tests.strategies.invariants import faults
from tests.support.transcripts import Body, bodies_of, view_of

GOLDEN = Path(__file__).parent / "golden"
CASES = sorted(GOLDEN.glob("*.json"))
OPTIONS = sorted((GOLDEN / "options").glob("*.json"))
UPDATE = "CONDENSER_UPDATE_GOLDEN"
# What these say is when, how or of whom something is asked, or what is done with a plan; a plan is the same.
NOT_OF_A_PLAN = {
    "rolling": {
        "compression_threshold", "block", "enable_memory_injection", "memory_top_k", "memory_max_tokens"
    },
    "dynacontext": {
        "voting_k", "early_turns", "min_growth", "max_branches", "cool_down", "unreadable", "judge", "ballot",
        "judge_max_tokens", "on_drift", "include_tool_content",
    },
}  # fmt: skip


class Run(NamedTuple):
    """A case that was run: the view before, and the outcome."""

    before: View
    outcome: Outcome


def played(case: dict[str, Any]) -> Run:
    """What comes out of a case."""

    def reply(effect: Effect) -> Result:
        return compacted(case["summary"]) if isinstance(effect, Compact) else Answer(case["summary"])

    options = {case["pipeline"].replace("-", "_"): case["options"]} if case.get("options") else {}
    stages = stages_of(case["pipeline"], **options)
    view, budget = view_of(case["messages"]), with_stage_marks(Budget.of(case["window"]), stages)
    budget = budget if case["goal"] is None else budget.with_goal(case["goal"])
    session = judged_session(view, len(view.transcript.chain) - case["judged"]) if "judged" in case else SessionFacts()
    found = finish(run(stages, (), view, budget, session), reply)
    assert faults(found.view, budget, shortened=True) == []
    return Run(view, found)


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_a_golden_transcript_leads_to_its_golden_view(path: Path) -> None:
    case = json.loads(path.read_text("utf-8"))
    before, outcome = played(case)
    tokens = [before.tokens, outcome.view.tokens]
    found = {"tokens": tokens, "said": outcome.metadata, "view": bodies_of(outcome.view)}
    if os.environ.get(UPDATE):
        path.write_text(_written({**case, **found}), "utf-8")
    else:
        assert found == {key: case[key] for key in found}


# --- options ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", OPTIONS, ids=lambda path: path.stem)
def test_an_option_leads_to_its_golden_view(path: Path) -> None:
    variants = json.loads(path.read_text("utf-8"))
    found = [_shown({**_base(path), **each}) for each in variants]
    if os.environ.get(UPDATE):
        each_with_view = ({**each, "view": view} for each, view in zip(variants, found, strict=True))
        path.write_text(_listed(each_with_view), "utf-8")
    else:
        assert found == [each["view"] for each in variants]


@pytest.mark.parametrize("path", OPTIONS, ids=lambda path: path.stem)
def test_without_its_option_the_same_case_leads_to_another_view(path: Path) -> None:
    for each in json.loads(path.read_text("utf-8")):
        assert _shown({**_base(path), **each, "options": {}}) != each["view"], each["options"]


@pytest.mark.parametrize("name", TABLE)
def test_every_option_that_changes_a_view_has_a_golden_case(name: str) -> None:
    paths = [path for path in OPTIONS if path.stem == name]
    variants = [each for path in paths for each in json.loads(path.read_text("utf-8"))]
    whole = [case for path in CASES if (case := json.loads(path.read_text("utf-8")))["pipeline"] == name]
    seen = {option for each in (*variants, *whole) for option in each.get("options", {})}
    known = {each.name for each in fields(TABLE[name].options)} - {"memory_cards"}
    assert known - seen == NOT_OF_A_PLAN.get(name, set()) - seen


def test_every_strategy_has_a_golden_case() -> None:
    covered = {name for path in CASES for name in json.loads(path.read_text("utf-8"))["pipeline"].split("+")}
    assert set(TABLE) <= covered


# --- files ------------------------------------------------------------------------------------------------------


def _base(path: Path) -> dict[str, Any]:
    case: dict[str, Any] = json.loads((GOLDEN / path.name).read_text("utf-8"))
    return {key: value for key, value in case.items() if key not in ("tokens", "said", "view", "options")}


def _shown(case: dict[str, Any]) -> list[Body | int]:
    """The view that a case leads to, with numbers for the messages of its transcript."""
    messages = case["messages"]
    return [messages.index(body) if body in messages else body for body in bodies_of(played(case).outcome.view)]


def _written(case: dict[str, Any]) -> str:
    """JSON with one message a line, so that a change reads well in a diff."""
    return "{\n" + ",\n".join(_members(case, "  ")) + "\n}\n"


def _listed(variants: Iterable[dict[str, Any]]) -> str:
    """The same for a list of cases."""
    return "[\n" + ",\n".join("  {\n" + ",\n".join(_members(each, "    ")) + "\n  }" for each in variants) + "\n]\n"


def _members(case: dict[str, Any], indent: str) -> Iterator[str]:
    for key, value in case.items():
        text = json.dumps(value, ensure_ascii=False)
        if key in ("messages", "view") and not all(isinstance(each, int) for each in value):
            rows = (f"{indent}  {json.dumps(each, ensure_ascii=False)}" for each in value)
            text = "[\n" + ",\n".join(rows) + f"\n{indent}]"
        yield f'{indent}"{key}": {text}'
