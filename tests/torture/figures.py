"""The figures of a run, as a row of the table in docs/internals/reliability.md."""

from collections import Counter
from collections.abc import Mapping

from tests.torture.clients import Run

VERDICTS = ("same", "extended", "rebuilt", "walked")


def figures(name: str, run: Run, verdicts: Mapping[tuple[int, int], str]) -> str:
    """What was done, how each view was explained, and the milliseconds."""
    total, actions = len(run.outcomes), run.actions
    of_store = [run.most(share, lambda each: each.store) for share in (0.5, 0.99, 1)]
    times = [*of_store, run.most(1, lambda each: each.elsewhere)]
    degraded = f"{actions['degraded']:,} ({actions['degraded'] / total:.1%})"
    counted = Counter(verdicts.values())
    explained = [f"{counted[verdict]:,}" for verdict in VERDICTS]
    cells = [f"{total:,}", f"{actions['condensed']:,}", f"{actions['replayed']:,}", degraded, *explained]
    return " | ".join(("", name, *cells, *(f"{ms:,.0f}" for ms in times), f"{run.healing:.1f}", "")).strip()
