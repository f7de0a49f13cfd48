"""The texts of the demo: before the table, between its rows, and at the end."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from statistics import median

from proxy.demo.conversation import Conversation, Step
from proxy.demo.measures import CacheUse, cache_use
from proxy.demo.table import ABSENT, WIDTH, grid, live_head
from proxy.demo.ways import AskedQuestion, Exchange, Options, Way

_SHOWN = """\
What this shows: reach. Whatever the client sent, the prompt fitted the window, and what was told early is in the \
bytes that the model got, or is not. Milliseconds are with five servers and the client in one process.
What it cannot show: how good answers are. The scripted summarizer copies what the user said, as far as there is room; \
a model writes what it thinks matters. See for yourself: condenser demo --upstream URL --model NAME"""
_SHOWN_FOR_REAL = """\
What this shows: one model, one conversation. The history is as recorded, whatever this model replied, so that the \
three ways stay comparable; its answers to the questions stand above.
What it cannot show: how good answers are in general, nor what the session would have become with this model's own \
replies."""
_NEXT = 'To use it: condenser serve --upstream URL, then OpenAI(base_url="http://127.0.0.1:8484/v1")'


def _wrapped(*paragraphs: str) -> str:
    return "\n".join(textwrap.fill(each, WIDTH) for each in paragraphs)


def opening(options: Options, conversation: Conversation, ways: Sequence[Way], every: int) -> str:
    """The text before the table: what will be run, and how to read the table."""
    steps = list(conversation.steps())
    last = steps[-1]
    size = ways[0].counter.prompt({"messages": conversation.messages, "tools": conversation.tools})
    calls = sum(message["role"] == "tool" for message in conversation.messages)
    lines = [
        _wrapped(
            f"A recorded coding session ({last.turn} turns, {last.number} requests, {calls} tool results,"
            f" {size:,} tokens in the end), {_server(options)} The client is the official openai package, streaming;"
            " like any chat client it sends its whole history each time. Three ways, and only base_url differs:"
        ),
        "",
        *(f"  {way.name:<10} {way.client.base_url:<30} {_what(way)}" for way in ways),
        "",
        _wrapped(
            f"Five facts were planted in turns 1 to 3 and are asked for at the end (source and licence of the rest:"
            f" proxy/demo/NOTICE). Shown are every {_th(every)} request"
            " and each one at which something was condensed. `sent` and `forwarded` are prompt tokens, `headroom` is"
            " what the window has left after the reply's reserve, `+ms` is what the proxy added before forwarding."
            " passed: sent on byte for byte; condensed: a new condensation; replayed: the earlier one again."
        ),
        *(_price(options, conversation, ways[0]) if options.upstream else ()),
        "",
        *live_head(_title(ways[1]), _title(ways[2])),
    ]
    return "\n".join(lines)


def _server(options: Options) -> str:
    if options.upstream:
        return (
            f"sent to {options.model} at {options.upstream}; the proxy is told a window of {options.window:,} tokens."
        )
    return (
        f"in front of a scripted model server with a window of {options.window:,} tokens, which replies what was"
        " recorded. No key, no model, nothing leaves this machine."
    )


def _what(way: Way) -> str:
    if way.recorder is None:
        return "the model server itself"
    return f"the proxy, --strategy {way.strategy}" + (" (the oldest rounds go)" if way.name == "trimmed" else "")


def _title(way: Way) -> str:
    return f"{way.name}: {way.strategy}"[:33]


def _th(every: int) -> str:
    return f"{every}th" if every > 3 else ("1st", "2nd", "3rd")[every - 1]


def _price(options: Options, conversation: Conversation, way: Way) -> Iterator[str]:
    """Yields a warning with the most prompt tokens that conversation and questions may send to a paid model."""
    requests = [step.messages for step in conversation.steps()] + [
        conversation.asking(q) for q in conversation.questions
    ]
    whole = [way.counter.prompt({"messages": messages, "tools": conversation.tools}) for messages in requests]
    most = sum(whole) + 2 * sum(min(each, options.window) for each in whole)
    yield ""
    yield _wrapped(
        f"This sends up to about {most:,} prompt tokens to the upstream, as our tokenizer counts them; calls for"
        " summaries and all replies come on top. --requests N sends fewer."
    )


def first_overflow(step: Step, exchange: Exchange) -> str:
    """The line for the error that ends the direct way."""
    text = f"direct stops: turn {step.turn}, request {step.number}, the model server says {exchange.reply.problem}"
    return textwrap.fill(text, WIDTH, initial_indent="  >> ", subsequent_indent="     ")


