"""What `economy` costs and keeps on recorded agents: the names that they use next, beside the bill.

Names are those of `eval.needs`; memory is off. First `auto` beside the default, in short sessions and in long ones, in
windows that are a part of their tokens: in a small one the default condenses often, in one of twice the session only
`auto` does. Then the target under `marks.most`, a part of a long session: the cheapest one, beside a share of the mark
as elsewhere, which is played with a lower mark too, to compare what is kept for the same bill.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from statistics import mean

from eval import memory, needs
from eval.views import in_processes, proxy_for, window_of
from proxy.commands.replaying import recorded
from proxy.commands.replaying.recorded import Conversation
from proxy.commands.replaying.report import markdown
from strategies import DEFAULT, pipeline
from tests.support.data import LONG, SHORT

MODES = ("advise", "auto")
WINDOWS = {"a quarter of the session": 4.0, "half of the session": 2.0, "twice the session": 0.5}
"""The windows, as parts of a session's tokens."""
MOST = {"a third of the session": 3.0, "half of the session": 2.0}
"""The same for `marks.most`."""
TARGETS = {"a share": 1.0, "a share, of 0.85 of that mark": 0.85, "the cheapest": 1.0}
"""The targets, and the factors of `MOST` under which they are played."""
_BOUNDLESS = 0.02
_LONG_AGENTS = ("pi-mono/", "joined/coding-agent/")
_PLACES = 20


async def used(mode: str, window: str, places: int, conversation: Conversation) -> needs.Arm:
    """A session under a mode of economy, asked at so many places for the names that come next."""
    settings = {"economy": mode, "models": [{"match": "*", "prices": memory.PRICES}]}
    wanted = needs.wanted(conversation, places)
    return await needs.arm(conversation, "", DEFAULT, "off", settings, wanted, WINDOWS[window])


async def under_most(most: str, target: str, conversation: Conversation) -> needs.Arm:
    """A long session, all of its requests, where only `marks.most` is a trigger."""
    async with proxy_for() as proxy:
        tokens = int(TARGETS[target] * window_of(proxy, conversation, MOST[most]))
    settings, wanted = {"marks": {"most": tokens}}, needs.wanted(conversation, _PLACES)
    with to_a_share() if "a share" in target else nullcontext():
        return await needs.arm(conversation, "", DEFAULT, "off", settings, wanted, _BOUNDLESS, each=1)


@contextmanager
def to_a_share() -> Iterator[None]:
    """Condenses to a share of the trigger, also where `marks.most` or a price step is that."""
    kept, pipeline.cheapest = pipeline.cheapest, lambda view, budget: budget  # noqa: ARG005
    try:
        yield
    finally:
        pipeline.cheapest = kept


def table() -> str:
    """A row for each window and mode, and for each mark and target."""
    short, long = needs.sessions(SHORT), long_sessions((SHORT, LONG))

    def under(places: int, of: Sequence[Conversation]) -> str:
        ways = ((window, mode) for window in WINDOWS for mode in MODES)
        played = {(window, mode): in_processes(partial(used, mode, window, places), of) for window, mode in ways}
        return rows("window", "`economy`", played)

    targets = {
        (most, target): in_processes(partial(under_most, most, target), long) for most in MOST for target in TARGETS
    }
    return "\n\n".join([under(needs.CUTS, short), under(_PLACES, long), rows("`marks.most`", "target", targets)])


def long_sessions(paths: Sequence[Path]) -> list[Conversation]:
    return [one for path in paths for one in recorded.load(path) if one.id.startswith(_LONG_AGENTS)]


def rows(place: str, way: str, played: Mapping[tuple[str, str], Sequence[needs.Arm]]) -> str:
    """A row for each way; its bills are beside those of the first one in the same place."""
    first = {place: arms for (place, _), arms in reversed(list(played.items()))}

    def cells(place: str, way: str) -> Iterator[str]:
        arms, usual = played[place, way], first[place]
        cuts = [cut for arm in arms for cut in arm.cuts]
        yield from (place, way, f"{mean(cut.tokens for cut in cuts):,.0f}")
        yield f"{sum(arm.bill for arm in arms) / sum(arm.bill for arm in usual):.2f}"
        yield f"{sum(arm.uncached for arm in arms) / sum(arm.uncached for arm in usual):.2f}"
        yield f"{sum(cut.kept for cut in cuts)} of {sum(cut.needed for cut in cuts)}"

    number = len(next(iter(played.values())))
    titles = (
        f"{place} ({number} sessions) | {way} | tokens of the view, mean | bill | without a cache | names used next"
    )
    return markdown(titles, [list(cells(*way)) for way in played])
