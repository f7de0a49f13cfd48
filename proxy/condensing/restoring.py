"""Puts back the messages that were left out by a client that sends only the newest part of its history.

If the store keeps texts, the missing messages are put back into the transcript. If it keeps only digests, placeholders
without text are put back: a condensation that covers them applies as usual, and a missing message that no condensation
covers stays missing, as its client wanted. Without a condensation that stands, placeholders gain nothing, and nothing
is put back.

Parsed and counted messages are cached with the history, so a turn pays only for the messages that the client has left
out since the turn before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain as joined
from itertools import takewhile

from proxy.request.measure import Measured
from proxy.sessions.histories import MissingMessages
from proxy.tokens.counter import Counter, CountingPool
from strategies.core.condensation import Condensation, standing_condensations
from strategies.core.digest import chain, link
from strategies.core.messages import Dialect, Message, Reader, Role, unknown
from strategies.core.parsing import loads
from strategies.core.pieces import Literal, PieceKind
from strategies.core.transcript import Transcript

NOTHING_COUNTED = ""  # the counter key of placeholders, which have no tokens


class Restorer:
    """Makes whole histories; one per app. Without `keeps_text` no stored text is ever put back."""

    def __init__(self, reader: Reader, pool: CountingPool, *, keeps_text: bool = True) -> None:
        self._reader = reader
        self._pool = pool
        self._keeps_text = keeps_text

    async def restore(
        self, measured: Measured, missing: MissingMessages, condensations: Sequence[Condensation], counter: Counter
    ) -> Measured | None:
        """The transcript with the messages that its client left out; None if putting them back gains nothing."""
        if self._keeps_text and all(message.raw is not None for message in missing.messages):
            messages = await self._messages(missing, counter)
        else:
            standing = standing_condensations(condensations, _digests(measured.transcript, missing))
            if not standing:
                return None
            messages = list(_placeholders(missing, standing, counter.dialect))
        transcript = self._joined(measured.transcript, messages, missing.kept_first)
        put_back = sum(message.tokens for message in messages)
        return measured._replace(transcript=transcript, restored=put_back)

    async def _messages(self, missing: MissingMessages, counter: Counter) -> list[Message]:
        """The missing messages, parsed and counted; most of them were parsed for an earlier turn."""
        parsed = missing.history.parsed(counter.cache_key)
        new = [message for message in missing.messages if message not in parsed]
        bodies = [loads(message.raw or "") for message in new]
        counts = await self._pool.messages(counter, bodies)
        for message, body, (tokens, unpriced) in zip(new, bodies, counts, strict=True):
            known = message.raw or "", body, tokens, counter.dialect, message.digest
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


def _digests(sent: Transcript, missing: MissingMessages) -> list[bytes]:
    """The chain digests of the whole history; those of the stored messages are not computed again."""
    at = 1 if missing.kept_first else 0
    last = missing.messages[-1]
    node = link(last.before, last.digest)
    before = [message.before for message in missing.messages[1 - at :]]
    return [*before, node, *chain((message.digest for message in sent.chain[at:]), node)]


def _placeholders(missing: MissingMessages, standing: Iterable[Condensation], dialect: Dialect) -> Iterable[Message]:
    """Placeholders for the missing messages; the one for the first user message has the role of the user."""
    task = _task(standing)
    cached = missing.history.parsed(NOTHING_COUNTED)
    for index, message in enumerate(missing.messages, 1 if missing.kept_first else 0):
        if index != task and message not in cached:
            cached[message] = unknown(message.digest, Role.ASSISTANT, dialect)
        yield unknown(message.digest, Role.USER, dialect) if index == task else cached[message]


def _task(condensations: Iterable[Condensation]) -> int:
    """The place of the first user message, if a condensation holds it; else 0."""
    pieces = (piece for condensation in condensations for piece in condensation.pieces)
    origins = (piece.origin for piece in pieces if isinstance(piece, Literal) and piece.kind is PieceKind.TASK)
    return next((origin for origin in origins if origin is not None), 0)
