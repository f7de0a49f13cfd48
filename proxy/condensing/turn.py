"""One turn: all that is known about a request before it is decided on, and the decision on it.

`context_of` fills in what follows from what `take_in` (`proxy/turn/drive.py`) found. A `Decision` begins as one to
forward the transcript unchanged (`undecided`). A request that a defect keeps from being taken in is forwarded as it
came (`last_resort`), with nothing known but the request. Neither ever changes; another one replaces it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, NamedTuple

from proxy.asking.dispatch import Caller
from proxy.bodies.measure import LENGTH_ESTIMATE, Measured, Precision
from proxy.bodies.wire import ClientRequest
from proxy.condensing.policy import Policy
from proxy.controls import MEMORY
from proxy.conversations.recognition import Identity, Recognised
from proxy.conversations.searching import NO_OFFER, Offer, offer_members
from proxy.conversations.session import MAIN, OWN_HEADER, Branch, printable_id
from proxy.conversations.supply import Append
from proxy.errors import HistoryUnavailable
from proxy.protocols import compaction
from proxy.protocols.endpoint import Compacting
from proxy.reasons import NO_MORE_CONDENSED, Action, Reason, Trigger
from proxy.runtime.owned_tasks import NOBODY, OwnedTasks
from proxy.servers.counting import NO_PROMPT, UNCALIBRATED, Calibration, CountedPrompt
from proxy.servers.known import Server
from proxy.servers.windows import SIZE_REFUSED, UNKNOWN, Window
from proxy.settings.profile import Profile
from proxy.store.access import Patience
from proxy.store.base import StoreKey
from proxy.tokens.counter import Counter
from proxy.tokens.media import media_prices
from strategies.core.budget import UNLIMITED, Budget
from strategies.core.condensation import Condensation, Replayed, is_held_back, saved_by, standing_condensations
from strategies.core.economics import Advice
from strategies.core.pieces import Overlay, blocks_in, carried_in
from strategies.core.protocol import SessionFacts, Verdict
from strategies.core.reasoning import BOUND, OWN, Bound
from strategies.core.reasoning import UNKNOWN as UNKNOWN_HEAD
from strategies.core.transcript import Transcript, pinned_in, standing_patches
from strategies.core.view import View, fold

NO_TRAITS: Mapping[str, Any] = MappingProxyType({})
ON_VOTES = "judge_tokens"  # the session's totals of tokens for which its allowance has paid
MIN_SAVING = 0.01  # the smallest saving that is reported, as a share of the cost of prompts


class RequestContext(NamedTuple):
    """All that is known about one request before it is decided on. `context_of` fills in what follows from the rest."""

    request: ClientRequest  # the request, with the messages that the store has supplied
    recognised: Recognised  # the session that the request continues, with its records
    policy: Policy  # the strategy, options, window and budget that apply
    counter: Counter
    sent: Measured
    """The conversation without the messages that were put back for a client that trims; else the same as `whole`."""
    whole: Measured  # the whole conversation, with its counts
    measured: Measured  # what views are made of: `whole`, unless the request goes as it came
    history: Transcript  # that of the whole conversation
    kept: Transcript
    """What the session keeps of it: without a message that only asks for the client's own compaction."""
    shown: Transcript  # that of which views are made; `measured` without what the session leaves out
    overhead: int  # tokens besides the messages: tools and framing, including the memory tool
    branch: Branch | None  # the branch that the request continues; None if it opens one
    branch_name: str  # the name of the branch that it continues or opens
    has_tools: bool  # whether the client's request offers tools
    may_store: bool
    """Whether anything of the request may be kept; a compaction of what is not known yet opens no branch."""
    append: Append | None = None  # the append that it makes, in append mode
    compacting: Compacting | None = None  # how the request asks for a compaction of the client's own, if it does
    prompt: CountedPrompt = NO_PROMPT  # the prompt as calibration compares it with earlier ones
    calibrated: Calibration = UNCALIBRATED  # what is known about the upstream's own count of the prompt
    own_budget: Budget | None = None  # the policy's budget in tokens of our own count; None if it has none
    advice: Advice | None = None
    """Where condensing is cheapest for this session; None if that is not known or not wanted."""
    offer: Offer = NO_OFFER  # the memory tool as it is offered to the model
    traits: Mapping[str, Any] = NO_TRAITS
    """What bears on the request of what only some sessions have, and what it has found of that (`TRAITS`)."""
    must_store: bool = False
    """Whether a refusal has taught what the session must keep, however small it is."""
    listed: Window = Window(None, UNKNOWN)  # the bundled table's window, whatever was set
    is_spared: bool = False
    """Whether the request is sent as it came, because the upstream has refused rewritten ones for no known reason."""
    refuses_reasoning: bool = False
    """Whether the upstream has refused the request's reasoning, because it is bound to another head."""
    offerable: Offer = NO_OFFER  # the memory tool as it is offered once a condensation pays for it
    is_idle: bool = False  # whether nothing is due, so that the request is forwarded as it came

    @property
    def budget(self) -> Budget:
        """`own_budget`; raises `ValueError` if the window is unknown, because then nothing is condensed."""
        if self.own_budget is None:
            raise ValueError("the window is unknown")
        return self.own_budget

    def counted(self, measured: Measured) -> RequestContext:
        """The context with its tokens counted, after they were estimated."""
        kept = measured.transcript.without_last() if self.kept is not self.history else measured.transcript
        return self._replace(
            sent=measured,
            whole=measured,
            measured=measured,
            history=measured.transcript,
            kept=kept,
            shown=measured.transcript,
            overhead=measured.overhead + self.offer.tokens,
        )

    def with_offer(self, offer: Offer) -> RequestContext:
        return self._replace(offer=offer, overhead=self.measured.overhead + offer.tokens)

    @property
    def binds_reasoning(self) -> bool:
        """Whether reasoning is bound to the messages before it, and leaves a view in which these have changed."""
        if (rule := self.policy.profile.reasoning) is not None:
            return rule == BOUND
        body, is_signed = self.request.body, self.measured.transcript.is_signed
        return (is_signed or self.counter.dialect.binds_reasoning) and not body.endpoint.keeps_reasoning(body.values)

    @property
    def block_is_for_turn(self) -> bool:
        """Whether a memory block leaves with the next user message, which no reasoning is bound to."""
        return self.policy.block_is_for_turn and not (self.binds_reasoning or self.counter.dialect.drops_reasoning)

    def transcript_under(self, condensation: Condensation | None) -> Transcript:
        """The transcript for a view with a condensation, or with none."""
        transcript = self.shown
        if not transcript.is_signed:
            return transcript
        until = self.bound_under(condensation).until if self.binds_reasoning else None
        return transcript if until == transcript.bound_until else transcript.having(bound_until=until)

    def bound_under(self, condensation: Condensation | None) -> Bound:
        """What reasoning is bound to after a view with a condensation, or with none."""
        transcript, branch, records = self.measured.transcript, self.branch, self.recognised.condensations
        length, head = len(transcript.chain), self._head_with(condensation)
        if self.refuses_reasoning:
            return Bound(head, length)
        if branch is not None:
            return branch.bound.behind(head, length, self._kept_behind(condensation, branch))
        # A new branch shares its messages with another one, which may have been answered behind such a record.
        stood = (replace(made, standing=made.standing or made.reverted) for made in records)
        is_new = not (self._hidden_patches or standing_condensations(stood, transcript.digests))
        return Bound(OWN if is_new else UNKNOWN_HEAD).behind(head, length)

    def _kept_behind(self, condensation: Condensation | None, branch: Branch) -> int | None:
        """Where what was kept begins, if a condensation has an opaque head that was made of the branch's last view."""
        if condensation is None or not condensation.is_opaque:
            return None
        made_of = next((each for each in self.recognised.condensations if each.id == condensation.parent), None)
        return condensation.covered if self._head_with(made_of) == branch.bound.head else None

    def _head_with(self, condensation: Condensation | None) -> str:
        """The name of the head of a view, also by what it should show and does not."""
        covered = condensation.covered if condensation else 0
        head = condensation.head_in(self.measured.transcript) if condensation else OWN
        return head + "-" * any(patch.at > covered for patch in self._hidden_patches)

    @property
    def _hidden_patches(self) -> list[Overlay]:
        """The memory blocks and hidden rounds that earlier views of this transcript had, and that this one has not."""
        if not self.recognised.patches:
            return []
        shown = {patch.order for patch in self.measured.transcript.patches}
        standing = standing_patches(self.recognised.patches, self.measured.transcript)
        return [patch for patch in standing if patch.order not in shown]

    @property
    def has_restored(self) -> bool:
        """Whether the view is made with messages that the client has left out, and that were put back."""
        return self.measured is not self.sent

    @property
    def recognition_reason(self) -> str:
        """The reason that tells what was recognised, if that is worth telling; else ""."""
        if self.compacting is not None:
            return Reason.CLIENT_COMPACTION
        if self.has_restored:
            return Reason.ALIGNED
        return Reason.NEW_BRANCH if self.recognised.session is not None and self.branch is None else ""

    @property
    def is_estimated(self) -> bool:
        """Whether the tokens were estimated by length, because that was enough to decide."""
        return self.measured.counted_by == LENGTH_ESTIMATE

    @property
    def uses_memory(self) -> bool:
        """Whether memory may add to the view, which it does only where something was condensed."""
        return any(self.policy.memory) and bool(self.recognised.condensations) and not self.recognised.failure

    def saved_by(self, condensation: Condensation | None) -> int:
        """The tokens that a condensation saves, memory apart; memory may have at most half of them."""
        return saved_by(condensation, self.shown, self.counter)

    def shows_blocks(self, condensation: Condensation | None) -> bool:
        """Whether a view with this condensation has memory blocks, which must not repeat what a person brought back."""
        return self.policy.memory.inject and condensation is not None and not self.is_held_back(condensation)

    def offering(self, offer: Offer) -> RequestContext:
        """The context in which the memory tool is offered in this way; without it, no hidden round is shown."""
        if offer is self.offer:
            return self
        context = self.with_offer(offer)
        if offer.is_made:
            prompt = replace(self.prompt, overhead=context.overhead, frame=f"{self.prompt.frame}+")
            return context._replace(prompt=prompt)

        def without_rounds(transcript: Transcript) -> Transcript:
            kept = {*blocks_in(transcript.patches), *carried_in(transcript.patches)}
            return transcript.having(patches=tuple(patch for patch in transcript.patches if patch in kept))

        return context.with_transcripts(without_rounds)

    @property
    def is_rewritten(self) -> bool:
        """Whether the message list differs from what the client sent even if nothing is condensed."""
        is_shorter = self.shown is not self.measured.transcript
        return is_shorter or self.append is not None or self.has_restored

    def with_recorded(self, recorded: Condensation | None) -> RequestContext:
        """The context with a condensation that was recorded after its session was read, if one was."""
        if recorded is None:
            return self
        others = (known for known in self.recognised.condensations if known.id != recorded.id)
        return self._replace(recognised=self.recognised._replace(condensations=(*others, recorded)))

    def is_held_back(self, applied: Condensation | None) -> bool:
        """Whether nothing is condensed until it must be, because a person reverted a condensation beyond `applied`."""
        return is_held_back(self.recognised.condensations, self.history.digests, applied)

    def for_profile(self, profile: Profile) -> RequestContext:
        """The context for an upstream with this profile, whose form its views are written in."""
        is_same = profile is self.policy.profile
        context = self if is_same else self._replace(policy=self.policy._replace(profile=profile))
        if profile.form == self.measured.transcript.form:
            return context
        return context.with_transcripts(lambda transcript: transcript.having(form=profile.form))

    def with_session_facts(self) -> RequestContext:
        """The context whose transcripts know where the newest turn begins, and what stays by its kind (`lasting`)."""
        length, context = self.recognised.newest_turn, self
        if length != self.history.newest_turn:
            context = self.with_transcripts(lambda transcript: transcript.having(newest_turn=length))
        return context.with_pinned() if self.measured.transcript.lasting else context

    def with_pinned(self, pins: Sequence[bytes] = ()) -> RequestContext:
        """The context in which these messages stay, and those that stay by their kind."""
        window = self.policy.budget.window if self.policy.budget else None

        def pinned(transcript: Transcript) -> Transcript:
            lasting = [transcript.digests[i] for i in transcript.lasting]
            both = (pinned_in(nodes, transcript, window) for nodes in (pins, lasting))
            return transcript.having(pinned=frozenset[int]().union(*both))

        return self.with_transcripts(pinned)

    def with_transcripts(self, change: Callable[[Transcript], Transcript]) -> RequestContext:
        """The context with its transcripts changed by `change`, which leaves their messages alone."""
        changed: dict[int, Transcript] = {}  # most of them are one

        def after(transcript: Transcript) -> Transcript:
            if id(transcript) not in changed:
                changed[id(transcript)] = change(transcript)
            return changed[id(transcript)]

        sent = self.sent._replace(transcript=after(self.sent.transcript))
        whole = sent if self.whole is self.sent else self.whole._replace(transcript=after(self.history))
        return self._replace(
            sent=sent,
            whole=whole,
            measured=sent if self.measured is self.sent else whole,
            history=whole.transcript,
            kept=after(self.kept),
            shown=after(self.shown),
        )

    def for_original(self) -> RequestContext:
        """The context for sending the request as the client sent it."""
        return self._replace(
            policy=self.policy.off(),
            measured=self.sent,
            shown=self.sent.transcript,
            overhead=self.sent.overhead,
            prompt=NO_PROMPT,
            offer=NO_OFFER,
        )

    def for_smaller(self, policy: Policy, own_budget: Budget) -> RequestContext:
        """The context for a smaller view under a policy, after the upstream has refused a longer one."""
        whole = self._replace(policy=policy, own_budget=own_budget)
        if not self.is_spared:
            return whole
        shown, overhead = self.history, self.whole.overhead + self.offer.tokens
        return whole._replace(is_spared=False, measured=self.whole, shown=shown, overhead=overhead)

    def spared(self) -> RequestContext:
        """The context for sending the request as it came, from which a refusal for length may still condense it."""
        policy = self.policy._replace(memory=MEMORY["off"])
        return self.for_original()._replace(policy=policy, is_spared=True)

    def with_fresh_patience(self) -> RequestContext:
        """The context for background work, whose waits for the store do not count against the request's patience."""
        return self._replace(recognised=self.recognised.with_fresh_patience())

    def caller(self, tasks: OwnedTasks | None = None, *, background: bool) -> Caller:
        """The caller on whose behalf the proxy asks models; with `tasks` it knows who waits for the branch's work."""
        request, policy, body = self.request, self.policy, self.request.body
        offered = offer_members(body, self.offer)

        def texts(names: Iterable[str]) -> dict[str, str]:
            found = {name: offered.get(name) or body.envelope.raw_value(name) for name in names}
            return {name: text for name, text in found.items() if text}

        return Caller(
            request.model,
            request.upstream,
            request.headers,
            texts(body.endpoint.prompt_members),
            texts(compaction.members_of(body.endpoint)) if policy.reads_opaque else {},
            request.received_at,
            request.trust,
            background,
            policy.profile,
            policy.background,
            tasks.waiters(self.branch_work_key) if tasks else NOBODY,
            body.endpoint,
            request.target.decode("utf-8", "replace"),
            request.query.decode("utf-8", "replace"),
            self.recognised.knows_stored,
            request.tenant,
            self.calibrated.slope.value,
        )

    @property
    def maker(self) -> str:
        """Who could read a compaction of this request's upstream."""
        return compaction.maker(self.request.upstream.base_url, self.request.model)

    @property
    def branch_work_key(self) -> Hashable:
        """The key of the branch's background work in this process: only one such task runs at a time."""
        return self.recognised.key, self.branch_name

    def shared_work_id(self, kind: str, head: bytes, applied: str) -> str:
        """The id of a piece of work, which is the same in all processes of one version.

        A digest of its `kind`, its owner, the chain that ends with `head`, the condensation `applied` in the view that
        it starts from, its pipeline and its budget.
        """
        request, policy = self.request, self.policy
        owner = request.tenant, self.recognised.identity, request.model
        options = [str(getattr(stage, "options", "")) for stage in policy.stages]
        parts = *owner, head, applied, kind, policy.pipeline.text, options, policy.budget
        return blake2b(repr(parts).encode(), digest_size=16).hexdigest()

    def spent(self, total: str) -> int:
        """One of the session's totals, as it was when the request came."""
        return self.recognised.session.totals.get(total, 0) if self.recognised.session else 0

    def allowance_after_votes(self, share: float) -> int:
        """Tokens of the session's allowance that its votes have left; negative if they overspent.

        Votes may spend the window and a `share` of what the session forwards.
        """
        budget = self.policy.budget
        window = budget.window if budget else 0
        forwarded = self.spent("forwarded_tokens") + self.sent.tokens
        return int(window + share * forwarded) - self.spent(ON_VOTES)

    def session_facts(self, now: float, verdict: Verdict | None = None) -> SessionFacts:
        """What strategies may know about the session; `now` in seconds since the epoch."""
        session, branch = self.recognised.session, self.branch
        seen = (*(branch.seen if branch else ()), (len(self.history.chain), now))
        verdicts = session.verdicts if session else ()
        return SessionFacts(now, self.recognised.condensations, verdicts, verdict, seen, self.policy.continues)

    @property
    def is_projected(self) -> bool:
        """Whether it is only told what would be condensed: models are projected, and nothing is recorded."""
        return self.request.controls.dry_run or self.policy.pipeline.observe


