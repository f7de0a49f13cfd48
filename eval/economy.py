"""What `economy = auto` costs and keeps beside the default, on recorded agents: the names that they use next.

Sessions, places and names are those of `eval.needs`; memory is off. A window of a quarter of the session's tokens makes
the default condense often. In a window of twice as many only `auto` does, because it pays: there the default sends
everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import mean

from eval import needs
from eval.views import in_processes
from proxy.commands.replaying.recorded import Conversation
from proxy.commands.replaying.report import markdown
from strategies import DEFAULT
from tests.support.data import SHORT

MODES = ("advise", "auto")
WINDOWS = {"a quarter of the session": 4.0, "twice the session": 0.5}
"""The windows, as parts of a session's tokens."""


async def used(mode: str, window: str, conversation: Conversation) -> needs.Arm:
    """A session under a mode of economy, asked for the names that come next."""
    settings = {"economy": mode}
    return await needs.arm(conversation, "", DEFAULT, "off", settings, needs.wanted(conversation), WINDOWS[window])


def table(path: Path = SHORT) -> str:
    """A row for each window and mode."""
    chosen = needs.sessions(path)
    ways = [(window, mode) for window in WINDOWS for mode in MODES]
    return rows(len(chosen), {way: in_processes(partial(used, way[1], way[0]), chosen) for way in ways})


def rows(number: int, played: Mapping[tuple[str, str], Sequence[needs.Arm]]) -> str:
    def cells(window: str, mode: str) -> Iterator[str]:
        arms = played[window, mode]
        cuts = [cut for arm in arms for cut in arm.cuts]
        yield from (window, f"`{mode}`", f"{mean(cut.tokens for cut in cuts):,.0f}")
        yield f"{sum(arm.bill for arm in arms) / sum(arm.bill for arm in played[window, MODES[0]]):.2f}"
        yield f"{sum(cut.kept for cut in cuts)} of {sum(cut.needed for cut in cuts)}"

    head = f"window ({number} sessions) | `economy` | tokens of the view, mean | bill"
    return markdown(f"{head} | names used next", [list(cells(*way)) for way in played])
