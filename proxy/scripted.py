"""A summarizer without a model: what the demo and `replay` put in a model's place.

It copies, which no model does as plainly: the first line of what the user said, first stated first, then the calls
that were made, until its length is used up. So it shows what a summary has room for, not how well one is written.
"""

from __future__ import annotations

import re

from strategies.core.effects import Answer, Ask
from strategies.core.excerpt import cut_text
from strategies.core.transcript import Counter

_MESSAGE = re.compile(r'<message index="\d+" role="(\w+)">\n(.*?)\n</message>', re.DOTALL)
_EARLIER = re.compile(r"<earlier_record>\n(.*?)\n</earlier_record>", re.DOTALL)
_LINE = 240


def scripted_answer(ask: Ask, counter: Counter) -> Answer:
    """What this summarizer answers, in at most nine tenths of the length that was asked for."""
    cap = int(ask.max_tokens * 0.9)
    text = _within(scripted_summary(ask.user), cap, counter)
    prompt = counter.text(ask.system) + counter.text(ask.user)
    return Answer(text, "stop", prompt + counter.text(text))


def scripted_summary(prompt: str) -> str:
    """A record of the history in a summarizer's prompt, as long as it gets."""
    earlier = _EARLIER.search(prompt)
    said = [_first_line(body) for role, body in _MESSAGE.findall(prompt) if role == "user"]
    calls = [line for role, body in _MESSAGE.findall(prompt) if role == "assistant" for line in _calls(body)]
    parts = [earlier.group(1)] if earlier else []
    parts += [f"The user said: {line}" for line in said if line]
    parts += [f"The assistant {line}" for line in calls]
    return "\n".join(parts) or "Nothing was said or done."


def _within(text: str, cap: int, counter: Counter) -> str:
    kept: list[str] = []
    for line in text.splitlines():
        cap -= counter.text(line) + 1
        if cap < 0:
            break
        kept.append(line)
    return "\n".join(kept) or cut_text(text, max(cap, 1), counter)


def _first_line(body: str) -> str:
    return body.strip().splitlines()[0][:_LINE] if body.strip() else ""


def _calls(body: str) -> list[str]:
    return [line[:_LINE] for line in body.splitlines() if line.startswith("calls ")]
