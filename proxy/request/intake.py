"""Taking a request in: everything that must be known before it is decided on.

The order matters. In append mode the stored history comes first, since it belongs to what is counted. Then the
transcript is measured, its session recognised by the chain that measuring gave, and the policy chosen, for which the
session has a say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from time import perf_counter
from typing import NamedTuple

from proxy.asking import Caller
from proxy.calibration.anchor import NO_PROMPT, About, CountedPrompt
from proxy.calibration.scaling import UNCALIBRATED, Calibrated
from proxy.condensing.decision import Timing
from proxy.condensing.policy import Policies, Policy
from proxy.errors import BadRequest, HistoryUnavailable
from proxy.http.headers import Headers
from proxy.learning.lessons import Lessons
from proxy.learning.profiles import Profile
from proxy.memory.editing import forgotten
from proxy.memory.scopes import together
from proxy.memory.tool import NO_OFFER, Offer, offered_in
from proxy.request.controls import Controls
from proxy.request.identity import Identity
from proxy.request.measure import BY_LENGTH, Measured, Measurer, fits_by_length
from proxy.request.wire import Body
from proxy.sessions.append import Append, appended
from proxy.sessions.recognition import Recognised, Recogniser
from proxy.sessions.restoring import Restorer
from proxy.sessions.session import Branch, MemoryBlock, has_node
from proxy.sessions.stored import Patience
from proxy.store.base import StoreError
from proxy.tokens.counter import Counter, Tokenizers
from strategies.core.cards import MemoryCard
from strategies.core.condensation import Condensation, standing_in
from strategies.core.protocol import Past, Verdict
from strategies.core.ready import JUDGED, prepared_in
from strategies.core.transcript import Message, Transcript
from strategies.core.view import item_for


class ChatRequest(NamedTuple):
    """A chat completion request as the driver takes it; `model` is without a suffix.

    `asked_at` is when it came, in seconds since the epoch. Where it came `packed`, that is its body as it came, and
    `packed_as` are the headers that say how, which `headers` are without.
    """

    tenant: str
    headers: Headers
    body: Body
    model: str
    renamed: bool
    controls: Controls
    query: bytes = b""
    asked_at: float = 0.0
    packed: bytes = b""
    packed_as: Sequence[tuple[bytes, bytes]] = ()


class Case(NamedTuple):
    """All that is known of one request before it is decided.

    `whole` is the conversation with what a client of a window has left out, where that is known. `prompt` is what of it
    is counted, and `calibrated` what is known of the upstream's own count of that.
    """

    request: ChatRequest
    measured: Measured
    recognised: Recognised
    policy: Policy
    counter: Counter
    append: Append | None = None
    whole: Transcript | None = None
    block: MemoryBlock | None = None
    reserved: int = 0
    prompt: CountedPrompt = NO_PROMPT
    calibrated: Calibrated = UNCALIBRATED
    offer: Offer = NO_OFFER

    @property
    def overhead(self) -> int:
        """Tokens besides the messages: tools, framing, and the memory block that stands."""
        return self.framing + self.reserved

    @property
    def framing(self) -> int:
        """Tokens of tools and framing, of the memory tool too."""
        return self.measured.overhead + self.offer.tokens

    @property
    def branch(self) -> Branch | None:
        """The branch that it continues, if there is one."""
        session = self.recognised.session
        return session.branch_of(self.history.digests) if session else None

    @property
    def history(self) -> Transcript:
        """The conversation as it is remembered: the transcript, with what a client of a window has dropped."""
        return self.whole or self.measured.transcript

    @property
    def is_aligned(self) -> bool:
        """Whether the view is made from more than the client sent: what it has dropped, or what stands for that."""
        return self.whole is self.measured.transcript

    @property
    def is_by_length(self) -> bool:
        """Whether its tokens were not counted, because its length was enough to know what must be done."""
        return self.measured.counted_by == BY_LENGTH

    @property
    def is_rewritten(self) -> bool:
        """Whether the message list differs from what the client sent even where nothing is condensed."""
        return self.append is not None or self.measured.restored > 0

    def knowing(self, recorded: Sequence[Condensation]) -> Case:
        """The case with condensations that were recorded since its session was read."""
        if not recorded:
            return self
        newer = {each.id for each in recorded}
        known = (*(each for each in self.recognised.condensations if each.id not in newer), *recorded)
        return self._replace(recognised=self.recognised._replace(condensations=known))

    def taken_by(self, profile: Profile) -> Case:
        """The case for an upstream with this profile, in whose form its views are written."""
        known = profile is self.policy.profile
        case = self if known else self._replace(policy=self.policy._replace(profile=profile))
        if profile.form == self.measured.transcript.form:
            return case
        transcript = self.measured.transcript.in_form(profile.form)
        whole = transcript if self.is_aligned else self.whole and self.whole.in_form(profile.form)
        return case._replace(measured=self.measured._replace(transcript=transcript), whole=whole)

    def apart(self) -> Case:
        """The case for a piece of work that its request does not wait for."""
        return self._replace(recognised=self.recognised.apart())

    def caller(self, *, background: bool) -> Caller:
        """On whose behalf models are asked."""
        request = self.request
        tools = offered_in(request.body, self.offer).get("tools") or request.body.written("tools") or None
        policy = self.policy
        return Caller(
            request.model, request.headers, tools, request.asked_at, background, policy.profile, policy.background
        )

    def past(self, now: float, verdict: Verdict | None = None) -> Past:
        """What strategies may know of the session; `now` in seconds since the epoch."""
        session = self.recognised.session
        branch = session.branch_of(self.history.digests) if session else None
        seen = (*(branch.seen if branch else ()), (len(self.history.chain), now))
        verdicts = session.verdicts if session else ()
        return Past(now, self.recognised.condensations, verdicts, verdict, seen, self.policy.continues)

    def cards(self) -> list[MemoryCard]:
        """The memory cards that this history may see, but for those that a later one contradicts."""
        session, digests = self.recognised.session, self.history.digests
        standing = [each for each in self.recognised.condensations if has_node(digests, each.covered, each.digest)]
        own, unwanted = (session.cards(standing), forgotten(session)) if session else ([], [])
        return together(own, self.recognised.scope.cards if self.recognised.scope else (), unwanted)

    @property
    def is_told_more(self) -> bool:
        """Whether memory has cards that are not of this history: a person's, or those of a scope."""
        session, scope = self.recognised.session, self.recognised.scope
        return bool((session and session.added) or (scope and scope.cards))

    @property
    def keeps(self) -> bool:
        """Whether anything of this request may be stored."""
        controls = self.request.controls
        return not (controls.no_store or controls.dry_run or self.recognised.failure)


