"""`dynacontext`: judges vote on whether the work so far should become a record.

Judging and writing are separate. Judges decide by votes, held off the request's path, whether a stage of the work is
finished; a summarizer then writes the record that stands for it. Without a YES only the context limit condenses.
docs/internals/faithful.md lists where this departs from the two source documents of the algorithm.

A vote costs as much as several requests. So the judges see a compact history without the bodies of tool results, and no
vote is held before there is something new to judge, or if a YES could change nothing.

The record must be in a `<summary>` tag. If an answer lacks it, or may not stand for history, the model is asked again,
up to three times in all. Memory cards are outside the tag, in a block of their own.

After a vote, the record may have at most half of the tokens that it stands for. So it is known before a vote whether
every acceptable record would shrink the view by enough. If not, no vote is held.

What is replaced: the first messages stay, and everything after them is a candidate for the record. After a vote, the
tail of the judged messages is excluded from the record, because it may be unfinished work: up to `exclude_tail_max`
messages of the assistant and its tools, but none before the last user message. Without a vote, at the context limit,
there is no tail.

Rounds stay whole, so the tail begins at a legal cut. A tail that is kept grows by the rest of its round; one that is
dropped shrinks, because dropped messages are in no record.

`leave_out` drops messages after the record when it is applied for the first time. With `on_drift=rollback` these are
all messages between the record and those that the model must answer. The source document goes back to the last message
that it wants to keep. Here a client sends the later messages again with every request, so the view leaves them out.
With `tail=drop` only the tail of the judged messages is dropped. This is possible only now: when the record was made,
the tail was the newest round, which no plan may touch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any, ClassVar, NamedTuple

from strategies.core.budget import Budget
from strategies.core.condensation import DRIFT_IDS, JUDGED, JUDGED_IDS, standing_condensations
from strategies.core.effects import Ballot, Failure, Tally, Vote, Votes, tally
from strategies.core.errors import AnswerRefused, InvalidPlan, NothingToSummarize, StrategyError
from strategies.core.history import WIDEST, as_text, break_fences, originals
from strategies.core.messages import Role, dump
from strategies.core.pieces import Literal, Piece, PieceKind
from strategies.core.plan import Plan, Replace, apply, check, task_piece
from strategies.core.protocol import (
    Injecting,
    Injection,
    Judging,
    Options,
    Polling,
    SessionFacts,
    Shortened,
    Steps,
    Strategy,
    Value,
    Verdict,
    option,
)
from strategies.core.replacement import frame_tokens, previous_text, replaced_count, replacement
from strategies.core.requirement import RULES, Requirement
from strategies.core.summary import (
    MIN_RECORD,
    Cap,
    ParsedAnswer,
    RecordForm,
    Span,
    read_plain_answer,
    record_cap,
    summarize,
)
from strategies.core.transcript import is_chinese
from strategies.core.view import View, item_for
from strategies.memory.attribution import attribute_cards
from strategies.prompts import prompt, prompt_digest

AUTOMATIC = -1

_OURS: Mapping[str, Value] = {
    "max_branches": 5,
    "cool_down": 1,
    "unreadable": "stop",
}  # what the source documents do not have
_NOT_OURS: Mapping[str, Value] = {"max_branches": 0, "cool_down": 0, "unreadable": "refill"}
_SET = ("min_growth", "tail", "on_drift", "empty_assistant", "include_tool_content")
_PRESETS: Mapping[str, Mapping[str, Value]] = {
    "chat": {**_OURS, **dict(zip(_SET, (AUTOMATIC, "keep", "carry", False, True), strict=True))},
    "openhands": {**_NOT_OURS, **dict(zip(_SET, (AUTOMATIC, "drop", "carry", False, True), strict=True))},
    "refer": {**_NOT_OURS, **dict(zip(_SET, (0, "drop", "rollback", True, False), strict=True))},
}


@dataclass(frozen=True, slots=True)
class DynaContextOptions(Options):
    """`mode` stands for values of other options; an explicit value wins over the mode's. Sizes are in tokens."""

    mode: str = option("chat", one_of="chat openhands refer")
    voting_k: int = option(5, 1, 25)
    early_turns: int = option(1, 0)
    min_growth: int = option(AUTOMATIC, AUTOMATIC)
    cool_down: int = option(1, 0)
    max_branches: int = option(5, 0)
    judge: str = option("after", one_of="after inline")
    ballot: str = option("single", one_of="single n")
    unreadable: str = option("stop", one_of="stop refill")
    judge_max_tokens: int = option(1_000, 50)
    keep_first: int = option(1, 0)
    keep_last: int = option(0, 0)
    exclude_tail_max: int = option(2, 0)
    tail: str = option("keep", one_of="keep drop")
    on_drift: str = option("carry", one_of="carry rollback")
    summary_max_tokens: int = option(2_000, 100)
    summary_format: str = option("plain", one_of="plain sections")
    empty_assistant: bool = option(False)
    include_tool_content: bool = option(True)
    memory_cards: bool = option(True)

    @property
    def conflict(self) -> str:
        """A tail cannot be dropped while the model has yet to answer it."""
        if self.tail == "keep" or self.judge == "after":
            return ""
        return (
            "'tail=drop' (also by 'mode') needs 'judge=after': the tail of a vote that is held before forwarding is"
            " what the model must answer; add 'tail=keep' to use 'judge=inline'"
        )

    def preset(self, mode: str) -> Mapping[str, Value]:
        return _PRESETS.get(mode, {})