def context_of(  # noqa: PLR0913
    request: ClientRequest,
    recognised: Recognised,
    policy: Policy,
    server: Server,
    sent: Measured,
    whole: Measured,
    *,
    has_tools: bool,
    append: Append | None = None,
    compacting: Compacting | None = None,
) -> RequestContext:
    """The context of a request, with what follows from what was found."""
    controls, session, branch, history = request.controls, recognised.session, recognised.branch, whole.transcript
    measured = whole if policy.rewrites else sent
    is_unknown = compacting is not None and branch is None
    return RequestContext(
        request=request,
        recognised=recognised,
        policy=policy,
        counter=server.counter,
        traits=NO_TRAITS if server.size_refused is None else {SIZE_REFUSED: server.size_refused},
        listed=server.listed,
        sent=sent,
        whole=whole,
        measured=measured,
        history=history,
        kept=history.without_last() if compacting is Compacting.PROMPT else history,
        shown=measured.transcript,
        overhead=measured.overhead,
        branch=branch,
        branch_name=session.name_for(branch, has_tools=has_tools) if session and history.chain else MAIN,
        has_tools=has_tools,
        may_store=not (controls.no_store or controls.dry_run or recognised.failure or is_unknown),
        append=append,
        compacting=compacting,
        own_budget=policy.budget,
    )


