"""Restoring: the history of a client that sends a window of it, as far as the store has it.

Where texts are kept, what the client has left out is put back into the transcript. Where only digests are, its places
are: a condensation that covers them applies as ever, and what nothing stands for any more stays away, as its client
wanted it. Without a condensation that stands there would be nothing to gain, and nothing is restored.

What was read and counted once is kept with the history, so a turn pays for the messages that its window lost since
the turn before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain as joined
from itertools import takewhile
from typing import NamedTuple

from proxy.request.measure import Measured
from proxy.sessions.blocks import Stored
from proxy.sessions.histories import StoredHistory
from proxy.tokens.counter import Counter, CountingPool
from strategies.core.condensation import Condensation, Kind, Literal, standing_in
from strategies.core.digest import chain, link
from strategies.core.parsing import loads
from strategies.core.transcript import Message, Reader, Role, Transcript, unknown

NOTHING_COUNTED = ""  # stands for the counter of places, which have no tokens


class Restored(NamedTuple):
    """The messages that a client has left out, and whether it kept the first one; `history` is what they are of."""

    messages: tuple[Stored, ...]
    kept_first: bool
    history: StoredHistory


class Restorer:
    """Makes whole histories; one per app. Without `with_text` no stored text is ever put back."""

    def __init__(self, reader: Reader, pool: CountingPool, *, with_text: bool = True) -> None:
        self._reader = reader
        self._pool = pool
        self._with_text = with_text

    async def whole(
        self, measured: Measured, restored: Restored, condensations: Sequence[Condensation], counter: Counter
    ) -> Measured | None:
        """The transcript with what its client has left out; None where nothing can be made of it."""
        if self._with_text and all(each.raw is not None for each in restored.messages):
            missing = await self._messages(restored, counter)
        else:
            stands = standing_in(condensations, _digests(measured.transcript, restored))
            if not stands:
                return None
            missing = list(_places(restored, stands))
        transcript = self._joined(measured.transcript, missing, restored.kept_first)
        put_back = sum(message.tokens for message in missing)
        return measured._replace(transcript=transcript, restored=put_back, features=None)

    async def _messages(self, restored: Restored, counter: Counter) -> list[Message]:
        """The messages that were left out, read and counted; most of them were for an earlier turn."""
        read = restored.history.read(counter.cache_key)
        new = [each for each in restored.messages if each not in read]
        bodies = [loads(each.raw or "") for each in new]
        counts = await self._pool.messages(counter, bodies)
        for each, body, tokens in zip(new, bodies, counts, strict=True):
            read[each] = self._reader.read(each.raw or "", body, tokens, each.digest).lean()
        return [read[each] for each in restored.messages]

    def _joined(self, sent: Transcript, missing: Sequence[Message], kept_first: bool) -> Transcript:
        """The sent transcript with messages in front of it, or behind its first one."""
        at = 1 if kept_first else 0
        lead = list(takewhile(lambda each: each.role is not Role.ASSISTANT, sent.chain[at:]))
        # Tool output that came first was taken for the user's; now there is something that it may answer.
        seam = [replace(each, role=self._reader.role(each.body)) for each in lead]
        whole = Transcript.of(joined(sent.chain[:at], missing, seam, sent.chain[at + len(lead) :]))
        systems = tuple((place + len(missing) if place > at else place, each) for place, each in sent.systems)
        return Transcript(whole.chain, systems)


def _digests(sent: Transcript, restored: Restored) -> list[bytes]:
    """The chain digests of the whole history: those of what is stored are known."""
    at = 1 if restored.kept_first else 0
    last = restored.messages[-1]
    node = link(last.before, last.digest)
    before = [each.before for each in restored.messages[1 - at :]]
    return [*before, node, *chain((each.digest for each in sent.chain[at:]), node)]


def _places(restored: Restored, stands: Iterable[Condensation]) -> Iterable[Message]:
    """The places of the messages that were left out; one is the user's first, which the head speaks of."""
    task = _task(stands)
    read = restored.history.read(NOTHING_COUNTED)
    for index, each in enumerate(restored.messages, 1 if restored.kept_first else 0):
        if index == task:
            yield unknown(each.digest, Role.USER)
            continue
        place = read.get(each)
        if place is None:
            place = read[each] = unknown(each.digest, Role.ASSISTANT)
        yield place


def _task(condensations: Iterable[Condensation]) -> int:
    """Where the first user message is, as a head that holds it says; else the first place."""
    pieces = (piece for each in condensations for piece in each.pieces)
    origins = (piece.origin for piece in pieces if isinstance(piece, Literal) and piece.kind is Kind.TASK)
    return next((origin for origin in origins if origin is not None), 0)