class Intake:
    """Makes cases of requests; one per app. `offered` adds what the memory tool needs."""

    def __init__(
        self,
        *,
        policies: Policies,
        recogniser: Recogniser,
        measurer: Measurer,
        restorer: Restorer,
        tokenizers: Tokenizers,
        lessons: Lessons,
        offered: Callable[[Case], Case],
        keeps_text: bool = True,
    ) -> None:
        self._offered = offered
        self._lessons = lessons
        self._calibrator = lessons.calibrator
        self._policies = policies
        self._recogniser = recogniser
        self._measurer = measurer
        self._restorer = restorer
        self._tokenizers = tokenizers
        self._keeps_text = keeps_text

    async def case(self, request: ChatRequest, timing: Timing) -> Case:
        """All that is known of a request; raises `BadRequest`, `HeadMismatch` and `HistoryUnavailable`."""
        counter = self._tokenizers.for_model(request.model)
        identity = self._recogniser.identify(request.controls.session, request.headers, request.body.values)
        patience = self._recogniser.patience()
        waits = not self._policies.is_off(request.controls, request.model)
        await self._lessons.refresh(request.model, (counter.cache_key, BY_LENGTH), patience, waits=waits)
        started = perf_counter()
        request, append = await self._supplied(request, identity, patience)
        supplied = milliseconds(started)
        started = perf_counter()
        measured = await self._measured(request, counter)
        timing.count = milliseconds(started)
        started = perf_counter()
        found = await self._recogniser.recognise(request.tenant, identity, measured.transcript, patience)
        settings = found.session.settings if found.session else {}
        policy = self._policies.policy(request.controls, settings, request.model, request.body.values)
        if policy.scope:
            found = await self._recogniser.scoped(found, policy.scope, read=any(policy.memory))
        case = Case(request, measured, found, policy, counter, append)
        case = await self._restored(await self._counted(case) if _goes_by_counts(case) else case)
        case = self._calibrated(self._offered(case.taken_by(policy.profile)))
        timing.session = milliseconds(started) + supplied
        return case

    async def counted(self, case: Case) -> Case:
        """The case with its tokens counted, where their number was only guessed by length."""
        if not case.is_by_length or case.whole is not None:
            return case
        policy = case.policy._replace(budget=case.policy.budget and case.policy.budget.unscaled)
        counted = await self._counted(case._replace(policy=policy))
        return self._calibrated(counted.taken_by(policy.profile))

    async def _counted(self, case: Case) -> Case:
        if not case.is_by_length:
            return case
        return case._replace(measured=await self._measurer.measure(case.request.body, case.counter))

    def _calibrated(self, case: Case) -> Case:
        """The case with what is known of the upstream's own count, by which its budget goes."""
        branch = case.branch
        stored, asked = branch.anchor if branch else None, _asked(case)
        known = self._calibrator.calibrated(asked, stored, case.policy.window.tokens)
        return case._replace(prompt=asked, calibrated=known, policy=case.policy.scaled(known.scale))

    async def _restored(self, case: Case) -> Case:
        """The case with what its client has dropped: in the view too, unless the pipeline may change nothing."""
        # An append says itself what it follows on.
        if case.recognised.restored is None or case.append is not None:
            return case
        whole = await self._restorer.whole(
            case.measured, case.recognised.restored, case.recognised.condensations, case.counter
        )
        if whole is None:
            return case
        if case.policy.pipeline.is_off or case.policy.pipeline.observe:
            return case._replace(whole=whole.transcript)
        policy = case.policy.able_to_drop() if whole.restored else case.policy
        return case._replace(whole=whole.transcript, measured=whole, policy=policy)

    async def _supplied(
        self, request: ChatRequest, identity: Identity, patience: Patience
    ) -> tuple[ChatRequest, Append | None]:
        """In append mode the request with its whole history; raises `HeadMismatch`, `HistoryUnavailable`."""
        if not request.controls.append:
            return request, None
        _check_append(request, identity, keeps_text=self._keeps_text)
        try:
            stored = await self._recogniser.history(request.tenant, identity, patience)
        except StoreError as error:
            raise HistoryUnavailable(f"The stored history cannot be read now ({error.reason}).") from None
        append, whole = appended(stored, request.body.elements, request.controls.if_head)
        return request._replace(body=request.body.with_history(whole)), append

    async def _measured(self, request: ChatRequest, counter: Counter) -> Measured:
        """Counts, unless the length alone proves that nothing needs to be done.

        It bounds what the client sent; what the upstream adds by itself comes on top.
        """
        if request.controls.dry_run or request.controls.force:
            return await self._measurer.measure(request.body, counter)
        lowest = self._policies.lowest_mark(request.controls.window, request.model, request.body.values)
        hidden = self._calibrator.hidden(request.model, counter.cache_key, BY_LENGTH)
        if lowest is not None and fits_by_length(request.body, lowest - hidden):
            return self._measurer.estimate(request.body)
        return await self._measurer.measure(request.body, counter)