def fits_whole(context: RequestContext) -> bool:
    """Whether the server takes a request as the client sent it, with the reply that it asks for, as far as is known.

    A window that was set lower than the server's, `marks.most` and a price step are choices: they refuse nothing.
    """
    policy, reply = context.policy, context.request.body.envelope.reply_limit or 0
    prompt, window = context.calibrated.scale.upstream(context.sent.tokens), policy.window
    # A server is not asked where a window is set: what is known of it besides is the table, and what it has refused.
    if (context.listed.tokens or 0) > (window.tokens or UNLIMITED) and window.is_set:
        window = context.listed
    most = min(policy.size_refused or UNLIMITED, window.max_input or UNLIMITED)
    return prompt <= most and prompt + reply <= (window.tokens or UNLIMITED)


class Decision(NamedTuple):
    """What is forwarded for one request, and why."""

    context: RequestContext  # all that was known when it was decided on
    view: View
    tokens_after: int  # tokens of the view, by the tokenizer's own count
    session: str  # the session's id, as the response header shows it
    body: bytes = b""  # the bytes to forward
    applied: Condensation | None = None  # the condensation that the view applies
    floor: int | None = None
    """Tokens that no condensation can remove, if they keep the view from its target or from fitting."""
    offer: Offer = NO_OFFER  # the memory tool, if the view pays for its offer
    memory_patch: Overlay | None = None  # the memory block that this view has first
    action: Action = Action.PASSED
    reason: str = ""
    trigger: Trigger = Trigger.NONE
    was_prepared: bool = False  # whether the condensation came from a preparation; else it was made for this request
    metadata: Mapping[str, Any] = MappingProxyType({})
    """The strategies' account of the plan: stages, reasons, and figures of their own."""
    own_tokens: int = 0  # tokens of our own model calls for this request
    probed: bool = False  # whether the body asks for the usage of a stream that the client did not ask for
    expected_tokens: int = 0
    """Tokens that the upstream is expected to count for the view, which under `observe:` is not sent."""
    economy: Advice | None = None  # the advice, if following it would save enough to be reported
    headroom: int | None = None  # that of the view in tokens of the upstream; None if the window is unknown

    def in_context(self, context: RequestContext) -> Decision:
        return self._replace(context=context)

    def with_view(self, view: View) -> Decision:
        return self._replace(view=view, tokens_after=view.tokens)

    def with_loss_told(self) -> Decision:
        """The decision with the reason that reasoning is left out, if this request began that or is not replayed."""
        is_news = self.action in (Action.CONDENSED, Action.PASSED) and self.reason in (
            *NO_MORE_CONDENSED,
            Reason.STRATEGY_OFF,
        )
        return self._replace(reason=Reason.REASONING_DROPPED) if is_news and self.view.drops_reasoning else self

    @property
    def forwarded_tokens(self) -> int:
        """Tokens of what is forwarded, by the tokenizer's own count; under `observe:` that is the transcript."""
        return self.view.tokens if self.context.policy.pipeline.observe else self.tokens_after

    @property
    def stages(self) -> str:
        """The stages that shaped the applied condensation, in order; under `observe:` those that would shape it."""
        return "+".join(self.metadata.get("stages", ()))

    @property
    def all_own_tokens(self) -> int:
        """Tokens of our own model calls for this request, and for the preparation that it took."""
        return self.own_tokens + (self.applied.own_tokens if self.was_prepared and self.applied else 0)

    @property
    def base(self) -> Replayed:
        """The view that the next condensation starts from, and the condensation in it."""
        return Replayed(self.view, self.applied)

    @property
    def depth(self) -> int:
        """How many condensations are in the view."""
        return self.applied.depth if self.applied else 0


