"""Refusals: whether a reply is one, what follows on it, and what it teaches.

What may follow is a row of the ladder (`proxy/condensing/ladder/`). Nothing has reached the client by then. After a
search of the memory tool, the request with the results may be refused: `following` has what the search loop does then
(`proxy/conversations/searching.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

from proxy.condensing.account import Timing
from proxy.condensing.attempt import Attempt, Step
from proxy.condensing.ladder import LADDER
from proxy.condensing.ladder.full_cache import note_full, take_room
from proxy.condensing.ladder.rung import Next, Parts
from proxy.condensing.ladder.size import RefusedRequest, most_tokens, taught, window_after
from proxy.condensing.traits import size_refused
from proxy.condensing.turn import RequestContext
from proxy.conversations.searching import Following, HiddenRounds, SendBody
from proxy.errors import ProxyError
from proxy.protocols.opening import OpenedReply, open_reply
from proxy.protocols.replies import Usage
from proxy.protocols.watching import WatchedReply
from proxy.quoting import label
from proxy.servers.counting import Anchor
from proxy.servers.refusals import MIN_WINDOW, Refusal, Size, Unit
from proxy.servers.upstream import UpstreamReply
from proxy.servers.windows import SizeRefused
from proxy.values import MOST_HIDDEN, MOST_PER_BYTE
from strategies.core.budget import UNLIMITED
from strategies.dialects.parts import has_parts

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Refusals:
    """Learns from refusals, and finds what follows them; one per app.

    `report` is called with what followed on a refusal for length: `passed` (on to the client), `retried` or
    `refused-again`.
    """

    parts: Parts
    report: Callable[[str], None]

    async def after(self, refused: Attempt, answer: OpenedReply, timing: Timing) -> Next:
        """What the first row of the ladder does that recognises the refusal; nothing after an internal error."""
        found = Next(refused)
        request = refused.decision.context.request
        if (cache := self.parts.servers.shared_cache(request.lesson_scope)) is not None:
            cache.release(request.until_answered)  # a model may be asked now for a smaller view
        try:
            for rung in LADDER:
                if rung.recognises(refused, answer):
                    found = await rung.next(self.parts, refused, answer, timing)
                    if not found.goes_on:
                        break
            if found.following is not None:
                await self.room_for(found.following)
        except ProxyError:
            return Next(refused)  # nothing fits
        except Exception:  # noqa: BLE001
            _log.exception("recovering from the upstream's refusal failed; the client gets the refusal")
            return Next(refused)
        except BaseException:
            await answer.reply.close()
            raise
        return found

    async def room_for(self, attempt: Attempt) -> None:
        await take_room(self.parts, attempt)

    async def keep(self, attempt: Attempt) -> None:
        """Keeps the size that was refused, although the request failed."""
        context, size = attempt.decision.context, size_refused.TRAIT.of(attempt.decision.context)
        if size is None:
            return
        if context.recognised.session is None:
            self._keep_unstored(context, size)
        elif context.may_store:
            await self.parts.attempts.keeper.amend(
                context.recognised, lambda session: size_refused.TRAIT.put(session, size), creates=False
            )

    def _keep_unstored(self, context: RequestContext, size: SizeRefused | None) -> None:
        """Keeps the size refused of a session that is not stored, in this process."""
        key = context.request.lesson_scope, context.recognised.shown_id
        if size is None:
            self.parts.servers.learned.sizes.forget(key)
        elif not context.request.controls.no_store:
            self.parts.servers.learned.sizes.put(key, size)

    async def conclude(self, sent: Attempt, answer: OpenedReply) -> None:
        """Reports and keeps how it ended, after the last attempt was answered."""
        size = answer.refusal.condensed if answer.refusal.sizes else None
        if Step.SMALLER in sent.tried:
            is_accepted = answer.reply.status < HTTPStatus.BAD_REQUEST
            self.report("retried" if is_accepted else "refused-again")
        elif size is not None:
            self.report("passed")
        if answer.refusal.sizes:
            await self.keep(sent)
        elif answer.is_accepted and (sent.restrictions or sent.tried):
            self.learn(sent)

    def learn(self, accepted: Attempt) -> None:
        """Learns what the refusals before an accepted attempt have named."""
        scope = accepted.decision.context.request.lesson_scope
        if accepted.restrictions:
            self.parts.servers.profiles.learn(scope, accepted.restrictions)
        if Step.WITHOUT_TOOL in accepted.tried:
            self.parts.attempts.searcher.note_refusal(scope)

    def following(self, attempt: Attempt, rounds: HiddenRounds, send: SendBody) -> Following:
        """What gets the replies after the searches of an attempt."""
        context = attempt.decision.context

        def aim(size: Size, tokens: int) -> int | None:
            """Learns from the refusal of a request after a search; gives the tokens that the next one may have."""
            window_after(self.parts, size, attempt.decision)
            if size.limit is None:
                return None
            reply_tokens = size.reply or context.request.body.envelope.reply_limit or 0
            sent = RefusedRequest(tokens, context.sized.calibrated.scale.upstream(tokens), reply_tokens)
            return int(most_tokens(size, sent, size.limit, size.limit))

        return Following(rounds, send, aim)

    def note_accepted(self, attempt: Attempt, usage: Usage | None, watched: WatchedReply) -> Anchor | None:
        """Learns that a view was accepted, which ends a size refused that is smaller, and how the server counted it.

        Also whether a stream has its usage unasked. Returns the anchor for the next request of its branch.
        """
        decision, context = attempt.decision, attempt.decision.context
        if (size := context.traits.get(size_refused.TRAIT.name)) is not None:
            is_ended = size_refused.ends(decision)
            if is_ended:
                text = "prompts of session %s are no longer limited to %d tokens: the upstream accepted %d"
                _log.warning(text, decision.session, size.tokens, decision.expected_tokens)
            if not attempt.stores:
                self._keep_unstored(context, None if is_ended else size)
        scope, quiet, body = context.server.scope, self.parts.servers.quiet, context.request.body
        if body.values.get("stream") is True and not decision.probed:
            if usage is None and scope not in quiet and watched.has_ended_well:
                quiet.put(scope, True)
            elif usage is not None and scope in quiet and body.endpoint.usage_probe(body.values):
                quiet.forget(scope)
        tokens = 0 if usage is None else usage.prompt if usage.first is None else usage.first
        if not 0 < tokens <= MOST_PER_BYTE * len(decision.body) + MOST_HIDDEN:
            return None
        applied = decision.applied.id if decision.applied else ""
        counted = context.sized.prompt, context.sized.calibrated, decision.view, applied, tokens
        return self.parts.servers.learn_usage(*counted, shares=not context.request.controls.no_store)

    def after_late(self, attempt: Attempt, refusal: Refusal) -> Attempt:
        """The attempt with what a refusal has taught that came after content."""
        decision, refusal = attempt.decision, refusal.without_quoted(attempt.decision.body)
        self.report("passed")
        size = refusal.size(Unit.PROMPT)
        if size is None or note_full(self.parts.servers, refusal, decision) is not False:
            return attempt
        attempt, _ = taught(self.parts, attempt, size)
        if not attempt.stores:
            context = attempt.decision.context
            self._keep_unstored(context, size_refused.TRAIT.of(context))
        return attempt


async def looked_at(sent: Attempt, reply: UpstreamReply) -> OpenedReply:
    """The reply, whose beginning is read if it may be a refusal; raises `UpstreamUnavailable`."""
    decision = sent.decision
    context, endpoint = decision.context, decision.context.request.body.endpoint
    # No window is so small that a shorter prompt is refused for its length, but a cache may be full of others.
    is_long = decision.forwarded_tokens >= MIN_WINDOW or reply.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    if not is_long:
        if reply.status < HTTPStatus.BAD_REQUEST:
            return OpenedReply(reply)
        view, values = decision.view, context.request.body.values
        is_ours = sent.rounds is not None or view.is_changed or view.transcript.is_signed or decision.probed
        is_aside = context.aside is not None or endpoint.management_member in values
        # Pictures may leave. A body is searched for them only after an error, because that takes long.
        if not (is_ours or is_aside or has_parts(decision.body)):
            return OpenedReply(reply)
    holds, briefly = may_be_refused(sent), is_perhaps_refused(sent)
    answer = await open_reply(endpoint, reply, holds=holds or briefly, briefly=not holds)
    refusal = answer.refusal
    return answer._replace(refusal=refusal.without_quoted(decision.body)) if refusal.sizes else answer


def log_original(sent: Attempt, refused: OpenedReply, answer: OpenedReply) -> None:
    """Logs the statuses with which the upstream answered a rewritten request, and then the original."""
    if Step.ORIGINAL not in sent.tried:
        return
    text = "the upstream refused a condensed request for %s with status %s, for no known reason; %s"
    outcome = f"it refused the original with status {answer.reply.status}"
    if answer.reply.status < HTTPStatus.BAD_REQUEST:
        outcome = f"it accepted the original. A second time within an hour, {sent.decision.session} is left alone"
    _log.warning(text, label(sent.decision.context.request.model), refused.reply.status, outcome)


def may_be_refused(attempt: Attempt) -> bool:
    """Whether an attempt may be refused for its length, and another one may then follow.

    That is so from half of what is known to fit; if nothing is known, from the least window.
    """
    budget = attempt.decision.context.policy.budget
    return _is_refusable(attempt, budget.fits // 2 if budget is not None and budget.fits < UNLIMITED else MIN_WINDOW)


def is_perhaps_refused(attempt: Attempt) -> bool:
    """The same where a window is known that the server itself has not stated, so that it may take less."""
    policy = attempt.decision.context.policy
    is_stated = policy.size_refused is not None or (policy.window.is_known and not policy.window.is_set)
    return not is_stated and _is_refusable(attempt, MIN_WINDOW)


def _is_refusable(attempt: Attempt, least: int) -> bool:
    decision = attempt.decision
    return decision.context.policy.rewrites and Step.SMALLER not in attempt.tried and decision.expected_tokens >= least
