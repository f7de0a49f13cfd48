"""Quotas: how many bytes the store may hold of one session, and of all sessions of one tenant.

The bytes of a session are those of its meta, of its blocks with their digests, and of its records with their names, in
stored form, which is compressed. Two rules keep the cost for clients low when a session is full:

- New blocks are refused, and with them the whole `save`: nothing is written, and a StoreError `store-quota` is raised.
  The store cannot know whether a meta is of use without the blocks that came with it (the head of an appended history
  names its newest block), so it does not store a meta whose blocks it refuses. A `save` without new blocks is never
  refused: a writer that can do without its blocks repeats the save without them, and the session stays known.
- A record is worth more than a block: without it every later turn condenses again, pays the model again and misses the
  provider's prompt cache. So records may exceed the quotas of a session and of a tenant by a quarter.
"""

from __future__ import annotations

from dataclasses import dataclass

UNBOUNDED = -1


@dataclass(frozen=True, slots=True)
class Quotas:
    """The most bytes of one session, and of all sessions of a tenant together; 0 for no quota."""

    session: int = 0
    tenant: int = 0

    def for_blocks(self, others: int) -> int:
        """The most bytes of a session with its new blocks; its tenant's other sessions have `others` bytes."""
        return _least(self.session, self.tenant, others)

    def for_records(self, others: int) -> int:
        """The most bytes of a session with a new record."""
        return _least(self.session * 5 // 4, self.tenant * 5 // 4, others)


def _least(session: int, tenant: int, others: int) -> int:
    bounds = [session] if session else []
    if tenant:
        bounds.append(max(0, tenant - others))
    return min(bounds, default=UNBOUNDED)
