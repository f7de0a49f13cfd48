"""What an agent has created by calling tools, and whether the view still names it.

A created thing is an id, a file or a job whose name stands for the first time in the result of a call: neither the call
nor a message before it has it, and a later message uses it. No form tells a call that created something from one that
found something, so the results were read and labelled: `created_labels.csv` has the session, the place of the result
and the digest of the name. They are looked for at the places of `eval.needs`, in the same views, beside `recent`.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from eval import needs
from eval.rules import digest
from eval.views import in_processes, said, stands
from proxy.commands.replaying.recorded import Conversation
from tests.support.data import SHORT

LABELS = Path(__file__).with_name("created_labels.csv")


class Label(NamedTuple):
    """A created thing: its session, the place of the result that names it first, and the digest of its name."""

    conversation: str
    place: int
    digest: str


class Created(NamedTuple):
    place: int
    name: str


def labels() -> list[Label]:
    with LABELS.open(newline="", encoding="utf-8") as file:
        return [Label(row["conversation"], int(row["place"]), row["digest"]) for row in csv.DictReader(file)]


def created(conversation: Conversation, known: Iterable[Label]) -> list[Created]:
    """The labelled things of a session that only their result names first, and that a later message uses."""
    places = {(label.place, label.digest) for label in known if label.conversation == conversation.id}
    found = [
        Created(place, name)
        for place in sorted({place for place, _ in places})
        for name in sorted(needs.names(said(conversation.messages[place]), {}))
        if (place, digest(name)) in places
    ]
    return [one for one in found if _is_new(conversation, one) and _is_used(conversation, one)]


def _is_new(conversation: Conversation, thing: Created) -> bool:
    """Whether no message before the result has the name; the call is one of them."""
    return not any(stands(thing.name, said(message)) for message in conversation.messages[: thing.place])


def _is_used(conversation: Conversation, thing: Created) -> bool:
    return any(stands(thing.name, said(message)) for message in conversation.messages[thing.place + 1 :])


def wanted(conversation: Conversation, known: Iterable[Label]) -> dict[int, list[str]]:
    """The things that were created before the newest messages, at each end at which the session is looked at."""
    things = created(conversation, known)
    ends = needs.cuts_of(conversation)
    return {end: [one.name for one in things if one.place < end - needs.NEWEST] for end in ends}


async def arms(conversation: Conversation) -> list[needs.Arm]:
    """The session under each way, asked for what was created in it."""
    return await needs.compared(conversation, wanted(conversation, labels()))


def chosen(path: Path) -> list[Conversation]:
    """The sessions of `eval.needs` in which something was created."""
    known = labels()
    return [one for one in needs.sessions(path) if created(one, known)]


def table(path: Path = SHORT) -> str:
    """A row for each way: created things kept, the size of the views, and the bill beside that without memory."""
    conversations = chosen(path)
    played = [arm for of in in_processes(arms, conversations) for arm in of]
    return needs.rows(len(conversations), played, "created things")
