"""Searching: the calls of `search_memory` are run between the upstream and the client, who sees one reply.

A reply in one piece is read whole; one in events flows on while it comes (`proxy/memory/joined.py`). When it has called
nothing but the memory tool, the calls are run and the upstream is asked again (`proxy/memory/following.py`), at most
`memory.max_rounds` times; the last time without the tool, so that there is an end. When it has called tools of the
client too, the memory calls are run, and the client gets its own: the results wait in the session for its next request.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from proxy.condensing.decision import Action, Decision
from proxy.condensing.viewing import spliced
from proxy.errors import UpstreamUnavailable
from proxy.http.headers import first
from proxy.learning.learned_windows import LearnedWindows
from proxy.memory.following import Following, Send
from proxy.memory.inject import Injector
from proxy.memory.joined import StreamedReply, whole
from proxy.memory.offering import Offers
from proxy.memory.recall import Recall, Searchable
from proxy.memory.replies import is_good, read
from proxy.memory.rounds import Rounds
from proxy.overflow import Refusal
from proxy.reasons import Reason
from proxy.reply.opening import UpstreamAnswer
from proxy.request.intake import Case
from proxy.settings.tables import MemorySettings

_REFUSING = (400, 404, 422, 500, 501)
"""With these statuses servers say that a model takes no tools."""
_ABOUT_TOOLS = re.compile(rb"tool|function", re.IGNORECASE)
_GIVES_WAY = ("", Reason.BELOW_MARKS, Reason.WAITING_FOR_STEP, Reason.WINDOW_UNKNOWN)
"""Reasons that say only that nothing was condensed."""
_PLAIN = ("", "identity")


class Searcher:
    """Runs the calls of the tool; one per app. A refusal of tools is remembered for `ttl` seconds."""

    def __init__(
        self,
        recall: Recall,
        settings: MemorySettings,
        learned: LearnedWindows,
        ttl: int,
        clock: Callable[[], float],
    ) -> None:
        self._recall = recall
        self._settings = settings
        self._learned = learned
        self._offers = Offers(ttl, clock)

    def offered(self, case: Case) -> Case:
        """The case with the offer of the tool, and with the hidden rounds that earlier requests have left."""
        return self._offers.offered(case)

    def rounds(self, decision: Decision, case: Case) -> Rounds | None:
        """What may come behind a decision's view; None where the tool is not offered."""
        told_why = case.offer.reason
        if told_why and decision.action is not Action.DEGRADED and decision.reason in _GIVES_WAY:
            decision.reason = told_why
        if not case.offer.is_made:
            return None
        return Rounds(
            decision.view,
            case.policy.budget,
            lambda query: self._recall.search(Searchable.of(case), query, self._settings.embeddings_search_wait),
            lambda hidden, offering: spliced(decision.view, case, hidden, offering, probe=decision.probed),
            most=self._settings.max_rounds,
            top_k=self._settings.top_k,
            runs=case.offer.runs,
        )

    async def searched(self, decision: Decision, model: str, reply: UpstreamAnswer, send: Send) -> UpstreamAnswer:
        """The reply that the client gets; raises `UpstreamUnavailable`. `send` asks the upstream again."""
        rounds = decision.rounds
        if rounds is None:
            return reply
        if not is_good(reply):
            return await self._without_tool(decision, rounds, model, reply, send)
        if (first(reply.headers, b"content-encoding") or "") not in _PLAIN:
            return reply
        scale = decision.calibrated.scale

        def learn(refusal: Refusal, tokens: int) -> None:
            self._learned.refused(model, refusal, scale.upstream(tokens))

        following = Following(rounds, send, learn)
        if (first(reply.headers, b"content-type") or "").startswith("text/event-stream"):
            return StreamedReply(reply, rounds, following)
        return await whole(reply, rounds, following)

    async def _without_tool(
        self, decision: Decision, rounds: Rounds, model: str, reply: UpstreamAnswer, send: Send
    ) -> UpstreamAnswer:
        """The reply to the same request without the tool, where the upstream refuses tools; else its error."""
        if reply.status not in _REFUSING:
            return reply
        error = await read(reply)
        if not _ABOUT_TOOLS.search(error.data):
            return error
        try:
            again = await send(rounds.plain_body())
        except UpstreamUnavailable:
            return error
        if not is_good(again):
            await again.close()
            return error
        self._offers.refused(model)
        decision.reason, decision.rounds = Reason.MEMORY_TOOL_REFUSED, None
        return again


class Memories(NamedTuple):
    """What memory does for requests: blocks are put into views, and searches run."""

    injector: Injector
    searcher: Searcher
