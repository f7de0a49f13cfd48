"""The messages of a stored branch that a client with a sliding window has dropped."""

from __future__ import annotations

from typing import NamedTuple

from proxy.sessions.blocks import StoredMessage
from proxy.sessions.histories import StoredHistory


class MissingMessages(NamedTuple):
    """The messages that a client left out, whether it kept the first one, and the stored history that has them."""

    messages: tuple[StoredMessage, ...]
    kept_first: bool
    history: StoredHistory
