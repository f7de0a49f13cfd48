"""Golden files: what each client sent for each case, one file per pair, written anew with UPDATE_RESENDS=1."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from tests.support.replies import Json

FOLDER = Path(__file__).parent / "golden"
KEPT = ("tool-call", "reasoning-content", "refusal", "think-tags")
"""The cases with a golden file: one for each behaviour in which clients differ. Digests are checked for all cases."""
UPDATING = os.environ.get("UPDATE_RESENDS") == "1"

Outcome = Json  # {"messages": [...]} as resent, or {"raised": name} where the client stopped over the reply


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


def _by_way(kept: Json) -> dict[str, Outcome]:
    return {way: _outcome(entry) for entry in kept["sent"] for way in entry["ways"]}


def _outcome(entry: Json) -> Outcome:
    return {key: value for key, value in entry.items() if key != "ways"}
