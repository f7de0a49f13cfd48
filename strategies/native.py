"""`native`: the vendor's own compaction of the older messages becomes the head of the view.

Reasoning is bound to what stood before it, so a summary that a client or a proxy writes costs all of it. The vendor's
own compaction does not: the server knows what it stands for. That holds only if the messages that were kept follow it
directly and unchanged. So the cut is the list of an earlier request, whose reply is the first message that is kept, and
everything else that must stay goes before the newest question or, inside a turn, behind the newest round
(`View.unplaced`): the ledger, the first user message, pins, and a last user message that was covered.

The head is opaque: only its maker can read it. The ledger is therefore made anew, from all the messages that the head
stands for, and other strategies begin with those messages again. docs/internals/strategies.md has the forms of the
vendors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from strategies.core.budget import Budget
from strategies.core.effects import Compact, Compacted, Failure
from strategies.core.errors import Declined, NothingToDo, NothingToSummarize
from strategies.core.messages import Dialect, Role, message_digest
from strategies.core.parsing import loads
from strategies.core.pieces import Keep, Literal, Overlay, PieceKind
from strategies.core.plan import Plan, Split, is_running, task_piece
from strategies.core.protocol import Options, SessionFacts, Steps, Strategy, option
from strategies.core.replacement import carried_record, ledger_caps, ledger_tokens, next_ledger, text_room
from strategies.core.view import Item, View, carried, fold

NO_COMPACTION = "no-compaction"
"""The failure of a call to an upstream that has no compaction; this is learned once, and then nothing is asked."""
EXPECTED = 0.08  # the share of the window that the compaction is expected to take when the cut is chosen


@dataclass(frozen=True, slots=True)
class NativeOptions(Options):
    keep: int = option(2, 1)


@dataclass(frozen=True, slots=True)
class Native(Strategy):
    options: NativeOptions
    name: ClassVar[str] = "native"
    asks: ClassVar[bool] = True
    reads_opaque: ClassVar[bool] = True

    def condense(self, view: View, budget: Budget, session: SessionFacts) -> Steps:
        transcript, counter = view.transcript, view.counter
        plain = fold(transcript.having(patches=()), (), view.fixed_tokens - transcript.system_tokens, counter)
        # The cut: the first list of an earlier request that leaves few enough tokens.
        head, behind = int(EXPECTED * budget.window), budget.ledger.all + budget.task_cap
        sizes = Split(view, head + behind, 0)
        lists = list(_earlier_lists(view))
        places = lists[: max(len(lists) - self.options.keep + 1, 0)]
        if not places:
            raise NothingToSummarize("no earlier request to compact")
        if is_running(transcript):  # what is carried would follow the results
            raise NothingToSummarize("a vendor's tool is running")
        place = next((each for each in places if sizes.tokens_after(each) <= budget.goal), places[-1])
        covered = view.messages_before(place)
        # The list, as it was sent.
        first_kept = view.item(place).message
        sent = [message.raw for message in view.messages]
        end = next((i for i, message in enumerate(view.messages) if message is first_kept), None)
        if end is None:
            raise NothingToSummarize("the list is not sent as it came")
        before = view.tokens - sizes.tokens_after(place) + head + behind
        (result,) = yield (Compact(f"[{','.join(sent[:end])}]", max(budget.window - before, 0)),)
        if isinstance(result, Failure):
            # An upstream that has none is no failure: the next stage does the work.
            if result.reason == NO_COMPACTION:
                raise NothingToDo(NO_COMPACTION)
            raise Declined(f"compaction-{result.reason}")
        assert isinstance(result, Compacted)
        digest = partial(_digest, dialect=counter.dialect)
        ours = {digest(item.message.raw) for item in view.items[:place] if _is_ours(item)}
        heads = [(raw, digest(raw)) for raw in result.messages]
        sources = {message.digest: i for i, message in reversed([*enumerate(transcript.chain[:covered])])}
        opaque = [Literal(raw, PieceKind.OPAQUE, sources.get(made)) for raw, made in heads if made not in ours]
        # What it may have lost goes behind what is kept.
        stays = {*transcript.stays, *(() if transcript.task is None else (transcript.task,))}
        indices = [i for i in sorted(stays - {piece.source for piece in opaque}) if i < covered]
        room = text_room(budget.replacement_cap, counter)
        caps = ledger_caps(budget, room)
        ledger = next_ledger(plain, plain.items[:covered], covered, budget, caps)
        pieces = [carried_record(str(ledger), covered, counter.dialect, chinese=ledger.chinese)]
        for index in indices:
            (piece,) = task_piece(plain, budget.task_cap) if index == transcript.task else (Keep(index),)
            if isinstance(piece, Literal):  # a task that was cut
                pieces.append(replace(piece, kind=PieceKind.CARRIED))
            else:
                pieces.append(carried(index, transcript))
        overlay = Overlay(transcript.digests[covered - 1], covered, covered, (*opaque, *pieces))
        after = fold(transcript, (overlay,), view.fixed_tokens - transcript.system_tokens, counter)
        metadata = {
            "maker": result.maker,
            "form": result.form,
            "tokens": sum(item.message.tokens for item in after.front[: after.head_size]),
            "ledgerTokens": ledger_tokens(ledger, counter),
            "compactedMessageCount": covered,
        }
        return Plan((), metadata, after=after)


def _digest(raw: str, dialect: Dialect) -> bytes:
    return message_digest(loads(raw), dialect)


def _is_ours(item: Item) -> bool:
    """Whether an item stands for no message of the client and no compaction of the vendor: a record, or memory.

    What was thought behind it is bound to it, so it is sent to be compacted. But a vendor that keeps a user's messages
    beside its compaction keeps it too, one more each time, and the next record says it all anew.
    """
    return isinstance(item.piece, Literal) and item.source is None and item.piece.kind is not PieceKind.OPAQUE


def _earlier_lists(view: View) -> Iterator[int]:
    """The items with which the replies to earlier requests begin, in order, except the first behind the head."""
    for span in view.structure.rounds[1:]:
        starts_reply = view.item(span.start).role is Role.ASSISTANT and view.item(span.start).intact
        follows = view.item(span.start - 1).role is not Role.ASSISTANT
        if starts_reply and follows and view.structure.cuts[span.start]:
            yield span.start
