"""A view that has less of what was refused, by its unit, each way once.

    pictures, pages, bytes   without the oldest pictures and documents; the session remembers how many
    characters of a string   without the middle of all that are too long; the session remembers how long they may be
    tokens, bytes, messages  condensed for the window or the limit that is stated, else to a share of what was refused

What the last user message, a pin or the system has too much is not ours to mend: the refusal passes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from proxy.condensing.account import Timing
from proxy.condensing.attempt import Attempt, Step, expecting
from proxy.condensing.ladder.rung import Next, Parts, Rung
from proxy.condensing.policy import Policy
from proxy.condensing.reasoning import fold_view
from proxy.condensing.traits import size_refused
from proxy.condensing.traits.left_out import TRAIT, LeftOut, leaving_out
from proxy.condensing.turn import Decision
from proxy.errors import ProxyError
from proxy.protocols.opening import OpenedReply
from proxy.servers.refusals import Refusal, Size, Unit
from proxy.servers.windows import REFUSED_FOR, SOURCE, SizeRefused, Window
from proxy.tokens.media import ends_of, pages_of
from proxy.values import object_at, word_at
from strategies.core.budget import Budget, Marks
from strategies.core.messages import dump
from strategies.dialects.parts import DOCUMENTS, PICTURES, has_parts, shortened, without_parts

MAX_RATIO = 4.0  # largest believable ratio of upstream tokens to our own; a larger one describes another prompt
SMALLER = 0.95  # the next request is at most this share of the refused one, and of what is said to fit: counts differ
UNKNOWN_SHARE = 0.70  # the same share if the refusal states no window
GOAL_SHARE = 0.8  # the target is at most this share of the maximum that may be sent
PARTS_KEPT = 0.5  # the share of bytes, pictures or pages that stay, if no limit tells
MOST = 10_000  # parts of one message
LONG_CONTEXT = 200_000  # tokens above which Anthropic calls a prompt long, and bills it apart for some
_TOKENS = (Unit.PROMPT, Unit.RATE, Unit.TIER)
_KINDS = {Unit.PICTURES: (PICTURES,), Unit.PAGES: (DOCUMENTS,), Unit.BYTES: (PICTURES, DOCUMENTS)}
_log = logging.getLogger(__name__)


def recognises(_refused: Attempt, answer: OpenedReply) -> bool:
    return bool(answer.refusal.sizes)


async def after(parts: Parts, refused: Attempt, answer: OpenedReply, timing: Timing) -> Next:
    if (lighter := _lighter(refused, answer.refusal)) is not None:
        following = parts.following(refused, lighter, Step.LIGHTER)
        if following.decision.body != refused.decision.body:
            return Next(refused, following)
    size = answer.refusal.condensed
    if size is None:
        return Next(refused)
    refused = await _counted(parts, refused)
    if size.unit is Unit.TIER and refused.decision.expected_tokens > LONG_CONTEXT:
        size = size._replace(limit=LONG_CONTEXT)
    refused, policy = taught(parts, refused, size)
    try:
        return Next(refused, await _smaller(parts, refused, policy, size, timing))
    except ProxyError:
        return Next(refused)  # nothing fits; what was taught stays


# -- leaving out -------------------------------------------------------------------------------------------------


def _lighter(refused: Attempt, refusal: Refusal) -> Decision | None:
    """The same view without parts that the refusal names; None if none can leave, or if that would not be enough."""
    decision, context = refused.decision, refused.decision.context
    size = refusal.size(Unit.CHARACTERS, *_KINDS)
    # Of the list as its client sent it, messages have other places.
    is_whole = context.history.measured is context.history.whole
    if size is None or Step.LIGHTER in refused.tried or not (context.policy.rewrites and is_whole):
        return None
    known = TRAIT.of(context) or LeftOut([], "", 0)
    most = size.limit or 0
    out = _fewer(decision, size, known) if size.unit in _KINDS else known._replace(characters=int(SMALLER * most))
    if out is None:
        return None
    lighter = leaving_out(context, out)._replace(must_store=True)
    decision = decision.with_view(decision.view.over(lighter.history.shown)).in_context(lighter)
    long = [each for each in decision.view.messages if size.unit is Unit.CHARACTERS and len(each.data) > most]
    return None if any(shortened(each.body, most) != each.body for each in long) else decision


def _fewer(decision: Decision, size: Size, known: LeftOut) -> LeftOut | None:
    """What leaves of pictures and documents, the oldest first; None if none can, or too few of them."""
    history, kinds, is_bytes = decision.context.history, _KINDS[size.unit], size.unit is Unit.BYTES
    transcript, shown = history.transcript, {id(message) for message in decision.view.messages}
    may = [(at, each) for at, each in enumerate(history.shown.chain) if id(each) in shown and has_parts(each.data)]
    every = [(at, kind, without_parts(each.body, kind, MOST)[1]) for at, each in may for kind in kinds]
    found = [(at, kind, _size(part, size.unit)) for at, kind, parts in every for part in parts]
    total = len(decision.body) if is_bytes else sum(has for _, _, has in found)
    excess = total - (size.limit if size.limit and size.limit < total else int(PARTS_KEPT * total))
    leaving = {at: numbers for at, *numbers in known.parts}
    # The newest picture stays; a document may be too long by itself.
    for at, kind, has in found if size.unit is Unit.PAGES else found[:-1]:
        if excess > 0 and at not in transcript.stays:
            leaving.setdefault(at, [0, 0])[kind is DOCUMENTS] += 1
            excess -= has
    rows = [[at, *numbers] for at, numbers in sorted(leaving.items())]
    if rows == known.parts or not rows or (excess > 0 and not is_bytes):
        return None
    return known._replace(parts=rows, node=transcript.digests[rows[-1][0]].hex())


def _size(part: Mapping[str, Any], unit: Unit) -> int:
    if unit is Unit.PAGES:
        held = object_at(part, "source") or object_at(part, "file") or part
        return pages_of(ends_of(word_at(held, "data") or word_at(held, "file_data"))) or 1
    return 1 if unit is Unit.PICTURES else len(dump(part))


# -- condensing --------------------------------------------------------------------------------------------------


async def _counted(parts: Parts, refused: Attempt) -> Attempt:
    """The attempt with its tokens counted: neither what a refusal teaches nor what fits then is an estimate."""
    decision = refused.decision
    if not decision.context.is_estimated:
        return refused
    decision = decision.in_context(await parts.counted(decision.context))
    return refused._replace(decision=expecting(decision.with_view(fold_view(decision.context, decision.applied))))


async def _smaller(parts: Parts, refused: Attempt, policy: Policy, size: Size, timing: Timing) -> Attempt | None:
    """A smaller view under that policy; raises `ProxyError` if nothing fits."""
    decision, context = refused.decision, refused.decision.context
    if not context.policy.rewrites or policy.budget is None or Step.SMALLER in refused.tried:
        return None
    reply_tokens = size.reply or context.request.body.envelope.reply_limit or 0
    sent = RefusedRequest(decision.tokens_after, decision.expected_tokens, reply_tokens)
    sized = context.sized._replace(budget=policy.budget.scaled(context.sized.calibrated.scale))
    context = context._replace(policy=policy, sized=sized)
    if context.is_spared:
        # The list as the client sent it was refused; the view is made of the whole conversation again.
        whole = context.history.whole
        sized = sized._replace(overhead=whole.overhead + context.offer.tokens)
        context = context._replace(sized=sized, is_spared=False, history=context.history.viewing(whole))
        decision = decision.with_view(fold_view(context, None))
    making, kept = policy, UNKNOWN_SHARE
    if size.unit is Unit.MESSAGES and size.limit is not None:
        # Half of them, so that there is room for a record. Masked or shortened, a message is still one.
        making = policy._replace(stages=policy.ladder[:-1], ladder=policy.ladder[:-1])
        leaving = decision.view.messages[: -max(size.limit // 2, 1)]
        kept = 1 - sum(message.tokens for message in leaving) / max(sent.tokens, 1)
    aim = retry_budget(policy.budget, size, sent, kept)
    smaller = await parts.shrunk(decision.in_context(context._replace(policy=making)), aim, timing)
    if smaller.tokens_after >= sent.tokens:
        return None
    return parts.following(refused, smaller.in_context(smaller.context._replace(policy=policy)), Step.SMALLER)


def taught(parts: Parts, attempt: Attempt, refused: Size) -> tuple[Attempt, Policy]:
    """The refused attempt with the size that bounds its session now, and the policy that holds now."""
    decision, request = attempt.decision, attempt.decision.context.request
    window, size = window_after(parts, refused, decision), _size_after(parts, refused, decision)
    decision = decision.in_context(size_refused.TRAIT.put(decision.context, size))
    limit, bound = request.body.envelope.reply_limit, size.tokens if size else None
    policy = parts.policies.refused(decision.context.policy, window, bound, request.model, limit)
    return attempt._replace(decision=decision), policy


def window_after(parts: Parts, size: Size, decision: Decision) -> Window:
    """The window that holds after a refusal.

    One that is set stands. Else the window that the refusal states is learned if nothing smaller is known, but not
    from one who only claims to be of its tenant. Limits in other units are no window.
    """
    window, request = decision.context.policy.window, decision.context.request
    if size.unit is not Unit.PROMPT or size.limit is None or window.is_set:
        return window
    window = window.lowered(size.limit)
    if window.source == SOURCE and (request.trust.accepted or not request.trust.is_claimed):
        parts.servers.learned.learn(request.lesson_scope, size.limit, shares=not request.controls.no_store)
    return window


def _size_after(parts: Parts, refused: Size, decision: Decision) -> SizeRefused | None:
    """The size that bounds a session after a refusal; None if none does.

    A refusal without a number teaches it, one with a smaller window than the one that is set, and one in another unit.
    """
    context, window = decision.context, decision.context.policy.window
    known, request, is_window = size_refused.TRAIT.of(context), context.request, refused.unit is Unit.PROMPT
    if not context.policy.rewrites or (is_window and refused.limit is not None and not window.is_set):
        return known
    size, reply = decision.expected_tokens, request.body.envelope.reply_limit
    if refused.limit is not None:
        if is_window and window.tokens is not None and window.tokens <= refused.limit:
            return known
        if refused.unit in _TOKENS:
            size = parts.policies.usable(refused.limit, request.model, reply)
        if refused.had is not None and not is_window:
            # Those of a minute include the reply that was asked for.
            besides = reply if refused.unit is Unit.RATE and reply and reply < refused.limit else 0
            size = min(size, decision.expected_tokens * (refused.limit - besides) // (refused.had - besides))
    size = min(size, known.tokens) if known is not None else size
    text = "a prompt of %d tokens was refused for %s; for an hour, prompts of session %s have at most %d"
    _log.warning(text, decision.expected_tokens, request.lesson_scope.named, decision.session, size)
    own, until = decision.tokens_after * size // max(decision.expected_tokens, 1), parts.servers.clock() + REFUSED_FOR
    return SizeRefused(request.model, size, until, request.upstream.base_url, own)


class RefusedRequest(NamedTuple):
    """The request that was refused."""

    tokens: int  # tokens of the view by our own count
    expected_tokens: int  # tokens that the upstream was expected to count for it
    reply_tokens: int  # tokens that it asked for as a reply; 0 if neither the request nor the refusal states them


def retry_budget(budget: Budget, size: Size, refused: RefusedRequest, kept: float = UNKNOWN_SHARE) -> Budget:
    """The budget by which a refused view is condensed, in tokens of our own count; `budget` is in the upstream's.

    If the refusal states no limit in tokens, this share of the refused view is `kept`, whatever the window is.
    """
    usable = max(budget.usable, 1)
    if size.limit is None or size.unit not in _TOKENS:
        share = kept * refused.tokens / usable
        return replace(budget, marks=Marks(share, share, share, budget.marks.step))
    ratio = _ratio(size, refused)
    most = min(budget.trigger / ratio, most_tokens(size, refused, min(budget.full_window, size.limit), budget.fits))
    goal = min(budget.target / ratio, GOAL_SHARE * most)
    return replace(budget, marks=Marks(most / usable, most / usable, goal / usable, budget.marks.step))


def most_tokens(size: Size, refused: RefusedRequest, window: int, usable: int) -> float:
    """The most tokens, by our own count, that a request may have after one that was refused for a window."""
    room = min(usable, window - refused.reply_tokens) if refused.reply_tokens < window else usable
    return SMALLER * min(room / _ratio(size, refused), refused.tokens)


def _ratio(size: Size, refused: RefusedRequest) -> float:
    """The ratio of upstream tokens to our own, at least 1.

    A refusal without a count still shows that the request did not fit. A count in another unit is in the size refused.
    """
    stated = size.had if size.unit is Unit.PROMPT else None
    counted = stated or max(refused.expected_tokens, (size.limit or 0) - refused.reply_tokens)
    return min(max(counted / max(refused.tokens, 1), 1.0), MAX_RATIO)


RUNG = Rung(recognises, after)
