"""How much of a prompt repeats the one before: agents in small windows, each shaped as the client it is named after.

An agent reads one file of about 1,900 tokens in each round, with the system message, the tools and the turns of its
client. What repeats is the share of forwarded message tokens with which the previous forwarded request began too. At
best it is that of a condenser that waits until nothing more fits, and then keeps only the system message, the task and
the newest messages.
"""

import asyncio
from collections.abc import Iterator, Sequence
from random import Random
from typing import NamedTuple

import pytest

from eval import baseline
from proxy.commands.replaying.measures import ReplayedConversation, Summary, size, summarize
from proxy.commands.replaying.play import Player, Playing, open_replay_proxy
from proxy.commands.replaying.recorded import Conversation, Message
from proxy.settings import load_settings

PARALLEL = 5
"""Every so many rounds two files are read at once."""
_VOCABULARY = "value name index result config parser module return check when each list"


class Shape(NamedTuple):
    """An agent; sizes in tokens."""

    requests: int
    system: int
    tools: int
    result: int
    turns: int = 1


SHAPES = {
    "langchain": Shape(26, 60, 150, 1_880, turns=2),
    "pi": Shape(21, 700, 700, 1_880),
    "opencode": Shape(18, 2_500, 6_000, 1_880),
    "Continue": Shape(21, 1_000, 1_500, 1_880),
}


def conversation(name: str) -> Conversation:
    """The whole conversation of a shape, the same every time."""
    random, shape = Random(name), SHAPES[name]
    rounds = shape.requests - shape.turns
    messages: list[Message] = [{"role": "system", "content": words(random, shape.system)}]
    for turn in range(shape.turns):
        messages.append({"role": "user", "content": f"Task {turn}: read the modules and report. {words(random, 40)}"})
        for number in range(rounds * turn // shape.turns, rounds * (turn + 1) // shape.turns):
            messages.extend(round_of(random, number, shape))
        messages.append({"role": "assistant", "content": words(random, 60)})
    tools = [{"type": "function", "function": {"name": "read_file", "description": words(random, shape.tools)}}]
    return Conversation(name, messages, tools)


def round_of(random: Random, number: int, shape: Shape) -> Iterator[Message]:
    ids = [f"c{number}-{i}" for i in range(2 if number % PARALLEL == PARALLEL - 1 else 1)]
    functions = [{"name": "shell", "arguments": f'{{"command": "sed -n 1,200p src/module_{each}.py"}}'} for each in ids]
    calls = [{"id": each, "type": "function", "function": of} for each, of in zip(ids, functions, strict=True)]
    yield {"role": "assistant", "content": f"Step {number}: next I read what it imports.", "tool_calls": calls}
    for each in ids:
        yield {"role": "tool", "tool_call_id": each, "content": words(random, shape.result)}


def words(random: Random, tokens: int) -> str:
    """A text of about so many tokens: each of its words is one."""
    return " ".join(random.choices(_VOCABULARY.split(), k=tokens))


def at_best(player: Player, played: Conversation) -> ReplayedConversation:
    messages, room = played.messages, player.budget().usable - player.overhead(played)
    kept: Sequence[Message] = []
    shown = 0

    def show(end: int) -> Sequence[Message]:
        nonlocal kept, shown
        newest, shown = messages[shown:end], end
        kept = [*kept, *newest]
        if size(player.forwarded(played, kept)) > room:
            kept = [*messages[:2], *newest]
        return kept

    return baseline.play(player, played, show)


def figures(name: str, window: int) -> dict[str, Summary]:
    """The figures of a shape as the proxy forwards it, at best, and as its client sends it."""

    async def play() -> dict[str, ReplayedConversation]:
        played = conversation(name)
        async with open_replay_proxy(load_settings(store={"url": "memory://"})) as proxy:
            player = Player(proxy, "gpt-4o", window)
            ours = await Playing(player, played, "mask+half-window", name).play()
            return {"ours": ours, "best": at_best(player, played), "client": baseline.direct(player, played)}

    return {way: summarize(way, [found]) for way, found in asyncio.run(play()).items()}


def test_a_view_that_only_grows_repeats_as_much_as_the_client_does() -> None:
    found = figures("pi", 128_000)
    ours = found["ours"]
    assert (ours.condensations, ours.own_calls, ours.forwarded) == (0, 0, ours.original)
    assert ours.cached_share == pytest.approx(found["client"].cached_share) == pytest.approx(found["best"].cached_share)


@pytest.mark.parametrize(("name", "window", "repeats", "condensed", "own_calls"), [
    ("langchain", 16_000, 0.60, 7, 1),
    ("opencode", 24_000, 0.62, 6, 6),
    ("Continue", 16_000, 0.60, 6, 2),
])  # fmt: skip
def test_a_small_window_gains_room(name: str, window: int, repeats: float, condensed: int, own_calls: int) -> None:
    found = figures(name, window)
    ours, best = found["ours"], found["best"]
    assert repeats <= (ours.cached_share or 0.0) <= (best.cached_share or 0.0)
    assert ours.condensations <= condensed
    assert ours.own_calls <= own_calls
