"""A summarizer and judges without a model, for the demo and `condenser replay`.

The summarizer only copies: first the user's words in order, then as many of the newest tool calls as there is room
for. So it shows how much a summary has room for, not how well a model would write it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import takewhile
from math import ceil

from strategies.core.effects import Answer, Ask, Ballot, Vote, Votes
from strategies.core.excerpt import cut_text
from strategies.core.messages import TokenCounter
from strategies.core.summary import CARD_TOKENS

_MESSAGE = re.compile(r'<message index="\d+" role="(\w+)">\n(.*?)\n</message>', re.DOTALL)
_EARLIER = re.compile(r"<earlier_record>\n(.*?)\n</earlier_record>", re.DOTALL)
_SAID = "The user said: "
_DID = "The assistant "
_LINE = 240
_CARDS = "<memory>"


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
    """The votes of judges without a model: always YES, as many as decide the outcome."""
    votes = (Vote(True, "scripted"),) * ceil(ballot.k / 2)
    prompt = counter.text(ballot.system) + counter.text(ballot.user)
    return Votes(votes, len(votes), prompt * (1 if ballot.at_once else ballot.k))


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
