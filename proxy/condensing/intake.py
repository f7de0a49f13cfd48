"""Takes a request in: collects into a `RequestContext` all that must be known before it is decided on.

The order matters. In append mode the stored history is loaded first, because its tokens count too. Then the transcript
is measured, which also gives its chain of digests; the chain leads to the session; and the settings of the session have
a say in the policy. The comments in `build_context` are steps 3 to 9 of `docs/design.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import chain as joined
from itertools import takewhile
from operator import attrgetter
from time import perf_counter

from proxy.condensing.account import Timing
from proxy.condensing.context import RequestContext, fold_view
from proxy.condensing.knowledge import Knowledge
from proxy.condensing.policy import Basis, Policies, Policy
from proxy.controls import MEMORY
from proxy.errors import HeadMismatch, HistoryUnavailable
from proxy.knowledge.anchor import CountedPrompt
from proxy.request.measure import Measured, Measurer, Precision, fits_by_length
from proxy.request.wire import ClientRequest
from proxy.runtime.steps import next_step
from proxy.sessions.histories import Append, Appends, MissingMessages, append_to, check_append
from proxy.sessions.recognition import Identity, Recognised, Recogniser
from proxy.sessions.session import has_node
from proxy.store.access import Patience
from proxy.store.base import StoreError, StoreKey
from proxy.tokens.counter import Counter, CountingPool, Tokenizers
from strategies.core.condensation import Condensation, standing_condensations
from strategies.core.economics import advise, condensing_of, follow
from strategies.core.messages import Message, Reader, Role
from strategies.core.parsing import loads
from strategies.core.protocol import Triggering
from strategies.core.replay import JUDGED, prepared_in
from strategies.core.transcript import Transcript
from strategies.core.view import item_for


class Restorer:
    """Puts back the messages that were left out by a client that sends only the newest part of its history.

    Parsed and counted messages are cached with the history, so a turn pays only for the messages that the client has
    left out since the turn before. One per app.
    """

    def __init__(self, reader: Reader, pool: CountingPool) -> None:
        self._reader = reader
        self._pool = pool

    async def restore(self, measured: Measured, missing: MissingMessages, counter: Counter) -> Measured:
        """The transcript with the messages that its client left out."""
        messages = await self._messages(missing, counter)
        transcript = self._joined(measured.transcript, messages, missing.kept_first)
        put_back = sum(message.tokens for message in messages)
        return measured._replace(transcript=transcript, restored=put_back)

    async def _messages(self, missing: MissingMessages, counter: Counter) -> list[Message]:
        """The missing messages, parsed and counted; most of them were parsed for an earlier turn."""
        parsed = missing.history.parsed(counter.cache_key)
        new = [message for message in missing.messages if message not in parsed]
        bodies = [loads(message.raw) for message in new]
        counts = await self._pool.messages(counter, bodies)
        for message, body, (tokens, unpriced) in zip(new, bodies, counts, strict=True):
            known = message.raw, body, tokens, counter.dialect, message.digest
            parsed[message] = self._reader.read(*known, unpriced=unpriced).lean()
        return [parsed[message] for message in missing.messages]

    def _joined(self, sent: Transcript, messages: Sequence[Message], kept_first: bool) -> Transcript:
        """The transcript that the client sent, with messages before it or after its first one."""
        at = 1 if kept_first else 0
        lead = list(takewhile(lambda message: message.role is not Role.ASSISTANT, sent.chain[at:]))
        # Tool output at the front was read as a user message; now there may be a call before it that it answers.
        seam = [replace(message, role=self._reader.role(message.body, message.dialect)) for message in lead]
        transcript = Transcript.of(joined(sent.chain[:at], messages, seam, sent.chain[at + len(lead) :]))
        systems = tuple((place + len(messages) if place > at else place, system) for place, system in sent.systems)
        return Transcript(transcript.chain, systems)


MIN_REQUESTS = 2
"""Requests of a conversation that are needed to know its growth."""
NEWEST = 64
"""Growth is measured over this many of the newest messages."""
MAX_SEEN = 4
"""The next condensation is expected to have the mean size and cost of this many earlier ones."""
MAX_ESTIMATED = 1_000
"""A list of more messages is counted, not estimated: other requests can run during counting only."""


@dataclass(slots=True, eq=False, kw_only=True)
class Intake:
    """Builds the contexts of requests; one per app. `add_offer` adds the offer of the memory tool."""

    policies: Policies
    recogniser: Recogniser
    appends: Appends
    measurer: Measurer
    restorer: Restorer
    tokenizers: Tokenizers
    knowledge: Knowledge
    add_offer: Callable[[RequestContext], RequestContext]

    async def build_context(self, request: ClientRequest, timing: Timing) -> RequestContext:
        """The context of a request; fills in `timing`. Raises `BadRequest`, `HeadMismatch` and `HistoryUnavailable`."""
        # 3. Identify.
        scope, body = request.lesson_scope, request.body
        identity = self.recogniser.identify(request.controls.session, request.headers, body.endpoint, body.values)
        # 4. Know the upstream.
        counter = self.tokenizers.for_model(request.model, body.endpoint.counter, request.tenant)
        patience = self.recogniser.stored.patience()
        waits = not self.policies.is_off(request.controls, request.model)
        await self.knowledge.refresh(scope, counter.cache_key, patience, waits=waits)
        hidden = self.knowledge.calibrator.hidden(scope.model, counter.cache_key)
        is_long = body.endpoint.asks_for_long(request.headers)
        basis = self.policies.basis(request.controls.window, scope, is_long=is_long)
        # 5. Load the stored history.
        started = perf_counter()
        await request.trust.look_up(patience)
        request, append = await self._supply_history(request, identity, patience)
        spent_on_history = (perf_counter() - started) * 1000
        # 6. Measure.
        started = perf_counter()
        measured = await self._measure(request, counter, basis, hidden)
        timing.count = (perf_counter() - started) * 1000
        # 7. Recognise.
        started = perf_counter()
        if len(measured.transcript.chain) > MAX_ESTIMATED:
            await next_step()  # to recognise this many messages takes long
        recognised = await self.recogniser.recognise(request.tenant, identity, measured.transcript, patience)
        recognised = recognised._replace(trust=request.trust)
        if request.controls.dry_run and (recognised.session or recognised.condensations or request.continuation):
            await request.prove()
        # 8. Choose.
        size = self.knowledge.size_refused(request, recognised)
        policy = self._policy(request, recognised, basis._replace(size_refused=size and size.tokens))
        if policy.scope:
            recognised = await self.recogniser.with_card_scope(recognised, policy.scope, read=any(policy.memory))
        if any(policy.memory) and request.body.endpoint.is_subagent(request.headers):
            policy = policy._replace(memory=MEMORY["off"])
        # 9. Complete the context.
        has_tools = request.body.endpoint.offers_tools(request.body.values, measured.transcript)
        context = RequestContext(
            request, measured, recognised, policy, counter, measured, has_tools, append, recognised.branch
        )._replace(size_refused=size)
        context = await self._restore_dropped(await self._count(context) if _needs_counts(context) else context)
        context = context.for_profile(policy.profile).with_session_facts()
        context = _with_pictures_out(context)
        context = self._calibrate(self.add_offer(context) if any(policy.memory) else context)
        if not context.is_estimated:
            context = with_economy(context)
        timing.session = (perf_counter() - started) * 1000 + spent_on_history
        return self._spared(context)

    def _policy(self, request: ClientRequest, recognised: Recognised, basis: Basis) -> Policy:
        settings = recognised.session.settings if recognised.session else {}
        limit = request.body.envelope.reply_limit
        return self.policies.policy(request.controls, settings, request.lesson_scope, limit, basis)

    def _spared(self, context: RequestContext) -> RequestContext:
        """The context for sending the request as it came, if its session is spared rewriting and it fits."""
        session = context.recognised.session
        is_spared = session is not None and session.rewriting.spares(self.knowledge.clock())
        return context.spared() if is_spared and context.policy.rewrites and context.fits_whole else context

    async def with_counts(self, context: RequestContext) -> RequestContext:
        """The context with its tokens counted, if they were only estimated by length; votes need counts."""
        if not context.is_estimated or context.full_transcript is not None:
            return context
        policy = context.policy._replace(budget=context.policy.budget and context.policy.budget.unscaled)
        counted = await self._count(context._replace(policy=policy))
        return with_economy(self._calibrate(counted.for_profile(policy.profile).with_session_facts()))

    async def _count(self, context: RequestContext) -> RequestContext:
        if not context.is_estimated:
            return context
        measured = await self.measurer.measure(context.request.body, context.counter)
        return context._replace(measured=measured, as_sent=measured)

    def _calibrate(self, context: RequestContext) -> RequestContext:
        """The context with what is known about the upstream's own count, and its budget scaled by that."""
        branch = context.branch
        anchor, prompt = branch.anchor if branch else None, _counted_prompt(context)
        calibrated = self.knowledge.calibrator.calibrate(prompt, anchor, context.policy.window.tokens)
        return context._replace(prompt=prompt, calibrated=calibrated, policy=context.policy.scaled(calibrated.scale))

    async def _restore_dropped(self, context: RequestContext) -> RequestContext:
        """The context with the messages that its client has dropped; under `off` and `observe:` not in the view."""
        # An append names the history that it continues.
        if context.recognised.missing is None or context.append is not None:
            return context
        restored = await self.restorer.restore(context.measured, context.recognised.missing, context.counter)
        session = context.recognised.session
        context = context._replace(branch=session.find_branch(restored.transcript) if session else None)
        if not context.policy.rewrites:
            return context._replace(full_transcript=restored.transcript)
        policy = context.policy.with_dropping() if restored.restored else context.policy
        return context._replace(full_transcript=restored.transcript, measured=restored, policy=policy)

    async def _supply_history(
        self, request: ClientRequest, identity: Identity, patience: Patience
    ) -> tuple[ClientRequest, Append | None]:
        """In append mode, the request with its whole history; raises `HeadMismatch`, `HistoryUnavailable`."""
        if not request.controls.append:
            return request, None
        check_append(request.controls, request.body, identity.id)
        has_turn = True
        try:
            writes = not request.controls.dry_run
            if writes and request.until_answered is not None:
                turn = self.appends.turn(StoreKey(request.tenant, identity.key), claims=request.trust.accepted)
                has_turn = await request.until_answered.enter_async_context(turn)
                await request.trust.look_up(patience)  # the upstream may have accepted the append before this one
            stored = await self.recogniser.appended_history(request.tenant, identity, patience, writes=writes)
            if stored.tip.block:
                await request.prove()  # the history goes to the upstream, and its head to the client
        except StoreError as error:
            raise HistoryUnavailable(f"The stored history cannot be continued now ({error.reason}).") from None
        if not has_turn:
            raise HeadMismatch(stored.tip.head)
        append, elements = append_to(stored, request.body.elements, request.controls.if_head)
        return request._replace(body=request.body.with_history(elements)), append

    async def _measure(self, request: ClientRequest, counter: Counter, basis: Basis, hidden: int) -> Measured:
        """Counts the tokens, or estimates them if the length alone proves that nothing needs to be done.

        The length bounds the tokens of what the client sent; `hidden` tokens that the upstream may add come on top.
        """
        if request.controls.dry_run or request.controls.force:
            return await self.measurer.measure(request.body, counter)
        lowest = self.policies.lowest_mark(request.model, basis.window, request.body.envelope.reply_limit)
        is_short = len(request.body.elements) <= MAX_ESTIMATED
        if lowest is not None and is_short and fits_by_length(request.body, lowest - hidden):
            return await self.measurer.estimate(request.body)
        return await self.measurer.measure(request.body, counter)


