"""What stays of a turn that most turns do not have: an append with its reply, and a request that was not answered."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from proxy.condensing.attempt import Turn, degraded
from proxy.conversations.keeping import SessionUpdate
from proxy.conversations.requests import RequestRecord
from proxy.conversations.supply import Append
from proxy.errors import HistoryUnavailable
from proxy.protocols.replies import Items
from proxy.turn.sending import headers_of

if TYPE_CHECKING:
    from proxy.services import Services


async def store_append(services: Services, turn: Turn, update: SessionUpdate, append: Append, items: Items) -> None:
    """Stores an append with its reply; raises `HistoryUnavailable` if they are not stored."""
    why = "its reply has no message that can be stored, or is too large"
    if items:
        tip, block = append.block(items)
        update = update._replace(tip=tip, tip_before=append.base, blocks={tip.block: block})
        why = await services.keeper.settle(turn.sent.decision.context.recognised, update)
        if turn.asked.until_answered is not None:
            # Before the last byte: the client may append to another replica at once.
            await turn.asked.until_answered.aclose()
        if not why:
            return
        turn.sent = turn.sent._replace(decision=degraded(turn.sent.decision, why))
        turn.put_down()
    error = HistoryUnavailable(f"This turn was not stored ({why}); the history ends where it ended before.")
    error.headers = headers_of(turn, accepted=False)
    raise error


def note_failed(services: Services, turn: Turn, status: int) -> Coroutine[Any, Any, None]:
    """Notes at once that a request was not answered; what it returns records that where its session is stored."""
    turn.reply = turn.reply._replace(status=status, milliseconds=turn.timing.since_start)
    return _record_failed(services, turn, turn.put_down())


async def _record_failed(services: Services, turn: Turn, record: RequestRecord) -> None:
    context = turn.sent.decision.context
    # A caller that the upstream has not accepted leaves nothing in a session.
    if context.may_store and turn.asked.trust.may_see_stored:
        await services.keeper.note_failed(context.recognised, record)
