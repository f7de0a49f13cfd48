"""Money beside what is kept, and what summaries carry: conversations played by the engine of `condenser replay`.

Money: each strategy and what others do (`proxy/replaying/baseline.py`), at one trigger. Our own calls are paid for.

Summaries, played without memory: what counts are the messages of the user that are gone from the last view, and what of
them the messages that the proxy wrote have word for word: rules, next steps (wishes and open tasks), names, numbers.

Without a real summarizer the scripted one copies out of what goes: an upper bound of what a model would keep.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from eval.measure import Figure, summed
from proxy.replaying import baseline
from proxy.replaying.measures import ReplayedConversation, Summary, summarize
from proxy.replaying.models import RealModels
from proxy.replaying.play import Player, open_replay_proxy, request_ends, text_of
from proxy.replaying.recorded import Conversation, load
from proxy.replaying.report import markdown, share_text
from proxy.settings import Settings
from proxy.tokens.counter import Tokenizers
from strategies import DEFAULT
from strategies.core.economics import Prices
from strategies.core.ledger import find_facts
from strategies.core.messages import Role
from strategies.core.rules import find_rules, is_weak, merge_rules

WINDOW = 22_030
"""Its trigger is at 16,362 tokens."""
PRICES = Prices(input=0.95, cached_input=0.16, cache_write=0.95, output=4.0)
"""Those of Kimi K2.6 for a million tokens."""
KINDS = {"coding-agent": "coding agents", "customer-service-tools": "customer service"}
OURS = (f"{DEFAULT}, memory off", DEFAULT, "mask+half-window", "half-window", "mask", "recent", "semantic", "rolling")
AUTO = f"{DEFAULT}, economy auto"
SUMMARIZING = ("mask+extract", "extract", "half-window", "summary", "semantic", "rolling", "dynacontext")
PARTS = ("rules", "next steps", "names", "numbers")
EACH = 4
"""Conversations of each kind."""


def chosen(path: Path) -> dict[str, list[Conversation]]:
    """The first conversations of each kind."""
    known = load(path)
    return {kind: [one for one in known if kind in one.id][:EACH] for kind in KINDS}


# -- money -------------------------------------------------------------------------------------------------


def money_page(path: Path) -> str:
    """A table for each kind of conversations."""
    return "\n\n".join(
        f"**{KINDS[kind]}**, {len(of)} conversations:\n\n{_money_table(asyncio.run(costs(of)))}"
        for kind, of in chosen(path).items()
        if of
    )


async def costs(conversations: Sequence[Conversation], ours: Sequence[str] = OURS) -> list[Summary]:
    """The figures of each way to serve these conversations."""
    settings: dict[str, Any] = {"upstream": {"base_url": "http://localhost/v1"}, "store": {"url": "memory://"}}
    prices = {"input": PRICES.input, "cached_input": PRICES.cached_input, "output": PRICES.output}
    steered = {**settings, "economy": "auto", "models": [{"match": "*", "prices": prices}]}
    async with (
        open_replay_proxy(Settings.model_validate({**settings, "economy": "off"})) as proxy,
        open_replay_proxy(Settings.model_validate(steered)) as auto,
    ):
        player = Player(proxy, "gpt-4o", WINDOW)
        direct = [baseline.direct(player, one) for one in conversations]
        rows: dict[str, list[ReplayedConversation]] = {
            "direct": direct,
            "CliffCompaction's rule": [baseline.play_by_rule(player, one) for one in conversations],
        }
        for name in (*ours, AUTO):
            strategy = name.partition(",")[0]
            memory = "off" if "memory off" in name or name == "recent" else None
            own = Player(auto, "gpt-4o", WINDOW) if name == AUTO else player
            rows[f"`{name}`"] = [
                await own.play(one, strategy, f"{place}/{name}", memory) for place, one in enumerate(conversations)
            ]
    return [summarize(name, played, PRICES, direct) for name, played in rows.items()]


def _money_table(summaries: Sequence[Summary]) -> str:
    head = "way | cost | of direct | dear writes | condensed | own tokens | users' names kept"
    rows = [
        [
            summary.strategy,
            f"{summary.cost:.2f}",
            share_text(summary.cost_share),
            share_text(summary.dear_share),
            f"{summary.condensations:,}",
            f"{summary.own:,}",
            "-" if summary.names_share is None else f"{summary.names_share:.0%}",
        ]
        for summary in summaries
    ]
    return markdown(head, rows)


# -- summaries ---------------------------------------------------------------------------------------------


class Summarizer(NamedTuple):
    """A real summarizer: a chat server, and the model that is asked."""

    url: str
    model: str


def summaries_page(path: Path, summarizer: Summarizer | None = None) -> str:
    """The table, for as many conversations of each kind."""
    conversations = [one for of in chosen(path).values() for one in of]
    figures = asyncio.run(carried(conversations, SUMMARIZING, summarizer))
    rows = [
        [f"`{name}`", *(f"{each.percent:.0f}% of {each.asked:,}" if each.asked else "-" for each in of.values())]
        for name, of in figures.items()
    ]
    asked = f"by `{summarizer.model}`" if summarizer else "by the script, which copies"
    table = markdown(" | ".join(["strategy", *PARTS]), rows)
    return f"Summaries {asked}; {len(conversations)} conversations:\n\n{table}"


async def carried(
    conversations: Sequence[Conversation],
    names: Sequence[str] = SUMMARIZING,
    summarizer: Summarizer | None = None,
    window: int = WINDOW,
) -> dict[str, dict[str, Figure]]:
    """For each strategy, and each part of what was said, how much of it the records hold."""
    own = {"summarizer": {"base_url": summarizer.url, "model": summarizer.model}} if summarizer else {}
    settings = Settings.model_validate({"store": {"url": "memory://"}, "memory": {"default": "off"}, **own})
    models = RealModels(Tokenizers(settings.tokenizer.ranks_dir), ["summarizer"], None) if summarizer else None
    figures = {}
    async with open_replay_proxy(settings, models) as proxy:
        player = Player(proxy, "gpt-4o", window)
        for name in names:
            found = [await _held(player, one, name) for one in conversations]
            figures[name] = {part: summed(of[part] for of in found) for part in PARTS}
    return figures


async def _held(player: Player, conversation: Conversation, name: str) -> dict[str, Figure]:
    playing = player.start(conversation, name, f"{conversation.id}/{name}")
    end = 0
    for end in request_ends(conversation):
        await playing.send(end)
    sent = player.forwarded(conversation, conversation.messages[:end])
    own, stands = {message.raw for message in sent}, {message.raw for message in playing.view}
    record = text_of(conversation, [message for message in playing.view if message.raw not in own])
    dialect = conversation.endpoint.dialect
    gone = (conversation.messages[at] for at, message in enumerate(sent) if message.raw not in stands)
    said = said_in(dialect.text(message) for message in gone if dialect.read(message).role is Role.USER)
    return {part: Figure(sum(each in record for each in of), len(of)) for part, of in said.items()}


def said_in(texts: Iterable[str]) -> Mapping[str, frozenset[str]]:
    """The different rules, next steps, names and numbers in texts of the user."""
    known = list(texts)
    rules = merge_rules((), (rule for text in known for rule in find_rules(text)))
    facts = {fact for text in known for fact in find_facts(text)}
    return {
        "rules": frozenset(rule for rule in rules if not is_weak(rule)),
        "next steps": frozenset(rule for rule in rules if is_weak(rule)),
        "names": frozenset(fact for fact in facts if not fact[0].isdigit()),
        "numbers": frozenset(fact for fact in facts if fact[0].isdigit()),
    }
