"""Money beside what is kept, and what summaries carry: conversations played by the engine of `condenser replay`.

Money: each strategy and what others do, at one trigger. *Newest only* is LangChain's `trim_messages`, which drops the
oldest messages of each request; CliffCompaction's rule is in `eval/baseline.py`. Our own calls are paid for.

Summaries: which of the things that the user said in messages that are gone from the last view stand word for word in
what the proxy wrote. The scripted summarizer copies out of these messages: an upper bound of what a model would keep.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

from langchain_core.messages import BaseMessage, convert_to_messages, trim_messages

from eval import baseline
from eval.measure import Figure, tally
from proxy.commands.replaying.measures import Summary, summarize
from proxy.commands.replaying.models import RealModels
from proxy.commands.replaying.play import Player, Playing, open_replay_proxy, said_in, text_of
from proxy.commands.replaying.recorded import Conversation, Message, load
from proxy.commands.replaying.report import HEAD, markdown, row
from proxy.settings import Settings
from proxy.tokens.counter import Tokenizers
from strategies import DEFAULT
from strategies.core.economics import Prices

WINDOW = 22_030
"""Its trigger is at 16,362 tokens."""
PRICES = Prices(input=0.95, cached_input=0.16, cache_write=0.95, output=4.0)
"""Those of Kimi K2.6 for a million tokens."""
KINDS = {"coding-agent": "coding agents", "customer-service-tools": "customer service"}
OURS = (
    f"{DEFAULT}, memory off", DEFAULT, "mask+half-window", "half-window", "mask", "recent", "semantic", "rolling",
    "dynacontext",
)  # fmt: skip
AUTO = f"{DEFAULT}, economy auto"
MONEY = ("strategy", "cost", "of direct", "dear writes", "condensed", "own tokens", "names")
"""Columns of the report of a replay."""
SUMMARIZING = ("mask+extract", "extract", "half-window", "summary", "semantic", "rolling", "dynacontext")
PARTS = ("said", "names", "numbers")
EACH = 4
"""Conversations of each kind."""


def chosen(path: Path) -> dict[str, list[Conversation]]:
    """The first conversations of each kind."""
    known = load(path)
    return {told: [one for one in known if kind in one.id][:EACH] for kind, told in KINDS.items()}


def money_page(path: Path) -> str:
    return "\n\n".join(
        f"**{kind}**, {len(of)} conversations:\n\n{money_table(asyncio.run(costs(of)))}"
        for kind, of in chosen(path).items()
    )


async def costs(conversations: Sequence[Conversation], ours: Sequence[str] = OURS) -> list[Summary]:
    """The figures of each way to serve these conversations."""
    prices = {"input": PRICES.input, "cached_input": PRICES.cached_input, "output": PRICES.output}
    steered = {"economy": "auto", "models": [{"match": "*", "prices": prices}], "store": {"url": "memory://"}}
    async with (
        open_replay_proxy(Settings.model_validate({"economy": "off", "store": {"url": "memory://"}})) as proxy,
        open_replay_proxy(Settings.model_validate(steered)) as auto,
    ):
        player = Player(proxy, "gpt-4o", WINDOW)
        direct = [baseline.direct(player, one) for one in conversations]
        rows = {
            "direct": direct,
            "newest only (LangChain)": [baseline.play(player, one, newest(player, one)) for one in conversations],
            "CliffCompaction's rule": [baseline.play_by_rule(player, one) for one in conversations],
        }
        for name in (*ours, AUTO):
            strategy = name.partition(",")[0]
            memory = "off" if "memory off" in name or name == "recent" else None
            own = Player(auto, "gpt-4o", WINDOW) if name == AUTO else player
            rows[f"`{name}`"] = [
                await Playing(own, one, strategy, f"{place}/{name}", memory).play()
                for place, one in enumerate(conversations)
            ]
    return [summarize(name, played, PRICES, direct) for name, played in rows.items()]


def newest(player: Player, conversation: Conversation) -> baseline.Show:
    """What LangChain's function leaves of each request's history, in as many tokens as our trigger."""
    messages, most = conversation.messages, player.budget().trigger - player.overhead(conversation)
    tokens = {str(place): message.tokens for place, message in enumerate(player.forwarded(conversation, messages))}
    converted = convert_to_messages([{**message, "id": str(place)} for place, message in enumerate(messages)])

    def total(some: list[BaseMessage]) -> int:
        return sum(tokens[message.id or ""] for message in some)

    def show(end: int) -> Sequence[Message]:
        kept = trim_messages(converted[:end], max_tokens=most, token_counter=total, include_system=True)
        return [messages[int(message.id or "")] for message in kept]

    return show


def money_table(summaries: Sequence[Summary]) -> str:
    cells = [dict(zip(HEAD, row(summary), strict=True)) for summary in summaries]
    return markdown(" | ".join(MONEY), [[of[title] for title in MONEY] for of in cells])


def summaries_page(path: Path, summarizer: Mapping[str, str]) -> str:
    conversations = [one for of in chosen(path).values() for one in of]
    figures = asyncio.run(carried(conversations, SUMMARIZING, summarizer))

    def cell(strategy: str, part: str) -> str:
        of = figures.get((strategy, part))
        return f"{of.percent:.0f}% of {of.asked:,}" if of else "-"

    rows = [[f"`{strategy}`", *(cell(strategy, part) for part in PARTS)] for strategy in SUMMARIZING]
    written = f"by `{summarizer['model']}`" if summarizer else "by the script, which copies"
    table = markdown(" | ".join(["strategy", *PARTS]), rows)
    return f"Summaries {written}; {len(conversations)} conversations:\n\n{table}"


async def carried(
    conversations: Sequence[Conversation],
    strategies: Sequence[str],
    summarizer: Mapping[str, str],
    window: int = WINDOW,
) -> dict[tuple[str, str], Figure]:
    """How much of each part of what was said the records hold, by strategy and part.

    `summarizer` has the `base_url` and the `model` of a real one; the script writes without.
    """
    own = {"memory": {"default": "off"}, "store": {"url": "memory://"}, "summarizer": summarizer}
    models = RealModels(Tokenizers(), ["summarizer"] if summarizer else [], None)
    found = []
    async with open_replay_proxy(Settings.model_validate(own), models) as proxy:
        player = Player(proxy, "gpt-4o", window)
        for strategy, conversation in product(strategies, conversations):
            playing = Playing(player, conversation, strategy, f"{conversation.id}/{strategy}")
            await playing.play()
            found += [((strategy, part), holds) for part, holds in held(player, conversation, playing)]
    return tally(found)


def held(player: Player, conversation: Conversation, playing: Playing) -> list[tuple[str, bool]]:
    """Each thing that the user said in messages that are gone: its part, and whether the record has it."""
    sent = player.forwarded(conversation, conversation.messages[: playing.end])
    own, stands = {message.raw for message in sent}, {message.raw for message in playing.view}
    record = text_of(conversation, [message for message in playing.view if message.raw not in own])
    gone = [conversation.messages[at] for at, message in enumerate(sent) if message.raw not in stands]
    return [(part_of(kind, text), text in record) for kind, of in said_in(conversation, gone).items() for text in of]


def part_of(kind: str, text: str) -> str:
    """The part, out of `PARTS`, of a thing that was said. Only a number is listed with the words before it."""
    return "numbers" if kind == "names" and (" " in text or not text[0].isascii()) else kind
