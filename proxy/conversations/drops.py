"""Lines and names of the ledger that a person has dropped. Pure.

Like pins they are marks of the session. `drop:LINE:USED` leaves a line out of every record, except of those in use
until more than USED have been used, so the view changes where it changes anyway; with 0, at once. Records stay as they
were written: what is dropped is left out when one is read.
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

DROP = re.compile(r"drop:([0-9a-f]{8}):(\d{1,9})")


def drop_mark(line: str, condensations: Iterable[Condensation], *, now: bool) -> str:
    return f"drop:{line}:{0 if now else _used(condensations)}"


def _used(condensations: Iterable[Condensation]) -> int:
    return sum(made.standing or made.reverted for made in condensations)


def dropped_in(drops: Collection[str]) -> frozenset[str]:
    """The ids of the lines in marks."""
    return frozenset(mark.split(":")[1] for mark in drops)


def dropped_from_ancestors(session: Session) -> frozenset[str]:
    """The ids of the lines that records of a session's ancestors lack in its views, until it has used one of its own.

    Its marks may be those of its parent, whose count of records is not its own.
    """
    is_on = _used(session.condensations) > 0
    return dropped_in([mark for mark in session.drops if is_on or mark.endswith(":0")])


def says_dropped(text: str, drops: Collection[str]) -> bool:
    """Whether a text has a sentence or an item that a person has dropped."""
    gone = dropped_in(drops)
    return any(line_id(unit.text) in gone for unit in units(text))


def without_dropped(
    condensations: Sequence[Condensation], drops: Collection[str], dialect: Dialect
) -> tuple[Condensation, ...]:
    """The condensations of a session as views apply them."""
    used, gone = _used(condensations), dropped_in(drops)
    by_now = dropped_in([mark for mark in drops if int(mark.split(":")[2]) < used])
    return tuple(made.without(by_now if made.standing else gone, dialect) for made in condensations)


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
