"""How much of a prompt an agent's upstream has seen before: eight agents in small windows, through the real driver.

Each shape is an agent that reads one file of about 1,900 tokens in each round, with the system message, the tools, the
turns and the window of the client that it is named after. A row is one shape in one window:

    repeats    the share of forwarded message tokens with which the previous forwarded request began too
    at best    the same for a condenser that waits until nothing more fits, and then keeps only the system message, the
               task and the newest messages
    client     the same for the list that the client sent
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, NamedTuple

from proxy.replaying import baseline
from proxy.replaying.measures import ReplayedConversation, size, summarize
from proxy.replaying.play import Player, open_replay_proxy
from proxy.replaying.recorded import Conversation, Message
from proxy.settings import Settings

MODEL = "gpt-4o"
WINDOWS = (12_000, 16_000, 20_000, 24_000)
STRATEGIES = ("mask+half-window",)
PARALLEL = 5
"""Every so many rounds two files are read at once."""
MIN_ROUNDS = 5
"""A shape is also measured in the windows of `WINDOWS` that have room for so many rounds behind its head."""


class Shape(NamedTuple):
    """An agent: sizes in tokens, `window` the one it was seen in, `text` whether results are user messages."""

    name: str
    window: int
    requests: int
    system: int
    tools: int
    result: int
    turns: int = 1
    text: bool = False


SHAPES = (
    Shape("langchain", 12_000, 26, 60, 150, 1_880, turns=2),
    Shape("cline", 20_000, 21, 3_700, 0, 2_250, text=True),
    Shape("mini-swe-agent", 10_000, 19, 1_500, 150, 2_050),
    Shape("pi", 12_000, 21, 700, 700, 1_880),
    Shape("opencode", 24_000, 18, 2_500, 6_000, 1_880),
    Shape("Continue", 20_000, 21, 1_000, 1_500, 1_880),
    Shape("OpenHands", 24_000, 21, 3_800, 3_000, 1_880),
    Shape("qwen-code", 40_000, 25, 7_000, 9_000, 1_650),
)


def measure(strategies: Sequence[str] = STRATEGIES) -> list[dict[str, Any]]:
    """All rows; takes about a minute."""
    cells = [(shape, window, each) for each in strategies for shape in SHAPES for window in windows_of(shape)]
    return [asyncio.run(row(*cell)) for cell in cells]


def windows_of(shape: Shape) -> list[int]:
    """The window in which the client was seen, and those of `WINDOWS` with room for a few of its rounds."""
    least = shape.system + shape.tools + MIN_ROUNDS * shape.result
    return sorted({shape.window, *(window for window in WINDOWS if window * 7 // 8 >= least)})


async def row(shape: Shape, window: int, strategy: str) -> dict[str, Any]:
    """One shape, played once in a session of its own."""
    played = conversation(shape)
    async with open_replay_proxy(Settings.model_validate({"store": {"url": "memory://"}})) as proxy:
        player = Player(proxy, MODEL, window)
        result = await player.play(played, strategy, shape.name)
        ways = {"repeats": result, "at best": _at_best(player, played), "client": baseline.direct(player, played)}
    figures = summarize(strategy, [result])
    return {
        "strategy": f"`{figures.strategy}`",
        "shape": shape.name,
        # A star marks the window in which the client was seen.
        "window": f"{window:,}{' *' if window == shape.window else ''}",
        "requests": figures.requests,
        "condensed": figures.condensations,
        "own calls": figures.own_calls,
        "saved, %": 100 * (1 - figures.forwarded / figures.original),
        **{f"{name}, %": 100 * (summarize(name, [way]).cached_share or 0.0) for name, way in ways.items()},
    }


def _at_best(player: Player, conversation: Conversation) -> ReplayedConversation:
    """What the best condenser would forward: all that fits, then the first two messages and the newest ones."""
    messages, room = conversation.messages, player.usable() - player.overhead(conversation)
    kept: Sequence[Message] = []
    shown = 0

    def show(end: int) -> Sequence[Message]:
        nonlocal kept, shown
        newest, shown = messages[shown:end], end
        kept = [*kept, *newest]
        if size(player.forwarded(conversation, kept)) > room:
            kept = [*messages[:2], *newest]
        return kept

    return baseline.play(player, conversation, show)


def conversation(shape: Shape) -> Conversation:
    """The whole conversation of a shape, the same every time."""
    random = Random(shape.name)
    rounds = shape.requests - shape.turns
    messages: list[Message] = [{"role": "system", "content": _words(random, shape.system)}]
    for turn in range(shape.turns):
        messages.append({"role": "user", "content": f"Task {turn}: read the modules and report. {_words(random, 40)}"})
        for number in range(rounds * turn // shape.turns, rounds * (turn + 1) // shape.turns):
            messages.extend(_round(random, number, shape))
        messages.append({"role": "assistant", "content": _words(random, 60)})
    tools = [{"type": "function", "function": {"name": "read_file", "description": _words(random, shape.tools)}}]
    return Conversation(shape.name, messages, tools if shape.tools else ())


def _round(random: Random, number: int, shape: Shape) -> Iterator[Message]:
    said = f"Step {number}: next I read what it imports."
    if shape.text:
        path, text = f"src/module_{number}.py", _words(random, shape.result)
        yield {"role": "assistant", "content": f"{said}\n<read_file>\n<path>{path}</path>\n</read_file>"}
        yield {"role": "user", "content": f"[read_file for '{path}'] Result:\n{text}"}
        return
    ids = [f"c{number}-{i}" for i in range(2 if number % PARALLEL == PARALLEL - 1 else 1)]
    functions = [{"name": "shell", "arguments": f'{{"command": "sed -n 1,200p src/module_{each}.py"}}'} for each in ids]
    calls = [{"id": each, "type": "function", "function": of} for each, of in zip(ids, functions, strict=True)]
    yield {"role": "assistant", "content": said, "tool_calls": calls}
    for each in ids:
        yield {"role": "tool", "tool_call_id": each, "content": _words(random, shape.result)}


_VOCABULARY = "value name index result config parser module return check when each list"


def _words(random: Random, tokens: int) -> str:
    """A text of about so many tokens: each of its words is one."""
    return " ".join(random.choices(_VOCABULARY.split(), k=tokens))
