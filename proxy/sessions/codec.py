"""Encodes sessions and condensations as bytes, and decodes them.

The format is JSON with a schema version. A reader treats a newer version as a miss, and ignores members that it does
not know. The text of replacements is stored, not the templates it was made from, so that a later version of a prompt or
frame changes no view that stands. A run of kept messages is written as one range. Pieces are sent to upstreams, so they
are checked when they are read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from proxy.knowledge import anchor as anchors
from proxy.sessions.branch import NO_MEMORY_BLOCK, Branch, MemoryBlock, Opening
from proxy.sessions.identity import CHAT
from proxy.sessions.session import FailedTry, Session, Tip
from strategies.core.cards import from_json, to_json
from strategies.core.condensation import Condensation
from strategies.core.parsing import loads
from strategies.core.pieces import Keep, Literal, Overlay, Piece, PieceKind
from strategies.core.protocol import Verdict
from strategies.dialects import DIALECTS

VERSION = 1
UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""The exceptions that decoding raises for bytes that are not of this format."""

_encode = json.JSONEncoder(separators=(",", ":")).encode
"""Shared, since `json.dumps` would make an encoder for each document."""


def encode_session(session: Session) -> bytes:
    """The document of a session; its condensations are stored in records of their own."""
    return _dump(
        {
            "v": VERSION,
            "id": session.id,
            "source": session.source,
            "created_at": session.created_at,
            "parent": session.parent,
            "settings": session.settings,
            "strategy": session.strategy,
            "opened": session.branches_opened,
            "totals": session.totals,
            "saved": session.saved_tokens,
            "line": [session.tip.head, session.tip.block],
            "branches": list(map(_branch_row, session.branches)),
            "verdicts": list(map(encode_verdict, session.verdicts)),
            "judging": session.judging,
            **({"economy": session.economy} if session.economy else {}),
            "failed": session.failed_try,
            "patches": [[each.anchor.hex(), each.at, list(_encode_pieces(each.pieces))] for each in session.patches],
            "added": to_json(session.added_cards) if session.added_cards else [],
            "forgotten": session.forgotten_ids,
            "inherited": session.inherited,
            "forked": session.forked_after,
            "refused": session.rewriting_refused,
            **({} if session.dialect == CHAT else {"dialect": session.dialect}),
        }
    )


def decode_condensation(data: bytes, standing: bool) -> Condensation | None:
    """The condensation in a record; None where a newer version wrote it."""
    document = json.loads(data)
    if document.pop("v") > VERSION:
        return None
    document["digest"] = bytes.fromhex(document["digest"])
    document["pieces"] = tuple(_decode_pieces(document["pieces"], document["covered"]))
    document["cards"] = tuple(from_json(document.get("cards", [])))
    known = {key: document[key] for key in document.keys() & Condensation.__dataclass_fields__.keys()}
    return replace(Condensation(**known), standing=standing)


def decode_document(meta: bytes) -> Session | None:
    """The session in a document, without its condensations; None where a newer version wrote it."""
    document = json.loads(meta)
    dialect = document.get("dialect", CHAT)
    if document["v"] > VERSION or dialect not in DIALECTS:
        return None
    return Session(
        id=document["id"],
        source=document["source"],
        created_at=document["created_at"],
        parent=document["parent"],
        settings=document["settings"],
        strategy=document.get("strategy", ""),
        branches=tuple(_branch(each) for each in document["branches"]),
        branches_opened=document["opened"],
        totals=document["totals"],
        saved_tokens=document.get("saved", {}),
        tip=Tip(*document["line"]),
        verdicts=tuple(_verdict(each) for each in document.get("verdicts", ())),
        judging=document.get("judging", {}),
        economy=document.get("economy", {}),
        failed_try=FailedTry(*document["failed"]) if document.get("failed") else None,
        patches=tuple(
            Overlay(bytes.fromhex(anchor), at, 0, tuple(_decode_pieces(pieces, at)))
            for anchor, at, pieces in document.get("patches", ())
        ),
        added_cards=tuple(from_json(document.get("added", []))),
        forgotten_ids=tuple(document.get("forgotten", ())),
        inherited=document.get("inherited", 0),
        forked_after=document.get("forked", 0),
        rewriting_refused=document.get("refused", False),
        dialect=dialect,
    )


