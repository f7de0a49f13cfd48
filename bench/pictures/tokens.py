"""Tokens of each request of the demo: where the client alone stops, and where it goes on."""

from __future__ import annotations

from typing import Any

from bench.pictures.svg import cross, line, picture, ring, rule, text

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 400, 62, 128, 56, 46
_CEILING, _STEP = 10_000, 2_000


def tokens_per_request(demo: dict[str, Any]) -> str:
    """The plot of what `condenser demo --json` prints."""
    direct, trimmed, condensed = demo["ways"]
    count, window, stop = len(condensed["prompts"]), demo["window"], len(direct["prompts"])

    def at(request: int, tokens: float) -> tuple[float, float]:
        high = HEIGHT - TOP - BOTTOM
        return LEFT + (WIDTH - LEFT - RIGHT) * (request - 1) / (count - 1), TOP + high * (1 - tokens / _CEILING)

    def points(way: dict[str, Any]) -> list[tuple[float, float]]:
        return [at(number, tokens) for number, tokens in enumerate(way["prompts"], 1)]

    right, refused = at(count, 0)[0], direct["prompts"][-1]
    drawn = [text(16, 28, f"Prompt of each request, tokens. One coding session, {count} requests.", kind="bold")]
    for tokens in range(0, _CEILING + 1, _STEP):
        y = at(1, tokens)[1]
        drawn += [rule(LEFT, y, right, y), text(LEFT - 8, y + 4, f"{tokens:,}", anchor="end", kind="small")]
    for request in (1, *range(20, count + 1, 20)):
        drawn.append(text(at(request, 0)[0], HEIGHT - BOTTOM + 20, str(request), anchor="middle", kind="small"))
    drawn.append(text((LEFT + right) / 2, HEIGHT - 8, "request", anchor="middle", kind="small"))
    edge = at(1, window)[1]
    drawn.append(line([(LEFT, edge), (right, edge)], "red"))
    drawn += [
        text(right + 8, edge - 2, "the model's", colour="red"),
        text(right + 8, edge + 15, f"window {window:,}", colour="red"),
    ]
    drawn += [line(points(trimmed), "c1", "2 3"), line(points(direct), "c0", "7 4"), line(points(condensed), "c2")]
    drawn += [ring(*at(number, condensed["prompts"][number - 1]), "c2") for number in condensed["condensed_at"]]
    x, y = at(stop, refused)
    told = f"direct: request {stop} has {refused:,} tokens and is refused"
    drawn += [cross(x, y, "red"), text(x + 14, y - 4, told, colour="c0")]
    for way, colour, below in ((trimmed, "c1", 32), (condensed, "c2", -6)):
        x, y = points(way)[-1]
        drawn += [
            text(x + 8, y + below, way["name"], colour=colour, kind="bold"),
            text(x + 8, y + below + 15, f"{way['early_facts']} early facts", kind="small"),
        ]
    drawn.append(text(right, 28, "○ history is condensed", anchor="end", kind="small"))
    shown = f"Tokens of each of {count} requests: without Condenser request {stop} is refused, condensed all fit"
    return picture(WIDTH, HEIGHT, f"{shown} the window of {window:,}.", drawn)
