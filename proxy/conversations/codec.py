"""The stored form of sessions, condensations, and the blocks that a history is stored in.

The format is JSON with a schema version. A reader treats any other version as a miss. The text of replacements is
stored, not the templates it was made from, so that a later version of a prompt or frame changes no view that stands. A
run of kept messages is written as one range. Pieces are sent to upstreams, so they are checked when they are read.

`Records` decodes equal bytes once, whichever process wrote them, and caches what it decoded. When the cached values
together exceed a number of bytes, the least recently used ones are dropped.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import count
from typing import Any, NamedTuple

from proxy.conversations.drops import DROP, without_dropped
from proxy.conversations.session import (
    NOTHING,
    Branch,
    ClientCompaction,
    Session,
    Tip,
    TurnStart,
    pins_in,
)
from proxy.runtime.lru import Lru
from proxy.servers import counting
from proxy.store.access import decompress
from proxy.store.base import Snapshot, StoreError
from strategies.core.cards import from_json, to_json
from strategies.core.condensation import Condensation
from strategies.core.messages import ROOT, link
from strategies.core.parsing import loads
from strategies.core.pieces import Keep, Literal, Overlay, Piece, PieceKind
from strategies.core.protocol import Verdict
from strategies.core.reasoning import Bound
from strategies.core.transcript import Transcript
from strategies.dialects import DIALECTS

_log = logging.getLogger(__name__)
VERSION = 5
BLOCK_VERSION = 2  # the schema version of all blocks, including those of append mode
Decoders = Mapping[str, Callable[[Any], object]]
"""What reads the stored values of traits, by name (`proxy/condensing/traits`)."""
UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""The exceptions that decoding raises for bytes in any other format."""
MAX_BYTES = 2 * 1024 * 1024
"""Bytes of records, enough for about a thousand; decoded they take two to eight times as much."""
MAX_DOCUMENTS = 128 * 1024
"""Bytes of documents, enough for a few hundred sessions; decoded they take five times as much."""

_RECORDED = (  # the fields of a condensation that its record has; whether it stands is stored outside of the record
    *("id", "digest", "covered", "depth", "pieces", "window", "strategy", "requirement", "trigger", "tokens_before"),
    *("tokens_after", "created_at", "own_tokens", "parent", "cards", "metadata"),
)
_SAME = (
    *("id", "source", "created_at", "parent", "settings", "strategy", "window", "totals", "judging"),
    *("inherited", "model"),
)
_RENAMED = {
    "opened": "branches_opened",
    "forked": "forked_after",
}
_PLAIN = {name: name for name in _SAME} | _RENAMED
"""Members of a session's document that hold the value of a field, with the field's name."""

_encode = json.JSONEncoder(separators=(",", ":"), default=bytes.hex).encode
"""Shared, because `json.dumps` would make an encoder for each document."""


def encode_session(session: Session) -> bytes:
    """The document of a session; its condensations are stored in records of their own."""
    return _encode(
        {
            "v": VERSION,
            **{name: getattr(session, field) for name, field in _PLAIN.items()},
            "line": session.tip,
            "branches": session.branches,
            "verdicts": list(map(encode_verdict, session.verdicts)),
            "patches": [
                [patch.anchor, patch.at, list(_encode_pieces(patch.pieces)), patch.under, patch.asked]
                for patch in session.patches
            ],
            "added": to_json(session.added_cards) if session.added_cards else [],
            "forgotten": session.forgotten_ids,
            "dialect": session.dialect,
            "models": session.models,
            **({"title": session.title} if session.title else {}),
            **({"traits": session.traits} if session.traits else {}),
            **({"compactions": session.compactions} if session.compactions else {}),
        }
    ).encode()


def decode_document(meta: bytes, decoders: Decoders = NOTHING) -> Session | None:
    """The session in a document, without its condensations; None if another version wrote it."""
    document = json.loads(meta)
    if document["v"] != VERSION or document["dialect"] not in DIALECTS:
        return None
    return Session(
        **{field: document[name] for name, field in _PLAIN.items()},
        branches=tuple(map(_branch, document["branches"])),
        tip=Tip(*document["line"]),
        verdicts=tuple(_verdict(row) for row in document["verdicts"]),
        traits={name: decoders[name](value) for name, value in document.get("traits", NOTHING).items()},
        patches=tuple(
            Overlay(bytes.fromhex(anchor), at, 0, tuple(_decode_pieces(pieces, at)), under, bytes.fromhex(asked))
            for anchor, at, pieces, under, asked in document["patches"]
        ),
        added_cards=tuple(document["added"] and from_json(document["added"])),  # mostly none
        forgotten_ids=tuple(document["forgotten"]),
        dialect=document["dialect"],
        models=tuple(document["models"]),
        title=document.get("title", ""),
        compactions=tuple(
            ClientCompaction(name, tuple(marks), bytes.fromhex(head))
            for name, marks, head in document.get("compactions", ())
        ),
    )


