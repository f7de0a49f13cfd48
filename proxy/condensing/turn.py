"""One turn: all that is known about a request before it is decided on, and the decision on it.

`context_of` fills in what follows from what `take_in` (`proxy/turn/drive.py`) found. A `Decision` begins as one to
forward the transcript unchanged (`undecided`). A request that a defect keeps from being taken in is forwarded as it
came (`last_resort`), with nothing known but the request. Neither ever changes; another one replaces it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from proxy.bodies.measure import LENGTH_ESTIMATE, Measured
from proxy.bodies.wire import ClientRequest
from proxy.condensing.policy import Policy
from proxy.conversations.recognition import Recognised
from proxy.conversations.searching import NO_OFFER, Offer
from proxy.conversations.session import MAIN, Branch, Session
from proxy.conversations.supply import Append
from proxy.reasons import NO_MORE_CONDENSED, Action, Reason, Trigger
from proxy.servers import LessonScope
from proxy.servers.counting import NO_PROMPT, UNCALIBRATED, Calibration, CountedPrompt
from proxy.servers.known import Server
from proxy.servers.windows import SIZE_REFUSED, SizeRefused
from strategies.core.budget import Budget
from strategies.core.condensation import Condensation, Replayed, is_held_back, saved_by
from strategies.core.economics import Advice
from strategies.core.messages import Dialect, Value
from strategies.core.pieces import Overlay, blocks_in, carried_in
from strategies.core.protocol import SessionFacts, Verdict
from strategies.core.transcript import Transcript, pinned_in
from strategies.core.view import View

NO_TRAITS: Mapping[str, Any] = MappingProxyType({})


class History(NamedTuple):
    """The list of a request: as it was sent, as the store has completed it, and as views of it are made.

    Most of them are one. `history_of` fills in what follows from the first three.
    """

    sent: Measured  # without the messages that were put back for a client that trims; else the same as `whole`
    whole: Measured  # the whole conversation, with its counts
    measured: Measured  # what views are made of: `whole`, unless the request goes as it came
    transcript: Transcript  # that of the whole conversation
    kept: Transcript
    """What the session keeps of it: without a message that only asks something aside."""
    shown: Transcript  # that of which views are made; `measured` without what the session leaves out

    def counted(self, measured: Measured) -> History:
        """The same with its tokens counted, after they were estimated; then all of its lists were one."""
        newest = self.transcript.newest_turn
        return history_of(measured, measured, is_whole=True, keeps_last=self.kept is self.transcript, newest=newest)

    def changed(self, change: Callable[[Transcript], Transcript]) -> History:
        """The same with its transcripts changed by `change`, which leaves their messages alone."""
        lists = {id(each): each for each in (self.sent.transcript, self.transcript, self.kept, self.shown)}
        after = {key: change(each) for key, each in lists.items()}  # most of them are one
        sent = self.sent.having(after[id(self.sent.transcript)])
        whole = sent if self.whole is self.sent else self.whole.having(after[id(self.transcript)])
        measured = sent if self.measured is self.sent else whole
        return History(sent, whole, measured, whole.transcript, after[id(self.kept)], after[id(self.shown)])

    def pinned(self, pins: Sequence[bytes], window: int | None) -> History:
        """The same where these messages stay, and those that stay by their kind."""

        def pinned(transcript: Transcript) -> Transcript:
            lasting = [transcript.digests[i] for i in transcript.lasting]
            both = (pinned_in(nodes, transcript, window) for nodes in (pins, lasting))
            return transcript.having(pinned=frozenset[int]().union(*both))

        return self.changed(pinned)

    def viewing(self, measured: Measured) -> History:
        """The same with views that are made of all of this list."""
        return self._replace(measured=measured, shown=measured.transcript)


def history_of(sent: Measured, whole: Measured, *, is_whole: bool, keeps_last: bool, newest: int) -> History:
    """The history whose views are made of the whole list or of the sent one; `newest` messages are the newest turn."""
    if newest:
        is_one, sent = whole is sent, sent._replace(transcript=sent.transcript.having(newest_turn=newest))
        whole = sent if is_one else whole._replace(transcript=whole.transcript.having(newest_turn=newest))
    measured, transcript = whole if is_whole else sent, whole.transcript
    kept = transcript if keeps_last else transcript.without_last()
    return History(sent, whole, measured, transcript, kept, measured.transcript)


class Sized(NamedTuple):
    """How large a request is, in tokens of our own count, and what the upstream is expected to make of that."""

    overhead: int  # tokens besides the messages: tools and framing, including the memory tool
    budget: Budget | None = None  # the policy's budget in tokens of our own count; None if it has none
    prompt: CountedPrompt = NO_PROMPT  # the prompt as calibration compares it with earlier ones
    calibrated: Calibration = UNCALIBRATED  # what is known about the upstream's own count of the prompt


class Aside(NamedTuple):
    """What a request asks about its conversation, which it does not continue: nothing is prepared or shown for it."""

    reason: Reason
    is_message: bool  # whether its last message only asks that, and is no part of the conversation
    marks: Callable[[Iterable[Value], Dialect], tuple[str, ...]]  # by which its answer is known when it comes back
    settle: Callable[[Session, str, Sequence[str]], Session]
    """The session once the branch of that name has this answer, known by its marks."""


class RequestContext(NamedTuple):
    """All that is known about one request before it is decided on. `context_of` fills in what follows from the rest."""

    request: ClientRequest  # the request, with the messages that the store has supplied
    recognised: Recognised  # the session that the request continues, with its records
    policy: Policy  # the strategy, options, window and budget that apply
    server: Server  # what is known of the upstream, and how its tokens are counted
    history: History  # its list, as it was sent and as views are made of it
    sized: Sized  # its size, and the budget for that
    branch: Branch | None  # the branch that the request continues; None if it opens one
    branch_name: str  # the name of the branch that it continues or opens
    may_store: bool
    """Whether anything of the request may be kept. A request aside from an unknown conversation opens no branch."""
    append: Append | None = None  # the append that it makes, in append mode
    heads: tuple[str, str] = ("", "")
    """In append mode, the head of the stored history until the upstream has accepted the request, and from then on."""
    aside: Aside | None = None  # what it asks beside its conversation, if it does not continue that
    advice: Advice | None = None
    """Where condensing is cheapest for this session; None if that is not known, not wanted, or not worth it."""
    offer: Offer = NO_OFFER  # the memory tool as it is offered to the model
    traits: Mapping[str, Any] = NO_TRAITS
    """What bears on the request of what only some sessions have, and what it has found of that (`TRAITS`)."""
    must_store: bool = False
    """Whether a refusal has taught what the session must keep, however small it is."""
    is_spared: bool = False
    """Whether the request is sent as it came, because the upstream has refused rewritten ones for no known reason."""
    refuses_reasoning: bool = False
    """Whether the upstream has refused the request's reasoning, because it is bound to another head."""
    offerable: Offer = NO_OFFER  # the memory tool as it is offered once a condensation pays for it
    is_idle: bool = False  # whether nothing is due, so that the request is forwarded as it came

    @property
    def budget(self) -> Budget:
        """That of its size; raises `ValueError` if the window is unknown, because then nothing is condensed."""
        if self.sized.budget is None:
            raise ValueError("the window is unknown")
        return self.sized.budget

    def with_offer(self, offer: Offer) -> RequestContext:
        sized = self.sized._replace(overhead=self.history.measured.overhead + offer.tokens)
        return self._replace(offer=offer, sized=sized)

    @property
    def is_estimated(self) -> bool:
        """Whether the tokens were estimated by length, because that was enough to decide."""
        return self.history.measured.counted_by == LENGTH_ESTIMATE

    def saved_by(self, condensation: Condensation | None) -> int:
        """The tokens that a condensation saves, memory apart; memory may have at most half of them."""
        return saved_by(condensation, self.history.shown, self.server.counter)

    def shows_blocks(self, condensation: Condensation | None) -> bool:
        """Whether a view with this condensation has memory blocks, which must not repeat what a person brought back."""
        return self.policy.memory.inject and condensation is not None and not self.is_held_back(condensation)

    def offering(self, offer: Offer) -> RequestContext:
        """The context in which the memory tool is offered in this way; without it, no hidden round is shown."""
        if offer is self.offer:
            return self
        context = self.with_offer(offer)
        if offer.is_made:
            sized, prompt = context.sized, self.sized.prompt
            prompt = replace(prompt, overhead=sized.overhead, frame=f"{prompt.frame}+")
            return context._replace(sized=sized._replace(prompt=prompt))

        def without_rounds(transcript: Transcript) -> Transcript:
            kept = {*blocks_in(transcript.patches), *carried_in(transcript.patches)}
            return transcript.having(patches=tuple(patch for patch in transcript.patches if patch in kept))

        return context.with_transcripts(without_rounds)

    def with_recorded(self, recorded: Condensation | None) -> RequestContext:
        """The context with a condensation that was recorded after its session was read, if one was."""
        if recorded is None:
            return self
        others = (known for known in self.recognised.condensations if known.id != recorded.id)
        return self._replace(recognised=self.recognised._replace(condensations=(*others, recorded)))

    def is_held_back(self, applied: Condensation | None) -> bool:
        """Whether nothing is condensed until it must be, because a person reverted a condensation beyond `applied`."""
        return is_held_back(self.recognised.condensations, self.history.transcript.digests, applied)

    def with_transcripts(self, change: Callable[[Transcript], Transcript]) -> RequestContext:
        """The context with its transcripts changed by `change`, which leaves their messages alone."""
        return self._replace(history=self.history.changed(change))

    def with_fresh_patience(self) -> RequestContext:
        """The context for background work, whose waits for the store do not count against the request's patience."""
        return self._replace(recognised=self.recognised.with_fresh_patience())

    def session_facts(self, now: float, verdict: Verdict | None = None) -> SessionFacts:
        """What strategies may know about the session; `now` in seconds since the epoch."""
        session, branch = self.recognised.session, self.branch
        seen = (*(branch.seen if branch else ()), (len(self.history.transcript.chain), now))
        verdicts = session.verdicts if session else ()
        return SessionFacts(now, self.recognised.condensations, verdicts, verdict, seen, self.policy.continues)

    @property
    def is_projected(self) -> bool:
        """Whether it is only told what would be condensed: models are projected, and nothing is recorded."""
        return self.request.controls.dry_run or self.policy.pipeline.observe


