"""`dynacontext`: judges vote on whether the work so far should become a record.

Source: references `dynacontext-mechanism.md` and `dynacontext-openhands.md`. Two things apart: judges say whether a
stage of the work is over, in votes held away from the request's path; a summarizer writes what then stands for it.
Without a vote only the context limit condenses.

`scope` says what is replaced, `voting` when and on what judges vote, `record` how the text is asked for, `rollback`
how late verdicts drop what came since.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from strategies.core.budget import Budget
from strategies.core.errors import NothingToSummarize
from strategies.core.plan import Plan, Replace
from strategies.core.protocol import Judging, Past, Polling, Steps, Verdict
from strategies.core.ready import JUDGED
from strategies.core.replacement import replacement, stands_for
from strategies.core.summary import LEAST_RECORD, Form, record_cap, summarized
from strategies.core.view import View
from strategies.dynacontext import voting
from strategies.dynacontext.options import DynaContextOptions
from strategies.dynacontext.record import FORMS, LEAD_IN, cap_after_vote, span_of
from strategies.dynacontext.rollback import rolled_back
from strategies.dynacontext.scope import Scope, after_vote, at_limit, judged_end
from strategies.memory.attribution import attributed

__all__ = ["DynaContext", "DynaContextOptions"]


class DynaContext(Judging):
    """Asks several judges in one ballot, and a summarizer up to three times."""

    name: ClassVar[str] = "dynacontext"
    asks: ClassVar[bool] = True

    def __init__(self, options: DynaContextOptions) -> None:
        self.options = options

    @property
    def inline(self) -> bool:
        """Whether votes are held before forwarding instead of after the reply."""
        return self.options.judge == "inline"

    def drifted(self, view: View) -> View | None:
        """`view` rolled back to its head, where `on_drift` wants that and no round breaks."""
        return rolled_back(view) if self.options.on_drift == "rollback" else None

    def skips(self, view: View, budget: Budget, past: Past) -> str:
        """`early-turns`, `cool-down`, `max-branches`, `judged-already`, `min-growth`, `cannot-shrink`, or ""."""
        return voting.skipped(view, budget, past, self.options)

    def judge(self, view: View, budget: Budget, past: Past) -> Polling:
        """Yields one ballot on the compact history; its outcome is the verdict."""
        (votes,) = yield (voting.ballot(view, budget, self.options),)
        return voting.verdict(view, past, votes, self.options)

    def state(self, view: View, past: Past, skipped: str) -> Mapping[str, Any]:
        """`turns_since_reset`, `should_judge`, `last_skip_reason`, `last_judge_metadata`."""
        return voting.state(view, past, skipped)

    def condense(self, view: View, budget: Budget, past: Past) -> Steps:
        """A plan that puts a record in the place of what a YES, or the context limit, is about."""
        options = self.options
        verdict = past.verdict if past.verdict and past.verdict.yes and voting.stands(past.verdict, view) else None
        scope = self._scope(view, budget, verdict)
        span = span_of(view, scope)
        if span.tokens <= LEAST_RECORD:
            raise NothingToSummarize(f"{span.tokens} tokens")
        most = options.summary_max_tokens
        cap = cap_after_vote(span, budget, options) if verdict else record_cap(view, budget, most)
        record = yield from summarized(span, cap, budget, past, self._form)
        piece = replacement(record.text, stands_for(view, scope.end) - max(len(scope.first) - 1, 0))
        lead_in = (LEAD_IN,) if options.empty_assistant else ()
        edit = Replace(0, scope.end, (*scope.first, *lead_in, piece, *scope.last))
        cards = attributed(record.cards, view, span.items)
        return Plan((edit,), self._telemetry(view, scope, verdict), cards=cards)

    @property
    def _form(self) -> Form:
        form = FORMS[self.options.summary_format]
        return form.with_cards() if self.options.memory_cards else form

    def _scope(self, view: View, budget: Budget, verdict: Verdict | None) -> Scope:
        if verdict is None:
            return at_limit(view, self.options, budget.task_cap)
        return after_vote(view, self.options, budget.task_cap, judged_end(view, verdict))

    def _telemetry(self, view: View, scope: Scope, verdict: Verdict | None) -> dict[str, Any]:
        """The documents' fields, for one condensation."""
        told = verdict.metadata if verdict else {}
        return {
            "trigger": JUDGED if verdict else "condensation_request",
            "hard_trigger": verdict is None,
            "judge_metadata": told.get("judge_metadata"),
            "judge_votes": told.get("judge_votes", []),
            "tail_exclusion_count": scope.excluded,
            "summary_candidate_count": len(scope.candidates),
            "summary_candidate_event_ids": list(scope.candidates),
            "keep_first": self.options.keep_first,
            "keep_last": self.options.keep_last,
            "early_turns": self.options.early_turns,
            "voting_k": self.options.voting_k,
            "turns_since_reset": voting.turns_since_reset(view),
            "mode": self.options.mode,
            "promptDigest": self._form.digest,
        }