def _branch(row: Sequence[Any]) -> Branch:
    known: dict[str, Any] = dict(zip(Branch._fields, row, strict=True))
    known |= {
        "head": bytes.fromhex(known["head"]),
        "before": bytes.fromhex(known["before"]),
        "seen": tuple((count, at) for count, at in known["seen"]),
        "anchor": counting.from_row(known["anchor"]) if known["anchor"] else None,
        "last": bytes.fromhex(known["last"]),
        "bound": Bound(*known["bound"]),
        "openings": tuple(TurnStart(at, bytes.fromhex(node)) for at, node in known["openings"]),
    }
    return Branch(**known)


def encode_verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "yes": verdict.yes,
        "digest": verdict.digest.hex(),
        "count": verdict.message_count,
        "tokens": verdict.tokens,
        "at": verdict.voted_at,
        "metadata": verdict.metadata,
        "earlier": [digest.hex() for digest in verdict.earlier_digests],
        "failure": verdict.failure,
    }


def _verdict(row: Mapping[str, Any]) -> Verdict:
    digest, earlier = bytes.fromhex(row["digest"]), tuple(map(bytes.fromhex, row["earlier"]))
    told = row["yes"], digest, row["count"], row["tokens"], row["at"], row["metadata"], earlier
    return Verdict(*told, row["failure"])


def record_name(digest: bytes, depth: int) -> str:
    """The name of a condensation's record: the digest of what it covers, and its depth."""
    return f"{digest.hex()}:{depth}"


def reverted(name: str, restored: int = 0) -> str:
    """The mark that says that a person took back the condensation in the record of this name.

    `restored` is how often a person took that back before, each time by the same mark with `un` before it.
    """
    return f"reverted:{restored}:{name}" if restored else f"reverted:{name}"


def _reverts(name: str, marks: Container[str]) -> tuple[bool, int]:
    """Whether a record is reverted, and how often a person took that back."""
    restored = next(number for number in count() if f"un{reverted(name, number)}" not in marks)
    return reverted(name, restored) in marks, restored


def condensation_document(condensation: Condensation) -> dict[str, Any]:
    return {
        "v": VERSION,
        **{name: getattr(condensation, name) for name in _RECORDED},
        "digest": condensation.digest.hex(),
        "pieces": list(_encode_pieces(condensation.pieces)),
        "cards": to_json(condensation.cards),
    }


def encode_condensation(condensation: Condensation) -> bytes:
    return _encode(condensation_document(condensation)).encode()


def decode_condensation(data: bytes, standing: bool) -> Condensation | None:
    """The condensation in a record; None if another version wrote it."""
    document = json.loads(data)
    if document.pop("v") != VERSION:
        return None
    document["digest"] = bytes.fromhex(document["digest"])
    document["pieces"] = tuple(_decode_pieces(document["pieces"], document["covered"]))
    document["cards"] = tuple(from_json(document["cards"]))
    return Condensation(**document, standing=standing)


def _encode_pieces(pieces: Iterable[Piece]) -> Iterator[Any]:
    run: list[int] = []
    for piece in pieces:
        if isinstance(piece, Keep) and run and piece.source == run[1]:
            run[1] += 1
            continue
        if run:
            yield run
        run = [piece.source, piece.source + 1] if isinstance(piece, Keep) else []
        if isinstance(piece, Literal):
            yield {"raw": piece.raw, "kind": piece.kind.value, "origin": piece.source}
    if run:
        yield run


def _decode_pieces(rows: Iterable[Any], before: int) -> Iterator[Piece]:
    """The pieces in a record that covers the chain messages before index `before`.

    Raises one of `UNREADABLE` for pieces that are not valid there.
    """
    for row in rows:
        if isinstance(row, list):
            start, stop = row
            if not 0 <= start < stop <= before:
                raise ValueError("what is kept is not covered")
            yield from map(Keep, range(start, stop))
        else:
            yield _literal(row["raw"], PieceKind(row["kind"]), row["origin"], before)


