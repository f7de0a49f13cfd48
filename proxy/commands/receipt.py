"""What a run through the proxy came to, in lines for a person: made of the metrics, the live rows and the sessions."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from proxy.quoting import one_line, printable
from strategies.core.ledger import Ledger, split_ledger

MAX_QUOTED, MAX_LOOKS = 3, 5
_SHOWN = 90  # characters of a rule
_SAMPLE = re.compile(r"condenser_(\w+)_total\{(.*)\} ([0-9.e+]+)")
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_OF_CLIENTS = ("before", "after")
_ON_CONDENSED = ("condensed", "replayed")


class Receipt(NamedTuple):
    """A run: the exposition of its metrics, live rows, a document of each row's session, and how to look at one."""

    exposition: str
    rows: Sequence[Mapping[str, Any]]
    documents: Sequence[Mapping[str, Any]]
    look: str

    def lines(self) -> Iterator[str]:
        """The receipt."""
        requests = self._counts("requests", "action")
        if not requests:
            yield "condenser: the command sent no request through the proxy"
            return
        yield ""
        yield "condenser receipt"
        for title, text in self._parts(requests):
            yield f"  {title:<14} {text}"

    def _parts(self, requests: Counter[str]) -> Iterator[tuple[str, str]]:
        shortened = sum(requests[action] for action in _ON_CONDENSED)
        yield "requests", f"{requests.total():,}" + (f", {shortened:,} on condensed history" if shortened else "")
        tokens = self._counts("tokens", "stage")
        before, after = (tokens.pop(stage, 0) for stage in _OF_CLIENTS)
        share = f" ({1 - after / before:.0%})" if before else ""
        yield "tokens sent", f"{after:,} of {before:,}"
        yield "tokens saved", f"{before - after:,}{share}"
        triggers = self._counts("condensations", "trigger")
        listed = ", ".join(f"{trigger} {count}" for trigger, count in triggers.most_common())
        yield "condensations", f"{triggers.total():,} ({listed})" if listed else "none: everything fitted"
        yield from self._kept()
        calls, failed = self._counts("calls", "role"), self._counts("calls", "outcome")
        wrong = failed.total() - failed["answered"]
        own = f"{calls.total():,}, {tokens.total():,} tokens" + (f", {wrong:,} failed" if wrong else "")
        yield "own calls", own if calls else "none"
        yield from self._money()
        yield from self._looks()

    def _counts(self, name: str, label: str) -> Counter[str]:
        found: Counter[str] = Counter()
        for each, labels, value in _SAMPLE.findall(self.exposition):
            if each == name and float(value):
                found[dict(_LABEL.findall(labels)).get(label, "")] += round(float(value))
        return found

    def _kept(self) -> Iterator[tuple[str, str]]:
        ledgers = [ledger for document in self.documents if (ledger := _ledger(document)) is not None]
        if not ledgers:
            return
        rules = [rule for ledger in ledgers for rule in ledger.rules]
        names, facts = sum(len(each.names) for each in ledgers), sum(len(each.facts) for each in ledgers)
        parts = ((len(rules), "rule"), (names, "name"), (facts, "fact"))
        said = ", ".join(f"{count:,} {word}{'' if count == 1 else 's'}" for count, word in parts if count)
        yield "kept", f"{said}, word for word" if said else "no rules, names or facts were found"
        for rule in rules[:MAX_QUOTED]:
            yield "", f"“{printable(one_line(rule), _SHOWN)}”"

    def _money(self) -> Iterator[tuple[str, str]]:
        priced = [row for row in self.rows if row["cost"] is not None]
        if not priced:
            return
        cost, saved = (sum(row[name] for row in priced) for name in ("cost", "saved_cost"))
        unpriced = "" if len(priced) == len(self.rows) else ", where prices are known"
        yield "money", f"{cost:,.4f} spent{unpriced}; at least {saved:,.4f} saved; own calls apart"

    def _looks(self) -> Iterator[tuple[str, str]]:
        if not self.look:
            yield "look", "nothing is left: the store was in memory; name one with --store to keep sessions"
            return
        stored = [document["id"] for document in self.documents if "id" in document]
        for name in stored[:MAX_LOOKS]:
            yield "look", f"{self.look} {shlex.quote(name)}"
        if len(stored) > MAX_LOOKS:
            yield "", f"and {len(stored) - MAX_LOOKS} more: {self.look.removesuffix(' show')} list"
        if not stored:
            yield "look", "nothing is left: no conversation was long enough to be stored"


def _ledger(document: Mapping[str, Any]) -> Ledger | None:
    """The ledger of the latest condensation of a session; None where there is no condensation with a replacement."""
    latest = document.get("latest_condensation")
    records = [each for each in document.get("condensations", ()) if each["id"] == latest]
    pieces = [piece for record in records for piece in record["pieces"] if isinstance(piece, dict)]
    texts = [_text(json.loads(piece["raw"])) for piece in pieces if piece["kind"] == "replacement"]
    return split_ledger("\n".join(texts))[1] if texts else None


def _text(value: Any) -> str:
    """The texts in a message of any protocol."""
    if isinstance(value, dict):
        value = [each for name, each in value.items() if name in ("content", "text")]
    return "\n".join(map(_text, value)) if isinstance(value, list) else str(value)