def in_session(
    server: Server, place: Recognised, sizes: Mapping[tuple[LessonScope, str], SizeRefused], now: float
) -> Server:
    """The server under the size that it has refused in a session, as long as that holds.

    A session has it among its traits; of one that is not stored it is among `sizes`.
    """
    size: SizeRefused | None
    session, key = place.session, (server.scope, place.shown_id)
    size = sizes.get(key) if session is None else session.traits.get(SIZE_REFUSED)
    if size is None or (size.model, size.upstream) != (server.scope.model, server.scope.upstream) or size.until <= now:
        return server
    return server._replace(size_refused=size)


def context_of(
    request: ClientRequest,
    recognised: Recognised,
    policy: Policy,
    server: Server,
    sent: Measured,
    whole: Measured,
    *,
    append: Append | None = None,
    aside: Aside | None = None,
) -> RequestContext:
    """The context of a request, with what follows from what was found."""
    controls, session, branch, history = request.controls, recognised.session, recognised.branch, whole.transcript
    keeps_last, newest = aside is None or not aside.is_message, recognised.newest_turn
    lists = history_of(sent, whole, is_whole=policy.rewrites, keeps_last=keeps_last, newest=newest)
    is_unknown = aside is not None and branch is None
    may_store = not (controls.no_store or controls.dry_run or recognised.failure or is_unknown)
    return RequestContext(
        request=request,
        recognised=recognised,
        policy=policy,
        server=server,
        traits=NO_TRAITS if server.size_refused is None else {SIZE_REFUSED: server.size_refused},
        history=lists,
        sized=Sized(lists.measured.overhead, policy.budget),
        branch=branch,
        branch_name=session.name_for(branch, has_tools=request.body.has_tools) if session and history.chain else MAIN,
        may_store=may_store,
        append=append,
        heads=(append.current_head, append.head if may_store and history.chain else "") if append else ("", ""),
        aside=aside,
    )


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
    all_own_tokens: int = 0  # the same with those of the preparation that it took
    probed: bool = False  # whether the body asks for the usage of a stream that the client did not ask for
    forwarded_tokens: int = 0  # tokens of what is sent; under `observe:` that is the transcript
    expected_tokens: int = 0
    """Tokens that the upstream is expected to count for the view, which under `observe:` is not sent."""
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
    def base(self) -> Replayed:
        """The view that the next condensation starts from, and the condensation in it."""
        return Replayed(self.view, self.applied)