def _literal(raw: Any, kind: PieceKind, origin: int | None, before: int) -> Literal:
    value = loads(raw) if isinstance(raw, str) else {}
    if not (isinstance(value.get("role"), str) or isinstance(value.get("type"), str)):
        raise TypeError("a piece is no message of any dialect")
    if origin is not None and not 0 <= origin < before:
        raise ValueError("what a piece stands for is not covered")
    return Literal(raw, kind, origin)


class StoredMessage(NamedTuple):
    """A stored message: the chain digest before it, its own digest, and its text."""

    before: bytes
    digest: bytes
    raw: str


def new_block(transcript: Transcript, start: int, end: int | None = None) -> dict[str, bytes]:
    """The block of the chain messages from `start` to `end`, by its name; empty if there are no such messages."""
    messages = transcript.chain[start:end]
    if not messages:
        return {}
    document = {
        "v": BLOCK_VERSION,
        "from": (transcript.digests[start - 1] if start else ROOT).hex(),
        "digests": [message.digest.hex() for message in messages],
        "messages": [message.raw for message in messages],
    }
    return {transcript.digests[start + len(messages) - 1].hex(): json.dumps(document).encode()}


def block_document(data: bytes) -> dict[str, Any]:
    """The document of a stored block; empty if another version wrote it. Raises ValueError if it is not a block."""
    document = json.loads(data)
    if not isinstance(document, dict):
        raise ValueError("a block is no object")  # noqa: TRY004
    return document if document["v"] == BLOCK_VERSION else {}


def messages_of(document: Mapping[str, Any]) -> list[StoredMessage]:
    """The messages in a block's document, in order; none in a block of append mode."""
    if "digests" not in document:
        return []
    digests: Sequence[str] = document["digests"]
    texts: Sequence[str] = document["messages"]
    node = bytes.fromhex(document["from"])
    messages: list[StoredMessage] = []
    for digest, raw in zip(map(bytes.fromhex, digests), texts, strict=True):
        messages.append(StoredMessage(node, digest, raw))
        node = link(node, digest)
    return messages


class Records:
    """Reads sessions and records; one per app. Raises `StoreError` for bytes that cannot be decoded."""

    def __init__(
        self, max_bytes: int = MAX_BYTES, max_documents: int = MAX_DOCUMENTS, decoders: Decoders = NOTHING
    ) -> None:
        self.decoders = decoders
        self._records: Lru[bytes, tuple[Condensation | None]] = Lru(max_bytes)
        self._documents: Lru[bytes, Session] = Lru(max_documents)

    def session(self, snapshot: Snapshot | None) -> Session | None:
        """The session in a snapshot; None if there is none or another version wrote it."""
        if snapshot is None:
            return None
        session = self._documents.use(snapshot.meta)
        if session is None:
            document = decompress(snapshot.meta)
            try:
                session = decode_document(document, self.decoders)
            except UNREADABLE as error:
                raise StoreError("store-corrupt", f"a session cannot be read: {type(error).__name__}") from error
            if session is None:
                return None
            self.put_session(snapshot.meta, session, len(document))
        marks = snapshot.marks
        session = session._replace(revision=snapshot.revision)
        if marks:
            session = session._replace(pins=pins_in(marks), drops=frozenset(filter(DROP.fullmatch, marks)))
        if not snapshot.records:
            return session
        records = []
        for name, data in snapshot.records.items():
            is_reverted, restored = _reverts(name, marks) if reverted(name) in marks else (False, 0)
            try:
                record = self.condensation(data, standing=name in marks and not is_reverted)
            except StoreError as error:
                _log.warning("condensation %s of session %s is not used: %s", name, session.id, error)
                continue
            if record is not None:
                is_plain = not (is_reverted or restored)
                records.append(record if is_plain else replace(record, reverted=is_reverted, restored=restored))
        shown = without_dropped(records, session.drops, DIALECTS[session.dialect]) if session.drops else records
        return session._replace(condensations=tuple(shown))

    def put_session(self, meta: bytes, session: Session, size: int) -> None:
        """Caches a session that is stored as `meta`; `size` is the length of its document before compression."""
        self._documents.put(meta, session, size)

    def condensation(self, data: bytes, *, standing: bool) -> Condensation | None:
        """The condensation in a record; None if another version wrote it."""
        key = blake2b(data, digest_size=16).digest()
        cached = self._records.use(key)
        if cached is None:
            record = decompress(data)
            try:
                cached = (decode_condensation(record, standing=standing),)
            except UNREADABLE as error:
                raise StoreError("store-corrupt", f"a record cannot be read: {type(error).__name__}") from error
            self._records.put(key, cached, len(record))
        (condensation,) = cached
        if condensation is None or condensation.standing is standing:
            return condensation
        return replace(condensation, standing=standing)
