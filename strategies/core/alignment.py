"""Alignment: recognising a history whose client has dropped its oldest messages.

Some clients send a window of their history: the newest N messages, or the first one and those. Such a transcript is
no prefix of anything, but it is one unbroken run of what is stored that reaches the stored head. Only that counts: a
run that is found once, in all lines of the session, of at least four messages with an assistant's among them, so that
a short "continue" never drags in another history. A front message that was never stored means that the client has
compacted by itself; then there is no alignment, and nothing of the old history is put back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

LEAST_RUN = 4


class Alignment(NamedTuple):
    """The first `dropped` stored messages are missing in the transcript, but for the first where `kept_first`."""

    dropped: int
    kept_first: bool

    def missing(self) -> range:
        """The stored messages that the client left out."""
        return range(1 if self.kept_first else 0, self.dropped)


def align(stored: Sequence[bytes], sent: Sequence[bytes], is_assistant: Sequence[bool]) -> Alignment | None:
    """How `sent` message digests lie on the `stored` ones, or None where they do not, or not in one way only.

    `is_assistant` says of each sent message whether it is the assistant's.
    """
    whole = _offsets(stored, sent, is_assistant)
    if len(whole) == 1:
        return Alignment(whole[0], kept_first=False)
    if whole or not stored or not sent or stored[0] != sent[0]:
        return None
    behind = [each for each in _offsets(stored, sent[1:], is_assistant[1:]) if each > 1]
    return Alignment(behind[0], kept_first=True) if len(behind) == 1 else None


def openings(stored: Sequence[bytes], sent: Sequence[bytes]) -> list[int]:
    """Every offset at which a stored line goes on as what was sent begins, whether or not it reaches its head."""
    run = list(sent[:LEAST_RUN])
    return [start for start in range(1, len(stored)) if run and list(stored[start : start + LEAST_RUN]) == run]


def _offsets(stored: Sequence[bytes], sent: Sequence[bytes], is_assistant: Sequence[bool]) -> list[int]:
    """Every offset at which all stored messages from there to the head are the first ones that were sent."""
    if not sent:
        return []
    return [
        start
        for start in range(1, len(stored) - LEAST_RUN + 1)
        if stored[start] == sent[0] and _is_run(stored, start, sent, is_assistant)
    ]


def _is_run(stored: Sequence[bytes], start: int, sent: Sequence[bytes], is_assistant: Sequence[bool]) -> bool:
    length = len(stored) - start
    return length <= len(sent) and list(stored[start:]) == list(sent[:length]) and any(is_assistant[:length])
