"""Takes a request in: collects into a `RequestContext` all that must be known before it is decided on.

The order matters. The history that an append continues is supplied first, because its tokens count too. Then the
transcript is measured, which also gives its chain of digests; the chain leads to the session, which shows whether the
client has left messages out; and the settings of the session have a say in the policy. The comments in `build_context`
are steps 3 to 10 of `docs/internals/design.md`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from operator import attrgetter
from time import perf_counter

from proxy.condensing.account import Timing
from proxy.condensing.knowledge import Knowledge
from proxy.condensing.policy import Basis, Policies, Policy
from proxy.condensing.turn import RequestContext, fold_view
from proxy.controls import MEMORY
from proxy.endpoints.endpoint import Compacting
from proxy.knowledge.anchor import CountedPrompt
from proxy.request.measure import Measured, Measurer, Precision, fits_by_length
from proxy.request.wire import Body, ClientRequest
from proxy.runtime.owned_tasks import next_step
from proxy.sessions.recognition import Identity, Recognised, Recogniser
from proxy.sessions.session import has_node
from proxy.sessions.supply import Supplier, require_history
from proxy.store.access import Patience
from proxy.store.base import StoreError
from proxy.tokens.counter import Counter, Tokenizers
from strategies.core.condensation import JUDGED, Condensation, prepared_in, standing_condensations
from strategies.core.economics import advise, condensing_of, follow
from strategies.core.messages import Role
from strategies.core.pieces import carried_in
from strategies.core.protocol import Triggering
from strategies.core.transcript import Transcript, standing_patches
from strategies.core.view import item_for

MIN_REQUESTS = 2  # requests of a conversation that are needed to know its growth
NEWEST = 64  # growth is measured over this many of the newest messages
MAX_SEEN = 4  # the next condensation is expected to have the mean size and cost of this many earlier ones
MAX_ESTIMATED = 1_000  # a list of more messages is counted, not estimated: other requests can run during counting only


@dataclass(slots=True, eq=False, kw_only=True)
class Intake:
    """Builds the contexts of requests; one per app. `add_memory` adds what memory has in them."""

    policies: Policies
    recogniser: Recogniser
    supplier: Supplier
    measurer: Measurer
    tokenizers: Tokenizers
    knowledge: Knowledge
    add_memory: Callable[[RequestContext], RequestContext]

    async def build_context(self, request: ClientRequest, timing: Timing) -> RequestContext:
        """The context of a request; fills in `timing`. Raises `ProxyError` and `HeldByServer`."""
        require_history(request.body)
        # 3. Identify.
        scope, body = request.lesson_scope, request.body
        identity = self.recogniser.identify(request.controls.session, request.headers, body.endpoint, body.values)
        # 4. Know the upstream.
        counter = self.tokenizers.for_model(request.model, body.endpoint.counter, request.tenant)
        patience = self.recogniser.stored.patience()
        waits = not self.policies.is_off(request.controls, request.model)
        await self.knowledge.refresh(scope, counter.cache_key, patience, waits=waits)
        hidden = self.knowledge.calibrator.hidden(scope, counter.cache_key)
        is_long = body.endpoint.asks_for_long(request.headers)
        basis = self.policies.basis(request.controls.window, scope, is_long=is_long)
        # 5. Supply the history that an append continues.
        started = perf_counter()
        await request.trust.look_up(patience)
        append = None
        if request.controls.append:
            request, append = await self.supplier.appended(request, identity, patience)
        spent_on_history = (perf_counter() - started) * 1000
        # 6. Measure.
        started = perf_counter()
        sent = whole = await self._measure(request, counter, basis, hidden)
        timing.count = (perf_counter() - started) * 1000
        # 7. Recognise.
        started = perf_counter()
        recognised, restored = await self._recognise(request, identity, sent.transcript, patience)
        if restored is not None:
            sent = await self.measurer.measure(request.body, counter)
            whole = await self.measurer.measure(restored, counter)
            request = request._replace(body=restored)
            recognised = recognised.continued_by(whole.transcript)
        if request.controls.dry_run and recognised.knows_stored:
            await request.prove()
        # 8. Choose.
        size = self.knowledge.size_refused(request, recognised)
        policy = self._policy(request, recognised, basis._replace(size_refused=size and size.tokens))
        if policy.scope:
            recognised = await self.recogniser.with_card_scope(recognised, policy.scope, read=any(policy.memory))
        if any(policy.memory) and request.body.endpoint.is_subagent(request.headers):
            policy = policy._replace(memory=MEMORY["off"])
        has_tools = request.body.endpoint.offers_tools(request.body.values, sent.transcript)
        if restored is not None and policy.rewrites:
            policy = policy.with_dropping()
        context = RequestContext(request, whole, recognised, policy, counter, sent, has_tools, append)
        context = context._replace(size_refused=size, own_budget=policy.budget, compacting=_compacting(request, sent))
        if (threshold := _own_threshold(request, basis)) is not None and policy.rewrites:
            policy = policy.triggered_at(threshold)
            context = context._replace(policy=policy, own_budget=policy.budget)
        # 9. Leave early.
        if _is_idle(context):
            context = self._calibrate(context.with_session_facts())._replace(is_idle=True)
        else:
            # 10. Complete the context.
            context = self._complete(await self._count(context) if _needs_counts(context) else context)
        timing.session = (perf_counter() - started) * 1000 + spent_on_history
        return context

    def _complete(self, context: RequestContext) -> RequestContext:
        """The context with all that a strategy, memory and calibration may ask for."""
        policy = context.policy
        context = _with_pictures_out(_with_carried(context.for_profile(policy.profile).with_session_facts()))
        if any(policy.memory):
            context = self.add_memory(context)
        context = self._calibrate(context)
        if not context.is_estimated:
            context = with_economy(context)
        return self._spared(context)

    def _policy(self, request: ClientRequest, recognised: Recognised, basis: Basis) -> Policy:
        settings = recognised.session.settings if recognised.session else {}
        limit = request.body.envelope.reply_limit
        return self.policies.policy(request.controls, settings, request.lesson_scope, limit, basis)

    def _spared(self, context: RequestContext) -> RequestContext:
        """The context for sending the request as it came, if its session is spared rewriting and it fits."""
        session = context.recognised.session
        upstream, now = context.request.upstream.base_url, self.knowledge.clock()
        is_spared = session is not None and session.rewriting.spares(upstream, now)
        return context.spared() if is_spared and context.policy.rewrites and context.fits_whole else context

    async def with_counts(self, context: RequestContext) -> RequestContext:
        """The context with its tokens counted, if they were only estimated by length; votes and retries need counts."""
        if not context.is_estimated:
            return context
        return self._complete((await self._count(context))._replace(is_idle=False))

    async def _count(self, context: RequestContext) -> RequestContext:
        if not context.is_estimated:
            return context
        measured = await self.measurer.measure(context.request.body, context.counter)
        return context._replace(whole=measured, sent=measured)

    def _calibrate(self, context: RequestContext) -> RequestContext:
        """The context with what is known about the upstream's own count, and its budget scaled by that."""
        branch = context.branch
        anchor, prompt = branch.anchor if branch else None, _counted_prompt(context)
        calibrated = self.knowledge.calibrator.calibrate(prompt, anchor, context.policy.window.tokens)
        budget = context.policy.budget and context.policy.budget.scaled(calibrated.scale)
        return context._replace(prompt=prompt, calibrated=calibrated, own_budget=budget)

    async def _recognise(
        self, request: ClientRequest, identity: Identity, sent: Transcript, patience: Patience
    ) -> tuple[Recognised, Body | None]:
        """The session of a transcript, and the body with the messages that its client has left out, if there are any.

        If these cannot be read, the request continues as it came; without a branch nothing else is known of it, so it
        continues as if nothing were stored.
        """
        if len(sent.chain) > MAX_ESTIMATED:
            await next_step()  # to recognise this many messages takes long
        recognised = await self.recogniser.recognise(request.tenant, identity, sent, patience)
        recognised = recognised._replace(trust=request.trust)
        if request.controls.append:
            return recognised, None  # it names the history that it continues
        try:
            return recognised, await self.supplier.restored(request.body, recognised, sent)
        except StoreError as error:
            self.recogniser.stored.outage.failed("a history was not aligned", error)
            return recognised if recognised.branch else recognised.without_store(error.reason), None

    async def _measure(self, request: ClientRequest, counter: Counter, basis: Basis, hidden: int) -> Measured:
        """Counts the tokens, or estimates them if the length alone proves that nothing needs to be done.

        The length bounds the tokens of what the client sent; `hidden` tokens that the upstream may add come on top.
        """
        if request.controls.dry_run or request.controls.force or _own_threshold(request, basis) is not None:
            return await self.measurer.measure(request.body, counter)
        lowest = self.policies.lowest_mark(request.model, basis.window, request.body.envelope.reply_limit)
        is_short = len(request.body.elements) <= MAX_ESTIMATED
        if lowest is not None and is_short and fits_by_length(request.body, lowest - hidden):
            return await self.measurer.estimate(request.body)
        return await self.measurer.measure(request.body, counter)


