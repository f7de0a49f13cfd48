"""Decides whether a request offers the memory tool, and which hidden rounds of earlier requests its view shows.

For a while after an upstream has refused tools for a model, that model is not offered the tool in requests of the same
tenant; of any tenant only if it says outright that the model takes no tools.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from proxy.condensing.case import Case
from proxy.learning.proof import Scope
from proxy.runtime.lru import Lru
from proxy.searching.tool import offer
from strategies.core.pieces import Overlay
from strategies.core.transcript import Transcript

MOST_SCOPES = 4_000
_ABOUT_TOOLS = re.compile(rb"tool|function", re.IGNORECASE)


def is_about_tools(error: bytes) -> bool:
    """Whether an error may say that a model takes no tools."""
    return _ABOUT_TOOLS.search(error) is not None


class Offers:
    """Offers the tool to models that take tools; one per app. A refusal holds for `ttl` seconds.

    `top_k` is the number of passages of a search that names none.
    """

    def __init__(self, ttl: int, clock: Callable[[], float], top_k: int) -> None:
        self._top_k = top_k
        self._ttl = ttl
        self._clock = clock
        self._refused: Lru[Scope, float] = Lru(MOST_SCOPES)

    def with_offer(self, case: Case) -> Case:
        """The case with the offer of the tool, and with the hidden rounds of earlier requests in its transcript."""
        if not case.policy.memory.tool or case.recognised.failure:
            return case
        values, transcript = case.request.body.values, case.measured.transcript
        scope = case.request.scope
        refused = max(self._refused.get(each) or 0.0 for each in (scope, scope.everyone)) > self._clock()
        has_system = bool(transcript.systems)
        made = offer(values, case.counter, has_system=has_system, refused=refused, top_k=self._top_k)
        case = case._replace(offer=made)
        patches = standing_patches(case.recognised.patches, transcript) if made.is_made else ()
        if not patches:
            return case
        patched = transcript.with_patches(patches)
        whole = patched if case.is_aligned else case.full_transcript
        return case._replace(measured=case.measured._replace(transcript=patched), full_transcript=whole)

    def note_refusal(self, scope: Scope) -> None:
        """Notes that the upstream has refused tools for a model."""
        self._refused.put(scope, self._clock() + self._ttl)


def standing_patches(patches: tuple[Overlay, ...], transcript: Transcript) -> tuple[Overlay, ...]:
    """The patches whose anchor is in the transcript with a message after it, in order, one at each place.

    The message after the anchor must not be the result of a call, since a round is never split. Where no message
    follows, the client asks for another reply in place of the one that the patch led to, and the model searches again.
    """
    chain, digests = transcript.chain, transcript.digests
    at = {
        patch.at: patch
        for patch in patches
        if 0 < patch.at < len(chain) and digests[patch.at - 1] == patch.anchor and not chain[patch.at].is_result
    }
    return tuple(at[place] for place in sorted(at))
