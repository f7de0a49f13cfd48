"""Retries: changes a request that the upstream has refused by what the refusal teaches, and sends it again.

A refusal for length teaches a window. The view is condensed for that window, smaller than the refused one, in what is
left of the time that the client waits; if there is such a view, it is sent, once. A refusal of the form
(`proxy/learning/profiles.py`) has the request rewritten in another form, once for each thing that is learned. Nothing
has reached the client by then. If anything fails, the client gets the upstream's own error as it came.

If nothing explains a refusal, what we made of the request may be the cause. The request is then sent once as it came,
if it fits the window; where that is taken, nothing is rewritten in its session any more.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from http import HTTPStatus
from time import perf_counter
from typing import NamedTuple, TypeVar

from proxy.condensing.decision import Decision
from proxy.condensing.offering import is_about_tools
from proxy.condensing.policies import Policies
from proxy.condensing.policy import requested_reply_length
from proxy.errors import ProxyError, UpstreamUnavailable
from proxy.learning.learned_windows import LearnedWindow, LearnedWindows, Origin
from proxy.learning.profiles import Profiles, sends_options
from proxy.learning.proof import CallersText
from proxy.overflow import Kind, Refusal, recognise
from proxy.overflow.numbers import LEAST
from proxy.quoting import label
from proxy.reply.opening import OpenedReply, is_unreadable_refusal, open_reply
from proxy.request.chat import ChatRequest
from proxy.runtime.clock import milliseconds_since
from proxy.upstream import UpstreamReply
from strategies.core.budget import Budget, Marks

MOST_RATIO = 4.0
"""The most tokens of the upstream for one of ours; a higher count is not one of the same prompt."""
UNEXPLAINED = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY)
"""The statuses with which servers refuse a request that they find wrong in some way."""
SMALLER = 0.9
"""The next view is at most this share of the refused one."""
UNKNOWN_SHARE = 0.25
"""The same share where the refusal names no number and nothing has passed before."""
GOAL_SHARE = 0.8
"""The goal is at most this share of the most that may be sent."""

Send = Callable[[Decision], Awaitable[UpstreamReply]]
OwnWork = Callable[[Awaitable[Decision | None]], Awaitable[Decision | None]]
T = TypeVar("T")

_log = logging.getLogger(__name__)


class RefusedRequest(NamedTuple):
    """The request that was refused."""

    tokens: int
    """Tokens of the view by our own count."""
    expected_tokens: int
    """Tokens that the upstream was expected to count for it."""
    reply_tokens: int
    """Tokens that it asked for as a reply; 0 if neither request nor refusal says."""


class FinalAnswer(NamedTuple):
    """The reply that the client gets, and the decision that it answers."""

    reply: UpstreamReply
    decision: Decision


class Retrier:
    """Sends requests, and sends refused ones again; one per app.

    `report` is given the decision that the client gets an answer to and what became of a refusal for length: `passed`
    (on to the client), `retried` or `refused-again`.
    """

    def __init__(
        self, policies: Policies, learned: LearnedWindows, profiles: Profiles, report: Callable[[Decision, str], None]
    ) -> None:
        self._policies = policies
        self._learned = learned
        self._profiles = profiles
        self._report = report

    async def send_with_retry(
        self, request: ChatRequest, decision: Decision, send: Send, own_work: OwnWork
    ) -> FinalAnswer:
        """Sends a request, and returns the reply for the client; raises `UpstreamUnavailable`.

        `own_work` wraps the wait for our own models.
        """
        answer = await self._send_in_accepted_form(request, decision, send)
        reply, refusal, _ = answer
        if refusal is None:
            return await self._send_original(request, decision, answer, send)
        if refusal.kind is Kind.OUTPUT:
            return FinalAnswer(reply, decision)
        try:
            smaller = await own_work(self._decide_smaller_or_none(request, decision, answer, refusal))
            second_reply = await self._send_smaller(request, smaller, send) if smaller is not None else None
        except BaseException:
            await reply.close()
            raise
        if smaller is None or second_reply is None:
            self._report(decision, "passed")
            return FinalAnswer(reply, decision)
        await reply.close()
        self._report(smaller, "retried" if second_reply.status < HTTPStatus.BAD_REQUEST else "refused-again")
        return FinalAnswer(second_reply, smaller)

    async def _send_original(
        self, request: ChatRequest, decision: Decision, answer: OpenedReply, send: Send
    ) -> FinalAnswer:
        """The answer to the request as it came, if that is sent for a refusal that nothing explains; else `answer`."""
        original = _original_or_none(decision) if _is_unexplained(answer, decision) else None
        if original is None:
            return FinalAnswer(answer.reply, decision)
        status = answer.reply.status
        second_reply = await _replace_refused(answer.reply, send(original))
        if second_reply is None:
            return FinalAnswer(answer.reply, decision)
        refused = "the upstream refused a rewritten request for %s with %s and no known reason; %s"
        if second_reply.status < HTTPStatus.BAD_REQUEST:
            _log.warning(refused, label(request.model), status, f"session {original.session} is not rewritten any more")
        else:
            _log.info(refused, label(request.model), status, f"it refused the original with {second_reply.status}")
        return FinalAnswer(second_reply, original)

    async def _send_in_accepted_form(self, request: ChatRequest, decision: Decision, send: Send) -> OpenedReply:
        """Sends a decision, in other forms as long as the upstream's errors teach one."""
        answer = await _send_once(decision, send)
        while answer.error and self._rewrite_by_error(request, decision, answer):
            next_answer = await _replace_refused(answer.reply, _send_once(decision, send))
            if next_answer is None:
                break
            answer = next_answer
        return answer

    def _rewrite_by_error(self, request: ChatRequest, decision: Decision, refused: OpenedReply) -> bool:
        """Rewrites the decision in a form that an error has taught, and returns whether its bytes have changed."""
        sent = decision.policy.profile
        options = sends_options(request.body.values, probed=decision.probed)
        taught = self._profiles.learn_from_refusal(
            request.scope, refused.reply.status, refused.error, sent, options=options, request=decision.body
        )
        if taught is None or decision.rewrite_for is None:
            return False
        try:
            return decision.rewrite_for(taught)
        except Exception:  # noqa: BLE001
            _log.exception("a refused request was not written in another form")
            return False

    async def _decide_smaller_or_none(
        self, request: ChatRequest, decision: Decision, refused: OpenedReply, refusal: Refusal
    ) -> Decision | None:
        try:
            learned = self._learn_window(request, decision, refused, refusal)
            return await self._decide_smaller(request, decision, refusal, learned)
        except ProxyError:
            return None  # nothing fits, so the client gets the upstream's own error
        except Exception:  # noqa: BLE001
            # A defect of ours leaves the client the upstream's own error.
            _log.exception("a refused request was not condensed")
            return None

    def _learn_window(
        self, request: ChatRequest, decision: Decision, refused: OpenedReply, refusal: Refusal
    ) -> LearnedWindow:
        clean = CallersText(decision.body).removed_from
        stands = recognise(refused.reply.status, refused.error, clean) if refusal.window is not None else None
        return self._learned.learn_from_refusal(
            request.scope,
            refusal,
            decision.expected_tokens,
            shares=not request.controls.no_store,
            proven=stands is not None and stands.window == refusal.window,
        )

    async def _decide_smaller(
        self, request: ChatRequest, decision: Decision, refusal: Refusal, learned: LearnedWindow
    ) -> Decision | None:
        """The decision for a smaller view; None if nothing may be changed, or nothing gets smaller."""
        expected = decision.expected_tokens
        if decision.retry_smaller is None:
            return None
        policy = self._policies.lowered(decision.policy, learned, request.scope, request.body.values)
        if policy.budget is None:
            return None
        reply_tokens = refusal.reply_tokens or requested_reply_length(request.body.values) or 0
        passed = self._learned.longest_passed(request.scope) if learned.origin is Origin.GUESS else None
        refused = RefusedRequest(decision.tokens_after, expected, reply_tokens)
        return await decision.retry_smaller(policy, retry_budget(policy.budget, refusal, refused, passed))

    async def _send_smaller(self, request: ChatRequest, smaller: Decision, send: Send) -> UpstreamReply | None:
        """Sends the smaller view, and returns the reply; None if the upstream cannot be reached.

        A refusal of this view teaches too, but is not retried.
        """
        try:
            answer = await self._send_in_accepted_form(request, smaller, send)
        except UpstreamUnavailable:
            return None
        if answer.refusal is not None and answer.refusal.kind is Kind.INPUT:
            self._learn_window(request, smaller, answer, answer.refusal)
        return answer.reply


