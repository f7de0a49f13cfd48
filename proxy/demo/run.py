"""The run: every request on all three ways at once, a table as it goes, questions and totals at its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from proxy.demo import report
from proxy.demo.conversation import Conversation, Step
from proxy.demo.measures import same_reply
from proxy.demo.prompts import PromptCounter
from proxy.demo.table import Cell, live_row
from proxy.demo.ways import Asked, Done, Options, Way, three_ways
from proxy.tokens.counter import Tokenizers

Say = Callable[[str], None]
_ROWS = 12
_NEWS = ("condensed", "would-condense", "degraded")


class Failed(Exception):
    """The run cannot go on: the model server refused for another reason than length."""


def demo(options: Options, conversation: Conversation, say: Say) -> bool:
    """Runs it all and tells `say`, a line or more at a time; whether all went as it must."""
    conversation = conversation.first(options.requests)
    counter = PromptCounter(Tokenizers().for_model(options.model))
    with three_ways(options, conversation, counter) as ways:
        try:
            return _run(options, conversation, ways, say)
        except Failed as error:
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
    asked = _questions(conversation, ways, len(steps))
    say(report.reach(options, asked, ways))
    say(report.totals(options, ways, asked))
    problems = list(report.problems(ways, _altered(options, steps, ways), options.window))
    say(report.closing(options, problems))
    return not problems


def _step(way: Way, step: Step, conversation: Conversation) -> Done | None:
    """One request on one way; None where the direct way has stopped at its first overflow."""
    if way.recorder is None and way.done and way.done[-1].refused:
        return None
    done = way.go(step.number, step.messages, conversation.tools)
    if done.refused and not done.reply.overflow:
        raise Failed(f"{way.name}, request {step.number}: {done.reply.problem}")
    return done


def _is_news(way: Way, fresh: Done | None) -> bool:
    """Whether something happened at this request: a condensation, something degraded, the first refusal."""
    if fresh is None:
        return False
    first_refusal = fresh.refused and (len(way.done) == 1 or not way.done[-2].refused)
    return first_refusal or fresh.action in _NEWS


def _row(step: Step, fresh: Sequence[Done | None]) -> str:
    direct, *proxied = fresh
    word = "-" if direct is None else "400" if direct.refused else "ok"
    sent = next(done.sent for done in proxied if done)
    return live_row(step.turn, step.number, sent, word, [_cell(done) for done in proxied])


def _cell(done: Done | None) -> Cell:
    if done is None or done.refused:
        return Cell(action="refused")
    return Cell(done.forwarded, done.headroom, done.action, done.ms)


def _questions(conversation: Conversation, ways: Sequence[Way], last: int) -> list[Asked]:
    """Each question behind the same history, so that no answer helps with the next one."""
    return [
        Asked(question, [way.ask(last + i, conversation.asking(question), conversation.tools) for way in ways])
        for i, question in enumerate(conversation.questions, 1)
    ]


def _altered(options: Options, steps: Sequence[Step], ways: Sequence[Way]) -> int:
    """How many replies did not come as they were recorded; a real model's are its own."""
    if options.upstream:
        return 0
    recorded = {step.number: step.reply for step in steps}
    replies = [(recorded[done.number], done.reply) for way in ways for done in way.done if not done.refused]
    return sum(not same_reply(wanted, reply.message) for wanted, reply in replies)
