"""Runs strategies and pipelines without an event loop: a function answers their effects."""

import json
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

from strategies import LADDER, LADDER_OPTIONS, parse, stages
from strategies.core.budget import Budget
from strategies.core.effects import Answer, Ask, Compact, Compacted, Effect, Failure, Result
from strategies.core.pieces import Overlay
from strategies.core.plan import Plan, apply, check, head_pieces
from strategies.core.protocol import SessionFacts, Strategy, Verdict
from strategies.core.requirement import Requirement
from strategies.core.transcript import Transcript
from strategies.core.view import View, fold
from strategies.pipeline import Outcome, run_required
from tests.support.transcripts import WORDS

T = TypeVar("T")
Reply = Callable[[Effect], Result]

RECORD = (
    "Goal: mend the parser.\nDone: src/a.py was read. It loses the last line of a file without a line break, because"
    " the lexer counted that line twice.\nOpen: run the tests."
)


FORGETFUL = (
    "<summary>The work goes on, one step after the other, as such work does. Nothing of note was said by anyone so far,"
    " and nothing that was asked or answered on the way seems to matter for whatever may come next in it.</summary>"
)


def good(effect: Effect) -> Result:
    """The answer of a good summarizer: short, tagged, and different for each question."""
    if isinstance(effect, Compact):
        return compacted(RECORD)
    if not isinstance(effect, Ask):
        return Failure("not-asked")
    return Answer(f"<summary>{RECORD} {len(effect.user)}</summary>")


def compacted(text: str) -> Compacted:
    """A compaction as a message that all dialects have; the core never looks into one."""
    return Compacted((json.dumps({"role": "user", "content": text}),), "the maker", "some form", 100)


def forgetful(effect: Effect) -> Result:
    """A summary that drops everything, in whatever form it is asked for."""
    if isinstance(effect, Compact):
        return compacted("Much was said.")
    return Answer(FORGETFUL)


def wordy(effect: Effect) -> Result:
    """A summary as long as it may be."""
    if isinstance(effect, Compact):
        return compacted("word " * max(effect.room // 2, 1))
    most = effect.record if isinstance(effect, Ask) and effect.record else effect.max_tokens
    return Answer(f"<summary>{'word ' * most}</summary>")


def failing(effect: Effect) -> Result:
    """The result of a summarizer that cannot be reached."""
    return Failure("unreachable")


def finish(running: Generator[tuple[Effect, ...], tuple[Result, ...], T], reply: Reply = good) -> T:
    """Runs a generator of effects to its end and returns what it returns."""
    try:
        effects = next(running)
        while True:
            effects = running.send(tuple(reply(each) for each in effects))
    except StopIteration as stop:
        result: T = stop.value
        return result


def questions(running: Generator[tuple[Effect, ...], tuple[Result, ...], Any]) -> list[Any]:
    """The effects that a generator yields first, without answering them."""
    return list(next(running))


def stages_of(text: str, **options: dict[str, object]) -> list[Strategy]:
    """The stages of a pipeline; options are given by stage, with `_` for `-` in its name."""
    pipeline = parse(text)
    assert pipeline is not None, text
    return stages(pipeline.names, {name.replace("_", "-"): values for name, values in options.items()}, {})


def ladder() -> list[Strategy]:
    """The stages that HARD, FORCED and OVERFLOW end with."""
    return stages(LADDER, LADDER_OPTIONS, {})


def plan_of(strategy: Strategy, view: View, budget: Budget, reply: Reply = good) -> Plan:
    """The plan of one strategy."""
    return finish(strategy.condense(view, budget, SessionFacts()), reply)


def condensed(name: str, view: View, budget: Budget, reply: Reply = good, **options: Any) -> View:
    """The checked view after one strategy."""
    (strategy,) = stages_of(name, **{name.replace("-", "_"): options})
    plan = plan_of(strategy, view, budget, reply)
    after = apply(view, plan) if plan.after is None else plan.after
    check(after, may_cut_newest_results=strategy.may_cut_newest_results)
    return after


def attempted(
    requirement: Requirement,
    pipeline: str,
    view: View,
    budget: Budget,
    reply: Reply = good,
    session: SessionFacts | None = None,
    **options: Any,
) -> Outcome:
    """The outcome of a pipeline under a requirement."""
    running = run_required(
        requirement, stages_of(pipeline, **options), ladder(), view, budget, session or SessionFacts()
    )
    return finish(running, reply)


def verdict_on(view: View, *, yes: bool = True, newer: int = 0) -> Verdict:
    """A verdict on a transcript as it was `newer` messages earlier."""
    count = len(view.transcript.chain) - newer
    digest, *earlier = reversed(view.transcript.digests[max(count - 4, 0) : count])
    return Verdict(yes, digest, count, view.tokens, 0.0, earlier_digests=tuple(earlier))


def judged_session(view: View, newer: int = 0) -> SessionFacts:
    """Session facts in which judges said YES to a transcript as it was `newer` messages earlier."""
    verdict = verdict_on(view, newer=newer)
    return SessionFacts(verdicts=(verdict,), verdict=verdict)


def overlay_of(view: View) -> Overlay:
    """The overlay that a record of this view would put into later ones."""
    digest = view.transcript.digests[view.covered_count - 1]
    return Overlay(digest, view.covered_count, view.covered_count, head_pieces(view))


def later(view: View, transcript: Transcript, fixed: int = 0) -> View:
    """The view of a transcript that has grown, with what was condensed in `view`."""
    return fold(transcript, (overlay_of(view),), fixed, WORDS)


def texts(view: View) -> Sequence[str]:
    """The text of each item of a view."""
    return [item.message.text for item in view.items]
