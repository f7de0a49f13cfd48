"""Whether a forwarded view is one that it may be, judged by what a single process forwards for the same turns.

A replica whose store was out for a while remembers less than a single process does, and may condense at another turn.
Its views are right all the same if each is one of these:

    same       the bytes that a single process forwarded for this turn
    extended   an earlier right view with the same condensation, and what the client has said since
    rebuilt    the bytes of a single process that was asked at the turns whose condensations this view rests on, at
               the turn that the store knew last, and at this one
    walked     degraded: the bytes of a process without any store

The turn that the store knew last counts because the newest turn begins where the client has gone on since then, and
what belongs to the newest turn stays word for word. Which turn that was does not show from outside: all are tried.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from tests.http.strict import assert_stands
from tests.support.ports import free_port
from tests.torture.clients import Fleet, Outcome, Run, ask, fleet
from tests.torture.talks import MARK, Message, Talk

AT_ONCE = 4  # conversations that are judged at the same time
WRONG = "wrong"
STORE_BOUND = 1_500.0  # milliseconds that the store may hold up one request


@dataclass(frozen=True)
class Reference:
    """One process that remembers, and one that has no store, to be asked what they forward."""

    remembering: Fleet
    forgetful: Fleet
    _names: Iterator[int] = field(default_factory=count)

    def remembered(self, talk: Talk, ends: Sequence[int]) -> bytes:
        """What is forwarded for the last of these turns, when nothing but these were ever asked."""
        return self._forwarded(self.remembering, talk, ends)

    def walked(self, talk: Talk, end: int) -> bytes:
        """What is forwarded for a turn without a store."""
        return self._forwarded(self.forgetful, talk, [end])

    def _forwarded(self, fleet: Fleet, talk: Talk, ends: Sequence[int]) -> bytes:
        nobody = f"judge-{next(self._names)}"  # a tenant of its own has no history
        for end in ends:
            ask(fleet.urls[0], talk, end, f"{nobody}/{end}", nobody)
        return fleet.forwarded.bodies[f"{nobody}/{ends[-1]}"]


@contextmanager
def references(folder: Path) -> Iterator[Reference]:
    """The two processes; the store of the second is where nobody listens."""
    with (
        fleet(1, f"sqlite:///{folder}/alone.db") as remembering,
        fleet(1, f"redis://127.0.0.1:{free_port()}/0") as forgetful,
    ):
        yield Reference(remembering, forgetful)


@dataclass(frozen=True)
class _Condensation:
    """What is known of a condensation: the right views that showed it, and the turns to ask at so that it is made."""

    depth: int
    asked_at: Sequence[int]
    views: list[tuple[int, Sequence[Message]]] = field(default_factory=list)


@dataclass
class _Told:
    """The condensations that one conversation has shown until now, oldest first.

    Where a record was lost, the same condensation is made again with another id; here the two are one.
    """

    talk: Talk
    condensations: list[_Condensation] = field(default_factory=list)

    def extended(self, outcome: Outcome, end: int) -> _Condensation | None:
        """The condensation whose earlier view this one extends by what the client has said since."""
        for known in self.condensations:
            if known.depth == outcome.depth and any(
                outcome.view == [*earlier, *self.talk.messages[then:end]] for then, earlier in known.views
            ):
                return known
        return None

    def below(self, depth: int, end: int) -> Sequence[int]:
        """The turns to ask at so that a process has what a condensation of this depth was made on."""
        if depth <= 1:
            return []
        known = [each.asked_at for each in self.condensations if each.depth == depth - 1]
        return known[-1] if known else [*self.below(depth - 1, end), end]

    def ways_to(self, depth: int, end: int) -> Iterator[Sequence[int]]:
        """The turns to ask at, the last of them this one, for each turn that the store may have known last."""
        base = self.below(depth, end)
        yield [*base, end]
        after = base[-1] if base else 0
        for last_known in reversed(self.talk.ends):
            if after < last_known < end:
                yield [*base, last_known, end]


def judged(run: Run, alone: Run, talks: Sequence[Talk], reference: Reference) -> dict[tuple[int, int], str]:
    """The verdict on every view."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        of_each = pool.map(lambda talk: _judged(run, alone, talk, reference), talks)
        return {turn: verdict for verdicts in of_each for turn, verdict in verdicts.items()}


def _judged(run: Run, alone: Run, talk: Talk, reference: Reference) -> dict[tuple[int, int], str]:
    told = _Told(talk)
    verdicts = {}
    for end in talk.ends:
        outcome = run.outcomes[talk.index, end]
        extended = told.extended(outcome, end)
        asked_at: Sequence[int] = [each for each in talk.ends if each <= end]
        verdict = "same"
        if outcome.body != alone.outcomes[talk.index, end].body:
            verdict, asked_at = _verdict(outcome, end, told, reference, is_extended=extended is not None)
        verdicts[talk.index, end] = verdict
        if verdict != WRONG:
            if extended is None:
                extended = _Condensation(outcome.depth, asked_at)
                told.condensations.append(extended)
            extended.views.append((end, outcome.view))
    return verdicts


def _verdict(
    outcome: Outcome, end: int, told: _Told, reference: Reference, *, is_extended: bool
) -> tuple[str, Sequence[int]]:
    """The verdict on a view, and the turns that rebuild it."""
    if outcome.action == "degraded" and not outcome.condensation:
        return "walked" if outcome.body == reference.walked(told.talk, end) else WRONG, [end]
    if outcome.condensation and is_extended:
        return "extended", []
    for ends in told.ways_to(outcome.depth, end):
        if outcome.body == reference.remembered(told.talk, ends):
            return "rebuilt", ends
    return WRONG, []


def assert_sound(run: Run, talks: Sequence[Talk]) -> None:
    """Whatever the store did: every reply came, every list is one that a strict upstream takes and holds its own
    conversation only, no request waited long for the store, and what was degraded says why."""
    assert {each.status for each in run.outcomes.values()} == {200}
    for talk in talks:
        for end in talk.ends:
            outcome = run.outcomes[talk.index, end]
            assert set(MARK.findall(outcome.body.decode())) <= {talk.mark}
            assert_stands(outcome.view, talk.messages[:end])
            assert (outcome.action == "degraded") == outcome.reason.startswith("store-")
    # What a machine that has other work takes from every step is not the store's.
    starving = run.most(1, lambda each: each.elsewhere) if run.is_starved else 0.0
    assert run.most(1, lambda each: each.store) - starving <= STORE_BOUND
