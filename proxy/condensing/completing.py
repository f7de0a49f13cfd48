"""What a request has beside its list and its session: facts that most requests need not ask for.

A request for which nothing is due has no more than its calibration. Any other one is completed with memory, and with
what its session has that others have not, by the rows of `TRAITS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from operator import attrgetter

from proxy.bodies.measure import Measured, Measurer, Precision, fits_by_length
from proxy.bodies.wire import ClientRequest
from proxy.condensing.policy import Policies
from proxy.condensing.reasoning import fold_view
from proxy.condensing.traits import TRAITS, economy
from proxy.condensing.turn import RequestContext, Sized
from proxy.runtime.owned_tasks import OwnedTasks
from proxy.servers.counting import CountedPrompt
from proxy.servers.known import Server, Servers
from strategies.core.condensation import JUDGED, Condensation, prepared_in, standing_condensations
from strategies.core.economics import advise, condensing_of, follow
from strategies.core.findings import newest_of_files
from strategies.core.messages import Role
from strategies.core.protocol import Triggering
from strategies.core.view import put_in

MIN_REQUESTS = 2  # requests of a conversation that are needed to know its growth
NEWEST = 64  # growth is measured over this many of the newest messages
MAX_SEEN = 4  # the next condensation is expected to have the mean size and cost of this many earlier ones
LONG = 512 * 1024  # bytes of a list that takes a tenth of a second or more to count
_COUNTING = "counting beside requests"
MAX_ESTIMATED = 1_000  # a list of more messages is counted, not estimated: other requests can run during counting only


@dataclass(slots=True, eq=False, kw_only=True)
class Completer:
    """Completes the contexts of requests; one per app. `add_memory` adds what memory has in them."""

    policies: Policies
    measurer: Measurer
    servers: Servers
    add_memory: Callable[[RequestContext], RequestContext]
    tasks: OwnedTasks

    async def measure(self, asked: ClientRequest, server: Server) -> Measured:
        """Counts the tokens, or estimates them if the length alone proves that nothing needs to be done.

        The length bounds the tokens of what the client sent; those that the server adds by itself come on top. For a
        long new list a sample is enough if it says that the list is far below every mark: nothing is cut for it.
        """
        body, controls = asked.body, asked.controls
        is_managed = not server.profile.context_management and body.threshold is not None
        if not (controls.dry_run or controls.force or is_managed):
            lowest = self.policies.lowest_mark(asked.model, server.window, body.envelope.reply_limit)
            is_short = len(body.elements) <= MAX_ESTIMATED
            if lowest is not None and is_short and fits_by_length(body, lowest - server.hidden):
                return await self.measurer.estimate(body)
            if lowest is not None and body.size > LONG:
                room, counter = lowest - server.hidden, server.counter
                if await self.measurer.seems_to_fit(body, room, counter):
                    return (await self.measurer.estimate(body))._replace(is_sampled=True)
        return await self.measurer.measure(body, server.counter)

    def idle(self, context: RequestContext) -> RequestContext:
        """The context of a request for which nothing is due."""
        if context.history.measured.is_sampled:
            self._count_beside(context)
        return context._replace(sized=self._sized(context), is_idle=True)

    async def complete(self, context: RequestContext) -> RequestContext:
        """The context with all that a strategy, memory and calibration may ask for."""
        if context.is_estimated and _needs_counts(context):
            context = await self._count(context)
        elif context.history.measured.is_sampled:
            self._count_beside(context)
        return self._complete(context)

    def _count_beside(self, context: RequestContext) -> None:
        """Counts a list while its request goes on, so that the next one finds the counts; one list at a time."""
        self.tasks.start(self.measurer.measure(context.request.body, context.server.counter), _COUNTING)

    def _complete(self, context: RequestContext) -> RequestContext:
        now, session = self.servers.clock(), context.recognised.session
        had = session.traits if session else ()
        rows = [row for row in TRAITS if row.name in had or (row.applies and row.applies(context))]
        for shape in [row.shape for row in rows if row.shape]:
            context = shape(context, now)
        if any(context.policy.memory):
            context = self.add_memory(context)
        context = with_economy(context._replace(sized=self._sized(context)))
        for sized in [row.sized for row in rows if row.sized]:
            context = sized(context, now)
        return context

    async def with_counts(self, context: RequestContext) -> RequestContext:
        """The context with its tokens counted, if they were only estimated by length; votes and retries need counts."""
        if not context.is_estimated:
            return context
        return self._complete((await self._count(context))._replace(is_idle=False))

    async def _count(self, context: RequestContext) -> RequestContext:
        measured = await self.measurer.measure(context.request.body, context.server.counter)
        sized = context.sized._replace(overhead=measured.overhead + context.offer.tokens)
        return context._replace(history=context.history.counted(measured), sized=sized)

    def _sized(self, context: RequestContext) -> Sized:
        """Its size with what is known about the upstream's own count, and its budget scaled by that."""
        branch, prompt = context.branch, _counted_prompt(context)
        anchor = branch.anchor if branch else None
        calibrated = self.servers.calibrator.calibrate(prompt, anchor, context.policy.window.tokens)
        budget = context.policy.budget and context.policy.budget.scaled(calibrated.scale)
        return Sized(context.sized.overhead, budget, prompt, calibrated)


