"""A cache of decoded sessions and condensations, keyed by the bytes that they are stored in.

A document or record with the same bytes has the same content, so it is decoded and checked once, whichever process
wrote it. When the cached ones exceed a number of bytes together, the least recently used ones are dropped.
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b

from proxy.runtime.lru import SizedLru
from proxy.sessions.codec import decode_condensation, decode_document
from proxy.sessions.session import Session
from proxy.store.base import Snapshot
from proxy.store.compress import decompress
from strategies.core.condensation import Condensation

MAX_BYTES = 2 * 1024 * 1024
"""Bytes of records, enough for about a thousand; decoded they take two to eight times as much."""
MAX_DOCUMENTS = 128 * 1024
"""Bytes of documents, enough for a few hundred sessions; decoded they take five times as much."""


class Records:
    """Reads sessions and records; one per app."""

    def __init__(self, most_bytes: int = MAX_BYTES, most_documents: int = MAX_DOCUMENTS) -> None:
        self._records: SizedLru[bytes, tuple[Condensation | None]] = SizedLru(most_bytes)
        self._documents: SizedLru[bytes, Session] = SizedLru(most_documents)

    def session(self, snapshot: Snapshot) -> Session | None:
        """The session in a snapshot, None where a newer version wrote it; raises one of `UNREADABLE`."""
        meta = decompress(snapshot.meta)
        session = self._documents.use(meta)
        if session is None:
            session = decode_document(meta)
            if session is None:
                return None
            self.put_session(meta, session)
        standing = snapshot.standing
        records = (self.condensation(data, standing=name in standing) for name, data in snapshot.records.items())
        readable = tuple(each for each in records if each is not None)
        return session._replace(condensations=readable, revision=snapshot.revision)

    def put_session(self, meta: bytes, session: Session) -> None:
        """Caches a session whose document is `meta`, so that reading it again decodes nothing."""
        self._documents.put(meta, session, len(meta))

    def condensation(self, data: bytes, *, standing: bool) -> Condensation | None:
        """The condensation in a record, None where a newer version wrote it; raises one of `UNREADABLE`."""
        key = blake2b(data, digest_size=16).digest()
        cached = self._records.use(key)
        if cached is None:
            record = decompress(data)
            cached = (decode_condensation(record, standing=standing),)
            self._records.put(key, cached, len(record))
        (condensation,) = cached
        if condensation is None or condensation.standing is standing:
            return condensation
        return replace(condensation, standing=standing)
