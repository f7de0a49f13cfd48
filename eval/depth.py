"""How deep a condensation by rules cuts (`extract.depth`) against the bill, for what agents use and have created.

A deeper cut leaves less in the view and comes less often. Sessions, places and names are those of `eval.needs` and
`eval.created`, quoted units those of `eval.quoted`; memory is off. The bill is that of the sessions of `eval.needs`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import mean

from eval import created, needs, quoted
from eval.views import in_processes
from proxy.commands.replaying.recorded import Conversation
from proxy.commands.replaying.report import markdown
from strategies import DEFAULT
from tests.support.data import SHORT

DEPTHS = (0.2, 0.3, 0.4, 0.5)
DEFAULT_DEPTH = 0.3


def settings_of(depth: float) -> Mapping[str, object]:
    return {"extract": {"depth": depth}}


async def used(depth: float, conversation: Conversation) -> needs.Arm:
    """A session at a depth, asked for the names that come next."""
    return await needs.arm(conversation, "", DEFAULT, "off", settings_of(depth), needs.wanted(conversation))


async def made(depth: float, conversation: Conversation) -> needs.Arm:
    """A session at a depth, asked for what was created in it."""
    wanted = created.wanted(conversation, created.labels())
    return await needs.arm(conversation, "", DEFAULT, "off", settings_of(depth), wanted)


def table(path: Path = SHORT) -> str:
    """A row for each depth."""
    played = {
        depth: (
            in_processes(partial(used, depth), needs.sessions(path)),
            in_processes(partial(made, depth), created.chosen(path)),
            in_processes(partial(quoted.audit, settings=settings_of(depth)), quoted.chosen(path)),
        )
        for depth in DEPTHS
    }
    return rows(played)


def rows(played: Mapping[float, tuple[Sequence[needs.Arm], Sequence[needs.Arm], Sequence[Counter[str]]]]) -> str:
    usual = sum(arm.bill for arm in played[DEFAULT_DEPTH][0])

    def cells(depth: float) -> Iterator[str]:
        by_use, by_making, audits = played[depth]
        counts = sum(audits, Counter[str]())
        yield from (f"{depth}", f"{mean(cut.tokens for arm in by_use for cut in arm.cuts):,.0f}")
        yield f"{sum(arm.bill for arm in by_use) / usual:.2f}"
        yield from map(_kept, (by_use, by_making))
        yield f"{counts.total() - counts['units']} of {counts['units']:,}"

    columns = ("tokens of the view, mean", "bill", "names used next", "created things", "faults of quoted units")
    return markdown(" | ".join(("`extract.depth`", *columns)), [list(cells(depth)) for depth in played])


def _kept(arms: Sequence[needs.Arm]) -> str:
    cuts = [cut for arm in arms for cut in arm.cuts]
    return f"{sum(cut.kept for cut in cuts)} of {sum(cut.needed for cut in cuts)}"
