"""Golden files: what each client sent for each case, one file per pair, written anew with UPDATE_RESENDS=1."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.support.replies import Json

FOLDER = Path(__file__).parent / "golden"
UPDATING = os.environ.get("UPDATE_RESENDS") == "1"

Outcome = Json  # {"messages": [...]} as resent, or {"raised": name} where the client stopped over the reply


class Resend(NamedTuple):
    """One way's outcome in a golden file; `messages` is empty where the client resent nothing."""

    client: str
    case: str
    way: str
    messages: list[Json]

    def __str__(self) -> str:
        return f"{self.client} {self.way}: {self.case}"


def path(client: str, case: str) -> Path:
    return FOLDER / f"{client}-{case}.json"


def write(client: str, case: str, versions: Mapping[str, str], outcomes: Mapping[str, Outcome]) -> None:
    """Write one golden file; ways that sent the same are listed together."""
    sent: list[Json] = []
    for way, outcome in outcomes.items():
        same = next((entry for entry in sent if _outcome(entry) == outcome), None)
        if same is None:
            sent.append({"ways": [way], **outcome})
        else:
            same["ways"].append(way)
    kept = {"client": client, "versions": versions, "case": case, "sent": sent}
    text = json.dumps(kept, ensure_ascii=False, indent=2)
    path(client, case).write_text(text + "\n", encoding="utf-8")


def read(client: str, case: str) -> dict[str, Outcome]:
    """The outcomes of one golden file, by way."""
    return _by_way(json.loads(path(client, case).read_text(encoding="utf-8")))


def resends() -> Iterator[Resend]:
    """Every way of every client in all golden files."""
    for file in sorted(FOLDER.glob("*.json")):
        kept = json.loads(file.read_text(encoding="utf-8"))
        for way, outcome in _by_way(kept).items():
            yield Resend(kept["client"], kept["case"], way, outcome.get("messages", []))


def _by_way(kept: Json) -> dict[str, Outcome]:
    return {way: _outcome(entry) for entry in kept["sent"] for way in entry["ways"]}


def _outcome(entry: Json) -> Outcome:
    return {key: value for key, value in entry.items() if key != "ways"}
