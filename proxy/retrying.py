"""The one retry: a prompt that the upstream refused for its length is condensed and sent again.

What the refusal teaches is learned first. Then the view is condensed for the window as it is known now, smaller than
what was refused, in the rest of the time that the client may wait; and if there is such a view, it is sent, once.
Nothing has reached the client by then. Whatever stands in the way, the client gets the upstream's own error as it
came.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from http import HTTPStatus
from time import perf_counter
from typing import NamedTuple

from proxy.decision import Decision
from proxy.errors import UpstreamUnavailable
from proxy.intake import ChatRequest
from proxy.learned import LearnedWindows, Origin
from proxy.opening import Answer, opened
from proxy.overflow import Kind, Refusal
from proxy.overflow.numbers import LEAST
from proxy.policy import Policies, asked_length
from strategies.core.budget import Budget, Marks

MOST_RATIO = 4.0  # an upstream's count to ours; more is no count of the same prompt
SMALLER = 0.9  # of what was refused
UNKNOWN_SHARE = 0.25  # of what was refused without a number, where nothing has passed before

GOAL_SHARE = 0.8  # of the most that may be sent

Send = Callable[[Decision], Awaitable[Answer]]

_log = logging.getLogger(__name__)


class Sent(NamedTuple):
    """What was refused: the view's `tokens` by our own count, what the upstream was `expected` to count, and the tokens
    that were `asked` for as a reply."""

    tokens: int
    expected: int
    asked: int


class Answered(NamedTuple):
    """The reply that the client gets, and the decision that it answers."""

    reply: Answer
    decision: Decision


class Retrier:
    """Sends requests, and once again those that were too long; one per app."""

    def __init__(self, policies: Policies, learned: LearnedWindows, told: Callable[[Decision, str], None]) -> None:
        self._policies = policies
        self._learned = learned
        self._told = told

    async def answered(self, request: ChatRequest, decision: Decision, send: Send) -> Answered:
        """The reply to a request; raises `UpstreamUnavailable`."""
        reply, refusal = await _sent(decision, send)
        if refusal is None or refusal.kind is Kind.OUTPUT:
            return Answered(reply, decision)
        try:
            again = await self._guarded(request, decision, refusal)
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
        learned = await self._learned.refused(request.model, refusal, expected, shares=shares)
        if decision.again is None:
            return None
        policy = self._policies.lowered(decision.policy, learned, request.model, request.body.values)
        if policy.budget is None:
            return None
        asked = refusal.asked or asked_length(request.body.values) or 0
        passed = self._learned.passed(request.model) if learned.origin is Origin.GUESS else None
        sent = Sent(decision.tokens_after, expected, asked)
        return await decision.again(policy, aimed(policy.budget, refusal, sent, passed))

    async def _second(self, request: ChatRequest, again: Decision, send: Send) -> Answer | None:
        """The answer to the smaller view; None where there is none. It teaches like the first, and is the last."""
        try:
            reply, refusal = await _sent(again, send)
        except UpstreamUnavailable:
            return None
        if refusal is not None and refusal.kind is Kind.INPUT:
            shares = not request.controls.no_store
            await self._learned.refused(request.model, refusal, _expected(again), shares=shares)
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


async def _sent(decision: Decision, send: Send) -> tuple[Answer, Refusal | None]:
    started = perf_counter()
    reply = await send(decision)
    decision.timing.upstream += (perf_counter() - started) * 1000
    # No window is so small that less than this were refused for its length.
    return await opened(reply, looks=decision.tokens_after >= LEAST)