def _branch_row(branch: Branch) -> list[Any]:
    return [
        *(branch.name, branch.head.hex(), branch.before.hex(), branch.count, branch.last_used, branch.applied),
        *(branch.seen, branch.block, anchors.row(branch.anchor) if branch.anchor else None, branch.reply),
        *(branch.last.hex(), [(place, node.hex()) for place, node in branch.openings]),
        branch.may_be_side,
        *([branch.applied_at, branch.shown] if branch.applied_at else ()),
    ]


def _branch(row: Sequence[Any]) -> Branch:
    name, head, before, count, last_used, applied, *later = row
    seen = tuple((count, at) for count, at in later[0]) if later else ()
    block = MemoryBlock(*later[1]) if len(later) > 1 else NO_MEMORY_BLOCK
    anchor = anchors.from_row(later[2]) if len(later) > 2 and later[2] else None
    reply = later[3] if len(later) > 3 else ""
    last, openings = later[4:6] if len(later) > 5 else ("", ())
    side = len(later) > 6 and bool(later[6])
    applied_at = later[7] if len(later) > 7 else 0
    shown = later[8] if len(later) > 8 else ""
    nodes = bytes.fromhex(head), bytes.fromhex(before)
    opens = tuple(Opening(at, bytes.fromhex(node)) for at, node in openings)
    known = Branch(
        name, *nodes, count, last_used, applied, seen, block, anchor, reply, bytes.fromhex(last), opens, side
    )
    return replace(known, applied_at=applied_at, shown=shown) if applied_at else known


def encode_verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "yes": verdict.yes,
        "digest": verdict.digest.hex(),
        "count": verdict.message_count,
        "tokens": verdict.tokens,
        "at": verdict.voted_at,
        "metadata": verdict.metadata,
        "earlier": [digest.hex() for digest in verdict.earlier_digests],
    }


def _verdict(row: Mapping[str, Any]) -> Verdict:
    digest, earlier = bytes.fromhex(row["digest"]), tuple(map(bytes.fromhex, row.get("earlier", ())))
    return Verdict(row["yes"], digest, row["count"], row["tokens"], row["at"], row.get("metadata", {}), earlier)


def record_name(digest: bytes, depth: int) -> str:
    """The name of a condensation's record: the digest of what it covers, and its depth."""
    return f"{digest.hex()}:{depth}"


def reverted(name: str) -> str:
    """The mark that says that a person took back the condensation in the record of this name.

    Earlier versions keep the mark and do not read it.
    """
    return f"reverted:{name}"


def encode_condensation(condensation: Condensation) -> bytes:
    """The record of a condensation; whether it stands is stored outside of the record."""
    return _dump(
        {
            "v": VERSION,
            "id": condensation.id,
            "digest": condensation.digest.hex(),
            "covered": condensation.covered,
            "depth": condensation.depth,
            "pieces": list(_encode_pieces(condensation.pieces)),
            "window": condensation.window,
            "strategy": condensation.strategy,
            "requirement": condensation.requirement,
            "trigger": condensation.trigger,
            "tokens_before": condensation.tokens_before,
            "tokens_after": condensation.tokens_after,
            "created_at": condensation.created_at,
            "own_tokens": condensation.own_tokens,
            "parent": condensation.parent,
            "cards": to_json(condensation.cards),
            "metadata": condensation.metadata,
        }
    )


def _encode_pieces(pieces: Iterable[Piece]) -> Iterator[Any]:
    run: list[int] = []
    for piece in pieces:
        if isinstance(piece, Keep) and run and piece.index == run[1]:
            run[1] += 1
            continue
        if run:
            yield run
        run = [piece.index, piece.index + 1] if isinstance(piece, Keep) else []
        if isinstance(piece, Literal):
            yield {"raw": piece.raw, "kind": piece.kind.value, "origin": piece.origin}
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


def _dump(document: Any) -> bytes:
    return _encode(document).encode()
