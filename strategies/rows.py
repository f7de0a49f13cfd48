"""Rows: a list in which each message keeps its number, place and role, and only results of tools become shorter.

What is done follows from the list alone, row after row as it has grown: where it reaches the trigger, its oldest
results become a line each, in one step down to the target; where lines take half of that, the oldest lose their words.
So the beginning of a longer list keeps its bytes until the next step, on any replica. Results may come without their
calls, and other rows may be held back. These count in whole steps, one more than they fill: that leaves room for what
was held back, and a row that is put in later, as LiteLLM does with the last user message, rarely moves an earlier step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from strategies.core.budget import Budget
from strategies.core.excerpt import masked_result, shorten_message
from strategies.core.messages import Message, Role, TokenCounter, ToolCall, dump
from strategies.core.parsing import loads
from strategies.core.paths import target
from strategies.core.transcript import reads_chinese

STAGES = MASK, SHORTEN = "mask", "shorten"
_GONE = "[…]"


@dataclass(slots=True)
class Rows:
    """Results of `min_tokens` are not masked, and none is cut below `cut_to`."""

    counter: TokenCounter
    min_tokens: int
    cut_to: int
    shorter: dict[int, str] = field(default_factory=dict, init=False)  # the JSON text of each row not as it came
    stages: set[str] = field(default_factory=set, init=False)
    saved: int = field(default=0, init=False)  # tokens

    def go_through(self, rows: Sequence[Message], overhead: int, budget: Budget) -> None:
        calls: dict[str, ToolCall] = {}
        whole, lines = deque[int](), deque[int]()  # results, the oldest first: as they came, or a line
        results, of_lines, others, step = 0, 0, overhead, max(budget.step, 1)
        for i, row in enumerate(rows):
            calls.update((call.id, call) for call in row.calls)
            if row.role is Role.TOOL:
                results += row.tokens
                whole.append(i)
            else:
                others += row.tokens
            room = step * (1 + others // step)
            most, goal = max(budget.trigger - room, step), max(budget.target - room, step // 2)
            if results - self.saved <= most:
                continue
            while lines and of_lines > goal // 2:
                line = rows[lines[0]]
                gone = line.dialect.with_texts(line.body, [_GONE] * len(line.answers or _GONE[:1]))
                of_lines -= self._put(lines.popleft(), line, MASK, dump(gone))
            while results - self.saved > goal and len(whole) > 1:
                lines.append(whole.popleft())
                self._put(lines[-1], rows[lines[-1]], MASK, self._masked(rows[lines[-1]], calls))
                of_lines += self._size(lines[-1], rows[lines[-1]])
            newest, excess = rows[whole[0]], results - self.saved - goal
            if excess > most - goal and newest.tokens > self.cut_to and whole[0] not in self.shorter:
                cut = shorten_message(newest, max(newest.tokens - excess, self.cut_to), self.counter)
                self._put(whole[0], newest, SHORTEN, cut)

    def _size(self, i: int, row: Message) -> int:
        return self.counter.message(loads(self.shorter[i])) if i in self.shorter else row.tokens

    def _put(self, i: int, row: Message, stage: str, raw: str) -> int:
        """Puts another text in the place of a row if it is shorter; returns the tokens that this saves."""
        if (saved := self._size(i, row) - self.counter.message(loads(raw))) <= 0:
            return 0
        self.shorter[i], self.saved = raw, self.saved + saved
        self.stages.add(stage)
        return saved

    def _masked(self, row: Message, calls: dict[str, ToolCall]) -> str:
        lines = list(row.dialect.texts(row.body))
        for i, (text, one) in enumerate(zip(lines, row.answers or ("",), strict=True)):
            if (tokens := row.tokens if len(lines) == 1 else self.counter.text(text)) > self.min_tokens:
                tool, file = (calls[one].name, target(calls[one])) if one in calls else ("", None)
                told = {"is_repeated": False, "chinese": reads_chinese(text[:200])}
                lines[i] = masked_result(text, tokens, tool, file, "", 2 * self.min_tokens, **told)
        return dump(row.dialect.with_texts(row.body, lines))
