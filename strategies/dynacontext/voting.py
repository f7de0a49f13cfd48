"""The votes of `dynacontext`: decides when a vote is held, what the judges see, and what is stored of it.

A vote costs as much as several requests. So the judges see a compact history without the bodies of tool results, and no
vote is held before there is something new to judge, or if a YES could change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from strategies.core.budget import Budget
from strategies.core.condensation import standing_condensations
from strategies.core.effects import Ballot, Failure, Tally, Vote, Votes, tally
from strategies.core.errors import StrategyError
from strategies.core.history import WIDEST, as_text, break_fences, originals
from strategies.core.protocol import Judging, Polling, SessionFacts, Verdict
from strategies.core.replacement import previous_text
from strategies.core.replay import JUDGED
from strategies.core.requirement import RULES, Requirement
from strategies.core.view import View
from strategies.dynacontext.options import AUTOMATIC, DynaContextOptions
from strategies.dynacontext.record import least_saved, span_of
from strategies.dynacontext.scope import after_vote
from strategies.prompts import prompt, prompt_digest

ATTEMPTS = 3

_ROUNDS_TO_COOL_DOWN = 2  # the newest round when the record was made, and one more since then
_MIN_GROWTH = 2_000
_REWRITTEN = 3  # messages at the end that a client may rewrite a turn later
_GROWTH = 0.25
_FILL = 0.9
COMPACT = WIDEST._replace(results=0, arguments=300)
"""The most that judges see of a message: for a tool's result, only its size."""


class Voting(Judging):
    """The votes of a strategy with these options."""

    options: DynaContextOptions

    @property
    def inline(self) -> bool:
        return self.options.judge == "inline"

    @property
    def is_bound(self) -> bool:
        return self.options.mode != "refer"

    def has_judged_enough(self, view: View, session: SessionFacts) -> bool:
        standing = standing_condensations(session.condensations, view.transcript.digests)
        return sum(made.trigger == JUDGED for made in standing) >= self.options.max_branches

    def skip_reason(self, view: View, budget: Budget, session: SessionFacts) -> str:
        chain, digests = view.transcript.chain, view.transcript.digests
        if turns_since_reset(view) < self.options.early_turns + 1:
            return "early-turns"
        if view.replacement is not None and sum(_rounds_since_head(view)) <= _ROUNDS_TO_COOL_DOWN:
            return "cool-down"
        if self.has_judged_enough(view, session):
            return "max-branches"
        last = last_vote(view, session)
        if last and last.message_count == len(chain) and last.applies_to(digests):
            return "judged-already"
        if last:
            least = max(_MIN_GROWTH, int(last.tokens * _GROWTH))
            growth = sum(message.tokens for message in chain[known_of(last, view) :])
            if growth < (least if self.options.min_growth == AUTOMATIC else self.options.min_growth):
                return "min-growth"
        return "" if _can_shrink(view, budget, self.options) else "cannot-shrink"

    def judge(self, view: View, budget: Budget, session: SessionFacts) -> Polling:
        """Asks for one ballot on as much of the view's compact history as fits; without a vote there is no verdict."""
        system, counter, options = prompt("judge"), view.counter, self.options
        earlier = previous_text(view)
        before = f"<earlier_record>\n{break_fences(earlier)}\n</earlier_record>\n\n" if earlier else ""
        room = int((budget.window - options.judge_max_tokens) * _FILL) - counter.text(system) - counter.text(before)
        text = as_text(originals(view, view.items), max(room, 256), counter, COMPACT)
        ballot = Ballot(
            system=system,
            user=f"{before}<history>\n{text}\n</history>\n\nVote now.",
            k=options.voting_k,
            max_attempts=ATTEMPTS * options.voting_k,
            max_tokens=options.judge_max_tokens,
            at_once=options.ballot == "n",
        )
        (result,) = yield (ballot,)
        votes = result.votes if isinstance(result, Votes) else ()
        outcome, digests = tally(votes, options.voting_k), view.transcript.digests
        digest, *rewritten = reversed(digests[-1 - _REWRITTEN :] or [b""])
        metadata = _metadata(view, votes, outcome)
        verdict = Verdict(outcome.yes, digest, len(digests), view.tokens, session.now, metadata, tuple(rewritten))
        if outcome.valid:
            return verdict
        errors = [vote.error for vote in votes] or [result.reason if isinstance(result, Failure) else "no-votes"]
        return replace(verdict, yes=None, failure=f"judge-{errors[0]}")

    def state(self, view: View, session: SessionFacts, skipped: str) -> Mapping[str, Any]:
        """The `dynacontext_state` of the source documents."""
        last = last_vote(view, session)
        return {
            "turns_since_reset": turns_since_reset(view),
            "should_judge": not skipped,
            "last_skip_reason": skipped or None,
            "last_judge_metadata": last.metadata.get("judge_metadata") if last else None,
        }


