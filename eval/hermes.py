"""The anchors of hermes-agent's compression_eval: what the end of three real sessions has to know, and whether it does.

The kit's authors wrote probes for an LLM judge: questions of four kinds, each with the facts that a right answer has. A
fact is an *anchor* if it stands word for word in the session; so no model has to be asked whether a view has it. The
whole session is sent, in a window of a quarter of its tokens.

The kit is no part of this repository. Its `fixtures/NAME.json`, with `messages`, and `probes/NAME.probes.json`, with
`probes` (`type` and `expected_facts`), are looked for in `compression_eval` beside the recordings. The table names the
digest of what was read: published versions differ.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from eval.views import grown, in_processes, proxy_for, said, stands, values_of, window_of
from proxy.commands.replaying.measures import ForwardedMessage, size
from proxy.commands.replaying.play import request_ends
from proxy.commands.replaying.recorded import Conversation
from proxy.commands.replaying.report import markdown
from strategies import DEFAULT
from tests.support.data import FOLDER

KIT = FOLDER / "compression_eval"
KINDS = ("recall", "artifact", "decision", "continuation")
ARMS = (DEFAULT, "recent")
_SHORTEST = 3  # characters; a shorter fact ("no", "11") stands everywhere


class Session(NamedTuple):
    """A session of the kit, and its anchors by the kind of their probes."""

    conversation: Conversation
    anchors: Mapping[str, Sequence[str]]


class View(NamedTuple):
    """What one way to condense has left of a session: its size, and the anchors in it by kind."""

    arm: str
    tokens: int
    kept: Mapping[str, int]


def sessions(kit: Path) -> list[Session]:
    return [_session(kit, path) for path in sorted((kit / "fixtures").glob("*.json"))]


def _session(kit: Path, path: Path) -> Session:
    conversation = Conversation(path.stem, json.loads(path.read_text("utf-8"))["messages"])
    history = "\n".join(said(each) for each in conversation.messages if each["role"] != "system")
    probes = json.loads((kit / "probes" / f"{path.stem}.probes.json").read_text("utf-8"))["probes"]
    facts = {
        kind: dict.fromkeys(fact for probe in probes if probe["type"] == kind for fact in probe["expected_facts"])
        for kind in KINDS
    }
    anchors = {
        kind: [each for each in listed if len(each) >= _SHORTEST and stands(each, history)]
        for kind, listed in facts.items()
    }
    return Session(conversation, anchors)


async def views(session: Session) -> list[View]:
    """The end of the session under each way, without memory: nobody asks anything."""
    return [await _view(session, arm) for arm in ARMS]


async def _view(session: Session, arm: str) -> View:
    conversation = session.conversation
    view: Sequence[ForwardedMessage] = []
    ends = dict.fromkeys((*request_ends(conversation), len(conversation.messages)))
    async with proxy_for() as proxy:
        async for playing in grown(proxy, conversation, window_of(proxy, conversation), arm, ends):
            view = playing.view
    text = "\n".join(map(said, values_of(view)))
    kept = {kind: sum(stands(each, text) for each in listed) for kind, listed in session.anchors.items()}
    return View(arm, size(view), kept)


def digest(kit: Path) -> str:
    """Of all files that are read."""
    files = [*sorted((kit / "fixtures").glob("*.json")), *sorted((kit / "probes").glob("*.json"))]
    return sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()[:16]


def table(kit: Path = KIT) -> str:
    """A row for each way: anchors kept by kind, and the size of the views; that the kit is missing, where it is."""
    found = sessions(kit)
    if not found:
        return "Skipped: hermes-agent's compression_eval is not in `compression_eval` beside the recordings."
    played = [view for of in in_processes(views, found) for view in of]
    asked = sum((Counter({kind: len(each) for kind, each in one.anchors.items()}) for one in found), Counter[str]())

    def cells(arm: str) -> Iterator[str]:
        kept = sum((Counter(view.kept) for view in played if view.arm == arm), Counter[str]())
        yield from (f"`{arm}`", f"{kept.total()} of {asked.total()}")
        yield from (f"{kept[kind]} of {asked[kind]}" for kind in KINDS)
        yield f"{mean(view.tokens for view in played if view.arm == arm):,.0f}"

    columns = ("anchors kept", *KINDS, "tokens of the view, mean")
    head = " | ".join((f"{len(found)} sessions, sha256 {digest(kit)}", *columns))
    return markdown(head, [list(cells(arm)) for arm in ARMS])
