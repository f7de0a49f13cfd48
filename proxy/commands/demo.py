"""Show what the proxy does with a long conversation; needs no key and no model.

One recorded conversation is replayed three ways at once: as the client sends it, with its oldest rounds dropped, and
with the strategy of your choice. It has planted turns, a recorded session, and questions at the end. Every request is
sent in each way before the next one; a question is asked after the whole history, alone, so that no answer helps with
the next one. A table is printed as it goes, then what became of the facts.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import textwrap
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib.resources import files

from proxy.cli import FAILED, OK
from proxy.commands.options import positive, strategy, window
from proxy.reasons import Action
from proxy.replaying.measures import ReplayedConversation, ReplayedRequest, summarize
from proxy.replaying.play import Player, Playing, open_replay_proxy, request_ends
from proxy.replaying.recorded import Conversation, Message, Question, in_protocol
from proxy.replaying.report import grid
from proxy.settings import Settings
from proxy.settings.tables import StoreSettings
from strategies import DEFAULT
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
    command.add_argument("--requests", metavar="N", type=positive, help="replay the first N requests only")


def run(arguments: argparse.Namespace) -> int:
    """Runs the demo; returns 1 if a check in it fails."""
    conversation = first(load(arguments.protocol), arguments.requests)
    went_well = asyncio.run(demo(conversation, arguments.strategy, arguments.window, partial(print, flush=True)))
    return OK if went_well else FAILED


Say = Callable[[str], None]
PLANTED_TURNS = 3
WIDTH = 100
_ROWS = 12
_NEWS = (Action.CONDENSED, Action.WOULD_CONDENSE, Action.DEGRADED)
_ABSENT = "-"
_DIRECT = "direct"
_WHAT = {
    _DIRECT: "no proxy: the model server gets what the client sends",
    "trimmed": "the proxy, --strategy recent (the oldest rounds go)",
}
_SHOWN = """\
What this shows: whether each prompt fitted the window, and whether early facts are still in the bytes that the model \
would get. No model was asked; milliseconds are the proxy's own work, and a summary that was prepared is always ready \
in time.
What it cannot show: how good answers are. The scripted summarizer copies what the user said, as far as there is room; \
a model writes what it thinks matters.
To see for yourself: condenser serve --upstream URL, then OpenAI(base_url="http://127.0.0.1:8484/v1")"""


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
    def window(self) -> int:
        return self._player.budget().window

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

    def _judged(self, request: ReplayedRequest) -> ReplayedRequest:
        return replace(request, message_tokens=None) if request.forwarded_tokens > self.window else request


async def demo(conversation: Conversation, strategy: str, window: int, say: Say) -> bool:
    """Replays a conversation, and passes the output to `say`; returns whether all went well."""
    # These settings are not loaded: environment and files do not count, so that the demo always shows the defaults.
    settings = Settings.model_construct(store=StoreSettings(url="memory://", timeout=600.0))
    async with open_replay_proxy(settings) as proxy:
        player = Player(proxy, "", window)
        ways = [
            _Way(player, conversation, "off", _DIRECT),
            # Where the oldest messages are only dropped, nothing brings them back.
            _Way(player, conversation, "recent", "trimmed", "off"),
            _Way(player, conversation, strategy, "condensed"),
        ]
        say(_opening(conversation, player.size(conversation), ways))
        await _replay(conversation, ways, say)
        reached = [[await way.put(question) for way in ways] for question in conversation.questions]
    say(_reach(conversation, ways, reached))
    say(_totals(conversation, ways, reached))
    refused = {way.name: sum(one.refused for one in way.requests) for way in ways[1:]}
    problems = [f"  {name}: {number} requests were refused" for name, number in refused.items() if number]
    say("\n".join(["", "Not all went as it must:", *problems]) if problems else "\n" + _wrapped(*_SHOWN.splitlines()))
    return not problems


async def _replay(conversation: Conversation, ways: Sequence[_Way], say: Say) -> None:
    """Sends all requests; a row for every so many, each condensation, each degraded request, and the first refusals."""
    ends, sending = list(request_ends(conversation)), ways
    for number, end in enumerate(ends, 1):
        fresh = {way.name: await way.send(end) for way in sending}
        turn, direct = turn_of(conversation, end), fresh.get(_DIRECT)
        if number in (1, len(ends)) or number % _every(ends) == 0 or any(way.has_news for way in sending):
            word = _ABSENT if direct is None else "400" if direct.refused else "ok"
            cells = f"{turn:>4} {number:>7} {fresh['condensed'].sent_tokens:>7,} {word:>7}"
            say(" | ".join([cells, _cell(fresh["trimmed"]), _cell(fresh["condensed"])]))
        if direct is not None and direct.refused:
            sending = ways[1:]
            text = (
                f"direct stops: turn {turn}, request {number} has {direct.sent_tokens:,} tokens, and the window"
                f" {ways[0].window:,}: a model server refuses it (400 context_length_exceeded)."
            )
            say(textwrap.fill(text, WIDTH, initial_indent="  >> ", subsequent_indent="     "))


def _every(ends: Sequence[int]) -> int:
    return max(1, len(ends) // _ROWS)


def _wrapped(*paragraphs: str) -> str:
    return "\n".join(textwrap.fill(text, WIDTH) for text in paragraphs)


def _opening(conversation: Conversation, size: int, ways: Sequence[_Way]) -> str:
    """The text before the table: what will be run, and how to read the table."""
    ends, read = list(request_ends(conversation)), conversation.endpoint.dialect.read
    calls = sum(len(read(message).answers) for message in conversation.messages)
    cell = f"{'forwarded':>9} {'headroom':>8} {'action':<9} {'+ms':>4}"
    titles = [f"{way.name}: {way.strategy}"[:33] for way in ways[1:]]
    lines = [
        _wrapped(
            f"A recorded coding session ({turn_of(conversation, ends[-1])} turns, {len(ends)} requests, {calls} tool"
            f" results, {size:,} tokens in the end), replayed for a model server with a window of {ways[0].window:,}"
            " tokens, which refuses what is longer and replies what was recorded. No key, no model, nothing leaves this"
            " machine. Like any chat client it sends its whole history each time. Three ways, and the two through the"
            " proxy run its own code with a store in memory:"
        ),
        "",
        *(f"  {way.name:<10} {_WHAT.get(way.name, f'the proxy, --strategy {way.strategy}')}" for way in ways),
        "",
        _wrapped(
            f"Five facts were planted in turns 1 to 3 and are asked for at the end (source and licence of the rest:"
            f" proxy/demo/NOTICE). Shown are one request in {_every(ends)},"
            " and each one at which something was condensed. `sent` and `forwarded` are prompt tokens, `headroom` is"
            " what the window has left after the reply's reserve, `+ms` is what the proxy took to decide."
            " passed: sent on byte for byte; condensed: a new condensation; replayed: the earlier one again."
        ),
        "",
        f"{'':<29}| {titles[0]:^33} | {titles[1]:^33}".rstrip(),
        f"turn request    sent  direct | {cell} | {cell}",
        "-" * 29 + "+" + "-" * 35 + "+" + "-" * 34,
    ]
    return "\n".join(lines)


def _cell(request: ReplayedRequest) -> str:
    if request.refused:
        return f"{_ABSENT:>9} {_ABSENT:>8} {'refused':<9} {_ABSENT:>4}"
    forwarded, spent = request.forwarded_tokens, request.milliseconds
    ms = f"{spent:.0f}" if spent >= 9.95 else f"{spent:.1f}"
    return f"{forwarded:>9,} {request.usable_tokens - forwarded:>8,} {request.action[:9]:<9} {ms:>4}"


def _reach(conversation: Conversation, ways: Sequence[_Way], reached: Sequence[Sequence[bool | None]]) -> str:
    """The table of questions: whether the evidence of each was in the bytes that the model would get."""
    words = {True: "yes", False: "no", None: "refused"}
    rows = []
    for question, found in zip(conversation.questions, reached, strict=True):
        turn = turn_of(conversation, question.places[0] + 1)
        source = f"turn {turn}" if is_planted(question) else "a tool"
        rows.append([source, question.text, *question.evidence, *(words[one] for one in found)])
    head = ["told in", "asked at the end", "evidence: in the bytes?", *(way.name for way in ways)]
    return "\n".join(["", *grid(head, rows, texts=3)])


def _totals(conversation: Conversation, ways: Sequence[_Way], reached: Sequence[Sequence[bool | None]]) -> str:
    planted = [found for question, found in zip(conversation.questions, reached, strict=True) if is_planted(question)]
    columns = [_column(way, of) for way, of in zip(ways, zip(*planted, strict=True), strict=True)]
    rows = [[label, *(column[label] for column in columns)] for label in columns[0]]
    return "\n".join(["", *grid(["The run in figures", *(way.name for way in ways)], rows)])


def _column(way: _Way, planted: Sequence[bool | None]) -> dict[str, str]:
    """The figures of a way, by their label; `planted` says which of the planted facts reached the model."""
    figures = summarize(way.strategy, [ReplayedConversation(way.requests)])
    answered = figures.requests - figures.refused
    avoided = sum(not request.refused and request.sent_tokens > way.window for request in way.requests)
    ours = (f"{figures.own_calls} ({figures.own:,})", f"{figures.median_ms:.1f} / {figures.max_ms:.0f}")
    calls, spent = (_ABSENT, _ABSENT) if way.name == _DIRECT else ours
    return {
        "requests answered": f"{answered} of {figures.requests}",
        f"overflows avoided (client sent over {way.window:,})": str(avoided),
        "largest prompt forwarded, tokens": f"{figures.largest:,}",
        "all prompts forwarded, tokens": f"{figures.forwarded:,}",
        "  share that an upstream prefix cache hits": f"{figures.cached_share or 0:.0%}",
        "  tokens to read anew, per request": f"{figures.read_anew / max(answered, 1):,.0f}",
        "our own calls to a model (their tokens)": calls,
        "ms to decide: median / worst": spent,
        "planted facts that reach the model": f"{planted.count(True)} of {len(planted)}",
    }
