"""Conversations of letters, and both ways between them and their sessions."""

import json
import time
from functools import partial
from itertools import count
from typing import Any

from proxy.bodies.measure import Measurer, Precision
from proxy.bodies.message_cache import MessageCache
from proxy.conversations.histories import History, StoredHistory
from proxy.conversations.keeping import Keeper, SessionUpdate
from proxy.conversations.recognition import Identity, Recognised, Recogniser
from proxy.conversations.requests import RequestRecord
from proxy.conversations.session import Branch, Session
from proxy.conversations.stored import StoredSessions
from proxy.conversations.supply import Supplier
from proxy.reasons import Action, Trigger
from proxy.store.base import StoreKey
from proxy.tokens.counter import CountingPool
from strategies.core.condensation import Condensation
from strategies.core.messages import Reader
from strategies.core.transcript import Transcript
from strategies.dialects.chat import CHAT
from tests.support.transcripts import condensation_of

DERIVED = Identity()
NAMED = Identity("X-Condenser-Session", "named")


async def ungated(_size: int) -> None:
    """Lets everything grow: nothing here counts its memory."""


class Sessions:
    """Both ways between a conversation and its session."""

    def __init__(self, stored: StoredSessions, recogniser: Recogniser, keeper: Keeper) -> None:
        cache = MessageCache()
        self._supplier = Supplier(stored, cache, Measurer(Reader(), CountingPool(), cache), 60.0, 2**25)
        self._stored = stored
        self.identify = recogniser.identify
        self._recogniser = recogniser
        self.keep = partial(keeper.record, standing=True)
        self.settle = keeper.settle

    async def recognise(self, tenant: str, identity: Identity, transcript: Transcript) -> Recognised:
        return await self._recogniser.recognise(tenant, identity, transcript, self._recogniser.stored.patience())

    async def texts(self, key: StoreKey, *, whole: bool = False) -> list[str]:
        """The contents that its blocks have, in order; `whole`, with those that it inherits."""
        session = await self._stored.load(key)
        assert session is not None
        blocks = await (self._stored.blocks(key, session) if whole else self._stored.store.blocks(key))
        stored = StoredHistory.of(blocks)
        line = stored.tree.line(session.branches[0].head)
        kept = line or list(stored.tree.messages.values())
        return [json.loads(each.raw or "")["content"] for each in kept]

    async def history(self, tenant: str, identity: Identity) -> History:
        return await self._supplier.history(tenant, identity, self._recogniser.stored.patience(), ungated)


def transcript(text: str) -> Transcript:
    """A history with one message for each letter; even ones are the user's."""
    bodies = [{"role": "user" if i % 2 == 0 else "assistant", "content": letter} for i, letter in enumerate(text)]
    return Transcript.of(Reader().read(json.dumps(each), each, 10, CHAT) for each in bodies)


def update(history: Transcript, **facts: Any) -> SessionUpdate:
    """The update by one request with this history; `facts` are what its branch remembers of it."""

    def after(session: Session, old: Branch | None, now: float) -> tuple[Session, bytes]:
        branch = session.branch_after(old, history, now, has_tools=False)._replace(
            **{"applied": "", "reply": "", **facts}
        )
        made = session.with_branch(old, branch).with_totals(requests=1)
        return made, record(at=now, branch=branch.name).packed(made.models)

    return SessionUpdate(history, after)


def record(**facts: Any) -> RequestRecord:
    """The record of a request that was answered as it came."""
    told: dict[str, Any] = {
        "at": 0.0,
        "branch": "main",
        "action": Action.PASSED,
        "trigger": Trigger.NONE,
        "condensation": "",
        "before": 10,
        "after": 10,
        "precision": Precision.EXACT,
        "status": 200,
        "milliseconds": 1,
        "model": "gpt-4o",
        "window": None,
    }
    return RequestRecord(**{**told, **facts})


def turn(text: str, applied: str = "") -> SessionUpdate:
    return update(transcript(text), applied=applied)


def condensation(text: str, depth: int = 1) -> Condensation:
    """One that covers all of `text`."""
    return condensation_of(id=f"c-{text}", digest=transcript(text).digests[-1], covered=len(text), depth=depth)


def made(store: Any, timeout: float = 5.0, prefix: str = "d") -> Sessions:
    """Sessions of a process of its own, whose new ones are named by a prefix and a number."""
    numbers = count(1)
    stored = StoredSessions(store, timeout)
    return Sessions(
        stored, Recogniser(stored, (), lambda: f"{prefix}{next(numbers)}"), Keeper(stored, ttl=60, clock=time.time)
    )


async def settled(sessions: Sessions, text: str, identity: Identity = DERIVED, tenant: str = "t") -> Recognised:
    found = await sessions.recognise(tenant, identity, transcript(text))
    await sessions.settle(found, turn(text))
    return found


async def recognised(sessions: Sessions, text: str, identity: Identity = DERIVED, tenant: str = "t") -> Recognised:
    return await sessions.recognise(tenant, identity, transcript(text))
