"""`dynacontext` against its two documents: votes, the turns at which they are held, and what a record replaces."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from strategies.core.budget import Budget
from strategies.core.condensation import JUDGED, Condensation
from strategies.core.effects import Polls, Vote, tally
from strategies.core.errors import NothingToSummarize
from strategies.core.plan import apply, check, head_pieces
from strategies.core.protocol import SessionFacts, Verdict
from strategies.core.view import View, fold
from strategies.dynacontext import DynaContext
from tests.strategies.differential import SEEDS, examples, ports
from tests.strategies.driving import finish, good, stages_of, texts, verdict_on
from tests.strategies.test_session_simulation import recorded_as
from tests.support.transcripts import WORDS, Body, assistant, step, transcript_of, user, words

pytestmark = pytest.mark.hypothesis

ROOMY = Budget.of(1_000_000)


@pytest.mark.parametrize("seed", SEEDS)
def test_votes_decide_as_the_document_counts_them_in_whichever_order_they_come(seed: int) -> None:
    rng = random.Random(seed)
    for _ in examples(150):
        k = rng.randint(1, 9)
        answers: list[bool | None] = [rng.choice([True, False, None]) for _ in range(3 * k)]
        polls, called = Polls(k, 3 * k), 0
        while started := polls.start_calls():
            coming = answers[called : called + started]
            called += started
            rng.shuffle(coming)
            for each in coming:
                polls.add_vote(Vote(each, "because" if each is not None else "", "" if each is not None else "empty"))
                if polls.is_decided:
                    break
            if polls.is_decided:
                break
        outcome = tally(polls.votes, k)
        yes, threshold = ports.voted(answers, k)
        assert outcome.yes == yes, (k, answers)
        if not polls.is_decided:
            assert outcome.threshold == threshold, (k, answers)


# -- whole sessions ------------------------------------------------------------------------------------------------

MODES = ("chat", "openhands", "refer")


@dataclass
class Session:
    """A session as the driver keeps it: a YES makes a record, and the next request applies it."""

    mode: str
    records: list[Condensation] = field(default_factory=list)
    votes: list[Verdict] = field(default_factory=list)
    is_waiting: bool = False

    @property
    def strategy(self) -> DynaContext:
        (made,) = stages_of("dynacontext", dynacontext={"mode": self.mode})
        assert isinstance(made, DynaContext)
        return made

    @property
    def facts(self) -> SessionFacts:
        return SessionFacts(condensations=tuple(self.records), verdicts=tuple(self.votes))

    def request(self, bodies: list[Body]) -> View:
        transcript = transcript_of(bodies)
        view = fold(transcript, [made.overlay for made in self.records[-1:]], 0, WORDS)
        if self.is_waiting:
            self.is_waiting, record = False, self.records[-1]
            shortened = self.strategy.shortened(view, record.metadata)
            if shortened is not None:
                view = shortened.view
                metadata = {**record.metadata, **shortened.metadata}
                self.records[-1] = replace(recorded_as(view, ROOMY, 0), trigger=JUDGED, metadata=metadata)
        return view

    def judged(self, view: View, *, yes: bool) -> None:
        verdict = verdict_on(view, yes=yes)
        self.votes.append(verdict)
        if yes:
            plan = finish(self.strategy.condense(view, ROOMY, replace(self.facts, verdict=verdict)), good)
            after = apply(view, plan)
            check(after)
            assert head_pieces(after)
            made = replace(recorded_as(after, ROOMY, 0), trigger=JUDGED, metadata={"dynacontext": dict(plan.metadata)})
            self.records.append(made)
            self.is_waiting = True


def conversation(rng: random.Random, least: int) -> tuple[list[Body], list[int]]:
    """Messages that say their place, and the places where a message of the user or a round begins."""
    bodies: list[Body] = [user("message-0- the task")]
    places = [0]
    while len(bodies) < least:
        places.append(len(bodies))
        said = f"message-{len(bodies)}- {words(300)}"
        kind = rng.choice(["step", "step", "step", "text", "user"])
        if kind == "step":
            asked, result = step(len(bodies), 1)
            told = {**result, "content": f"message-{len(bodies) + 1}- {words(300)}"}
            bodies += [{**asked, "content": said}, told]
        else:
            bodies.append(assistant(said) if kind == "text" else user(said))
    return bodies, places


def shown(view: View) -> list[int]:
    return [place for place in map(int, re.findall(r"message-(\d+)-", "\n".join(texts(view)))) if place]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mode", MODES)
def test_a_record_replaces_what_the_documents_say(mode: str, seed: int) -> None:
    rng = random.Random(seed)
    for _ in examples(30):
        bodies, places = conversation(rng, rng.randint(6, 24))
        roles = [str(body["role"])[0] for body in bodies]
        ends = [*places[2:], len(bodies)]
        judged = rng.choice(ends)
        later = [end for end in ends if end >= judged][:5]
        applied = rng.choice(later[1:2] or later)
        case: Any = (mode, "".join(roles), judged, applied)
        session = Session(mode)
        expected = ports.replaced(roles, places, judged, applied, mode)
        if expected is None:
            with pytest.raises(NothingToSummarize):
                session.judged(session.request(bodies[:judged]), yes=True)
            continue
        session.judged(session.request(bodies[:judged]), yes=True)
        assert session.records[-1].metadata["dynacontext"]["summary_candidate_event_ids"] == expected.recorded, case
        for end in (applied, *(end for end in later if end > applied)):
            wanted = ports.replaced(roles[:end], places, judged, applied, mode)
            assert wanted is not None
            assert shown(session.request(bodies[:end])) == wanted.shown, (*case, end)


@pytest.mark.parametrize("mode", MODES)
def test_a_tail_of_two_rounds_of_one_message_each_goes_or_stays_whole(mode: str) -> None:
    said = [f"message-{place}- {words(300)}" for place in range(8)]
    bodies: list[Body] = [user(said[0]), *map(assistant, said[1:])]
    session = Session(mode)
    session.judged(session.request(bodies[:7]), yes=True)
    assert shown(session.request(bodies)) == ([5, 6, 7] if mode == "chat" else [7])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mode", MODES[1:])
def test_votes_are_held_at_the_documents_turns(mode: str, seed: int) -> None:
    rng = random.Random(seed)
    for is_agent in (True, False):
        for _ in examples(2):
            session, held, replaced_at = Session(mode), [], []
            bodies: list[Body] = [user("message-0- the task")]
            requests = 24
            for request in range(1, requests + 1):
                if session.is_waiting:
                    replaced_at.append(request)
                view = session.request(bodies)
                reason = session.strategy.skip_reason(view, ROOMY, session.facts)
                assert reason in ("", "early-turns", "min-growth", "cannot-shrink"), reason
                if reason != "early-turns":
                    # Also where a vote would be of no use, which the documents do not ask.
                    held.append(request)
                if not reason:
                    session.judged(view, yes=rng.random() < 0.4)
                reply = step(request, 1500)
                bodies += reply if is_agent else [assistant(words(1500)), user(f"And {request}?")]
            assert held == ports.first_votes(1, replaced_at, requests), (is_agent, replaced_at)