def _with_pictures_out(context: RequestContext) -> RequestContext:
    """The context that leaves out the pictures which its session has left out before."""
    session, digests = context.recognised.session, context.history.digests
    out = session.pictures_out if session is not None and context.policy.rewrites else None
    is_here = out is not None and has_node(digests, out.length, bytes.fromhex(out.node))
    return context._replace(pictures_out=out) if is_here else context


def with_economy(context: RequestContext) -> RequestContext:
    """The context with the advice where condensing is cheapest; under `auto` its budget follows that."""
    policy, budget, transcript = context.policy, context.policy.budget, context.history
    newest = transcript.chain[-NEWEST:]
    requests = [message.role for message in newest].count(Role.ASSISTANT) + 1
    if policy.economy == "off" or policy.pipeline.is_off or budget is None or requests < MIN_REQUESTS:
        return context
    head = context.overhead + transcript.system_tokens
    if transcript.task is not None:
        head += min(transcript.chain[transcript.task].tokens, budget.task_cap)
    growth = sum([message.tokens for message in newest]) / requests
    made = (record for record in context.recognised.condensations if not record.reverted)
    seen = sorted(made, key=attrgetter("created_at"))[-MAX_SEEN:]
    condensing = condensing_of(budget, policy.costs, head, growth, asks=policy.asks_first, seen=seen)
    advice = advise(budget, policy.costs, condensing, growth)
    if policy.economy == "auto" and advice.saves > 0:
        policy = policy._replace(budget=follow(budget, advice))
    return context._replace(policy=policy, advice=advice)


