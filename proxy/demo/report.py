"""The texts of the demo: before the table, between its rows, and at the end."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from proxy.demo.conversation import Way, is_planted, turn_of
from proxy.replaying.measures import ReplayedRequest
from proxy.replaying.play import request_ends
from proxy.replaying.recorded import Conversation, Question
from proxy.replaying.table import grid

WIDTH = 100
_ABSENT = "-"
_WHAT = {
    "direct": "no proxy: the model server gets what the client sends",
    "trimmed": "the proxy, --strategy recent (the oldest rounds go)",
}
_SHOWN = """\
What this shows: reach. Whatever the client sent, the prompt fitted the window, and what was told early is in the \
bytes that the model would get, or is not. No model was asked; milliseconds are the proxy's own work, and a summary \
that was prepared is always ready in time.
What it cannot show: how good answers are. The scripted summarizer copies what the user said, as far as there is room; \
a model writes what it thinks matters."""
_NEXT = 'To see for yourself: condenser serve --upstream URL, then OpenAI(base_url="http://127.0.0.1:8484/v1")'


def _wrapped(*paragraphs: str) -> str:
    return "\n".join(textwrap.fill(text, WIDTH) for text in paragraphs)


def opening(conversation: Conversation, window: int, size: int, ways: Sequence[Way], every: int) -> str:
    """The text before the table: what will be run, and how to read the table."""
    ends = list(request_ends(conversation))
    read = conversation.endpoint.dialect.read
    calls = sum(len(read(message).answers) for message in conversation.messages)
    lines = [
        _wrapped(
            f"A recorded coding session ({turn_of(conversation, ends[-1])} turns, {len(ends)} requests, {calls} tool"
            f" results, {size:,} tokens in the end), replayed for a model server with a window of {window:,} tokens,"
            " which refuses what is longer and replies what was recorded. No key, no model, nothing leaves this"
            " machine. Like any chat client it sends its whole history each time. Three ways, and the two through the"
            " proxy run its own code with a store in memory:"
        ),
        "",
        *(f"  {way.name:<10} {_WHAT.get(way.name, f'the proxy, --strategy {way.strategy}')}" for way in ways),
        "",
        _wrapped(
            f"Five facts were planted in turns 1 to 3 and are asked for at the end (source and licence of the rest:"
            f" proxy/demo/NOTICE). Shown are every {_th(every)} request"
            " and each one at which something was condensed. `sent` and `forwarded` are prompt tokens, `headroom` is"
            " what the window has left after the reply's reserve, `+ms` is what the proxy took to decide."
            " passed: sent on byte for byte; condensed: a new condensation; replayed: the earlier one again."
        ),
        "",
        *_live_head(*(f"{way.name}: {way.strategy}"[:33] for way in ways[1:])),
    ]
    return "\n".join(lines)


def _th(every: int) -> str:
    return f"{every}th" if every > 3 else ("1st", "2nd", "3rd")[every - 1]


def _live_head(first: str, second: str) -> list[str]:
    cell = f"{'forwarded':>9} {'headroom':>8} {'action':<9} {'+ms':>4}"
    return [
        f"{'':<29}| {first:^33} | {second:^33}".rstrip(),
        f"turn request    sent  direct | {cell} | {cell}",
        "-" * 29 + "+" + "-" * 35 + "+" + "-" * 34,
    ]


def live_row(turn: int, number: int, fresh: Sequence[ReplayedRequest | None]) -> str:
    """The row of one request: its tokens when it left the client, and what each way did with it."""
    direct, *proxied = fresh
    word = _ABSENT if direct is None else "400" if direct.refused else "ok"
    sent = next(request.sent_tokens for request in proxied if request)
    return f"{turn:>4} {number:>7} {sent:>7,} {word:>7} | " + " | ".join(map(_cell, proxied))


def _cell(request: ReplayedRequest | None) -> str:
    if request is None or request.refused:
        return f"{_ABSENT:>9} {_ABSENT:>8} {'refused':<9} {_ABSENT:>4}"
    forwarded, spent = request.forwarded_tokens, request.milliseconds
    ms = f"{spent:.0f}" if spent >= 9.95 else f"{spent:.1f}"
    return f"{forwarded:>9,} {request.usable_tokens - forwarded:>8,} {request.action[:9]:<9} {ms:>4}"


def first_refusal(turn: int, number: int, tokens: int, window: int) -> str:
    text = (
        f"direct stops: turn {turn}, request {number} has {tokens:,} tokens, and the window {window:,}: a model server"
        " refuses it (400 context_length_exceeded)."
    )
    return textwrap.fill(text, WIDTH, initial_indent="  >> ", subsequent_indent="     ")


def reach(conversation: Conversation, ways: Sequence[Way]) -> str:
    """The table of questions: whether the evidence of each was in the bytes that the model would get."""
    rows = [
        [_told_in(question, conversation), question.text, *question.evidence, *(_yes(way.reached[i]) for way in ways)]
        for i, question in enumerate(conversation.questions)
    ]
    head = ["told in", "asked at the end", "evidence: in the bytes?", *(way.name for way in ways)]
    return "\n".join(["", *grid(head, rows, texts=3)])


def _told_in(question: Question, conversation: Conversation) -> str:
    turn = turn_of(conversation, question.places[0] + 1)
    return f"turn {turn}" if is_planted(question) else "a tool"


def _yes(reached: bool | None) -> str:
    return "refused" if reached is None else "yes" if reached else "no"


def totals(conversation: Conversation, window: int, ways: Sequence[Way]) -> str:
    """The table of figures of the whole run, with a column for each way."""
    planted = [is_planted(question) for question in conversation.questions]
    columns = [_column(way, window, planted) for way in ways]
    rows = [[label, *(column[label] for column in columns)] for label in columns[0]]
    return "\n".join(["", *grid(["The run in figures", *(way.name for way in ways)], rows)])


def _column(way: Way, window: int, planted: Sequence[bool]) -> dict[str, str]:
    figures = way.summary()
    answered = figures.requests - figures.refused
    reached = sum(found is True for found, counts in zip(way.reached, planted, strict=True) if counts)
    ours = (f"{figures.own_calls} ({figures.own:,})", f"{figures.median_ms:.1f} / {figures.max_ms:.0f}")
    calls, spent = (_ABSENT, _ABSENT) if way.is_direct else ours
    return {
        "requests answered": f"{answered} of {figures.requests}",
        f"overflows avoided (client sent over {window:,})": str(way.avoided),
        "largest prompt forwarded, tokens": f"{figures.largest:,}",
        "all prompts forwarded, tokens": f"{figures.forwarded:,}",
        "  share that an upstream prefix cache hits": f"{figures.cached_share or 0:.0%}",
        "  tokens to read anew, per request": f"{figures.read_anew / max(answered, 1):,.0f}",
        "our own calls to a model (their tokens)": calls,
        "ms to decide: median / worst": spent,
        "planted facts that reach the model": f"{reached} of {sum(planted)}",
    }


def closing(problems: Sequence[str]) -> str:
    """The last text: what the demo shows and what it cannot show, or what went wrong."""
    if problems:
        return "\n".join(["", "Not all went as it must:", *(_wrapped(f"  {problem}") for problem in problems)])
    return "\n" + _wrapped(*_SHOWN.splitlines(), _NEXT)
