"""The same attempt once more, alone, after the cache that requests to a server share was full of others.

Only the server's own error, and the window that it states, tell such a refusal from one for length.
"""

from __future__ import annotations

import logging

from proxy.condensing.account import Timing
from proxy.condensing.attempt import Attempt, Step
from proxy.condensing.ladder.rung import Next, Parts, Rung
from proxy.condensing.turn import Decision
from proxy.protocols.opening import OpenedReply
from proxy.quoting import label
from proxy.servers.known import Servers
from proxy.servers.refusals import Refusal, Unit

_log = logging.getLogger(__name__)


def recognises(_refused: Attempt, answer: OpenedReply) -> bool:
    return answer.refusal.is_server_error and answer.refusal.size(Unit.PROMPT) is not None


async def after(parts: Parts, refused: Attempt, answer: OpenedReply, _timing: Timing) -> Next:
    """Another try; nothing if it is not known what the error says; a smaller view if the cache was not full."""
    # Where a window is set, nobody has asked the server yet what it is.
    await parts.servers.asked(refused.decision.context.request.lesson_scope)
    is_full = note_full(parts.servers, answer.refusal, refused.decision)
    if is_full is False:
        return Next(refused, goes_on=True)
    if not is_full or Step.REPEATED in refused.tried:
        return Next(refused)
    model = label(refused.decision.context.request.model)
    _log.info("the cache of %s was full; the request is sent again as it is", model)
    await parts.pause()
    return Next(refused, refused._replace(tried=refused.tried | {Step.REPEATED}))


def note_full(servers: Servers, refusal: Refusal, decision: Decision) -> bool | None:
    """Whether a refusal says that the server's cache is full of other requests, not that this one is too long.

    It does if it names no number and the request fits the window that the server states. Then it is known that requests
    share the cache. None if the server states none, or only a ceiling, so nobody knows.
    """
    size = refusal.size(Unit.PROMPT)
    if size is None or size.limit is not None or not refusal.is_server_error:
        return False
    request = decision.context.request
    stated = servers.stated(request.lesson_scope)
    if stated is None or stated.is_ceiling:
        return None
    if decision.expected_tokens + (request.body.envelope.reply_limit or 0) > stated.window:
        return False
    servers.shared_cache(request.lesson_scope, is_shown=True)
    return True


async def take_room(parts: Parts, attempt: Attempt) -> None:
    """Returns when an attempt fits into the cache that requests share; one that is repeated has it alone."""
    decision, request = attempt.decision, attempt.decision.context.request
    cache, held_until = parts.servers.shared_cache(request.lesson_scope), request.until_answered
    if cache is None or held_until is None:
        return
    reply = cache.size - parts.policies.usable(cache.size, request.model, request.body.envelope.reply_limit)
    alone = Step.REPEATED in attempt.tried
    await cache.take(held_until, cache.size if alone else decision.expected_tokens + reply)
    held_until.callback(cache.release, held_until)


RUNG = Rung(recognises, after)