def _compacting(request: ClientRequest, sent: Measured) -> Compacting | None:
    """How a request asks for the client's own compaction; the client of an append has no list to compact."""
    if request.controls.append:
        return None
    return request.body.endpoint.compacting(request.headers, request.body.values, sent.transcript)


def _own_threshold(request: ClientRequest, basis: Basis) -> int | None:
    """The tokens at which the client wants its history compacted, if its server is known not to do that."""
    endpoint, values = request.body.endpoint, request.body.values
    return None if basis.profile.context_management else endpoint.compact_threshold(values)


def _with_pictures_out(context: RequestContext) -> RequestContext:
    """The context that leaves out the pictures which its session has left out before."""
    session, digests = context.recognised.session, context.history.digests
    out = session.pictures_out if session is not None and context.policy.rewrites else None
    is_here = out is not None and has_node(digests, out.length, bytes.fromhex(out.node))
    return context.leaving_out(out) if out is not None and is_here else context


def _with_carried(context: RequestContext) -> RequestContext:
    """The context with what opaque heads carry, at its places, and without the heads that this upstream cannot read."""
    known = context.recognised.condensations
    if not known and not context.policy.reads_opaque:
        return context
    maker = context.maker
    readable = tuple(each for each in known if each.is_readable_by(maker))
    recognised = context.recognised._replace(condensations=readable, reader=maker)
    context = context._replace(recognised=recognised)
    patches = carried_in(context.recognised.patches)
    return context.with_transcripts(
        lambda transcript: transcript.having(patches=standing_patches(patches, transcript)) if patches else transcript
    )


