"""The invariants of the design, judged on the JSON that a view sends, not with the core's own functions.

`faults` returns a sentence for each rule that a view breaks. The rules of messages are told apart as multisets, so
that a second orphan of an id that the client itself has orphaned is a fault of ours.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from strategies.core.budget import Budget
from strategies.core.messages import Message, Role
from strategies.core.pieces import Literal, PieceKind
from strategies.core.rounds import structure
from strategies.core.transcript import Transcript
from strategies.core.view import View

MIN_RESULT = 120 + 60  # what `shorten` leaves of a result, with room for a long frame


def faults(view: View, budget: Budget | None, *, shortened: bool = False) -> list[str]:
    """What is wrong with a view; `shortened` where `shorten` may have cut the newest round's results.

    Without a `budget` caps are not looked at: a record keeps those of the window that it was made for.
    """
    return [
        *_pairs(json.loads(view.to_json()), view.transcript),
        *faults_beside_pairs(view, budget, shortened=shortened),
    ]


def faults_beside_pairs(view: View, budget: Budget | None, *, shortened: bool = False) -> list[str]:
    """The same in any dialect, without the rule that calls have results, which each protocol has in its own form."""
    return [
        *_systems(view),
        *_task(view, budget),
        *_users(view),
        *_newest(view, shortened),
        *_sizes(view, budget),
        *_order(view),
    ]


def orphans_and_gaps(bodies: Iterable[dict[str, Any]], *, systems: bool = False) -> Counter[tuple[str, str]]:
    """How often each id is answered without a call, or called without an answer.

    With `systems`, a system message separates calls from results as any other does; else it is not looked at.
    """
    found: Counter[tuple[str, str]] = Counter()
    waiting: list[str] = []
    for body in [*bodies, {"role": "end"}]:
        if body["role"] in ("system", "developer") and not systems:
            continue
        if body["role"] in ("tool", "function"):
            answers = str(body.get("tool_call_id") or "")
            if answers in waiting:
                waiting.remove(answers)
            else:
                found["orphan", answers] += 1
        else:
            found.update(("gap", name) for name in waiting)
            waiting = _call_ids(body)
    return found


def _call_ids(body: dict[str, Any]) -> list[str]:
    calls = [str(each.get("id") or "") for each in body.get("tool_calls") or [] if isinstance(each, dict)]
    return [*calls, *([""] if isinstance(body.get("function_call"), dict) else [])]


def _pairs(sent: Sequence[dict[str, Any]], transcript: Transcript) -> Iterator[str]:
    for systems in (False, True):
        added = orphans_and_gaps(sent, systems=systems)
        if added:
            given = (json.loads(message.raw) for message in _as_given(transcript))
            added -= orphans_and_gaps(given, systems=systems)
        if added:
            yield f"calls and results do not match{', system messages considered' * systems}: {dict(added)}"


def _as_given(transcript: Transcript) -> Iterator[Message]:
    """The messages in the client's order."""
    systems = list(transcript.systems)
    for place, message in enumerate(transcript.chain):
        while systems and systems[0][0] <= place:
            yield systems.pop(0)[1]
        yield message
    yield from (message for _, message in systems)


def _systems(view: View) -> Iterator[str]:
    sent = [message.raw for message in view.messages if message.role is Role.SYSTEM]
    given = [message.raw for _, message in view.transcript.systems]
    # Those that an opaque head covers go behind what is kept.
    if (sorted(sent), view.is_opaque) != (sorted(given), True) and sent != given:
        yield "system messages were lost, changed or reordered"


def _task(view: View, budget: Budget | None) -> Iterator[str]:
    transcript = view.transcript
    if transcript.task is None:
        return
    task = transcript.chain[transcript.task]
    standing = [item.message for item in view.items if item.source == transcript.task]
    if len(standing) != 1:
        yield f"the first user message stands {len(standing)} times"
    elif standing[0].raw != task.raw and budget is not None:
        yield from _excerpt(standing[0], task, budget)


def _excerpt(excerpt: Message, task: Message, budget: Budget) -> Iterator[str]:
    if task.tokens <= budget.task_cap:
        yield "a first user message within its cap was cut"
    if excerpt.tokens > max(budget.task_cap, 60, budget.task_ceiling):
        yield f"the excerpt of the first user message has {excerpt.tokens} tokens"
    if excerpt.text[:5] != task.text[:5] and budget.task_cap > 100:
        yield "the excerpt of the first user message has another beginning"


def _users(view: View) -> Iterator[str]:
    last = view.transcript.last_user
    if last is not None:
        raw = view.transcript.chain[last].raw
        if sum(item.source == last and item.message.raw == raw for item in view.items) != 1:
            yield "the last user message does not stand once and intact"


def _newest(view: View, shortened: bool) -> Iterator[str]:
    chain = view.transcript.chain
    newest = structure(chain).newest_round
    if newest is None:
        return
    standing = {item.source: item.message for item in view.items}
    for i in range(newest.start, newest.end):
        if i not in standing:
            yield f"message {i} of the newest round is gone"
        elif standing[i].raw != chain[i].raw and not (shortened and chain[i].role is Role.TOOL):
            yield f"message {i} of the newest round was changed"


def _sizes(view: View, budget: Budget | None) -> Iterator[str]:
    before = view.fixed_tokens + sum(message.tokens for message in view.transcript.chain)
    if view.tokens > before:
        yield f"the view has {view.tokens} tokens, the transcript {before}"
    replacements = [item.message for item in view.items if item.is_replacement]
    if len(replacements) > 1:
        yield "two replacements"
    if budget and any(each.tokens > budget.replacement_cap for each in replacements):
        yield f"a replacement of {replacements[0].tokens} tokens in a window of {budget.window}"


def _order(view: View) -> Iterator[str]:
    behind = (PieceKind.CARRIED, PieceKind.OPAQUE)  # what an opaque head repeats or carries
    placed = (item for item in view.items if not (isinstance(item.piece, Literal) and item.piece.kind in behind))
    sources = [item.source for item in placed if item.source is not None]
    if sources != sorted(set(sources)):
        yield f"messages stand twice or out of order: {sources}"
    for item in view.items:
        if isinstance(item.piece, Literal) and item.piece.kind in (PieceKind.MASKED, PieceKind.SHORTENED):
            yield from _same_message(item.message, view.transcript.chain[item.piece.source or 0])


def _same_message(ours: Message, theirs: Message) -> Iterator[str]:
    if (ours.body.get("role"), ours.answers) != (theirs.body.get("role"), theirs.answers):
        yield "a masked or shortened message has another role or answers another call"
    if [each[:2] for each in ours.calls] != [each[:2] for each in theirs.calls]:
        yield "a masked message lost a call"


def least_possible(view: View, budget: Budget) -> int:
    """An upper bound of the tokens to which the whole ladder can bring a sound transcript."""
    chain, transcript = view.transcript.chain, view.transcript
    turn = next((each for each in reversed(structure(chain).turns) if each.rounds), None)
    kept = {transcript.task, transcript.last_user}
    if turn is not None:
        newest = turn.rounds[-1]
        kept |= {*range(newest.start, len(chain)), *range(turn.start, turn.rounds[0].start)}
    return view.fixed_tokens + sum(_least(chain[i]) for i in kept if i is not None) + budget.replacement_cap


def _least(message: Message) -> int:
    return min(message.tokens, MIN_RESULT) if message.role is Role.TOOL else message.tokens
