"""`mask`: old tool results, and large arguments of old calls, become one line each.

The line says what was there and has a handle, by which a search finds it word for word (`strategies.core.handles`):
what is read or run again may be different. A command's output is followed by an excerpt, unless the same command was
run again later. docs/internals/strategies.md says what stays. No model is asked, no message disappears, calls keep
their results.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from strategies.core.budget import Budget
from strategies.core.errors import NothingToDo
from strategies.core.excerpt import again_of, masked_result
from strategies.core.handles import handle_of
from strategies.core.messages import Role, TokenCounter, ToolCall, dump
from strategies.core.paths import Target, parsed, target, target_in
from strategies.core.pieces import Keep, Literal, PieceKind
from strategies.core.plan import Plan, Replace, apply
from strategies.core.protocol import Options, SessionFacts, Steps, Strategy, option
from strategies.core.rounds import Round, answered_calls
from strategies.core.transcript import is_chinese
from strategies.core.view import Item, View


@dataclass(frozen=True, slots=True)
class MaskOptions(Options):
    keep: int = option(3, 1)
    min_tokens: int = option(60, 30)
    min_chars: int = option(400, 100)
    paths: float = option(0.4, 0, 1)


@dataclass(frozen=True, slots=True)
class Mask(Strategy):
    options: MaskOptions
    name: ClassVar[str] = "mask"

    def condense(self, view: View, budget: Budget, session: SessionFacts) -> Steps:
        """Plans to mask everything old at once: after one big step, the prefix stays the same for a long time.

        If that misses the goal, fewer rounds are kept, as many as still meet it.
        """
        yield from ()
        plan = self._plan(view, budget, self.options.keep)
        after = apply(view, plan)
        if after.tokens <= budget.goal:
            plan = replace(plan, after=after)
        else:
            fewer = range(min(self.options.keep, len(view.structure.rounds)) - 1, 0, -1)
            place = bisect_left(
                fewer, True, key=lambda keep: apply(view, self._plan(view, budget, keep)).tokens <= budget.goal
            )
            plan = self._plan(view, budget, fewer[place]) if place < len(fewer) else plan
        if not plan.edits:
            raise NothingToDo("nothing-to-mask")
        return plan

    def _plan(self, view: View, budget: Budget, keep: int) -> Plan:
        files = _Files(int(budget.usable * self.options.paths), chinese=is_chinese(view.transcript))
        edits: list[Replace] = []
        for number, span in enumerate(reversed(view.structure.rounds)):
            is_old = number >= keep and span.end <= view.last_cut
            if is_old:
                edits.extend(self._round(view, span, files))
            else:
                files.note(view, span)
        edits.sort(key=lambda edit: edit.start)
        return Plan(tuple(edits), {"maskedMessageCount": len(edits), "keptFileCount": files.kept})

    def _round(self, view: View, span: Round, files: _Files) -> Iterator[Replace]:
        items = view.items[span.start : span.end]
        answered = answered_calls([item.message for item in items])
        for place in range(len(items) - 1, -1, -1):
            i, message, piece = span.start + place, items[place].message, items[place].piece
            if not isinstance(piece, Keep) or piece.source in view.transcript.pinned:
                continue
            if message.role is Role.TOOL:
                yield from self._results(i, items[place], answered[place], files, view.counter)
            elif any(len(call.arguments) > self.options.min_chars for call in message.calls):
                masked = partial(self._arguments, files=files, handle=handle_of(message))
                written = message.body  # read once: a message from the cache is parsed again each time
                body = message.dialect.with_arguments(written, masked)
                if body is not written:
                    yield Replace(i, i + 1, (Literal(dump(body), PieceKind.MASKED, piece.source),))

    def _results(
        self, i: int, item: Item, calls: Sequence[ToolCall | None], files: _Files, counter: TokenCounter
    ) -> Iterator[Replace]:
        message = item.message
        written = message.body
        texts = message.dialect.texts(written)
        sizes = [message.tokens] if len(texts) == 1 else [counter.text(text) for text in texts]
        handle = handle_of(message)
        lines = [self._result(*result, files, handle) for result in zip(texts, sizes, calls, strict=True)]
        if lines != list(texts):
            body = message.dialect.with_texts(written, lines)
            yield Replace(i, i + 1, (Literal(dump(body), PieceKind.MASKED, item.source),))

    def _result(self, text: str, tokens: int, call: ToolCall | None, files: _Files, handle: str) -> str:
        is_repeated = call is not None and files.has_later(call)
        if tokens <= self.options.min_tokens:
            return text
        file, tool, least = target(call) if call else None, call.name if call else "", 2 * self.options.min_tokens
        if files.keeps(file, tokens):
            return text
        return masked_result(text, tokens, tool, file, handle, least, is_repeated=is_repeated, chinese=files.chinese)

    def _arguments(self, call: ToolCall, files: _Files, handle: str) -> Mapping[str, object] | None:
        arguments = parsed(call.arguments)
        if arguments is None:
            return None
        file = target_in(arguments)
        masked = {key: self._argument(value, file, handle, chinese=files.chinese) for key, value in arguments.items()}
        return None if masked == arguments or files.keeps(file, len(call.arguments) // 4) else masked

    def _argument(self, value: object, file: Target | None, handle: str, *, chinese: bool) -> object:
        if not isinstance(value, str) or len(value) <= self.options.min_chars:
            return value
        named = file if file and file.path != value else None
        again = again_of(named, handle, chinese=chinese)
        return f"[已省略 {len(value):,} 个字符{again}]" if chinese else f"[{len(value):,} characters left out{again}]"


class _Files:
    """Decides which complete file contents stay: the newest of each file, newest first, while they fit.

    It also knows which calls were made again later, because the rounds are read from the newest on.
    """

    def __init__(self, room: int, *, chinese: bool) -> None:
        self._room = room
        self.chinese = chinese
        self._seen: set[str] = set()
        self._run: set[tuple[str, str]] = set()
        self.kept = 0

    def note(self, view: View, span: Round) -> None:
        """Remembers the files of a round that is kept anyway."""
        files = (target(call) for item in view.items[span.start : span.end] for call in item.calls)
        self._seen.update(file.path for file in files if file and file.whole)

        self._run.update(
            (call.name, call.arguments) for item in view.items[span.start : span.end] for call in item.calls
        )

    def has_later(self, call: ToolCall) -> bool:
        """Whether the same call was made again later; from now on, this one is such a later one."""
        known = (call.name, call.arguments)
        is_known = known in self._run
        self._run.add(known)
        return is_known

    def keeps(self, file: Target | None, tokens: int) -> bool:
        """Decides whether this content of `file` stays, as the newest of that file, and takes its tokens if so."""
        if file is None or not file.whole or file.path in self._seen:
            return False
        self._seen.add(file.path)
        if tokens > self._room:
            return False
        self._room -= tokens
        self.kept += 1
        return True
