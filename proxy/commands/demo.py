"""Show what the proxy does with a long conversation; needs no key and no model.

One recorded conversation is played three times: as the client sends it, with its oldest messages dropped, and with the
strategy of your choice. It has planted turns, a recorded session, and questions at the end. A question is asked after
the whole history, alone, so that no answer helps with the next one. The output begins with what came of it.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import sys
import textwrap
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from proxy.cli import FAILED, OK
from proxy.commands.options import positive, strategy, window
from proxy.commands.progress import Progress
from proxy.commands.replaying.measures import ReplayedConversation, ReplayedRequest, summarize
from proxy.commands.replaying.play import Player, Playing, open_replay_proxy, request_ends
from proxy.commands.replaying.recorded import Conversation, Message, Question, in_protocol
from proxy.commands.replaying.report import grid, html_page
from proxy.conversations.totals import figures
from proxy.operator.plots import Line, html_table, line_plot
from proxy.reasons import Action
from proxy.settings import Settings
from proxy.settings.tables import StoreSettings
from strategies import DEFAULT
from strategies.core.budget import Budget
from strategies.core.messages import Role
from strategies.dialects.chat import CHAT

WINDOW = 8_192
PROTOCOLS = ("chat", "messages", "responses")


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--strategy", metavar="NAME", type=strategy, default=DEFAULT, help=f"the third way ({DEFAULT})"
    )
    command.add_argument("--window", metavar="TOKENS", type=window, default=WINDOW, help=f"the window ({WINDOW:,})")
    command.add_argument("--protocol", choices=PROTOCOLS, default=PROTOCOLS[0], help=f"the API ({PROTOCOLS[0]})")
    command.add_argument("--requests", metavar="N", type=positive, help="play the first N requests only")
    printed = command.add_mutually_exclusive_group()
    printed.add_argument("--verbose", action="store_true", help="list requests, and what became of each fact")
    printed.add_argument("--json", action="store_true", help="print JSON")
    command.add_argument("--html", metavar="FILE", type=Path, help="write a page with a plot of the requests")


def run(arguments: argparse.Namespace) -> int:
    """Runs the demo; returns 1 if a check in it fails."""
    conversation = first(load(arguments.protocol), arguments.requests)
    run = asyncio.run(played(conversation, arguments.strategy, arguments.window))
    print(json.dumps(run.document(), indent=1) if arguments.json else run.text(verbose=arguments.verbose))
    if arguments.html:
        arguments.html.write_text(run.page(), "utf-8")
    for name, number in run.refused.items():
        print(f"condenser: the demo failed: {name}: {number:,} requests were refused", file=sys.stderr)
    return FAILED if run.refused else OK


PLANTED_TURNS = 3
WIDTH = 100
_ROWS = 12
_NEWS = (Action.CONDENSED, Action.WOULD_CONDENSE, Action.DEGRADED)
_ABSENT = "-"
_DIRECT, _TRIMMED, _CONDENSED = "direct", "trimmed", "condensed"
_WORDS = {True: "yes", False: "no", None: "refused"}
_SHOWN = """\
No model was asked: this shows whether prompts fit, and whether early facts are still in them word for word. It cannot \
show how good answers are. The scripted summarizer copies what the user said; a model writes what it thinks matters.
More: --verbose lists the requests, --html FILE draws them. Your own history: condenser replay \
~/.claude/projects/*/*.jsonl. With your agent: condenser wrap -- claude."""


def load(protocol: str = CHAT.name) -> Conversation:
    """Loads the conversation that comes with the program, in a protocol."""
    here = files("proxy").joinpath("demo")
    planted = tomllib.loads(here.joinpath("planted.toml").read_text("utf-8"))
    recorded = json.loads(gzip.decompress(here.joinpath("conversation.json.gz").read_bytes()))
    messages: list[Message] = [{"role": "system", "content": planted["system"]}]
    for turn in planted["turns"]:
        messages += ({"role": role, "content": turn[role]} for role in ("user", "assistant"))
    messages += recorded["messages"]
    conversation = in_protocol(Conversation("demo", messages, recorded["tools"]), protocol)
    texts = list(map(conversation.endpoint.dialect.text, conversation.messages))
    questions = []
    for asked in planted["questions"]:
        place = next(i for i, text in enumerate(texts) if asked["evidence"] in text)
        questions.append(Question(asked["text"], [asked["evidence"]], [place]))
    return replace(conversation, questions=questions)


def first(conversation: Conversation, requests: int | None) -> Conversation:
    """The conversation up to the reply to the last of `requests` requests; all of it for None."""
    ends = list(request_ends(conversation))
    if requests is None or requests >= len(ends):
        return conversation
    return replace(conversation, messages=conversation.messages[: ends[requests - 1] + 1])


def turn_of(conversation: Conversation, end: int) -> int:
    """The turn to which the last of the first `end` messages belongs."""
    read = conversation.endpoint.dialect.read
    return sum(read(message).role is Role.USER for message in conversation.messages[:end])


def is_planted(question: Question) -> bool:
    """Whether the answer is in a planted turn, rather than in a tool's output in the recording."""
    return question.places[0] <= 2 * PLANTED_TURNS


class _Way(Playing):
    """The conversation under one strategy; a model server refuses what is longer than the window."""

    @property
    def budget(self) -> Budget:
        return self._player.budget()

    @property
    def window(self) -> int:
        return self.budget.window

    @property
    def has_news(self) -> bool:
        """Whether something was condensed or degraded in the newest request, or it was refused for the first time."""
        before, now = [None, *self.requests][-2:]
        return now is not None and (now.action in _NEWS or (now.refused and not (before and before.refused)))

    async def send(self, end: int) -> ReplayedRequest:
        self.requests[-1] = self._judged(await super().send(end))
        return self.requests[-1]

    async def put(self, question: Question) -> bool | None:
        """Asks a question; returns whether its evidence was forwarded, None if the request was refused."""
        request, reached = await self.ask(question)
        return None if self._judged(request).refused else reached

    def prompts(self) -> list[int]:
        """Tokens of each request's prompt; of one that is refused, as it was sent."""
        return [one.sent_tokens if one.refused else one.forwarded_tokens for one in self.requests]

    def _judged(self, request: ReplayedRequest) -> ReplayedRequest:
        return replace(request, message_tokens=None) if request.forwarded_tokens > self.window else request


async def played(conversation: Conversation, strategy: str, window: int) -> Run:
    """Plays a conversation in each way, and asks its questions."""
    # These settings are not loaded: environment and files do not count, so that the demo always shows the defaults.
    settings = Settings.model_construct(store=StoreSettings(url="memory://", timeout=600.0))
    async with open_replay_proxy(settings) as proxy:
        player = Player(proxy, "", window)
        ways = [
            _Way(player, conversation, "off", _DIRECT),
            # Where the oldest messages are only dropped, nothing brings them back.
            _Way(player, conversation, "recent", _TRIMMED, "off"),
            _Way(player, conversation, strategy, _CONDENSED),
        ]
        opening = _opening(conversation, player.size(conversation), ways)
        rows = await _sent(conversation, ways)
        reached = [[await way.put(question) for way in ways] for question in conversation.questions]
    return Run(conversation, ways, reached, opening, rows)


async def _sent(conversation: Conversation, ways: Sequence[_Way]) -> list[str]:
    """Sends all requests; a row for every so many, each condensation, each degraded request, and the first refusals."""
    ends, sending, rows = list(request_ends(conversation)), ways, []
    progress = Progress(len(ends))
    for number, end in enumerate(ends, 1):
        fresh = {way.name: await way.send(end) for way in sending}
        progress.step("requests")
        turn, direct = turn_of(conversation, end), fresh.get(_DIRECT)
        if number in (1, len(ends)) or number % _every(ends) == 0 or any(way.has_news for way in sending):
            word = _ABSENT if direct is None else "400" if direct.refused else "ok"
            cells = f"{turn:>4} {number:>7} {fresh[_CONDENSED].sent_tokens:>7,} {word:>7}"
            rows.append(" | ".join([cells, _cell(fresh[_TRIMMED]), _cell(fresh[_CONDENSED])]))
        if direct is not None and direct.refused:
            sending = ways[1:]
            text = (
                f"direct stops: turn {turn}, request {number} has {direct.sent_tokens:,} tokens, and the window"
                f" {ways[0].window:,}: a model server refuses it (400 context_length_exceeded)."
            )
            rows.append(textwrap.fill(text, WIDTH, initial_indent="  >> ", subsequent_indent="     "))
    return rows


def _every(ends: Sequence[int]) -> int:
    return max(1, len(ends) // _ROWS)


def _wrapped(*paragraphs: str) -> str:
    return "\n".join(textwrap.fill(text, WIDTH, break_on_hyphens=False) for text in paragraphs)


def _opening(conversation: Conversation, size: int, ways: Sequence[_Way]) -> list[str]:
    """The lines above the table of requests: how to read it."""
    ends, read = list(request_ends(conversation)), conversation.endpoint.dialect.read
    calls = sum(len(read(message).answers) for message in conversation.messages)
    cell = f"{'forwarded':>9} {'headroom':>8} {'action':<9} {'+ms':>4}"
    titles = [f"{way.name}: {way.strategy}"[:33] for way in ways[1:]]
    text = (
        f"The session has {turn_of(conversation, ends[-1])} turns, {len(ends)} requests, {calls} tool results and"
        f" {size:,} tokens in the end. Shown are one request in {_every(ends)}, and each one at which something was"
        " condensed. sent and forwarded: prompt tokens. headroom: what the window has left after the room that is kept"
        " for the reply. passed: sent on byte for byte. condensed: history was replaced anew. replayed: the earlier"
        " replacement was used again. +ms: what the proxy took to decide."
    )
    return [
        _wrapped(text),
        "",
        f"{'':<29}| {titles[0]:^33} | {titles[1]:^33}".rstrip(),
        f"turn request    sent  direct | {cell} | {cell}",
        "-" * 29 + "+" + "-" * 35 + "+" + "-" * 34,
    ]


def _cell(request: ReplayedRequest) -> str:
    if request.refused:
        return f"{_ABSENT:>9} {_ABSENT:>8} {'refused':<9} {_ABSENT:>4}"
    forwarded, spent = request.forwarded_tokens, request.milliseconds
    ms = f"{spent:.0f}" if spent >= 9.95 else f"{spent:.1f}"
    return f"{forwarded:>9,} {request.usable_tokens - forwarded:>8,} {request.action[:9]:<9} {ms:>4}"


def _told(run: Run) -> list[str]:
    """What was done, and what it does not show, in paragraphs."""
    direct, trimmed, condensed = run.ways
    how = (
        f"A recorded coding session is played three times, its whole history with each request: {direct.name} as any"
        f" client sends it, {trimmed.name} with the oldest messages left out (--strategy recent), and {condensed.name}"
        f" with --strategy {condensed.strategy}. The last two run the proxy's own code; nothing leaves this machine."
        " Five facts were planted in turns 1 to 3 and are asked for at the end (source and licence of the rest:"
        " proxy/demo/NOTICE)."
    )
    return [how, *_SHOWN.splitlines()]


class Run(NamedTuple):
    """A conversation that was played in each way; `reached` says of each question and way what `_Way.put` says."""

    conversation: Conversation
    ways: Sequence[_Way]
    reached: Sequence[Sequence[bool | None]]
    opening: Sequence[str]
    rows: Sequence[str]

    def text(self, *, verbose: bool = False) -> str:
        shown = [f"  {line}" for line in self.three_figures()]
        lines = [self.verdict(), *(["", *shown] if shown else []), "", *self.totals(), "", _wrapped(*_told(self))]
        return "\n".join([*lines, *(self.details() if verbose else [])])

    @property
    def refused(self) -> dict[str, int]:
        """The ways through the proxy in which requests were refused, and how many."""
        refused = {way.name: sum(request.refused for request in way.requests) for way in self.ways[1:]}
        return {name: number for name, number in refused.items() if number}

    def verdict(self) -> str:
        direct, trimmed, condensed = self.ways
        count, last = len(condensed.requests), direct.requests[-1]
        fits = sum(not request.refused for request in condensed.requests)
        told = (
            f"With Condenser ({condensed.strategy}), {fits} of {count} requests of a coding session fit the model's"
            f" window of {direct.window:,} tokens, and {self._facts(condensed)} facts of its first turns still reach"
            " the model."
        )
        if not last.refused:
            return _wrapped(f"{told} So short a session would have fitted without it.")
        dropped = sum(not request.refused for request in trimmed.requests)
        told += (
            f" Without it, request {len(direct.requests)} has {last.sent_tokens:,} tokens and is refused. With the"
            f" oldest messages left out instead, {dropped} fit too, but {self._facts(trimmed)} facts reach the model."
        )
        return _wrapped(told)

    def three_figures(self) -> list[str]:
        """What was rescued, saved and paid; nothing where all would have fitted."""
        if not self.ways[0].requests[-1].refused:
            return []
        way = self.ways[-1]
        played = ReplayedConversation(way.requests)
        of = summarize(way.strategy, [played])
        sums = {"rescued": of.rescued, "saved_tokens": of.saved_tokens, "own_calls": of.own_calls, "own_tokens": of.own}
        rows = figures(sums | {"reread_tokens": sum(played.reread())}, "")
        return [f"{name:<8} {text}" for name, text in rows]

    def _facts(self, way: _Way) -> str:
        planted = self._planted(way)
        return f"{planted.count(True)} of {len(planted)}"

    def _planted(self, way: _Way, *, planted: bool = True) -> list[bool | None]:
        place = self.ways.index(way)
        return [found[place] for question, found in self._answers() if is_planted(question) is planted]

    def _answers(self) -> Iterator[tuple[Question, Sequence[bool | None]]]:
        return zip(self.conversation.questions, self.reached, strict=True)

    def totals(self) -> list[str]:
        columns = [self._column(way) for way in self.ways]
        rows = [[label, *(column[label] for column in columns)] for label in columns[0]]
        return grid(["The session in figures", *(way.name for way in self.ways)], rows)

    def _column(self, way: _Way) -> dict[str, str]:
        """The figures of a way, by their label."""
        figures = summarize(way.strategy, [ReplayedConversation(way.requests)])
        answered, stops = figures.requests - figures.refused, len(way.requests) < len(self.ways[-1].requests)
        last = self.ways[-1].requests[-1].sent_tokens
        sent = f"{last:,} (too many)" if stops else f"{way.requests[-1].forwarded_tokens:,}"
        (tool,) = self._planted(way, planted=False)
        return {
            "requests answered": f"{answered} of {figures.requests}",
            "prompt of the last request, tokens": sent,
            "all prompts, tokens": f"{figures.forwarded:,}" + (f" (of {figures.requests})" if stops else ""),
            "  share that a prompt cache has read before": f"{figures.cached_share or 0:.0%}",
            "own calls to a model": _ABSENT if way.name == _DIRECT else f"{figures.own_calls}",
            "ms to decide, median": _ABSENT if way.name == _DIRECT else f"{figures.median_ms:.1f}",
            "facts of turns 1 to 3 that reach the model": self._facts(way),
            "a fact that only a tool told": _WORDS[tool],
        }

    def document(self) -> dict[str, Any]:
        """The figures of each way as JSON, and for each question whether its evidence is in the last prompt."""
        return {
            "verdict": self.verdict().replace("\n", " "),
            "window": self.ways[0].window,
            "ways": [
                {
                    "name": way.name,
                    **asdict(summarize(way.strategy, [ReplayedConversation(way.requests)])),
                    "prompts": way.prompts(),
                    "condensed_at": [number for number, one in enumerate(way.requests, 1) if one.condensed],
                    "early_facts": self._facts(way),
                    "facts": {asked.text: found[place] for asked, found in self._answers()},
                }
                for place, way in enumerate(self.ways)
            ],
        }

    def details(self) -> list[str]:
        """The table of requests, and that of questions: whether the evidence of each is in the last prompt."""
        rows = []
        for question, found in self._answers():
            turn = turn_of(self.conversation, question.places[0] + 1)
            source = f"turn {turn}" if is_planted(question) else "a tool"
            rows.append([source, question.text, *question.evidence, *(_WORDS[one] for one in found)])
        head = ["told in", "asked at the end", "evidence: in the prompt?", *(way.name for way in self.ways)]
        return ["", *self.opening, *self.rows, "", *grid(head, rows, texts=3)]

    def page(self) -> str:
        """A page that needs nothing else, with the prompts of each way beside the window."""
        direct = self.ways[0]
        lines = []
        for way in self.ways:
            sent = way.prompts()  # the line of a way that stops ends above the window, at the size that was refused
            gap = [None] * (len(self.ways[-1].requests) - len(sent))
            stops = f", refused at request {len(sent)}" if gap else ""
            lines.append(Line(f"{way.name}{stops}", [*map(float, sent), *gap]))
        plot = line_plot("Prompt of each request", lines, {"window": float(direct.window)}, "", unit="tokens")
        totals = [line.split("  ") for line in self.totals()[2:]]
        cells = [[cell.strip() for cell in line if cell.strip()] for line in totals]
        head = ["The session in figures", *(way.name for way in self.ways)]
        told = [f'<p class="note">{escape(line)}</p>' for line in _told(self)]
        verdict = self.verdict().replace("\n", " ")
        figures = "".join(f"<li>{escape(line)}</li>" for line in self.three_figures())
        parts = [f"<ul>{figures}</ul>" if figures else "", plot, html_table("Results", head, cells), *told]
        return html_page("Condenser demo", verdict, "", parts)
