"""Rows: a list in which each message keeps its number, place and role, and only results of tools become shorter.

For callers that put each row back where it was, and hold some back: the system's, the model's, the newest. So results
may come without their calls. What is done follows from the list alone, row after row as it has grown: where it reaches
the trigger, its oldest results become a line, in one step down to the target; where lines take half of that, the oldest
lose their words. So the beginning of a longer list keeps its bytes until the next step, on any replica.

Rows that are no results count in whole steps, one more than they fill: room for what was held back. So a row that is
put in later, as LiteLLM does with the last user message, rarely moves an earlier step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from strategies.core.budget import Budget
from strategies.core.excerpt import excerpt_of, result_line, shorten_message
from strategies.core.messages import Message, Role, TokenCounter, ToolCall, dump
from strategies.core.parsing import loads
from strategies.core.paths import target
from strategies.core.transcript import reads_chinese

STAGES = MASK, SHORTEN = "mask", "shorten"
_GONE = "[…]"


@dataclass(slots=True)
class Rows:
    """The rows as far as they were gone through. Results of `min_tokens` are not masked, none is cut below `cut_to`."""

    counter: TokenCounter
    min_tokens: int
    cut_to: int
    shorter: dict[int, str] = field(default_factory=dict)
    """The JSON text of each row that is not as it came, by its index."""
    stages: set[str] = field(default_factory=set)
    saved: int = 0  # tokens
    _calls: dict[str, ToolCall] = field(default_factory=dict)

    def go_through(self, rows: Sequence[Message], overhead: int, budget: Budget) -> None:
        whole, lines = deque[int](), deque[int]()  # results, the oldest first: as they came, or a line
        results, of_lines, others, step = 0, 0, overhead, max(budget.step, 1)
        for i, row in enumerate(rows):
            self._calls.update((call.id, call) for call in row.calls)
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
                of_lines -= self._put(oldest := lines.popleft(), rows[oldest], MASK, self._masked(rows[oldest], _GONE))
            while results - self.saved > goal and len(whole) > 1:
                self._put(oldest := whole.popleft(), rows[oldest], MASK, self._masked(rows[oldest]))
                lines.append(oldest)
                of_lines += self._size(oldest, rows[oldest])
            newest = rows[whole[0]]
            if results - self.saved > most and whole[0] not in self.shorter:
                cap = max(goal - (results - self.saved - newest.tokens), self.cut_to)
                self._put(whole[0], newest, SHORTEN, shorten_message(newest, cap, self.counter))

    def _size(self, i: int, row: Message) -> int:
        return self.counter.message(loads(self.shorter[i])) if i in self.shorter else row.tokens

    def _put(self, i: int, row: Message, stage: str, raw: str) -> int:
        """Puts another text in the place of a row if it is shorter; returns the tokens that this saves."""
        saved = max(self._size(i, row) - self.counter.message(loads(raw)), 0)
        if saved:
            self.shorter[i] = raw
            self.stages.add(stage)
        self.saved += saved
        return saved

    def _masked(self, row: Message, text: str = "") -> str:
        texts, answered = row.dialect.texts(row.body), [self._calls.get(one) for one in row.answers or ("",)]
        lines = [text or self._line(*each) for each in zip(texts, answered, strict=True)]
        return dump(row.dialect.with_texts(row.body, lines))

    def _line(self, text: str, call: ToolCall | None) -> str:
        tokens, file = self.counter.text(text), target(call) if call else None
        if tokens <= self.min_tokens:
            return text
        chinese = reads_chinese(text[:1_000])
        line = result_line(call, file, len(text), tokens, "", is_repeated=False, chinese=chinese)
        excerpt = "" if file or tokens <= 2 * self.min_tokens else excerpt_of(text)
        return f"{line}\n{excerpt}" if excerpt else line
