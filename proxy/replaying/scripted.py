"""A summarizer and judges without a model, for the demo and `condenser replay`.

The summarizer only copies: first the user's words in order, then as many of the newest tool calls as there is room
for. So it shows how much a summary has room for, not how well a model would write it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import takewhile

from strategies.core.effects import Answer, Ask, Ballot, Polls, Vote, Votes
from strategies.core.excerpt import cut_text
from strategies.core.messages import TokenCounter
from strategies.core.summary import CARD_TOKENS
from strategies.memory.terms import distinct

_MESSAGE = re.compile(r'<message index="\d+" role="(\w+)">\n(.*?)\n</message>', re.DOTALL)
_EARLIER = re.compile(r"<earlier_record>\n(.*?)\n</earlier_record>", re.DOTALL)
_SAID = "The user said: "
_DID = "The assistant "
_LINE = 240
_CARDS = "<memory>"
_REPEATED = 3
"""So many times the same call, one after the other, is no progress."""


def scripted_answer(ask: Ask, counter: TokenCounter) -> Answer:
    """The summarizer's answer in at most nine tenths of the record's length, in a `<summary>` tag if one is wanted."""
    cap = int((ask.max_tokens - _card_tokens(ask)) * 0.9)
    text = _within(scripted_lines(ask.user), cap, counter)
    prompt = counter.text(ask.system) + counter.text(ask.user)
    answer = f"<summary>{text}</summary>" if "<summary>" in ask.system else text
    return Answer(answer, "stop", prompt + counter.text(answer))


def _card_tokens(ask: Ask) -> int:
    """The tokens of the answer that are kept for memory cards, if these are wanted. This summarizer writes none."""
    return min(CARD_TOKENS, ask.max_tokens // 2) if _CARDS in ask.system or _CARDS in ask.user else 0


def scripted_votes(ballot: Ballot, counter: TokenCounter) -> Votes:
    """The votes of judges without a model: unanimous by `stage_is_done`, as many as decide the outcome."""
    yes, reasoning = stage_is_done(ballot.user)
    polls = Polls(ballot.k, ballot.max_attempts)
    polls.start_calls()
    while not polls.is_decided:
        polls.add_vote(Vote(yes, reasoning))
    prompt = counter.text(ballot.system) + counter.text(ballot.user)
    tokens = len(polls.votes) * counter.text(reasoning) + prompt * (1 if ballot.at_once else len(polls.votes))
    return Votes(tuple(polls.votes), len(polls.votes), tokens)


def stage_is_done(prompt: str) -> tuple[bool, str]:
    """What a judge would vote on the history in a prompt, by the grounds that judges are told, and why.

    YES where the assistant repeats itself, and where its work has ended with an answer and the user goes on to
    something else: most words of the newest message were not in the turn before. Else NO.
    """
    messages = _MESSAGE.findall(prompt)
    calls = [_calls(body) for role, body in messages if role == "assistant"]
    if len(calls) >= _REPEATED and calls[-1] and all(each == calls[-1] for each in calls[-_REPEATED:]):
        return True, "The assistant repeats the same call without progress."
    starts = [i for i, (role, _) in enumerate(messages) if role == "user"]
    if len(starts) < 2 or starts[-1] != len(messages) - 1 or not calls or calls[-1]:
        return False, "The assistant is in the middle of its work."
    asked = distinct(messages[-1][1])
    before = distinct("\n".join(body for _, body in messages[starts[-2] : -1]))
    if len(asked) < 2 or 2 * len(asked & before) >= len(asked):
        return False, "The user goes on about what was done last."
    return True, "The last sub-task is complete, and the user goes on to another."


def _calls(body: str) -> list[str]:
    return [line for line in body.splitlines() if line.startswith("calls ")]


def scripted_lines(prompt: str) -> list[str]:
    """The lines of a record, of any length, of the history in a prompt; those of an earlier record come first."""
    match = _EARLIER.search(prompt)
    earlier = [line for line in match.group(1).splitlines() if line] if match else []
    lines = [*earlier, *_new_lines(prompt)]
    said = [line for line in lines if not line.startswith(_DID)]
    return [*said, *(line for line in lines if line.startswith(_DID))] or ["Nothing was said or done."]


def _new_lines(prompt: str) -> Iterator[str]:
    for role, body in _MESSAGE.findall(prompt):
        if role == "user" and body.strip():
            yield _SAID + " ".join(body.split())[:_LINE]
        if role == "assistant":
            yield from (_DID + line[:_LINE] for line in body.splitlines() if line.startswith("calls "))


def _within(lines: Sequence[str], cap: int, counter: TokenCounter) -> str:
    """The user's first lines that fit, then the newest calls that fit after them, in order."""
    said = [line for line in lines if not line.startswith(_DID)]
    kept, left = _fitting(said, cap, counter)
    calls, _ = _fitting([line for line in reversed(lines) if line.startswith(_DID)], left, counter)
    text = "\n".join([*kept, *reversed(calls)])
    return text or cut_text("\n".join(lines), max(cap, 1), counter)


def _fitting(lines: Sequence[str], room: int, counter: TokenCounter) -> tuple[list[str], int]:
    """The longest run of lines from the first one on that fits into `room` tokens, and the tokens left of `room`."""
    sizes = [counter.text(line) + 1 for line in lines]
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    fitting = list(takewhile(lambda end: end <= room, ends))
    return list(lines[: len(fitting)]), room - (fitting[-1] if fitting else 0)
