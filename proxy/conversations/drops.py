"""Lines and names of the ledger that a person has dropped. Pure.

Like pins they are marks of the session: `drop:LINE:RECORD` leaves a line out of every record but RECORD, and of that
one too as soon as a newer one is used; so the view changes where it changes anyway. Without RECORD it is left out at
once. The record stays as it was written: what is dropped is left out when it is read.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from proxy.conversations.session import Session
from strategies.core.condensation import Condensation
from strategies.core.ledger import line_id, said_in_line, split_ledger
from strategies.core.messages import Dialect
from strategies.core.parsing import loads
from strategies.core.pieces import Piece, is_record
from strategies.core.units import units
from strategies.dialects import DIALECTS

DROP = re.compile(r"drop:([0-9a-f]{8}):(\w*)")


def drop_mark(line: str, condensations: Collection[Condensation], *, now: bool) -> str:
    newest = None if now else _newest_used(condensations)
    return f"drop:{line}:{newest.id if newest else ''}"


def dropped_in(drops: Collection[str]) -> frozenset[str]:
    """The ids of the lines in marks."""
    return frozenset(mark.split(":")[1] for mark in drops)


def says_dropped(text: str, drops: Collection[str]) -> bool:
    """Whether a text has a sentence or an item that a person has dropped."""
    gone = dropped_in(drops)
    return any(line_id(unit.text) in gone for unit in units(text))


def without_dropped(
    condensations: Sequence[Condensation], drops: Collection[str], dialect: Dialect
) -> tuple[Condensation, ...]:
    """The condensations as views apply them."""
    newest, marks = _newest_used(condensations), [mark.split(":")[1:] for mark in drops]
    return tuple(
        made.without({line for line, keeper in marks if keeper != made.id or made is not newest}, dialect)
        for made in condensations
    )


def _newest_used(condensations: Iterable[Condensation]) -> Condensation | None:
    used = (made for made in condensations if made.standing or made.reverted)
    return max(used, key=lambda made: made.created_at, default=None)


def _entries(pieces: Iterable[Piece], dialect: Dialect) -> Iterator[tuple[str, str, str]]:
    """The id, kind and text of each line and name of the ledger in pieces."""
    for piece in filter(is_record, pieces):
        ledger = split_ledger(dialect.text(loads(piece.raw)))[1]
        for kind, texts in (("said", ledger.said), ("name", ledger.names)):
            yield from ((line_id(text), kind, said_in_line(text)) for text in texts)


def line_ids(session: Session) -> set[str]:
    """The ids of all lines and names in a session's ledgers, as they were recorded."""
    dialect = DIALECTS[session.dialect]
    return {line for made in session.condensations for line, *_ in _entries(made.recorded or made.pieces, dialect)}


def ledger_of(session: Session, shown: Condensation | None) -> list[dict[str, Any]]:
    """The lines and names of the ledger that a condensation shows, then all others that were dropped, each once."""
    dropped, dialect, rows = dropped_in(session.drops), DIALECTS[session.dialect], dict[str, dict[str, Any]]()
    read = {line for line, *_ in _entries(shown.pieces if shown else (), dialect)}
    for made in (*([shown] if shown else []), *session.condensations):
        for line, kind, text in _entries(made.recorded or made.pieces, dialect):
            if line in read | dropped:
                row = {"id": line, "kind": kind, "text": text, "shown": line in read, "dropped": line in dropped}
                rows.setdefault(line, row)
    return list(rows.values())
