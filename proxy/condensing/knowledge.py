"""What one upstream has taught this process and others: windows, refused forms, and how it counts.

Before a request, `refresh` reads the lessons of other processes, now and then and in the background. Only the first
request for a model waits for them, and not for long: all are read at once, within the request's patience with the
store. A request that is `off` does not wait at all. After a reply, its usage teaches how the upstream counts, and may
prove that it truncates prompts; a refusal teaches a window or a form.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from proxy.condensing.context import RequestContext
from proxy.condensing.decision import Decision
from proxy.endpoints.replies import Usage
from proxy.knowledge.anchor import Anchor
from proxy.knowledge.calibrator import Calibrator
from proxy.knowledge.learned_windows import CountedReply, LearnedWindow, LearnedWindows
from proxy.knowledge.profiles import MAX_MODELS, CallersText, LessonScope, Profile, Profiles, sends_options
from proxy.overflow import Refusal, recognise
from proxy.quoting import label
from proxy.reply.opening import OpenedReply
from proxy.request.wire import ClientRequest
from proxy.runtime.lru import Lru
from proxy.runtime.owned_tasks import OwnedTasks
from proxy.store.access import Patience

FIRST_LOOK = 0.25  # seconds
SERVER_SETTINGS = (
    "num_ctx or OLLAMA_CONTEXT_LENGTH (Ollama), --ctx-size divided by --parallel (llama.cpp), the loaded context length"
    " (LM Studio), --max-model-len (vLLM), --context-length (SGLang)"
)
"""What sets the window of a server."""
_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Knowledge:
    """What is known of one upstream; one per app. `report` is called for each truncation."""

    learned: LearnedWindows
    calibrator: Calibrator
    profiles: Profiles
    tasks: OwnedTasks
    report: Callable[[], None]
    _logged: Lru[str, int] = field(default_factory=lambda: Lru(MAX_MODELS))

    async def refresh(self, scope: LessonScope, counters: tuple[str, ...], patience: Patience, *, waits: bool) -> None:
        """Reads what other processes have learned of a model, if it is time to."""
        first_reads = [*self.learned.refresh(scope), *self.calibrator.refresh(scope.model, *counters)]
        if first_reads and waits:
            clock = asyncio.get_running_loop().time
            began = clock()
            for key in first_reads:
                await self.tasks.result_of(key, began + min(FIRST_LOOK, patience.remaining))
            patience.spend(clock() - began)

    def learn_from_usage(self, decision: Decision, context: RequestContext, usage: Usage) -> Anchor | None:
        """Learns from the usage of a complete reply; returns the anchor for the next request of its branch."""
        self._look_for_truncation(decision, context.request, usage)
        if context.request.controls.no_store:
            return None
        applied = decision.applied.id if decision.applied else ""
        return self.calibrator.learn(context.prompt, context.calibrated, decision.view, applied, usage.prompt)

    def _look_for_truncation(self, decision: Decision, request: ClientRequest, usage: Usage) -> None:
        """If the usage proves that the upstream truncates prompts, learns, counts and logs that."""
        # Our count of a picture is only a bound, so it does not tell which of two prompts is longer.
        if not request.body.is_text:
            return
        reply, model = CountedReply(decision.view.tokens, usage.prompt, decision.exact), request.model
        shares = not request.controls.no_store
        kept = self.learned.learn_from_usage(request.lesson_scope, decision.expected_tokens, reply, shares=shares)
        if kept is None:
            return
        self.report()
        if self._logged.get(model) != kept:
            self._logged.put(model, kept)
            _log.warning(
                "%s silently reads only the newest %s tokens of a longer prompt. They are taken for its window, unless"
                " the settings give one. A longer one is set by %s.",
                *(label(model), kept, SERVER_SETTINGS),
            )

    def window_from(
        self, refused: OpenedReply, refusal: Refusal, decision: Decision, request: ClientRequest
    ) -> LearnedWindow:
        """The window that a refusal for length teaches."""
        clean = CallersText(decision.body).removed_from
        status, answer = refused.reply.status, request.body.endpoint.answer
        stands = recognise(status, refused.error, clean, answer=answer) if refusal.window is not None else None
        return self.learned.learn_from_refusal(
            request.lesson_scope,
            refusal,
            decision.expected_tokens,
            shares=not request.controls.no_store,
            proven=stands is not None and stands.window == refusal.window,
        )

    def form_from(self, refused: OpenedReply, decision: Decision, request: ClientRequest) -> Profile | None:
        """The profile that a refusal of the request's form teaches; None if it teaches nothing new."""
        options = sends_options(request.body.values, probed=decision.probed)
        sent = decision.policy.profile
        return self.profiles.learn_from_refusal(
            request.lesson_scope, refused.reply.status, refused.error, sent, options=options, request=decision.body
        )
