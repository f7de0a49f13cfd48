"""Lists of requests of many sessions: the newest, and those that a figure of the sums counts.

Such a figure leads to the requests that it counts, whatever came after them and whether their session is stored or not.
So their records are in rings of their own too, one for each of these figures (`NOTED`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

from proxy.bodies.measure import Precision
from proxy.conversations.admin import Admin, Document
from proxy.conversations.requests import RequestRecord
from proxy.reasons import Action, Trigger
from proxy.store.base import StoreKey

_MAX_OF_SESSION = 200  # requests of one session in a list of many

NOTED: Mapping[str, str] = {
    "failed": "failed",
    "rescued": "rescued",
    "condensed": "action_condensed",
    "degraded": "action_degraded",
    "reread": "reread_tokens",
    "saved": "saved_tokens",
}
"""The rings of requests, and the amount of the sums that has the requests of each."""

NO_SESSION = StoreKey("", "")


class NotedRequest(NamedTuple):
    """A request as a ring has it: its record, and its session."""

    key: StoreKey  # `NO_SESSION` if nothing of it may be stored
    record: RequestRecord

    def encoded(self) -> bytes:
        return json.dumps([*self.key, *self.record], separators=(",", ":")).encode()


def noted_in(items: Iterable[bytes]) -> list[NotedRequest]:
    """The requests in a ring's items; those that another version or another key wrote are left out."""
    found = []
    for item in items:
        with suppress(ValueError, TypeError):
            tenant, name, *values = json.loads(item)
            one = RequestRecord(*values)
            one = one._replace(
                action=Action(one.action), trigger=Trigger(one.trigger), precision=Precision(one.precision)
            )
            found.append(NotedRequest(StoreKey(tenant, name), one))
    return found


async def newest_requests(admin: Admin, count: int) -> list[tuple[Document, RequestRecord]]:
    """The newest requests of the sessions that were saved last, each with the row of its session."""
    found: list[tuple[Document, RequestRecord]] = []
    async for key, session in admin.each_session(await admin.newest(count)):
        if session is not None:
            row = admin.row(key, session)
            found += [(row, record) for record in (await admin.requests_of(key, session))[-_MAX_OF_SESSION:]]
    return found


async def with_sessions(admin: Admin, noted: Iterable[NotedRequest]) -> list[tuple[Document, RequestRecord]]:
    """Noted requests, each with the row of its session, and its number in it where that still has it.

    The row of a session that is not stored has an empty `session`.
    """
    found, known = list(noted), dict[StoreKey, tuple[Document, dict[int, RequestRecord]]]()
    async for key, session in admin.each_session(dict.fromkeys(each.key for each in found if each.key != NO_SESSION)):
        if session is not None:
            known[key] = admin.row(key, session), {each.ended: each for each in await admin.requests_of(key, session)}
    pairs = []
    for key, record in found:
        row, records = known.get(key) or ({"tenant": key.tenant, "session": "", "id": "", "title": ""}, {})
        pairs.append((row, records.get(record.ended, record)))
    return pairs