def append_heads(context: RequestContext) -> tuple[str, str]:
    """In append mode, the head of the stored history until the upstream has accepted the request, and from then on."""
    append = context.append
    if append is None:
        return "", ""
    return append.current_head, append.head if context.may_store and context.history.chain else ""


def expecting(decision: Decision) -> Decision:
    """The decision with what the upstream is expected to count for its view."""
    policy, view, known = decision.context.policy, decision.view, decision.context.calibrated
    if decision.tokens_after != view.tokens:
        expected = known.scale.upstream(decision.tokens_after)
    else:
        expected = known.expected(view, decision.applied.id if decision.applied else "")
    budget = policy.budget if policy.window.tokens is not None else None
    advice = decision.context.advice
    economy = advice if advice is not None and advice.saves >= MIN_SAVING else None
    return decision._replace(
        economy=economy, expected_tokens=expected, headroom=None if budget is None else budget.headroom(expected)
    )


def undecided(context: RequestContext) -> Decision:
    """The decision to forward the transcript unchanged; after a store failure, with its reason."""
    recognised, measured, view = context.recognised, context.measured, fold_view(context, None)
    return Decision(
        context,
        view,
        view.tokens if view.drops_reasoning or context.shown is not measured.transcript else measured.tokens,
        recognised.shown_id,
        action=Action.DEGRADED if recognised.failure else Action.PASSED,
        reason=recognised.failure,
    )


