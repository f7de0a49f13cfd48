"""Runs the demo: sends every request on all three ways, prints a table as it goes, then questions and totals."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from proxy.demo import report
from proxy.demo.conversation import Conversation, Step
from proxy.demo.measures import same_reply
from proxy.demo.prompts import PromptCounter
from proxy.demo.table import Cell, live_row
from proxy.demo.ways import AskedQuestion, Exchange, Options, Way, three_ways
from proxy.tokens.counter import Tokenizers

Say = Callable[[str], None]
_ROWS = 12
_NEWS = ("condensed", "would-condense", "degraded")


class DemoFailed(Exception):
    """The demo cannot go on, because the model server refused a request for another reason than its length."""


def demo(options: Options, conversation: Conversation, say: Say) -> bool:
    """Runs the demo, and passes its output to `say`, one or more lines at a time; returns whether all went well."""
    conversation = conversation.first(options.requests)
    counter = PromptCounter(Tokenizers().for_model(options.model))
    with three_ways(options, conversation, counter) as ways:
        try:
            return _run(options, conversation, ways, say)
        except DemoFailed as error:
            say(f"\nThe demo stopped: {error}")
            return False


def _run(options: Options, conversation: Conversation, ways: Sequence[Way], say: Say) -> bool:
    steps = list(conversation.steps())
    every = max(1, len(steps) // _ROWS)
    say(report.opening(options, conversation, ways, every))
    for step in steps:
        fresh = [_step(way, step, conversation) for way in ways]
        if any(map(_is_news, ways, fresh)) or step.number % every == 0 or step.number in (1, len(steps)):
            say(_row(step, fresh))
        if fresh[0] is not None and fresh[0].refused:
            say(report.first_overflow(step, fresh[0]))
    questions = _questions(conversation, ways, len(steps))
    say(report.reach(options, questions, ways))
    say(report.totals(options, ways, questions))
    problems = list(report.problems(ways, _count_altered(options, steps, ways), options.window))
    say(report.closing(options, problems))
    return not problems


def _step(way: Way, step: Step, conversation: Conversation) -> Exchange | None:
    """Sends one request on one way; None if the direct way has stopped at its first overflow."""
    if way.recorder is None and way.exchanges and way.exchanges[-1].refused:
        return None
    exchange = way.send(step.number, step.messages, conversation.tools)
    if exchange.refused and not exchange.reply.overflow:
        raise DemoFailed(f"{way.name}, request {step.number}: {exchange.reply.problem}")
    return exchange


def _is_news(way: Way, fresh: Exchange | None) -> bool:
    """Whether this request must be shown: a condensation, a degraded request, or the first refusal."""
    if fresh is None:
        return False
    first_refusal = fresh.refused and (len(way.exchanges) == 1 or not way.exchanges[-2].refused)
    return first_refusal or fresh.action in _NEWS


def _row(step: Step, fresh: Sequence[Exchange | None]) -> str:
    direct, *proxied = fresh
    word = "-" if direct is None else "400" if direct.refused else "ok"
    sent = next(exchange.sent for exchange in proxied if exchange)
    return live_row(step.turn, step.number, sent, word, [_cell(exchange) for exchange in proxied])


def _cell(exchange: Exchange | None) -> Cell:
    if exchange is None or exchange.refused:
        return Cell(action="refused")
    return Cell(exchange.forwarded, exchange.headroom, exchange.action, exchange.ms)


def _questions(conversation: Conversation, ways: Sequence[Way], last: int) -> list[AskedQuestion]:
    """Asks each question behind the same history, so that no answer helps with the next question."""
    return [
        AskedQuestion(question, [way.ask(last + i, conversation.asking(question), conversation.tools) for way in ways])
        for i, question in enumerate(conversation.questions, 1)
    ]


def _count_altered(options: Options, steps: Sequence[Step], ways: Sequence[Way]) -> int:
    """How many replies differ from the recording; 0 with a real model, whose replies are its own."""
    if options.upstream:
        return 0
    recorded = {step.number: step.reply for step in steps}
    replies = [
        (recorded[exchange.number], exchange.reply)
        for way in ways
        for exchange in way.exchanges
        if not exchange.refused
    ]
    return sum(not same_reply(wanted, reply.message) for wanted, reply in replies)
