"""Retries: a request that the upstream has refused is changed by what the refusal teaches, and sent again.

A prompt that is too long teaches a window. The view is condensed for it as it is known now, smaller than what was
refused, in the rest of the time that the client may wait; and if there is such a view, it is sent, once. What a server
takes in no form that we have sent (`proxy/learning/profiles.py`) is written in another, once for each thing that is
learned. Nothing has reached the client by then. Whatever stands in the way, the client gets the upstream's own error as
it came.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from http import HTTPStatus
from time import perf_counter
from typing import NamedTuple, TypeVar

from proxy.condensing.decision import Decision
from proxy.condensing.policy import Policies, asked_length
from proxy.errors import UpstreamUnavailable
from proxy.learning.learned_windows import LearnedWindows, Origin
from proxy.learning.profiles import Profiles, sends_options
from proxy.overflow import Kind, Refusal
from proxy.overflow.numbers import LEAST
from proxy.reply.opening import Opened, UpstreamAnswer, is_packed_refusal, opened
from proxy.request.intake import ChatRequest, milliseconds
from strategies.core.budget import Budget, Marks

MOST_RATIO = 4.0  # an upstream's count to ours; more is no count of the same prompt
SMALLER = 0.9  # of what was refused
UNKNOWN_SHARE = 0.25  # of what was refused without a number, where nothing has passed before

GOAL_SHARE = 0.8  # of the most that may be sent

Send = Callable[[Decision], Awaitable[UpstreamAnswer]]
Ours = Callable[[Awaitable[Decision | None]], Awaitable[Decision | None]]
T = TypeVar("T")

_log = logging.getLogger(__name__)


class Sent(NamedTuple):
    """What was refused: the view's `tokens` by our own count, what the upstream was `expected` to count, and the tokens
    that were `asked` for as a reply."""

    tokens: int
    expected: int
    asked: int


class Answered(NamedTuple):
    """The reply that the client gets, and the decision that it answers."""

    reply: UpstreamAnswer
    decision: Decision


class Retrier:
    """Sends requests, and once again those that were too long; one per app."""

    def __init__(
        self, policies: Policies, learned: LearnedWindows, profiles: Profiles, told: Callable[[Decision, str], None]
    ) -> None:
        self._policies = policies
        self._learned = learned
        self._profiles = profiles
        self._told = told

    async def answered(self, request: ChatRequest, decision: Decision, send: Send, ours: Ours) -> Answered:
        """The reply to a request; raises `UpstreamUnavailable`. What waits for our models is within `ours`."""
        reply, refusal, _ = await self._taken(request, decision, send)
        if refusal is None or refusal.kind is Kind.OUTPUT:
            return Answered(reply, decision)
        try:
            again = await ours(self._guarded(request, decision, refusal))
            second = await self._second(request, again, send) if again is not None else None
        except BaseException:
            await reply.close()
            raise
        if again is None or second is None:
            self._told(decision, "passed")
            return Answered(reply, decision)
        await reply.close()
        self._told(again, "retried" if second.status < HTTPStatus.BAD_REQUEST else "refused-again")
        return Answered(second, again)

    async def _taken(self, request: ChatRequest, decision: Decision, send: Send) -> Opened:
        """The answer to a decision in a form that the upstream takes, where one is known after what it says."""
        answer = await _sent(decision, send)
        while answer.error and self._is_reformed(request, decision, answer):
            again = await _instead_of(answer.reply, _sent(decision, send))
            if again is None:
                break
            answer = again
        return answer

    def _is_reformed(self, request: ChatRequest, decision: Decision, refused: Opened) -> bool:
        """Whether an error has taught a form in which the request is another one."""
        sent = decision.policy.profile
        options = sends_options(request.body.values, probed=decision.probed)
        taught = self._profiles.refused(request.model, refused.reply.status, refused.error, sent, options=options)
        if taught is None or decision.reform is None:
            return False
        try:
            return decision.reform(taught)
        except Exception:  # noqa: BLE001
            _log.exception("a refused request was not written in another form")
            return False

    async def _guarded(self, request: ChatRequest, decision: Decision, refusal: Refusal) -> Decision | None:
        try:
            return await self._again(request, decision, refusal)
        except Exception:  # noqa: BLE001
            # A defect of ours leaves the client the upstream's own error.
            _log.exception("a refused request was not condensed")
            return None

    async def _again(self, request: ChatRequest, decision: Decision, refusal: Refusal) -> Decision | None:
        """The decision for a smaller view; None where nothing may be changed, or nothing gets smaller."""
        expected = _expected(decision)
        shares = not request.controls.no_store
        learned = self._learned.refused(request.model, refusal, expected, shares=shares)
        if decision.again is None:
            return None
        policy = self._policies.lowered(decision.policy, learned, request.model, request.body.values)
        if policy.budget is None:
            return None
        asked = refusal.asked or asked_length(request.body.values) or 0
        passed = self._learned.passed(request.model) if learned.origin is Origin.GUESS else None
        sent = Sent(decision.tokens_after, expected, asked)
        return await decision.again(policy, aimed(policy.budget, refusal, sent, passed))

    async def _second(self, request: ChatRequest, again: Decision, send: Send) -> UpstreamAnswer | None:
        """The answer to the smaller view; None where there is none. It teaches like the first, and is the last."""
        try:
            reply, refusal, _ = await self._taken(request, again, send)
        except UpstreamUnavailable:
            return None
        if refusal is not None and refusal.kind is Kind.INPUT:
            shares = not request.controls.no_store
            self._learned.refused(request.model, refusal, _expected(again), shares=shares)
        return reply


def aimed(budget: Budget, refusal: Refusal, sent: Sent, passed: int | None) -> Budget:
    """The budget, in tokens of our own count, by which a refused view is condensed: `budget` is in the upstream's.

    `passed` is given where the refusal names no number: what has passed before as the upstream was expected to count
    it, 0 for nothing.
    """
    ratio = _ratio(refusal, sent)
    usable = max(budget.usable, 1)
    room = budget.window - sent.asked if sent.asked < budget.window else usable
    most = min(budget.trigger / ratio, min(usable, room) / ratio, SMALLER * sent.tokens)
    if passed is not None:
        most = min(most, passed * sent.tokens / max(sent.expected, 1) or UNKNOWN_SHARE * sent.tokens)
    goal = min(budget.target / ratio, GOAL_SHARE * most)
    return replace(budget, marks=Marks(most / usable, most / usable, goal / usable, budget.marks.step))


def _ratio(refusal: Refusal, sent: Sent) -> float:
    """How many tokens of the upstream one of ours is, at least: where it does not say, what it refused did not fit."""
    counted = refusal.counted or max(sent.expected, (refusal.window or 0) - sent.asked)
    return min(max(counted / max(sent.tokens, 1), 1.0), MOST_RATIO)


def _expected(decision: Decision) -> int:
    """What the upstream is expected to count for a view."""
    return decision.calibrated.scale.upstream(decision.tokens_after)


async def _sent(decision: Decision, send: Send) -> Opened:
    started = perf_counter()
    reply = await send(decision)
    if is_packed_refusal(reply) and decision.reform is not None:
        # An error that we cannot read is asked for once more, unpacked: that costs a round trip, where refusing packed
        # replies beforehand would cost the client's normal ones their encoding, and reading them another dependency.
        decision.unpacked = True
        reply = await _instead_of(reply, send(decision)) or reply
    decision.timing.upstream += milliseconds(started)
    # No window is so small that less than this were refused for its length.
    is_long = decision.tokens_after >= LEAST
    is_ours = decision.view.changed or decision.probed
    return await opened(reply, looks=is_long or (is_ours and reply.status >= HTTPStatus.BAD_REQUEST))


async def _instead_of(refused: UpstreamAnswer, sending: Awaitable[T]) -> T | None:
    """What comes of a request sent again; then the refusal of the first is closed. None where nothing comes."""
    try:
        again = await sending
    except UpstreamUnavailable:
        return None
    except BaseException:
        await refused.close()
        raise
    await refused.close()
    return again
