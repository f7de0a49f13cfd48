"""Taking a request in: everything that must be known before it is decided on.

The order matters. In append mode the stored history comes first, since it belongs to what is counted. Then the
transcript is measured, its session recognised by the chain that measuring gave, and the policy chosen, for which the
session has a say.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import perf_counter

from proxy.append import Append, appended
from proxy.controls import Controls
from proxy.decision import Timing
from proxy.errors import BadRequest, HistoryUnavailable
from proxy.headers import Headers
from proxy.identity import Identity
from proxy.measure import Measured, Measurer, fits_by_length
from proxy.policy import Policies, Policy
from proxy.recognition import Recognised, Recogniser, Restored
from proxy.store.base import StoreError
from proxy.tokens.counter import Counter, Tokenizers
from proxy.wire import Body
from strategies.core.transcript import Transcript


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A chat completion request as the driver takes it; `model` is without a suffix."""

    tenant: str
    headers: Headers
    body: Body
    model: str
    renamed: bool
    controls: Controls
    query: bytes = b""


@dataclass(frozen=True, slots=True)
class Case:
    """All that is known of one request before it is decided."""

    request: ChatRequest
    measured: Measured
    found: Recognised
    policy: Policy
    counter: Counter
    append: Append | None = None
    whole: Transcript | None = None

    @property
    def history(self) -> Transcript:
        """The conversation as it is remembered: the transcript, with what a client of a window has dropped."""
        return self.whole or self.measured.transcript

    @property
    def is_rewritten(self) -> bool:
        """Whether the message list differs from what the client sent even where nothing is condensed."""
        return self.append is not None or self.measured.restored > 0

    @property
    def keeps(self) -> bool:
        """Whether anything of this request may be stored."""
        controls = self.request.controls
        return not (controls.no_store or controls.dry_run or self.found.failure)


class Intake:
    """Makes cases of requests; one per app."""

    def __init__(
        self,
        *,
        policies: Policies,
        recogniser: Recogniser,
        measurer: Measurer,
        tokenizers: Tokenizers,
        keeps_text: bool = True,
    ) -> None:
        self._policies = policies
        self._recogniser = recogniser
        self._measurer = measurer
        self._tokenizers = tokenizers
        self._keeps_text = keeps_text

    async def case(self, request: ChatRequest, timing: Timing) -> Case:
        """All that is known of a request; raises `BadRequest`, `HeadMismatch` and `HistoryUnavailable`."""
        counter = self._tokenizers.for_model(request.model)
        identity = self._recogniser.identify(request.controls.session, request.headers, request.body.values)
        request, append = await self._supplied(request, identity)
        started = perf_counter()
        measured = await self._measured(request, counter)
        timing.count = milliseconds(started)
        started = perf_counter()
        found = await self._recogniser.recognise(request.tenant, identity, measured.transcript)
        timing.session = milliseconds(started)
        settings = found.session.settings if found.session else {}
        policy = self._policies.policy(request.controls, settings, request.model, request.body.values)
        if found.restored is not None:
            return await self._restored(Case(request, measured, found, policy, counter), found.restored)
        return Case(request, measured, found, policy, counter, append)

    async def _restored(self, case: Case, restored: Restored) -> Case:
        """The case with what its client has dropped: in the view too, unless the pipeline may change nothing."""
        whole = await self._measurer.restore(
            case.measured, restored.messages, kept_first=restored.kept_first, counter=case.counter
        )
        if case.policy.pipeline.is_off or case.policy.pipeline.observe:
            return replace(case, whole=whole.transcript)
        return replace(case, whole=whole.transcript, measured=whole, policy=case.policy.able_to_drop())

    async def _supplied(self, request: ChatRequest, identity: Identity) -> tuple[ChatRequest, Append | None]:
        """In append mode the request with its whole history; raises `HeadMismatch`, `HistoryUnavailable`."""
        if not request.controls.append:
            return request, None
        _check_append(request, identity, keeps_text=self._keeps_text)
        try:
            stored = await self._recogniser.history(request.tenant, identity)
        except StoreError as error:
            raise HistoryUnavailable(f"The stored history cannot be read now ({error.reason}).") from None
        append, whole = appended(stored, request.body.elements, request.controls.if_head)
        return replace(request, body=request.body.with_history(whole)), append

    async def _measured(self, request: ChatRequest, counter: Counter) -> Measured:
        """Counts, unless the length alone proves that nothing needs to be done."""
        if request.controls.dry_run or request.controls.force:
            return await self._measurer.measure(request.body, counter)
        lowest = self._policies.lowest_mark(request.controls.window, request.model, request.body.values)
        if lowest is not None and fits_by_length(request.body, lowest):
            return self._measurer.estimate(request.body)
        return await self._measurer.measure(request.body, counter)


def milliseconds(started: float) -> float:
    """Milliseconds since `started`, a reading of `perf_counter`."""
    return (perf_counter() - started) * 1000


def _check_append(request: ChatRequest, identity: Identity, *, keeps_text: bool) -> None:
    """Append needs a name to store under, a store that keeps text, leave to store, and one reply."""
    if not keeps_text:
        raise BadRequest('Append needs store.content = "full".', param="X-Condenser-History")
    if identity.id is None:
        raise BadRequest("X-Condenser-History: append needs X-Condenser-Session.", param="X-Condenser-Session")
    if request.controls.no_store:
        raise BadRequest("Append and no-store contradict each other.", param="X-Condenser-No-Store")
    if request.body.get("n") not in (None, 1):
        raise BadRequest("X-Condenser-History: append knows one choice only.", param="n")
