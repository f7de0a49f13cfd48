"""What an agent uses next, and whether the view still has it.

At three places of a recorded agent's session: which names in its next six messages stood in the history and not in the
newest four messages? A name is an identifier, a path, a number, or a word that few recordings have. The window has a
quarter of the session's tokens. `recent`, which only drops, is measured beside it, in views that are at least as large.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from eval import memory
from eval.measure import Figure
from eval.views import SHARE, grown, in_processes, proxy_for, said, stands, values_of, window_of
from proxy.commands.replaying import recorded
from proxy.commands.replaying.measures import size
from proxy.commands.replaying.play import request_ends
from proxy.commands.replaying.recorded import Conversation
from proxy.commands.replaying.report import markdown
from strategies import DEFAULT
from tests.support.data import SHORT

AGENTS = ("trap/", "openhands/", "swe-agent/", "mini-swe-agent/", "pi-mono/")
"""What the ids of agents' sessions begin with. Joined sessions are left out: no agent needs another one's names."""
REPLIES, LARGEST = 20, 200_000  # of a session: its fewest replies, and its most characters
NEXT, NEWEST = 6, 4
CUTS = 6
TARGETS = (0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6)
"""To which share of usable `recent` may cut: for each session the least with which its views are as large."""
_EACH = 3
"""One request in so many is sent, and each that is looked at: alike under all ways, and the others tell nothing new."""
_RARE = 3
"""A distinctive word stands in at most so many recordings."""
_TERM = re.compile(r"[\w@#$~./:+-]*\w")
_WORD = re.compile(r"[^\W\d_]{4,}")
_MARKED = re.compile(r"\d|_|/|\w\.\w|[a-z][A-Z]")
_LONGEST = 60


WITHOUT, RECENT = f"{DEFAULT}, memory off", "recent, views as large"


class Cut(NamedTuple):
    """One place in a session: the size of its view, and the names that come next, each with whether it is there."""

    tokens: int
    kept: int
    needed: int


class Arm(NamedTuple):
    """A session under one way to condense: its cuts, and the bill of its prompts in tokens of full price."""

    name: str
    cuts: Sequence[Cut]
    bill: float
    uncached: int = 0  # the bill without a cache


def names(text: str, common: Mapping[str, int]) -> set[str]:
    """The identifiers, paths, numbers and ids in a text, and its words that few recordings have."""
    terms = {match.group().strip(".:/-+~") for match in _TERM.finditer(text)}
    marked = {each for each in terms if 3 <= len(each) <= _LONGEST and _MARKED.search(each)}
    words = {each for each in _WORD.findall(text) if common.get(each.lower(), 0) <= _RARE}
    return marked | {each for each in words if not any(each in other for other in marked)}


def needed(conversation: Conversation, end: int, common: Mapping[str, int]) -> list[str]:
    """The names in the agent's next messages that stood in the history and not in the newest of it."""
    messages = conversation.messages
    history = "\n".join(said(each) for each in messages[:end] if each["role"] not in ("system", "developer"))
    newest = "\n".join(map(said, messages[end - NEWEST : end]))
    replies = [each for each in messages[end:] if each["role"] == "assistant"][:NEXT]
    found = set[str]().union(*(names(said(each), common) for each in replies))
    return sorted(each for each in found if stands(each, history) and not stands(each, newest))


