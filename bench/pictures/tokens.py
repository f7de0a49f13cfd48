"""Plots of the demo's requests: where the client alone stops, and which marks act when."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from bench.pictures.svg import Axes, cross, line, picture, ring, text
from proxy.commands.replaying.measures import ReplayedRequest
from strategies.core.budget import Budget

WIDTH, HEIGHT = 860, 400


def tokens_per_request(demo: dict[str, Any]) -> str:
    """The plot of what `condenser demo --json` prints."""
    direct, trimmed, condensed = demo["ways"]
    count, window, stop = len(condensed["prompts"]), demo["window"], len(direct["prompts"])
    axes = Axes(left=62, top=56, width=670, height=298, requests=count, ceiling=10_000)
    right, refused = axes.right, direct["prompts"][-1]
    drawn = [text(16, 28, f"Prompt of each request, tokens. One coding session, {count} requests.", kind="bold")]
    drawn += [text(right, 28, "○ history is condensed", anchor="end", kind="small")]
    drawn += axes.scales(2_000, (1, *range(20, count + 1, 20)))
    edge = axes.at(1, window)[1]
    drawn += [line([(axes.left, edge), (right, edge)], "red"), text(right + 8, edge - 2, "the model's", colour="red")]
    drawn += [text(right + 8, edge + 15, f"window {window:,}", colour="red")]
    for way, colour, dash in ((trimmed, "c1", "2 3"), (direct, "c0", "7 4"), (condensed, "c2", "")):
        drawn.append(line(axes.points(way["prompts"]), colour, dash))
    drawn += [ring(*axes.at(number, condensed["prompts"][number - 1]), "c2") for number in condensed["condensed_at"]]
    x, y = axes.at(stop, refused)
    told = f"direct: request {stop} has {refused:,} tokens and is refused"
    drawn += [cross(x, y, "red"), text(x + 14, y - 4, told, colour="c0")]
    for way, colour, below in ((trimmed, "c1", 32), (condensed, "c2", -6)):
        y = axes.at(count, way["prompts"][-1])[1] + below
        drawn += [text(right + 8, y, way["name"], colour=colour, kind="bold")]
        drawn += [text(right + 8, y + 15, f"{way['early_facts']} early facts", kind="small")]
    shown = f"Tokens of each of {count} requests: without Condenser request {stop} is refused, condensed all fit"
    return picture(WIDTH, HEIGHT, f"{shown} the window of {window:,}.", drawn)


def marks(requests: list[ReplayedRequest], budget: Budget) -> str:
    """When `prepare`, `trigger` and `target` act, on the first condensed requests of the demo."""
    axes = Axes(left=62, top=56, width=500, height=298, requests=len(requests), ceiling=9_000)
    right = axes.right
    drawn = [text(16, 28, "When the marks act: defaults, a window of 8,192 tokens", kind="bold")]
    drawn += axes.scales(1_000, (1, *range(10, len(requests) + 1, 10)))
    levels = (
        ("window", budget.window, "red", "", "the model's context length"),
        ("usable", budget.usable, "c1", "", "window less reserve for the reply"),
        (f"trigger {budget.marks.trigger:.0%}", budget.trigger, "c0", "7 4", "here history is condensed"),
        (
            f"prepare {budget.marks.prepare:.0%}",
            budget.prepare,
            "c4",
            "2 3",
            "from here summaries are written ahead",
        ),
        (f"target {budget.marks.target:.0%}", budget.target, "c3", "10 4 2 4", "down to this or lower"),
    )
    for name, tokens, colour, dash, said in levels:
        y = axes.at(1, tokens)[1]
        drawn += [line([(axes.left, y), (right, y)], colour, dash)]
        drawn += [text(right + 8, y + 1, f"{name}: {tokens:,}", colour=colour, kind="bold")]
        drawn += [text(right + 8, y + 16, said, kind="small")]
    points = [axes.at(1, requests[0].forwarded_tokens)]
    for number, (before, now) in enumerate(pairwise(requests), 2):
        if now.condensed:  # what it would have been: as before, and what the client has added
            reached = before.forwarded_tokens + now.sent_tokens - before.sent_tokens
            points.append(axes.at(number, reached))
            drawn.append(ring(*axes.at(number, now.forwarded_tokens), "c2"))
        points.append(axes.at(number, now.forwarded_tokens))
    drawn.insert(-1, line(points, "c2"))
    told = "The prompt grows to the trigger, is condensed to the target or lower, and grows again."
    return picture(WIDTH, HEIGHT, told, drawn)