# -- what is replaced --------------------------------------------------------------------------------------------------


class Scope(NamedTuple):
    """The items that a condensation replaces, and the pieces that stay among them."""

    recorded: int  # the items before this one go into the record
    end: int  # the items before this one are replaced with `first`, the replacement, and `last`
    first: tuple[Piece, ...]
    last: tuple[Piece, ...]
    candidates: tuple[int, ...]  # the chain indices of the messages that the record adds to an earlier one
    excluded: int
    dropped: tuple[int, ...]  # the chain indices of the messages that are in neither the record nor the view
    tokens: int  # tokens of all items that are replaced and do not stay


def judged_end(view: View, verdict: Verdict) -> int:
    """The item after the last one that a verdict judged; the view's end if it judged all of them."""
    return _place_from(view, verdict.message_count)


def _place_from(view: View, index: int) -> int:
    """The first item after the head that is the chain message `index` or a later one; the view's end if none is."""
    later = range(view.head_size, len(view.items))
    return next((i for i in later if (view.items[i].source or 0) >= index), len(view.items))


def after_vote(view: View, options: DynaContextOptions, task_cap: int, judged: int) -> Scope:
    """The scope after a YES on the items before `judged`."""
    most = _cut_before(view, min(judged - options.keep_last, view.last_cut))
    tail = _tail_cut(view, judged, options)
    recorded = min(tail, most)
    end = most if options.tail == "drop" else recorded
    return _scope(view, options, task_cap, (recorded, end), judged - tail)


def at_limit(view: View, options: DynaContextOptions, task_cap: int, least: int) -> Scope:
    """The scope at the context limit: everything except `keep_last`.

    If that has fewer than `least` tokens, the scope ends at the first later cut that brings it to `least`, or at the
    last cut.
    """
    place = _cut_before(view, min(len(view.items) - options.keep_last, view.last_cut))
    later = (end for end in range(place + 1, view.last_cut + 1) if view.structure.cuts[end])
    for end in (place, *later):
        scope = _scope(view, options, task_cap, (end, end), 0)
        if scope.candidates and scope.tokens >= least:
            break
    return scope


def _tail_cut(view: View, judged: int, options: DynaContextOptions) -> int:
    """Where the tail of the items before `judged` begins: a legal cut, or `judged` if there is none."""
    start = judged
    while judged - start < min(judged, options.exclude_tail_max):
        if view.items[start - 1].role not in (Role.ASSISTANT, Role.TOOL):
            break
        start -= 1
    if start == judged or options.tail == "keep":
        return _cut_before(view, start)
    return next((i for i in range(start, judged) if view.structure.cuts[i]), judged)


def _cut_before(view: View, place: int) -> int:
    return next((i for i in range(place, 0, -1) if view.structure.cuts[i]), 0)


def _end_of_first(view: View, keep_first: int) -> int:
    """The item after the first messages: the first user message, which always stays, and `keep_first` - 1 more.

    They end at an earlier replacement, because the messages that it stands for are no longer there to be kept.
    """
    if view.task is None:
        return 0
    later = range(view.task + 1, len(view.items))
    end = next((i for i in later if view.items[i].source is None), len(view.items))
    place = min(view.task + max(keep_first, 1), end)
    return next((i for i in range(place, end) if view.structure.cuts[i]), end)


def _scope(view: View, options: DynaContextOptions, task_cap: int, ends: tuple[int, int], excluded: int) -> Scope:
    recorded, end = ends
    start = min(_end_of_first(view, options.keep_first), end)
    # The chain indices that a record of the items before `recorded` adds to an earlier record.
    opening, earlier = range(min(view.task or 0, recorded)), -1 if view.replacement is None else view.replacement
    added = (i for i in chain(opening, range(start, recorded)) if i > earlier)
    candidates = tuple(_sources(view, added))
    first: tuple[Piece, ...] = ()
    if view.task is not None and view.task < end:
        first = (*task_piece(view, task_cap), *(item.piece for item in view.items[view.task + 1 : start]))
    kept_last = tuple(view.items[i].piece for i in view.stays if start <= i < end)
    stays = (item_for(piece, view.transcript, view.counter) for piece in (*first, *kept_last))
    goes = sum(item.message.tokens for item in view.items[:end]) - sum(item.message.tokens for item in stays)
    dropped = tuple(_sources(view, range(recorded, end)))
    return Scope(recorded, end, first, kept_last, candidates, excluded, dropped, goes)