def with_economy(context: RequestContext) -> RequestContext:
    """The context with the advice where condensing is cheapest; under `auto` its budget follows that."""
    policy, budget, transcript = context.policy, context.own_budget, context.history
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
    condensing = condensing_of(
        budget, policy.costs, head, growth, asks=policy.asks_first, continues=policy.continues_first, seen=seen
    )
    advice = advise(budget, policy.costs, condensing, growth)
    if policy.economy == "auto" and advice.saves > 0:
        budget = follow(budget, advice)
        policy = policy._replace(budget=policy.budget and policy.budget.with_marks(budget.marks))
    return context._replace(policy=policy, own_budget=budget, advice=advice)


def _counted_prompt(context: RequestContext) -> CountedPrompt:
    """The prompt of a request as calibration compares it with earlier ones."""
    measured, body, transcript = context.measured, context.request.body, context.shown
    systems = b"".join([message.digest for _, message in transcript.systems])
    # What memory puts into the view, each with its index in the chain. What is carried goes with the message before it.
    hidden = [
        (patch.at - patch.is_carried, item_for(piece, transcript, context.counter).message)
        for patch in transcript.patches
        for piece in patch.pieces
    ]
    return CountedPrompt(
        transcript,
        context.overhead,
        measured.counted_by,
        blake2b(measured.outside_digest.encode() + systems, digest_size=8).hexdigest()
        + ("+" if context.offer.is_made else ""),
        context.counter.cache_key,
        measured.precision is Precision.EXACT,
        not body.is_text,
        tuple(hidden),
        context.request.lesson_scope,
    )


def _is_idle(context: RequestContext) -> bool:
    """Whether nothing is due: the length alone is below every mark, and nothing else may change the request."""
    recognised, policy, session = context.recognised, context.policy, context.recognised.session
    if not (context.is_estimated and policy.acts_by_size) or recognised.condensations or recognised.failure:
        return False
    if policy.memory.tool:
        return False  # what a refusal leads to may offer it
    if context.size_refused or context.has_restored or context.sent.transcript.is_signed or recognised.patches:
        return False
    return session is None or not (session.failed_try or session.pictures_out or session.rewriting.proofs)


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
    budget, stages = context.own_budget, [each for each in context.policy.stages if isinstance(each, Triggering)]
    if budget is None or not stages:
        return False
    view = fold_view(context, in_use)
    return any(each.is_due(view, budget) for each in stages)