def cuts_of(conversation: Conversation, cuts: int = CUTS) -> list[int]:
    """Where the session is looked at: at requests after which enough replies come, in its later half."""
    ends = list(request_ends(conversation))[:-NEXT]
    return [ends[(len(ends) - 1) * (cuts + nth) // (2 * cuts)] for nth in range(1, cuts + 1)]


async def arms(conversation: Conversation) -> list[Arm]:
    """The session under each way, asked for the names that come next."""
    return await compared(conversation, wanted(conversation))


def wanted(conversation: Conversation, cuts: int = CUTS) -> dict[int, list[str]]:
    """The names that come next, at each end at which the session is looked at."""
    return {end: needed(conversation, end, commonness(SHORT)) for end in cuts_of(conversation, cuts)}


async def compared(conversation: Conversation, wanted: Mapping[int, Sequence[str]]) -> list[Arm]:
    """The session by default, without memory, and under `recent` in views that are as large as the second's.

    `wanted` has the names that are looked for, by the ends of the requests at which that is done.
    """
    default = await arm(conversation, DEFAULT, DEFAULT, "inject", {}, wanted)
    without = await arm(conversation, WITHOUT, DEFAULT, "off", {}, wanted)
    low, high, found = 0, len(TARGETS) - 1, dict[int, Arm]()

    async def large_enough(place: int) -> bool:
        marks = {"marks": {"target": TARGETS[place]}}
        found[place] = await arm(conversation, RECENT, "recent", "off", marks, wanted)
        return _size([found[place]]) >= _size([without])

    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if await large_enough(middle) else (middle + 1, high)
    if low not in found:
        await large_enough(low)
    return [default, without, found[low]]


async def arm(
    conversation: Conversation,
    name: str,
    strategy: str,
    mode: str,
    settings: Mapping[str, object],
    wanted: Mapping[int, Sequence[str]],
    share: float = SHARE,
    each: int = _EACH,
) -> Arm:
    """A session under one strategy, mode of memory and settings, looked at where names are wanted."""
    cuts: list[Cut] = []
    async with proxy_for(mode, **settings) as proxy:
        playing = None
        ends = list(request_ends(conversation))
        some = [end for at, end in enumerate(ends) if at % each == 0 or end in wanted]
        async for playing in grown(proxy, conversation, window_of(proxy, conversation, share), strategy, some):
            if playing.end in wanted:
                text = "\n".join(map(said, values_of(playing.view)))
                kept = [stands(name, text) for name in wanted[playing.end]]
                cuts.append(Cut(size(playing.view), sum(kept), len(kept)))
    assert playing is not None, "a session has requests"
    bill = memory.Bill.of("", "", playing.requests, Figure(0, 0)).tokens
    return Arm(name, cuts, bill, sum(one.forwarded_tokens for one in playing.requests))


@cache
def commonness(path: Path) -> Counter[str]:
    """In how many recordings each word stands."""
    found: Counter[str] = Counter()
    for conversation in recorded.load(path):
        text = "\n".join(map(said, conversation.messages))
        found.update({word.lower() for word in _WORD.findall(text)})
    return found


def sessions(path: Path) -> list[Conversation]:
    """The agents' sessions that are long enough for three cuts, and short enough to be played in minutes."""
    known = [one for one in recorded.load(path) if one.id.startswith(AGENTS)]
    return [
        one
        for one in known
        if sum(each["role"] == "assistant" for each in one.messages) >= REPLIES
        and sum(len(said(each)) for each in one.messages) <= LARGEST
    ]


def table(path: Path = SHORT) -> str:
    """A row for each way: names kept, the size of the views, and the bill beside that without memory."""
    chosen = sessions(path)
    played = [arm for of in in_processes(arms, chosen) for arm in of]
    return rows(len(chosen), played)


def rows(number: int, played: Sequence[Arm], what: str = "names") -> str:
    by_name = {name: [arm for arm in played if arm.name == name] for name in (DEFAULT, WITHOUT, RECENT)}
    bill = sum(arm.bill for arm in by_name[WITHOUT])

    def cells(name: str) -> Iterator[str]:
        cuts = [cut for arm in by_name[name] for cut in arm.cuts]
        kept, asked = sum(cut.kept for cut in cuts), sum(cut.needed for cut in cuts)
        yield from (f"`{name}`", f"{kept} of {asked}", f"{100 * kept / asked:.0f}", f"{_size(by_name[name]):,.0f}")
        yield f"{sum(arm.bill for arm in by_name[name]) / bill:.2f}"

    head = f"{number} sessions x {CUTS} cuts | {what} kept | % | tokens of the view, mean | bill, of memory off"
    return markdown(head, [list(cells(name)) for name in by_name])


def _size(of: Sequence[Arm]) -> float:
    return mean(cut.tokens for arm in of for cut in arm.cuts)