def idle_decision(context: RequestContext) -> Decision:
    """The decision on a request for which nothing is due."""
    return undecided(context)._replace(reason=context.recognition_reason or context.policy.below)


def last_resort(request: ClientRequest) -> Decision:
    """The decision to forward a request as it came; nothing of it is stored.

    Raises `HistoryUnavailable` in append mode, because the client has sent only the end of its conversation.
    """
    if request.controls.append:
        raise HistoryUnavailable("The stored history cannot be supplied now (internal-error).")
    endpoint, session = request.body.endpoint, request.controls.session
    identity = Identity(OWN_HEADER if session else UNKNOWN, session, dialect=endpoint.dialect.name)
    key, shown = StoreKey(request.tenant, ""), printable_id(session) if session else UNKNOWN
    recognised = Recognised(identity, key, shown, Patience(0.0), failure=Reason.INTERNAL_ERROR)
    nothing = Measured.of(Transcript(()), 0, Precision.ESTIMATE)
    server = Server(request.lesson_scope, endpoint.counter(UNKNOWN, len, media_prices("")))
    context = context_of(request, recognised, Policy(), server, nothing, nothing, has_tools=False)
    return undecided(context)._replace(body=request.body.spliced(model=request.model if request.has_suffix else None))


def fold_view(context: RequestContext, condensation: Condensation | None) -> View:
    overlays = (condensation.overlay,) if condensation else ()
    return fold(context.transcript_under(condensation), overlays, context.overhead, context.counter)
