"""Puts back the messages that were left out by a client that sends only the newest part of its history.

Parsed and counted messages are cached with the history, so a turn pays only for the messages that the client has left
out since the turn before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain as joined
from itertools import takewhile

from proxy.request.measure import Measured
from proxy.sessions.histories import MissingMessages
from proxy.tokens.counter import Counter, CountingPool
from strategies.core.messages import Message, Reader, Role
from strategies.core.parsing import loads
from strategies.core.transcript import Transcript


class Restorer:
    """Makes whole histories; one per app."""

    def __init__(self, reader: Reader, pool: CountingPool) -> None:
        self._reader = reader
        self._pool = pool

    async def restore(self, measured: Measured, missing: MissingMessages, counter: Counter) -> Measured:
        """The transcript with the messages that its client left out."""
        messages = await self._messages(missing, counter)
        transcript = self._joined(measured.transcript, messages, missing.kept_first)
        put_back = sum(message.tokens for message in messages)
        return measured._replace(transcript=transcript, restored=put_back)

    async def _messages(self, missing: MissingMessages, counter: Counter) -> list[Message]:
        """The missing messages, parsed and counted; most of them were parsed for an earlier turn."""
        parsed = missing.history.parsed(counter.cache_key)
        new = [message for message in missing.messages if message not in parsed]
        bodies = [loads(message.raw) for message in new]
        counts = await self._pool.messages(counter, bodies)
        for message, body, (tokens, unpriced) in zip(new, bodies, counts, strict=True):
            known = message.raw, body, tokens, counter.dialect, message.digest
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
