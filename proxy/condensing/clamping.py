"""Values of a request that are not used in full: which, and what is used instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from proxy.condensing.policy import Policy
from proxy.request.controls import Controls
from strategies.core.budget import Budget

OPTION_BOUNDS: Mapping[str, tuple[str, Callable[[Budget], int]]] = {
    "summary_max_tokens": ("a tenth of the window", lambda budget: budget.replacement_cap),
    "max_tokens": ("a tenth of the window", lambda budget: budget.replacement_cap),
    "memory_max_tokens": ("a sixteenth of the window", lambda budget: budget.window // 16),
}
"""Options in tokens that the budget bounds, and by what."""


def clamped_values(controls: Controls, policy: Policy) -> Iterator[str]:
    """Yields a sentence for each value of a request that a learned window or the budget clamps."""
    used, asked = policy.window.tokens, controls.window
    if used is not None and asked is not None and used < asked:
        yield f"the window of {asked:,} tokens is clamped to {used:,}: {policy.window.source}"
    budget = policy.budget and policy.budget.unscaled
    for stage in policy.stages if budget else ():
        for name, (bound, most) in OPTION_BOUNDS.items():
            value = getattr(getattr(stage, "options", None), name, 0)
            if budget and most(budget) < value and {name, f"{stage.name}.{name}"} & controls.options.keys():
                yield f"{stage.name}.{name} of {value:,} is clamped to {most(budget):,}: {bound}"