def _counted_prompt(context: RequestContext) -> CountedPrompt:
    """The prompt of a request as calibration compares it with earlier ones."""
    measured, body, transcript = context.measured, context.request.body, context.measured.transcript
    systems = b"".join([message.digest for _, message in transcript.systems])
    # The messages of hidden rounds that the view may show, each with its index in the chain.
    hidden = [
        (patch.at, item_for(piece, transcript, context.counter).message)
        for patch in transcript.patches
        for piece in patch.pieces
    ]
    return CountedPrompt(
        transcript,
        context.framing,
        measured.counted_by,
        blake2b(measured.outside_digest.encode() + systems, digest_size=8).hexdigest()
        + ("+" if context.offer.is_made else ""),
        context.counter.cache_key,
        measured.precision is Precision.EXACT,
        not body.is_text or measured.restored > 0,
        tuple(hidden),
        context.request.lesson_scope,
    )


def _needs_counts(context: RequestContext) -> bool:
    """Whether an estimate is not enough.

    An estimate cannot show how much smaller a judged record makes the view, which pinned messages fit into their share,
    what a condensation must reach that a stage's own trigger asks for, or what memory may take. Under `auto`, or with a
    size refused, the trigger may be below all marks.
    """
    stage, known, digests = context.policy.judging, context.recognised.condensations, context.history.digests
    is_bounded = context.size_refused is not None or context.policy.economy == "auto"
    if is_bounded or (known and (context.recognised.pins or context.history.lasting)):
        return True
    if context.uses_memory or (stage is not None and stage.inline):
        return True
    in_use = next(iter(standing_condensations(known, digests)), None)
    if _is_any_due(context, in_use):
        return True
    return stage is not None and any(record.trigger == JUDGED for record in prepared_in(known, digests, in_use))


def _is_any_due(context: RequestContext, in_use: Condensation | None) -> bool:
    """Whether a stage has a trigger of its own and the view with the condensation in use has reached it."""
    budget, stages = context.policy.budget, [each for each in context.policy.stages if isinstance(each, Triggering)]
    if budget is None or not stages:
        return False
    view = fold_view(context, in_use)
    return any(each.is_due(view, budget) for each in stages)