def reach(options: Options, questions: Sequence[AskedQuestion], ways: Sequence[Way]) -> str:
    """The table of questions: whether the evidence of each was in the bytes that the model got."""
    rows = [[*each.question[:3], *(_yes(each.evidence_reached(i)) for i in range(len(ways)))] for each in questions]
    head = ["told in", "asked at the end", "evidence: in the bytes?", *(way.name for way in ways)]
    lines = ["", *grid(head, rows, texts=3)]
    if options.upstream:
        lines += ["", *_answers(questions, ways)]
    return "\n".join(lines)


def _yes(reached: bool | None) -> str:
    return "refused" if reached is None else "yes" if reached else "no"


def _answers(questions: Sequence[AskedQuestion], ways: Sequence[Way]) -> Iterator[str]:
    for each in questions:
        yield f"{each.question.text}  (evidence: {each.question.evidence})"
        for way, exchange in zip(ways, each.exchanges, strict=True):
            answer = exchange.reply.problem or str(exchange.reply.message.get("content") or "(calls a tool)")
            yield "  " + textwrap.shorten(f"{way.name}: {answer}", WIDTH - 2)


def totals(options: Options, ways: Sequence[Way], questions: Sequence[AskedQuestion]) -> str:
    """The table of figures of the whole run, with a column for each way."""
    head = ["The run in figures", *(way.name for way in ways)]
    columns = [_column(way, options.window, _planted(questions, i)) for i, way in enumerate(ways)]
    rows = [[label, *(column[label] for column in columns)] for label in columns[0]]
    return "\n".join(["", *grid(head, rows)])


def _column(way: Way, window: int, planted: str) -> dict[str, str]:
    answered, forwarded, cache = _answered(way), _forwarded(way), _cached(way)
    return {
        "requests answered": f"{answered} of {len(way.exchanges)}",
        f"overflows avoided (client sent over {window:,})": str(avoided(way, window)),
        "largest prompt forwarded, tokens": f"{max(forwarded, default=0):,}",
        "all prompts forwarded, tokens": f"{sum(forwarded):,}",
        "  share that an upstream prefix cache hits": f"{cache.share:.0%}",
        "  tokens to read anew, per request": f"{cache.missed / max(answered, 1):,.0f}",
        "our own calls to a model (their tokens)": _own(way),
        "ms added: median / worst": _added(way),
        "planted facts that reach the model": planted,
    }


def _answered(way: Way) -> int:
    return sum(not exchange.refused for exchange in way.exchanges)


def avoided(way: Way, window: int) -> int:
    """How many requests were answered although the client sent more than the window."""
    return sum(not exchange.refused and exchange.sent > window for exchange in way.exchanges)


def _forwarded(way: Way) -> list[int]:
    return [exchange.forwarded for exchange in way.exchanges if not exchange.refused]


def _cached(way: Way) -> CacheUse:
    return cache_use([exchange.view for exchange in way.exchanges if not exchange.refused], way.counter.messages)


def _own(way: Way) -> str:
    recorder = way.recorder
    return ABSENT if recorder is None else f"{recorder.own_calls} ({recorder.own_tokens:,})"


def _added(way: Way) -> str:
    times = [exchange.ms for exchange in way.exchanges if exchange.ms is not None]
    return f"{median(times):.1f} / {max(times):.0f}" if times else ABSENT


def _planted(questions: Sequence[AskedQuestion], i: int) -> str:
    planted = [each for each in questions if each.question.planted]
    return f"{sum(each.evidence_reached(i) is True for each in planted)} of {len(planted)}"


def problems(ways: Sequence[Way], altered: int, window: int) -> Iterator[str]:
    """Yields what went wrong, one line each."""
    for way in ways:
        refused = [exchange for exchange in way.exchanges if exchange.refused]
        if refused and way.recorder is not None:
            first = refused[0]
            yield f"{way.name}: {len(refused)} requests were refused, first {first.number}: {first.reply.problem}"
        too_large = sum(size > window for size in _forwarded(way))
        if too_large and way.recorder is not None:
            yield f"{way.name}: {too_large} prompts were larger than the window"
    if altered:
        yield f"{altered} replies did not come as they were recorded"


def closing(options: Options, problems: Sequence[str]) -> str:
    """The last text: what the demo shows and what it cannot show, or what went wrong."""
    if problems:
        return "\n".join(["", "Not all went as it must:", *(_wrapped(f"  {each}") for each in problems)])
    shown = _SHOWN_FOR_REAL if options.upstream else _SHOWN
    return "\n" + _wrapped(*shown.splitlines(), _NEXT)