def with_economy(context: RequestContext) -> RequestContext:
    """The context with the advice where condensing is cheapest; under `auto` its budget follows that."""
    policy, budget, transcript = context.policy, context.sized.budget, context.history.transcript
    if context.is_estimated or policy.economy == "off" or policy.pipeline.is_off or budget is None:
        return context
    newest = transcript.chain[-NEWEST:]
    requests = [message.role for message in newest].count(Role.ASSISTANT) + 1
    if requests < MIN_REQUESTS:
        return context
    head = context.sized.overhead + transcript.system_tokens
    if transcript.task is not None:
        head += min(transcript.chain[transcript.task].tokens, budget.task_cap)
    growth = sum([message.tokens for message in newest]) / requests
    made = (record for record in context.recognised.condensations if not record.reverted)
    seen = sorted(made, key=attrgetter("created_at"))[-MAX_SEEN:]
    condensing = condensing_of(
        budget, policy.costs, head, growth, asks=policy.asks_first, continues=policy.continues_first, seen=seen
    )
    # All messages are looked at for this, which mere advice is not worth: it names the most that `auto` can save.
    files = newest_of_files(transcript.chain) if policy.economy == "auto" else 0
    advice = advise(budget, policy.costs, condensing, growth, files)
    if not advice.saves:
        return context
    if policy.economy == "auto":
        budget = follow(budget, advice)
        policy = policy._replace(budget=policy.budget and policy.budget.with_marks(budget.marks))
    traits = {**context.traits, economy.TRAIT.name: {"mode": policy.economy, **advice._asdict()}}
    return context._replace(policy=policy, sized=context.sized._replace(budget=budget), advice=advice, traits=traits)


def _counted_prompt(context: RequestContext) -> CountedPrompt:
    """The prompt of a request as calibration compares it with earlier ones."""
    measured, body, transcript = context.history.measured, context.request.body, context.history.shown
    systems = b"".join([message.digest for _, message in transcript.systems])
    hidden = put_in(transcript, context.server.counter) if transcript.patches else ()
    return CountedPrompt(
        transcript,
        context.sized.overhead,
        measured.counted_by,
        blake2b(measured.outside_digest.encode() + systems, digest_size=8).hexdigest()
        + ("+" if context.offer.is_made else ""),
        context.server.counter.cache_key,
        measured.precision is Precision.EXACT,
        not body.is_text,
        hidden,
        context.server.scope,
    )


def is_idle(context: RequestContext) -> bool:
    """Whether nothing is due: the length alone is below every mark, and nothing found may change the request."""
    recognised, policy, history, session = (
        context.recognised,
        context.policy,
        context.history,
        context.recognised.session,
    )
    if not (context.is_estimated and policy.acts_by_size) or policy.memory.tool:  # a refusal may lead to the tool
        return False
    if recognised.condensations or recognised.patches or recognised.failure or history.measured is not history.sent:
        return False
    return not (context.traits or (session and session.traits) or history.sent.transcript.is_signed)


def _needs_counts(context: RequestContext) -> bool:
    """Whether an estimate is not enough.

    An estimate cannot show how much smaller a judged record makes the view, which pinned messages fit into their share,
    what a condensation must reach that a stage's own trigger asks for, or what memory may take. Under `auto`, or with a
    size refused, the trigger may be below all marks.
    """
    stage, known, digests = context.policy.judging, context.recognised.condensations, context.history.transcript.digests
    is_bounded = bool(context.traits) or context.policy.economy == "auto"
    if is_bounded or (known and (context.recognised.pins or context.history.transcript.lasting)):
        return True
    if stage is not None and stage.inline:
        return True
    if any(context.policy.memory) and known and not context.recognised.failure:
        return True
    in_use = next(iter(standing_condensations(known, digests)), None)
    if _is_any_due(context, in_use):
        return True
    return stage is not None and any(record.trigger == JUDGED for record in prepared_in(known, digests, in_use))


def _is_any_due(context: RequestContext, in_use: Condensation | None) -> bool:
    """Whether a stage has a trigger of its own and the view with the condensation in use has reached it."""
    budget, stages = context.sized.budget, [each for each in context.policy.stages if isinstance(each, Triggering)]
    if budget is None or not stages:
        return False
    view = fold_view(context, in_use)
    return any(each.is_due(view, budget) for each in stages)