def _sources(view: View, places: Iterable[int]) -> list[int]:
    """The chain indices of these items, except messages that always stay."""
    found = (view.items[i].source for i in places if i not in view.stays)
    return [source for source in found if source is not None]


JUDGED_COUNT, EXCLUDED = "judged_message_count", "tail_exclusion_count"


def leave_out(view: View, options: DynaContextOptions, telemetry: Mapping[str, Any]) -> Shortened | None:
    """`view` without the messages that the options leave out, and the record's `telemetry`, which then lists them.

    The head of the result also covers the dropped messages. None if there is nothing to drop, or if a round would
    break.
    """
    judged, excluded = int(telemetry.get(JUDGED_COUNT, 0)), int(telemetry.get(EXCLUDED, 0))
    start, end = _span(view, options, judged, excluded)
    if end <= start:
        return None
    try:
        after = apply(view, Plan((Replace(start, end),)))
        check(after)
    except InvalidPlan:
        return None
    before = (*telemetry.get(JUDGED_IDS, ()), *telemetry.get(DRIFT_IDS, ()))
    dropped = dropped_fields(sorted({*before, *_sources(view, range(start, end))}), judged)
    return Shortened(after, {**telemetry, EXCLUDED: max(excluded, dropped["dropped_judged_count"]), **dropped})


def dropped_fields(dropped: Sequence[int], judged: int) -> dict[str, Any]:
    """The telemetry on messages that are in neither record nor view. The first `judged` messages were voted on."""
    voted_on, drift = [i for i in dropped if i < judged], [i for i in dropped if i >= judged]
    return {
        "dropped_judged_count": len(voted_on),
        JUDGED_IDS: voted_on,
        "dropped_drift_count": len(drift),
        DRIFT_IDS: drift,
    }


def _span(view: View, options: DynaContextOptions, judged: int, excluded: int) -> tuple[int, int]:
    """The items to drop, which are never ones that the model must answer."""
    most = min([view.last_cut, *(i for i in view.question if i >= view.head_size)])
    if options.on_drift == "rollback":
        return view.head_size, most
    if options.tail != "drop" or not excluded:
        return 0, 0
    # The record may already stand for the first of them, where each is a round of its own.
    return _place_from(view, judged - excluded), min(_place_from(view, judged - options.keep_last), most)


# -- the record --------------------------------------------------------------------------------------------------------

TRIES = 3
_SECTIONS = ("history_detail", "history_summary", "future_direction")
_OPENED = re.compile(rf"<({'|'.join(_SECTIONS)})>")


def tagged(text: str) -> ParsedAnswer:
    """Reads a plain answer, with a heading in place of each section's tags."""
    answer = read_plain_answer(text)
    return answer._replace(record=_with_headings(answer.record)) if answer.well_formed else answer


def _with_headings(text: str) -> str:
    """The text with a heading on its own line in place of each section's tags; a tag that is not closed stays."""
    parts: list[str] = []
    read_to = 0
    last = {name: text.rfind(f"</{name}>") for name in _SECTIONS}
    for opened in _OPENED.finditer(text):
        name = opened[1]
        if opened.start() < read_to or last[name] < opened.end():
            continue
        closed = text.find(f"</{name}>", opened.end())
        heading = f"{name.replace('_', ' ').capitalize()}:"
        parts += [text[read_to : opened.start()], heading, text[opened.end() : closed]]
        read_to = closed + len(f"</{name}>")
    return "\n".join(filter(None, map(str.strip, (*parts, text[read_to:]))))


FORMS = {
    "plain": RecordForm("dynacontext", read=tagged, tries=TRIES),
    "sections": RecordForm("dynacontext-sections", read=tagged, tries=TRIES),
}


def span_of(view: View, scope: Scope) -> Span:
    """The span that the record of a scope stands for. Its tokens are those of the scope less those of the frame.

    Raises `NothingToSummarize` if the record would add nothing.
    """
    if not scope.candidates:
        raise NothingToSummarize("nothing between the first messages and those that must stay")
    return Span.before(view, scope.recorded, scope.tokens - frame_tokens(view.counter))


def lead_in(view: View, options: DynaContextOptions) -> tuple[Literal, ...]:
    """The empty assistant message that the source document has before a record, if the options ask for it."""
    return (Literal(dump(view.counter.dialect.assistant("")), PieceKind.LEAD_IN),) if options.empty_assistant else ()


