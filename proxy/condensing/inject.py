"""Puts a memory block before each user message: what was said earlier about it.

The block is chosen when the message is new, kept with its branch, and stands byte for byte in every view of that turn,
so that the upstream's prompt cache of the turn stays valid. It leaves with the next user message. It never repeats what
the view shows, and there is none where the view hides nothing or nothing relevant is found.

In a protocol that binds reasoning to what stands before it, a block that left would take the reasoning of its turn with
it. There a block is a patch, which stays at its place until a condensation replaces it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from proxy.condensing.context import RequestContext
from proxy.condensing.decision import Decision
from proxy.condensing.recall import Recall, Searchable
from proxy.runtime.owned_tasks import OwnedTasks, message_load, offload
from proxy.sessions.session import MemoryBlock
from proxy.settings.tables import MemorySettings
from strategies.core.budget import Budget
from strategies.core.digest import ROOT
from strategies.core.pieces import Literal, Overlay, PieceKind, is_memory
from strategies.core.view import View, fold
from strategies.memory.block import appears_in, block_room, memory_block, notes_for
from strategies.memory.ranking import Hit

MIN_ROOM = 32


def standing_block(context: RequestContext) -> MemoryBlock | None:
    """The block that an earlier request of this turn has shown; None where this is a new user message."""
    branch, history = context.branch, context.history
    if branch is None or history.last_user is None:
        return None
    return branch.block if branch.block.node == history.digests[history.last_user].hex() else None


def overlay_of(block: MemoryBlock, context: RequestContext) -> Overlay:
    """The overlay that puts the block into a view."""
    at = context.history.last_user or 0
    anchor = context.history.digests[at - 1] if at else ROOT
    return Overlay(anchor, at, 0, (Literal(block.raw, PieceKind.MEMORY),))


def with_standing_block(context: RequestContext) -> RequestContext:
    """The context with the block that this turn has shown already, and with its tokens reserved."""
    block = standing_block(context)
    if block is None:
        return context
    return context._replace(memory_block=block, block_tokens=context.counter.message(json.loads(block.raw)))


class Injector:
    """Chooses blocks and puts them into views; one per app."""

    def __init__(self, recall: Recall, settings: MemorySettings, tasks: OwnedTasks) -> None:
        self._recall = recall
        self._settings = settings
        self._tasks = tasks

    async def inject(self, decision: Decision, context: RequestContext) -> Decision:
        """The decision with this turn's block in its view: the one that the turn has shown already, or a new one."""
        budget = context.policy.budget
        # A view that was made without the store rests on no condensation, so it cannot be folded again.
        if not context.policy.memory.inject or budget is None or context.recognised.failure:
            return decision
        if context.keeps_blocks:
            return await self._inject_for_good(decision, context, budget)
        block = context.memory_block or await self._choose_block(decision.view, context, budget)
        if block is None and not any(is_memory(item.piece) for item in decision.view.lead):
            return decision._replace(memory_block=MemoryBlock())
        heads = (decision.applied.overlay,) if decision.applied else ()
        inserted = (overlay_of(block, context),) if block else ()
        transcript = context.transcript_under(decision.applied)
        view = fold(transcript, (*heads, *inserted), context.framing, context.counter)
        shown = block if block and any(is_memory(item.piece) for item in view.lead) else MemoryBlock()
        return decision._replace(view=view, tokens_after=view.tokens, memory_block=shown)

    async def _inject_for_good(self, decision: Decision, context: RequestContext, budget: Budget) -> Decision:
        """The decision with a block before a new user message, a patch that stays in later transcripts."""
        last, transcript = context.history.last_user, context.transcript_under(decision.applied)
        is_new = last is not None and 0 < last == len(transcript.chain) - 1
        if not is_new or any(patch.at == last for patch in transcript.patches):
            return decision
        block = await self._choose_block(decision.view, context, budget)
        if block is None:
            return decision
        patch = overlay_of(block, context)
        heads = (decision.applied.overlay,) if decision.applied else ()
        view = fold(transcript.having(patches=(*transcript.patches, patch)), heads, context.framing, context.counter)
        return decision._replace(view=view, tokens_after=view.tokens, memory_patch=patch)

    def follow(self, context: RequestContext) -> None:
        """Indexes the new messages of a conversation in the background, once its reply has been sent."""
        if context.policy.memory.tool or context.may_inject:
            self._tasks.start(self._recall.learn(Searchable.of(context)), ("learn", context.recognised.key))

    async def _choose_block(self, view: View, context: RequestContext, budget: Budget) -> MemoryBlock | None:
        """The block for a new user message; None where nothing is found, or there is no room."""
        last = context.history.last_user
        free = budget.headroom(view.tokens) - budget.least_headroom
        left = min(block_room(budget.window, context.policy.injection.max_tokens), free)
        if last is None or left < MIN_ROOM or not (_hides(view) or context.has_foreign_cards):
            return None
        question, wait = context.history.chain[last].text, self._settings.embeddings_inject_wait
        hits = await self._recall.search(Searchable.of(context), question, wait)
        load = message_load(view.size, view.tokens)
        raw = await offload(load, _block_text, hits, view, left, context.policy.injection.top_k)
        return MemoryBlock(context.history.digests[last].hex(), raw) if raw is not None else None


def _block_text(hits: Sequence[Hit], view: View, tokens: int, top_k: int) -> str | None:
    """The JSON text of a block of at most `tokens`, which repeats nothing that the view shows. May run in a thread."""
    shown = appears_in([message.text for message in view.item_messages])
    return memory_block(hits, view.counter, tokens, top_k, shown, notes=notes_for(view.transcript))


def _hides(view: View) -> bool:
    """Whether the view leaves out anything of the conversation."""
    return view.covered_count > 0 or bool(view.transcript.unknown)
