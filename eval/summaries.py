"""What summaries carry: of what the user said and no longer stands in the last view, how much its record still holds.

Recorded conversations are played whole by the engine of `condenser replay`, without memory. What counts are the
messages of the user that are gone from the last view, and what of them the messages that the proxy wrote have word for
word: rules, next steps (wishes and open tasks), names, and numbers. Without a real summarizer the scripted one copies
out of what goes, and its figures are an upper bound of what there is room for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from eval.measure import Figure
from eval.money import EACH, KINDS, WINDOW
from proxy.replaying.models import RealModels
from proxy.replaying.play import Player, open_replay_proxy, request_ends, text_of
from proxy.replaying.recorded import Conversation, load
from proxy.replaying.report import markdown
from proxy.settings import Settings
from proxy.tokens.counter import Tokenizers
from strategies import parse
from strategies.core.ledger import find_facts
from strategies.core.messages import Role
from strategies.core.rules import find_rules, is_weak, merge_rules

STRATEGIES = ("mask+extract", "extract", "half-window", "summary", "semantic", "rolling", "dynacontext")
PARTS = ("rules", "next steps", "names", "numbers")


class Summarizer(NamedTuple):
    """A real summarizer: a chat server, and the model that is asked."""

    url: str
    model: str


def page(path: Path, summarizer: Summarizer | None = None, each: int = EACH) -> str:
    """The table, for as many conversations of each kind."""
    known = load(path)
    chosen = [one for kind in KINDS for one in [one for one in known if kind in one.id][:each]]
    figures = asyncio.run(measured(chosen, STRATEGIES, summarizer))
    rows = [[f"`{name}`", *map(_shown, of.values())] for name, of in figures.items()]
    asked = f"by `{summarizer.model}`" if summarizer else "by the script, which copies"
    return f"Summaries {asked}; {len(chosen)} conversations:\n\n{markdown(' | '.join(['strategy', *PARTS]), rows)}"


async def measured(
    conversations: Sequence[Conversation],
    names: Sequence[str] = STRATEGIES,
    summarizer: Summarizer | None = None,
    window: int = WINDOW,
) -> dict[str, dict[str, Figure]]:
    """For each strategy, and each part of what was said, how much of it the records hold."""
    own = {"summarizer": {"base_url": summarizer.url, "model": summarizer.model}} if summarizer else {}
    settings = Settings.model_validate({"store": {"url": "memory://"}, "memory": {"default": "off"}, **own})
    models = RealModels(Tokenizers(settings.tokenizer.ranks_dir), ["summarizer"], None) if summarizer else None
    async with open_replay_proxy(settings, models) as proxy:
        player = Player(proxy, "gpt-4o", window)
        return {name: _sum([await _held(player, one, name) for one in conversations]) for name in names}


async def _held(player: Player, conversation: Conversation, name: str) -> dict[str, Figure]:
    pipeline = parse(name)
    assert pipeline is not None
    playing = player.start(conversation, pipeline, f"{conversation.id}/{name}")
    end = 0
    for end in request_ends(conversation):
        await playing.send(end)
    sent = player.forwarded(conversation, conversation.messages[:end])
    own, stands = {message.raw for message in sent}, {message.raw for message in playing.view}
    record = text_of(conversation, [message for message in playing.view if message.raw not in own])
    gone = (at for at, message in enumerate(sent) if message.raw not in stands)
    dialect = conversation.endpoint.dialect
    messages = [conversation.messages[at] for at in gone]
    said = said_in(dialect.text(message) for message in messages if dialect.read(message).role is Role.USER)
    return {part: Figure(sum(each in record for each in of), len(of)) for part, of in said.items()}


def said_in(texts: Iterable[str]) -> Mapping[str, frozenset[str]]:
    """The different rules, next steps, names and numbers in texts of the user."""
    known = list(texts)
    rules = merge_rules((), (rule for text in known for rule in find_rules(text)))
    facts = {fact for text in known for fact in find_facts(text)}
    parts = (
        {rule for rule in rules if not is_weak(rule)},
        {rule for rule in rules if is_weak(rule)},
        {fact for fact in facts if not fact[0].isdigit()},
        {fact for fact in facts if fact[0].isdigit()},
    )
    return {part: frozenset(of) for part, of in zip(PARTS, parts, strict=True)}


def _sum(found: Sequence[Mapping[str, Figure]]) -> dict[str, Figure]:
    return {part: Figure(sum(of[part].reached for of in found), sum(of[part].asked for of in found)) for part in PARTS}


def _shown(figure: Figure) -> str:
    return f"{figure.percent:.0f}% of {figure.asked:,}" if figure.asked else "-"
