"""What the source documents describe, as plain functions of numbers and lists."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

# -- half-window: sections 3 and 6 ---------------------------------------------------------------------------------

ACTIVE = -1


class Cursor(NamedTuple):
    turn: int  # the index of the turn in the history; -1 for active rounds
    round: int


class Split(NamedTuple):
    level: int
    first: int  # the place of the first cursor that is kept
    boundary: str = "exact"


def collect_rounds(history: Sequence[int], active: int, summarized: int = 0) -> list[Cursor]:
    """Cursors of all rounds behind the first `summarized` ones, by how many rounds each turn has."""
    cursors = [Cursor(turn, number) for turn, rounds in enumerate(history) for number in range(rounds)]
    return [*cursors, *(Cursor(ACTIVE, number) for number in range(active))][summarized:]


def half_window(cursors: Sequence[Cursor], overlap: int, least: int, *, has_summary: bool) -> Split | None:
    """`calculateHalfWindowSplit`, `adjustToTurnBoundary` and the fallbacks; None if there is nothing to summarize."""
    count = len(cursors)
    index = count - max(overlap + 1, ceil(count / 2))
    if count >= least and index > 0:
        return _adjusted(cursors, index, overlap)
    if has_summary:
        return Split(2, 0)
    return Split(1, count - 1) if count > 1 else None


def _adjusted(cursors: Sequence[Cursor], index: int, overlap: int) -> Split:
    def same_turn(one: int, other: int) -> bool:
        # Active rounds may be split anywhere: the document's own test wants six of them split three and three.
        return cursors[one].turn == cursors[other].turn != ACTIVE

    if not same_turn(index, index - 1):
        return Split(0, index)
    place = index
    while place > 0 and same_turn(place - 1, index):
        place -= 1
    if place > 0:
        return Split(0, place, "adjusted-to-turn-start")
    place = index
    while place < len(cursors) - overlap - 1:
        ends = not same_turn(place, place + 1)
        place += 1
        if ends:
            break
    is_inside = same_turn(place - 1, place)
    return Split(0, place, "inside-turn" if is_inside else "adjusted-to-turn-end")


# -- semantic: the table of factors --------------------------------------------------------------------------------

BASE = {"user": 0.4, "edit": 0.3, "call": 0.25, "text": 0.25, "result": 0.1}
ERRORS = ("error", "failed", "exception", "traceback", "错误", "失败")
INSTRUCTIONS = ("please", "can you", "help me", "请", "帮我", "需要")
SUCCESSES = ("success", "completed", "finished", "成功", "完成")
OPERATIONS = ("commit", "push", "git", "npm", "deploy", "提交", "部署")
HOUR, DAY = 3_600.0, 86_400.0


def importance(kind: str, text: str, longest: int, answers: str = "", age: float | None = None) -> float:
    """The score of an event; `answers` is the kind of the call whose result it is."""
    lines = [line for line in text.splitlines() if line.strip()]
    logs = [line for line in lines if re.match(r".{0,40}\b(?:DEBUG|TRACE)\b", line)]  # a time may stand before it
    is_log = bool(logs) and 2 * len(logs) >= len(lines)
    base = BASE[kind]
    if kind == "result" and answers and text and len(lines) == 1 and len(text) <= 200 and not is_log:
        base = BASE[answers]
    factor = 0.8 if is_log or len(text) > longest / 8 else 1.0
    lowered = text.lower()
    bonus = 0.3 * any(word in lowered for word in ERRORS)
    bonus += 0.4 * (kind == "user" and any(word in lowered for word in INSTRUCTIONS))
    bonus += 0.2 * any(word in lowered for word in SUCCESSES)
    bonus += 0.25 * any(_stands_alone(word, lowered) for word in OPERATIONS)
    fresh = 0.0 if age is None else 0.1 if age <= HOUR else 0.05 if age <= DAY else 0.0
    return min(max(base * factor + bonus + fresh, 0.15), 0.9)


def _stands_alone(word: str, text: str) -> bool:
    if not word.isascii():
        return word in text
    return word in re.findall(r"[a-z0-9_]+", text)


# -- rolling: sections 1 and 6 -------------------------------------------------------------------------------------


def needs_compression(used: int, window: int, room: int, threshold: float) -> bool:
    """Whether a prompt of `used` tokens calls for a summary; `room` is what a prompt may have of the window."""
    reserved = min(max(window * 0.1, 2_000), window * 0.2)
    return used / room >= threshold or room - used <= reserved


# -- votes ---------------------------------------------------------------------------------------------------------


def voted(answers: Sequence[bool | None], k: int) -> tuple[bool, int]:
    """The outcome of a round and its threshold. `answers` are those of all 3 K calls, in the order of the calls.

    None is an answer that cannot be read. K calls begin together; then invalid ones are made up for one by one.
    """
    valid = [answer for answer in answers[:k] if answer is not None]
    for answer in answers[k : 3 * k]:
        if len(valid) >= k:
            break
        valid += [] if answer is None else [answer]
    threshold = ceil(len(valid) / 2)
    return bool(valid) and sum(valid) >= threshold, threshold


def first_votes(early_turns: int, replaced_at: Sequence[int], requests: int) -> list[int]:
    """The requests after which votes are held; at those in `replaced_at` a new branch begins, whose turn 1 they are."""
    starts = (1, *replaced_at)
    turn = {each: each - max(start for start in starts if start <= each) + 1 for each in range(1, requests + 1)}
    return [each for each in turn if turn[each] > early_turns]


# -- the record of the original mechanism and of its port ----------------------------------------------------------


class Judged(NamedTuple):
    """What a record stands for, and what a view shows behind the task and the record, as places of messages."""

    recorded: list[int]
    shown: list[int]


def replaced(roles: Sequence[str], rounds: Sequence[int], judged: int, applied: int, mode: str) -> Judged | None:
    """What follows from a YES on the first `judged` messages, in a later request; None if nothing can be recorded.

    `roles` has u, a or t for each message of that request, the task being the first. `rounds` are the places where a
    message of the user or a round begins: a list may be cut there only. `applied` is how many messages the request had
    to which the record was applied first.
    """
    cuts = {*rounds, judged}
    start = judged
    while judged - start < 2 and roles[start - 1] != "u":
        start -= 1
    # A tail that stays grows by the rest of its round; one that is dropped shrinks, since it is in no record.
    while start not in cuts:
        start += -1 if mode == "chat" else 1
    end = min(start, _newest_round(roles[:judged], rounds))
    last_of_user = max(place for place in range(judged) if roles[place] == "u")
    recorded = [place for place in range(1, end) if place != last_of_user]
    if not recorded:
        return None
    kept = [last_of_user] if 0 < last_of_user < end else []
    newest = _newest_round(roles[:applied], rounds)
    shown: Sequence[int]
    if mode == "chat":
        shown = range(end, len(roles))
    elif mode == "openhands":
        # What came after the vote stays, and so does the newest round, which the model must answer.
        shown = [place for place in range(end, len(roles)) if not start <= place < min(judged, newest)]
    else:
        question = _question(roles[:applied])
        shown = range(max(min(newest, question if question >= end else newest), end), len(roles))
    return Judged(recorded, [*kept, *shown])


def _newest_round(roles: Sequence[str], rounds: Sequence[int]) -> int:
    """Where the newest round begins; without one, the last message of the user, which always stays."""
    return max((place for place in rounds if place < len(roles) and roles[place] == "a"), default=_question(roles))


def _question(roles: Sequence[str]) -> int:
    """The last message of the user, which the model is answering."""
    return max(place for place, role in enumerate(roles) if role == "u")