def retry_budget(budget: Budget, refusal: Refusal, refused: RefusedRequest, passed: int | None) -> Budget:
    """The budget by which a refused view is condensed, in tokens of our own count; `budget` is in the upstream's.

    `passed` is given if the refusal names no number: the longest prompt that has passed before, in tokens that the
    upstream was expected to count; 0 if there is none.
    """
    ratio = _ratio(refusal, refused)
    usable = max(budget.usable, 1)
    room = budget.window - refused.reply_tokens if refused.reply_tokens < budget.window else usable
    most = min(budget.trigger / ratio, min(usable, room) / ratio, SMALLER * refused.tokens)
    if passed is not None:
        most = min(most, passed * refused.tokens / max(refused.expected_tokens, 1) or UNKNOWN_SHARE * refused.tokens)
    goal = min(budget.target / ratio, GOAL_SHARE * most)
    return replace(budget, marks=Marks(most / usable, most / usable, goal / usable, budget.marks.step))


def _ratio(refusal: Refusal, refused: RefusedRequest) -> float:
    """Tokens of the upstream for one of ours, at least.

    A refusal without a count still shows that the request did not fit.
    """
    counted = refusal.prompt_tokens or max(refused.expected_tokens, (refusal.window or 0) - refused.reply_tokens)
    return min(max(counted / max(refused.tokens, 1), 1.0), MOST_RATIO)


