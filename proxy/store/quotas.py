"""How many bytes may be kept of a session and of a tenant.

The bytes of a session are those of its meta, of its blocks with their digests and of its records with their names,
as they are stored, thus compressed. Two rules say what costs a client least when a session is full:

- New blocks are refused, and with them the whole `save`: nothing is written and StoreError says `store-quota`. The
  store cannot know whether a meta is of use without the blocks that came with it (the head of an appended history
  names its newest block), so it keeps no meta of which the blocks were refused. A `save` without new blocks is never
  refused: a writer that can do without its blocks repeats it so, and the session stays known.
- A record is worth more than a block: without it every later turn condenses anew, pays the model again and misses
  the provider's prompt cache. Records may fill a session, and a tenant, up to a fourth beyond.
"""

from __future__ import annotations

from dataclasses import dataclass

UNBOUNDED = -1


@dataclass(frozen=True, slots=True)
class Quotas:
    """Bytes that a session, and all sessions of a tenant together, may have; 0 is no quota."""

    session: int = 0
    tenant: int = 0

    def for_blocks(self, others: int) -> int:
        """How large a session may be with its new blocks where its tenant's other sessions have `others` bytes."""
        return _least(self.session, self.tenant, others)

    def for_records(self, others: int) -> int:
        """How large it may be with a new record."""
        return _least(self.session * 5 // 4, self.tenant * 5 // 4, others)


def _least(session: int, tenant: int, others: int) -> int:
    bounds = [session] if session else []
    if tenant:
        bounds.append(max(0, tenant - others))
    return min(bounds, default=UNBOUNDED)
