"""Offering: whether a request's model gets the tool, and which hidden rounds of earlier requests its view shows.

An upstream that refuses tools for a model is asked without them for a while.
"""

from __future__ import annotations

from collections.abc import Callable

from proxy.memory.tool import offer
from proxy.request.intake import Case
from proxy.runtime.lru import Lru
from strategies.core.condensation import Overlay
from strategies.core.transcript import Transcript

MOST_MODELS = 1_000


class Offers:
    """Makes offers, and knows which models get none; one per app. A refusal holds for `ttl` seconds."""

    def __init__(self, ttl: int, clock: Callable[[], float]) -> None:
        self._ttl = ttl
        self._clock = clock
        self._refused: Lru[str, float] = Lru(MOST_MODELS)

    def offered(self, case: Case) -> Case:
        """The case with the offer of the tool, and with the hidden rounds that earlier requests have left."""
        if not case.policy.memory.tool or case.recognised.failure:
            return case
        values, transcript = case.request.body.values, case.measured.transcript
        refused = (self._refused.get(case.request.model) or 0.0) > self._clock()
        made = offer(values, case.counter, has_system=bool(transcript.systems), refused=refused)
        case = case._replace(offer=made)
        patches = standing_patches(case.recognised.patches, transcript) if made.is_made else ()
        if not patches:
            return case
        patched = transcript.patched(patches)
        whole = patched if case.is_aligned else case.whole
        return case._replace(measured=case.measured._replace(transcript=patched), whole=whole)

    def refused(self, model: str) -> None:
        """Tools were refused for a model."""
        self._refused.put(model, self._clock() + self._ttl)


def standing_patches(patches: tuple[Overlay, ...], transcript: Transcript) -> tuple[Overlay, ...]:
    """The patches whose anchor stands in a transcript that has gone on since, in order, one at each place.

    What follows must not be the result of a call: a round is never parted. Where nothing follows, the client asks for
    another reply than the one that the patch led to, and the model searches anew.
    """
    chain, digests = transcript.chain, transcript.digests
    at = {
        patch.at: patch
        for patch in patches
        if 0 < patch.at < len(chain) and digests[patch.at - 1] == patch.anchor and not chain[patch.at].is_result
    }
    return tuple(at[place] for place in sorted(at))
