"""How refused requests are sent again: the budget of a smaller view, and sending until a reply can be read.

A refusal for length teaches a window. The view is condensed for that window, smaller than the refused one
(`retry_budget`), in what is left of the time that the client waits. A refusal with a content encoding that we cannot
read is asked for once more without one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from http import HTTPStatus
from typing import NamedTuple, TypeVar

from proxy.condensing.decision import Decision
from proxy.condensing.searching import is_about_tools
from proxy.endpoints.endpoint import Endpoint
from proxy.errors import UpstreamUnavailable
from proxy.overflow import Refusal
from proxy.overflow.wording import MIN_WINDOW
from proxy.reply.opening import OpenedReply, is_unreadable_refusal, open_reply
from proxy.upstream import UpstreamReply
from strategies.core.budget import Budget, Marks

MAX_RATIO = 4.0
"""Largest believable ratio of upstream tokens to our own; above it the numbers describe another prompt."""
SMALLER = 0.9
"""The next view is at most this share of the refused one."""
UNKNOWN_SHARE = 0.25
"""The same share where the refusal names no number and nothing has passed before."""
GOAL_SHARE = 0.8
"""The goal is at most this share of the maximum that may be sent."""

UNEXPLAINED = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY)
"""The statuses with which servers refuse a request that they find wrong in some way."""

Send = Callable[[bytes], Awaitable[UpstreamReply]]
"""Sends a body to the upstream."""
T = TypeVar("T")


class RefusedRequest(NamedTuple):
    """The request that was refused."""

    tokens: int
    """Tokens of the view by our own count."""
    expected_tokens: int
    """Tokens that the upstream was expected to count for it."""
    reply_tokens: int
    """Tokens that it asked for as a reply; 0 if neither request nor refusal says."""


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
    """The ratio of upstream tokens to our own, at least 1.

    A refusal without a count still shows that the request did not fit.
    """
    counted = refusal.prompt_tokens or max(refused.expected_tokens, (refusal.window or 0) - refused.reply_tokens)
    return min(max(counted / max(refused.tokens, 1), 1.0), MAX_RATIO)


async def send_once(
    endpoint: Endpoint, decision: Decision, send: Send, again: Send | None, *, is_ours: bool
) -> OpenedReply:
    """Sends a decision, and opens the reply where it may refuse it; raises `UpstreamUnavailable`.

    An error that cannot be read is asked for once more by `again`. That costs a round trip; refusing encodings
    beforehand would cost normal replies theirs. `is_ours` says that the request has members that we added.
    """
    reply = await send(decision.body)
    if again is not None and reply.status >= HTTPStatus.BAD_REQUEST and is_unreadable_refusal(reply):
        reply = await replace_refused(reply, again(decision.body)) or reply
    # No window is so small that a shorter prompt is refused for its length.
    is_long = decision.forwarded_tokens >= MIN_WINDOW
    is_ours = is_ours or decision.view.is_changed or decision.probed
    if is_long or (is_ours and reply.status >= HTTPStatus.BAD_REQUEST):
        return await open_reply(endpoint, reply)
    return OpenedReply(reply)


async def replace_refused(refused: UpstreamReply, sending: Awaitable[T]) -> T | None:
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


def is_unexplained(refused: OpenedReply, *, offers_tool: bool) -> bool:
    """Whether a request is refused for a reason that is not known; if it `offers_tool`, that may be the reason."""
    return refused.reply.status in UNEXPLAINED and not (offers_tool and is_about_tools(refused.error))