def cap_after_vote(span: Span, budget: Budget, options: DynaContextOptions) -> Cap:
    """The cap of a record after a vote: at most half of the span; raises `Declined` if the window has no room."""
    most, half = record_cap(span.view, budget, options.summary_max_tokens), max(span.tokens // 2, MIN_RECORD)
    return Cap(min(most.text, half), min(most.record, half))


def least_saved(span: Span, budget: Budget, options: DynaContextOptions) -> int:
    """The tokens that a condensation after a vote saves at the least, whichever acceptable record is written.

    Raises `Declined` if there is no room for a record.
    """
    cap, view = cap_after_vote(span, budget, options), span.view
    span.ledger_and_room(cap, budget)
    lead_ins = [item_for(piece, view.transcript, view.counter) for piece in lead_in(view, options)]
    return span.tokens - cap.text - sum(item.message.tokens for item in lead_ins)


# -- votes -------------------------------------------------------------------------------------------------------------

ATTEMPTS = 3

_MIN_GROWTH = 2_000
_REWRITTEN = 3  # messages at the end that a client may rewrite a turn later
_GROWTH = 0.25
_FILL = 0.9
COMPACT = WIDEST._replace(results=0, arguments=300)
"""The most that judges see of a message: for a tool's result, only its size."""


class Voting(Judging):
    options: DynaContextOptions

    @property
    def inline(self) -> bool:
        return self.options.judge == "inline"

    @property
    def is_bound(self) -> bool:
        return self.options.mode != "refer"

    def has_judged_enough(self, view: View, session: SessionFacts) -> bool:
        most = self.options.max_branches
        standing = standing_condensations(session.condensations, view.transcript.digests) if most else ()
        return bool(most) and sum(made.trigger == JUDGED for made in standing) >= most

    def skip_reason(self, view: View, budget: Budget, session: SessionFacts) -> str:
        chain, digests = view.transcript.chain, view.transcript.digests
        cool_down = self.options.cool_down
        if self._turns(view, session) < self.options.early_turns + 1:
            return "early-turns"
        # The first round behind a record was the newest one when the record was made.
        if cool_down and view.replacement is not None and sum(_rounds_since_head(view)) <= cool_down + 1:
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
            refills=options.unreadable == "refill",
        )
        (result,) = yield (ballot,)
        votes = result.votes if isinstance(result, Votes) else ()
        outcome, digests = tally(votes, options.voting_k), view.transcript.digests
        digest, *rewritten = reversed(digests[-1 - _REWRITTEN :] or [b""])
        metadata = _metadata(self._turns(view, session), votes, outcome)
        verdict = Verdict(outcome.yes, digest, len(digests), view.tokens, session.now, metadata, tuple(rewritten))
        if outcome.valid:
            return verdict
        errors = [vote.error for vote in votes] or [result.reason if isinstance(result, Failure) else "no-votes"]
        return replace(verdict, yes=None, failure=f"judge-{errors[0]}")

    def _turns(self, view: View, session: SessionFacts) -> int:
        return turns_since_reset(view) if self.options.cool_down else turns_of_branch(view, session)

    def state(self, view: View, session: SessionFacts, skipped: str) -> Mapping[str, Any]:
        """The `dynacontext_state` of the source documents."""
        last = last_vote(view, session)
        return {
            "turns_since_reset": self._turns(view, session),
            "should_judge": not skipped,
            "last_skip_reason": skipped or None,
            "last_judge_metadata": last.metadata.get("judge_metadata") if last else None,
        }


def _metadata(turns: int, votes: Sequence[Vote], outcome: Tally) -> dict[str, Any]:
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
        "turns_since_reset": turns,
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


def turns_of_branch(view: View, session: SessionFacts) -> int:
    """Turns as the source documents count them: the first request that a replacement is applied to is turn 1.

    After a vote, the reply to the request that was judged is the first that came since.
    """
    if view.replacement is None:
        return turns_since_reset(view)
    standing = standing_condensations(session.condensations, view.transcript.digests)[:1]
    judged = next((int(made.metadata.get(DynaContext.name, {}).get(JUDGED_COUNT, 0)) for made in standing), 0)
    if not judged:
        return sum(_rounds_since_head(view))
    roles = [message.role for message in view.transcript.chain[judged - 1 :]]
    return sum(role is Role.ASSISTANT and before is not Role.ASSISTANT for before, role in pairwise(roles))


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


# -- the strategy ------------------------------------------------------------------------------------------------------


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
        telemetry = self._telemetry(scope, verdict, self._turns(view, session))
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

    def _telemetry(self, scope: Scope, verdict: Verdict | None, turns: int) -> dict[str, Any]:
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
            "turns_since_reset": turns,
            "mode": self.options.mode,
            "promptDigest": self._form.digest,
        }