def _is_unexplained(answer: OpenedReply, decision: Decision) -> bool:
    """Whether an answer refuses a request for a reason that is not known; a refused memory tool is known."""
    is_about_tool = decision.hidden_rounds is not None and is_about_tools(answer.error)
    return answer.reply.status in UNEXPLAINED and not is_about_tool


def _original_or_none(decision: Decision) -> Decision | None:
    try:
        return decision.original() if decision.original is not None else None
    except Exception:  # noqa: BLE001
        # A defect of ours leaves the client the upstream's own error.
        _log.exception("a refused request was not sent as it came")
        return None


async def _send_once(decision: Decision, send: Send) -> OpenedReply:
    started = perf_counter()
    reply = await send(decision)
    if is_unreadable_refusal(reply) and decision.rewrite_for is not None:
        # We cannot read an encoded error, so we ask for it once more without an encoding. That costs a round trip;
        # refusing encodings beforehand would cost normal replies theirs, and decoding would take another dependency.
        decision.wants_unencoded = True
        reply = await _replace_refused(reply, send(decision)) or reply
    decision.timing.upstream += milliseconds_since(started)
    # No window is so small that a shorter prompt is refused for its length.
    is_long = decision.forwarded_tokens >= LEAST
    is_ours = decision.view.is_changed or decision.probed or decision.hidden_rounds is not None
    return await open_reply(reply, inspect=is_long or (is_ours and reply.status >= HTTPStatus.BAD_REQUEST))


async def _replace_refused(refused: UpstreamReply, sending: Awaitable[T]) -> T | None:
    """The result of sending again, after which the refused reply is closed; None if the upstream is unavailable."""
    try:
        reply = await sending
    except UpstreamUnavailable:
        return None
    except BaseException:
        await refused.close()
        raise
    await refused.close()
    return reply