def _metadata(view: View, votes: Sequence[Vote], outcome: Tally) -> dict[str, Any]:
    return {
        "judge_metadata": {
            "valid_votes": outcome.valid,
            "yes_votes": outcome.yes_votes,
            "no_votes": outcome.no_votes,
            "threshold": outcome.threshold,
            "reasoning": [vote.reasoning for vote in votes if vote.yes is not None],
        },
        "judge_votes": [
            {
                "decision": None if vote.yes is None else ("YES" if vote.yes else "NO"),
                "parsed_ok": vote.yes is not None,
                "reasoning_present": bool(vote.reasoning),
                "error_type": vote.error or None,
                "reasoning": vote.reasoning,
            }
            for vote in votes
        ],
        "turns_since_reset": turns_since_reset(view),
        "promptDigest": prompt_digest("judge"),
    }


def turns_since_reset(view: View) -> int:
    """Turns since the start, or since the request for which the newest replacement was made.

    A turn is the agent's, because a task may have one user message only: each finished user turn counts one, and so
    does each round of the user turn that goes on, with the reply that is about to come. A replacement is followed by
    the round that was the newest at that request, which does not count. Neither does a question right after that round,
    because it was already waiting then.
    """
    first, *turns = _rounds_since_head(view)
    if view.replacement is None:
        return len(turns) + sum(turns[-1:])
    if not turns:
        return max(first - 1, 0)
    was_waiting = first <= 1
    return len(turns) + turns[-1] + (-1 if was_waiting else 1)


def _rounds_since_head(view: View) -> list[int]:
    """How many rounds after the head each user turn has; first those before the first user message after the head."""
    turns, start = view.structure.turns, view.head_size
    later = [turn for turn in turns if turn.end > start]
    rounds = [sum(span.start >= start for span in turn.rounds) for turn in later]
    return rounds if later and (later[0].user is None or later[0].start < start) else [0, *rounds]


def last_vote(view: View, session: SessionFacts) -> Verdict | None:
    """The newest verdict on a prefix of this chain. The last few messages of the prefix may have been rewritten since.

    Clients that add context to their last message remove it again a turn later.
    """
    return next((verdict for verdict in reversed(session.verdicts) if known_of(verdict, view)), None)


def known_of(verdict: Verdict, view: View) -> int:
    """How many messages of this transcript a verdict judged: all that it was about, or all but the last few; else 0."""
    digests = view.transcript.digests
    judged = enumerate((verdict.digest, *verdict.earlier_digests))
    ends = ((verdict.message_count - i, digest) for i, digest in judged)
    return next((count for count, digest in ends if 0 < count <= len(digests) and digests[count - 1] == digest), 0)


def _can_shrink(view: View, budget: Budget, options: DynaContextOptions) -> bool:
    """Whether a YES would shrink the view enough even with the longest acceptable record."""
    try:
        scope = after_vote(view, options, budget.task_cap, len(view.items))
        saved = least_saved(span_of(view, scope), budget, options)
    except StrategyError:
        return False
    return saved > 0 and saved >= RULES[Requirement.PREPARE].least_shrink * view.tokens
