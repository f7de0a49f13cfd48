"""`dynacontext`: judges vote on whether the work so far should become a record.

Judging and writing are separate. Judges decide by votes, held off the request's path, whether a stage of the work is
finished; a summarizer then writes the record that stands for it. Without a YES only the context limit condenses.
docs/strategies.md lists where this departs from the two source documents of the algorithm.

`scope` decides what is replaced, and what is dropped after the record when it is applied. `voting` decides when a vote
is held and what the judges see. `record` defines how the text is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from strategies.core.budget import Budget
from strategies.core.errors import AnswerRefused, NothingToSummarize
from strategies.core.plan import Plan, Replace
from strategies.core.protocol import Injecting, Injection, SessionFacts, Shortened, Steps, Strategy, Verdict
from strategies.core.replacement import frame_tokens, replaced_count, replacement
from strategies.core.replay import JUDGED
from strategies.core.summary import MIN_RECORD, RecordForm, record_cap, summarize
from strategies.core.transcript import is_chinese
from strategies.core.view import View
from strategies.dynacontext.options import DynaContextOptions
from strategies.dynacontext.record import FORMS, cap_after_vote, lead_in, span_of
from strategies.dynacontext.scope import (
    EXCLUDED,
    JUDGED_COUNT,
    Scope,
    after_vote,
    at_limit,
    dropped_fields,
    judged_end,
    leave_out,
)
from strategies.dynacontext.voting import Voting, turns_since_reset
from strategies.memory.attribution import attribute_cards

__all__ = ["DynaContext", "DynaContextOptions"]


@dataclass(frozen=True, slots=True)
class DynaContext(Strategy, Voting, Injecting):
    options: DynaContextOptions
    name: ClassVar[str] = "dynacontext"
    asks: ClassVar[bool] = True

    @property
    def injection(self) -> Injection:
        """None by default in the documents' own modes, which keep out of later decisions what they drop."""
        return Injection(None if self.options.mode == "chat" else False)

    def shortened(self, view: View, metadata: Mapping[str, Any]) -> Shortened | None:
        """`view` without the messages that `on_drift=rollback` or `tail=drop` leaves out; None if there are none."""
        left = leave_out(view, self.options, metadata.get(self.name, {}))
        return left and Shortened(left.view, {self.name: left.metadata})

    def condense(self, view: View, budget: Budget, session: SessionFacts) -> Steps:
        """Plans a record of the history that the judges voted on or, at the context limit, of all history."""
        options, verdict = self.options, session.verdict
        if verdict and not (verdict.yes and verdict.applies_to(view.transcript.digests)):
            verdict = None
        if verdict:
            scope = after_vote(view, options, budget.task_cap, judged_end(view, verdict))
        else:
            scope = at_limit(view, options, budget.task_cap, 2 * MIN_RECORD + frame_tokens(view.counter))
        span = span_of(view, scope)
        if span.tokens <= MIN_RECORD:
            raise NothingToSummarize(f"{span.tokens} tokens")
        cap = cap_after_vote(span, budget, options) if verdict else record_cap(view, budget, options.summary_max_tokens)
        telemetry = self._telemetry(view, scope, verdict)
        try:
            record = yield from summarize(span, cap, budget, session, self._form)
        except AnswerRefused as refused:
            refused.metadata = telemetry
            raise
        count = replaced_count(view, scope.end) - max(len(scope.first) - 1, 0)
        piece = replacement(record.text, count, view.counter.dialect, chinese=is_chinese(view.transcript))
        edit = Replace(0, scope.end, (*scope.first, *lead_in(view, options), piece, *scope.last))
        return Plan((edit,), telemetry, cards=attribute_cards(record.cards, view, span.items))

    @property
    def _form(self) -> RecordForm:
        form = FORMS[self.options.summary_format]
        if not self.options.include_tool_content:
            form = form._replace(limits=form.limits._replace(results=0))
        return form.with_cards() if self.options.memory_cards else form

    def _telemetry(self, view: View, scope: Scope, verdict: Verdict | None) -> dict[str, Any]:
        votes = verdict.metadata if verdict else {}
        return {
            "trigger": JUDGED if verdict else "condensation_request",
            "hard_trigger": verdict is None,
            "judge_metadata": votes.get("judge_metadata"),
            "judge_votes": votes.get("judge_votes", []),
            JUDGED_COUNT: verdict.message_count if verdict else 0,
            EXCLUDED: scope.excluded,
            **dropped_fields(scope.dropped, verdict.message_count if verdict else 0),
            "summary_candidate_count": len(scope.candidates),
            "summary_candidate_event_ids": list(scope.candidates),
            "keep_first": self.options.keep_first,
            "keep_last": self.options.keep_last,
            "early_turns": self.options.early_turns,
            "voting_k": self.options.voting_k,
            "turns_since_reset": turns_since_reset(view),
            "mode": self.options.mode,
            "promptDigest": self._form.digest,
        }
