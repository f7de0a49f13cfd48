"""What the store holds of sessions, as this process has read or written it.

Bytes say all: a document or a record with the same ones is the same, so it is decoded and checked once, whichever
process wrote it. What was left alone for longest is forgotten when all of it together exceeds a number of bytes.
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b

from proxy.runtime.lru import SizedLru
from proxy.sessions.session import Session
from proxy.store.base import Snapshot
from proxy.store.codec import decode_condensation, decode_document
from strategies.core.condensation import Condensation

MOST_BYTES = 16 * 1024 * 1024
MOST_DOCUMENTS = 128 * 1024
"""Bytes of documents, of some hundred sessions; decoded they take five times as much."""


class Records:
    """Reads sessions and records; one per app."""

    def __init__(self, most_bytes: int = MOST_BYTES, most_documents: int = MOST_DOCUMENTS) -> None:
        self._records: SizedLru[bytes, tuple[Condensation | None]] = SizedLru(most_bytes)
        self._documents: SizedLru[bytes, Session] = SizedLru(most_documents)

    def session(self, snapshot: Snapshot) -> Session | None:
        """The session in a snapshot, None where a newer version wrote it; raises one of `UNREADABLE`."""
        session = self._documents.use(snapshot.meta)
        if session is None:
            session = decode_document(snapshot.meta)
            if session is None:
                return None
            self.wrote(snapshot.meta, session)
        standing = snapshot.standing
        records = (self.condensation(data, standing=name in standing) for name, data in snapshot.records.items())
        known = tuple(each for each in records if each is not None)
        return session._replace(condensations=known, revision=snapshot.revision)

    def wrote(self, meta: bytes, session: Session) -> None:
        """Keeps a session whose document is `meta`, so that it is not decoded when it is read."""
        self._documents.put(meta, session, len(meta))

    def condensation(self, data: bytes, *, standing: bool) -> Condensation | None:
        """The condensation in a record, None where a newer version wrote it; raises one of `UNREADABLE`."""
        name = blake2b(data, digest_size=16).digest()
        read = self._records.use(name)
        if read is None:
            read = (decode_condensation(data, standing=standing),)
            self._records.put(name, read, len(data))
        (found,) = read
        return found if found is None or found.standing is standing else replace(found, standing=standing)