def _asked(case: Case) -> CountedPrompt:
    """What of a case is counted."""
    measured, body = case.measured, case.request.body
    systems = b"".join([message.digest for _, message in measured.transcript.systems])
    outside = measured.outside + ("+" if case.offer.is_made else "")
    frame = blake2b(outside.encode() + systems, digest_size=8).hexdigest()
    offers = bool(body.get("tools") or body.get("functions") or case.offer.is_made)
    most = body.size if case.is_by_length else None
    counted = case.framing, measured.counted_by, frame, outside, offers, most
    return CountedPrompt(measured.transcript, *counted, _hidden(case), measured.features, _about(case))


def _hidden(case: Case) -> tuple[tuple[int, Message], ...]:
    """The messages of hidden rounds that a case's view may show, each with its place in the chain."""
    transcript = case.measured.transcript
    if not transcript.patches:
        return ()
    pieces = ((patch.at, piece) for patch in transcript.patches for piece in patch.pieces)
    return tuple((at, item_for(piece, transcript, case.counter).message) for at, piece in pieces)


def _about(case: Case) -> About:
    """Whose request it is, as calibration has it: conversations that begin alike are one."""
    tenant = case.request.tenant
    beginning = tenant.encode() + b"".join(case.measured.transcript.digests[:1])
    return About(tenant, case.request.model, blake2b(beginning, digest_size=4).hexdigest())


def _goes_by_counts(case: Case) -> bool:
    """Whether a judge's record may be applied: a view is made smaller by some tokens, which no length proves."""
    stage, known, digests = case.policy.judging, case.recognised.condensations, case.history.digests
    if stage is None or stage.inline:
        return stage is not None
    resting = next(iter(standing_in(known, digests)), None)
    return any(each.trigger == JUDGED for each in prepared_in(known, digests, resting))


def milliseconds(started: float) -> float:
    """Milliseconds since `started`, a reading of `perf_counter`."""
    return (perf_counter() - started) * 1000


def _check_append(request: ChatRequest, identity: Identity, *, keeps_text: bool) -> None:
    """Append needs a name to store under, a store that keeps text, leave to store, and one reply."""
    if not keeps_text:
        raise BadRequest('Append needs store.content = "full".', param=request.controls.param("history"))
    if identity.id is None:
        raise BadRequest("X-Condenser-History: append needs X-Condenser-Session.", param="X-Condenser-Session")
    if request.controls.no_store:
        raise BadRequest("Append and no-store contradict each other.", param=request.controls.param("no-store"))
    if request.body.get("n") not in (None, 1):
        raise BadRequest("X-Condenser-History: append knows one choice only.", param="n")
