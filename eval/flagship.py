"""The input bill of a long agent session on a flagship, played through the driver at published prices.

30,000 tokens of tools and system text stay, and each request adds 4,000, up to 780,000: below the window, so that
sending everything is possible. A prompt cache has whatever two prompts have in common.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from random import Random

from eval.economy import to_a_share
from eval.views import in_processes
from proxy.commands.replaying.measures import ReplayedConversation
from proxy.commands.replaying.play import Player, Playing, open_replay_proxy
from proxy.commands.replaying.recorded import Conversation, Message
from proxy.commands.replaying.report import markdown
from proxy.settings import Settings
from proxy.settings.loading import model_table
from strategies import DEFAULT

MODEL = "gpt-6.1-sol"
HEAD, EACH, LARGEST = 30_000, 4_000, 780_000
WAYS: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "as sent": ("off", {}),
    "at the price step, to a share": (DEFAULT, {"marks": {"most": 0}}),
    "at the price step": (DEFAULT, {"marks": {"most": 0}}),
    "at `marks.most`, to a share": (DEFAULT, {}),
    "default: at `marks.most`": (DEFAULT, {}),
    "`economy = auto`": (DEFAULT, {"economy": "auto"}),
}


def session(head: int = HEAD, each: int = EACH, largest: int = LARGEST) -> Conversation:
    """An agent that reads one file after another."""
    random = Random(1)
    messages: list[Message] = [
        {"role": "system", "content": _text(random, head)},
        {"role": "user", "content": "Review all modules one after the other. Never rename a public function."},
    ]
    for part in range((largest - head) // each):
        called = {"name": "read", "arguments": f'{{"path": "src/part_{part}.py"}}'}
        calls = [{"id": f"c{part}", "type": "function", "function": called}]
        messages.append({"role": "assistant", "content": f"I read part {part}.", "tool_calls": calls})
        messages.append({"role": "tool", "tool_call_id": f"c{part}", "content": _text(random, each)})
    return Conversation("flagship", [*messages, {"role": "assistant", "content": "All is reviewed."}])


def _text(random: Random, tokens: int) -> str:
    """Lines of about so many tokens."""
    lines = (f"def check_{random.randrange(10**6)}(value: int) -> bool:  # line {at}\n" for at in range(tokens // 18))
    return "".join(lines)


async def played(way: str, conversation: Conversation | None = None) -> tuple[ReplayedConversation, float]:
    """The session under one way, and what its prompts cost."""
    strategy, settings = WAYS[way]
    prices = model_table().prices(MODEL, time.time())
    assert prices is not None
    async with open_replay_proxy(Settings.model_validate({"store": {"url": "memory://"}, **settings})) as proxy:
        playing = Playing(Player(proxy, MODEL, None), conversation or session(), strategy, way, "off")
        with to_a_share() if "to a share" in way else nullcontext():
            found = await playing.play()
        return found, found.cost(prices)


def table() -> str:
    return rows(dict(zip(WAYS, in_processes(played, WAYS), strict=True)))


def rows(found: Mapping[str, tuple[ReplayedConversation, float]]) -> str:
    def cells(way: str) -> Iterator[str]:
        requests, cost = found[way][0].requests, found[way][1]
        yield from (way, f"{max(each.forwarded_tokens for each in requests):,}")
        yield f"{sum(each.condensed for each in requests)}"
        yield from (f"{cost:.2f}", f"{cost / next(iter(found.values()))[1]:.2f}")

    return markdown(
        f"`{MODEL}` | largest prompt | condensed | input, USD | of as sent", [list(cells(way)) for way in found]
    )
