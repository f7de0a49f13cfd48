"""Ballots over a socket: judges that fail in every way and place, and the decision that the rule still gives.

One upstream plays all judges. It knows a ballot by its text and answers the ballot's calls in order of arrival, so
many ballots are held at the same time.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product

import pytest

from proxy.asking import BYTES_PER_TOKEN
from proxy.settings.tables import JudgeRole
from strategies.core.effects import Ballot, Vote, Votes, tally
from tests.proxy.asking.support import LATER, RecordedAsking, asking
from tests.support.recording import CHAT, Exchange
from tests.support.replies import Reply, ToolCall, completion, error, hang, hang_up, raw
from tests.support.signals import Signal
from tests.support.upstream import ScriptedUpstream
from tests.support.virtual_time import Clock

K, MAX_CALLS = 5, 15
NEVER = Signal("the end of the tests")
PATIENCE = (30.0, 2.0)  # seconds for a judge that answers, and for one of whom it is known that it does not


def vote_text(decision: str) -> str:
    return f"<reasoning>Because.</reasoning>\n<decision>{decision}</decision>"


def cut() -> Reply:
    """A body that ends too early."""
    whole = completion(vote_text("YES"))
    return replace(whole, steps=(whole.steps[0][:20],) if isinstance(whole.steps[0], bytes) else (), cut=True)


YES, NO = completion(vote_text("YES")), completion(vote_text("NO"))
VOTES = {"y": (YES, ""), "n": (NO, "")}
FAILURES: Mapping[str, tuple[Reply, str]] = {
    "garbage": (completion("I think so, yes."), "no-decision"),
    "lower case": (completion(vote_text("yes")), "bad-decision"),
    "another word": (completion(vote_text("MAYBE")), "bad-decision"),
    "two decisions": (completion(vote_text("YES") + "<decision>NO</decision>"), "two-decisions"),
    "the same decision twice": (completion(vote_text("YES") * 2), "two-decisions"),
    "no reasoning": (completion("<decision>YES</decision>"), "no-reasoning"),
    "an open tag": (completion("<reasoning>r</reasoning><decision>YES"), "no-decision"),
    "empty": (completion(""), "empty"),
    "null": (completion(None), "empty"),
    "a tool call": (completion(None, tool_calls=[ToolCall("vote")]), "empty"),
    "no json": (raw(b"<html>"), "unreadable"),
    "no choices": (raw(b'{"choices":[]}'), "unreadable"),
    "429": (error(429, headers=[("retry-after", "60")]), "rate-limited"),
    "401": (error(401), "http-error"),
    "500": (error(500), "http-error"),
    "503": (error(503), "http-error"),
    "dropped": (hang_up(), "unreachable"),
    "cut": (cut(), "unreachable"),
    "hang": (hang(NEVER), "timeout"),
}
ANSWERS = {**VOTES, **FAILURES}


class Judges:
    """Plays judges from scripts, each known by its ballot's text; a script's last answer goes on for ever."""

    def __init__(self, upstream: ScriptedUpstream) -> None:
        self.upstream = upstream
        self.scripts: dict[str, Sequence[str]] = {}
        self.arrived: Counter[str] = Counter()
        upstream.answer(self.answer)

    def answer(self, exchange: Exchange) -> Reply:
        text = exchange.json()["messages"][1]["content"]
        script, at = self.scripts[text], self.arrived[text]
        self.arrived[text] += 1
        return ANSWERS[script[min(at, len(script) - 1)]][0]

    async def hold(
        self, own: RecordedAsking, script: Sequence[str], *, timeout: float = 30.0, refills: bool = False
    ) -> Votes:
        """A ballot whose calls are answered by `script`; what was called is what arrived.

        It is held again with more patience where the machine was too busy for a judge that answers.
        """
        text = f"ballot {len(self.scripts)}"
        self.scripts[text] = script
        ballot = Ballot("Judge.", text, K, MAX_CALLS, 300, refills=refills)
        found = await own.votes(ballot, judge=JudgeRole(timeout=timeout))
        assert self.arrived[text] <= found.calls <= MAX_CALLS
        hung = sum(script[min(at, len(script) - 1)] == "hang" for at in range(self.arrived[text]))
        if errors(found).count("timeout") > hung:
            return await self.hold(own, script, timeout=2 * timeout, refills=refills)
        return found


def rule(script: Sequence[str]) -> bool:
    """The written rule, by the plainest reading: up to 15 answers, the first five valid votes, a majority of them."""
    whole = [*script, *[script[-1]] * (MAX_CALLS - len(script))][:MAX_CALLS]
    votes = [each for each in whole if each in VOTES][:K]
    yes = votes.count("y")
    return bool(votes) and yes >= (len(votes) + 1) // 2


def decision(votes: Votes) -> bool:
    return tally(votes.votes, K).yes


def errors(votes: Votes) -> list[str]:
    return [vote.error for vote in votes.votes if vote.error]


FOUR = ("garbage", "500", "cut", "hang")
"""One failure of each kind, which is tried at every place."""


# Where the others are two and two, the vote that is made up for decides.
@pytest.mark.parametrize(
    ("failure", "others", "places"),
    [
        *((each, "yynn", [2]) for each in FAILURES if each not in FOUR),
        *((*each, range(K)) for each in product(FOUR, ("yynn", "yyyn", "ynnn"))),
    ],
)
async def test_a_failed_vote_is_made_up_for(
    failure: str, others: str, places: Iterable[int], upstream: ScriptedUpstream
) -> None:
    judges = Judges(upstream)
    scripts = [[*others[:place], failure, *others[place:], last] for place in places for last in "yn"]
    async with asking(upstream.base_url) as own:
        held = await asyncio.gather(
            *(judges.hold(own, script, timeout=PATIENCE[failure == "hang"]) for script in scripts)
        )
    for script, votes in zip(scripts, held, strict=True):
        assert decision(votes) == rule(script), script
        assert set(errors(votes)) <= {FAILURES[failure][1]}
        assert votes.calls <= K + 1


@pytest.mark.parametrize("failure", FAILURES)
async def test_a_round_ends_when_its_first_three_answers_are_no_votes(failure: str, upstream: ScriptedUpstream) -> None:
    async with asking(upstream.base_url) as own:
        votes = await Judges(upstream).hold(own, [failure], timeout=0.2 if failure == "hang" else 30.0)
    assert decision(votes) is False
    assert errors(votes) == [FAILURES[failure][1]] * 3
    assert votes.calls <= K


async def test_a_round_that_refills_is_decided_by_all_its_calls(upstream: ScriptedUpstream) -> None:
    draw = random.Random(5)
    kinds = [*"yyynnn", *(kind for kind in FAILURES if kind != "hang")]
    scripts = [["garbage"] * K + draw.choices(kinds, k=MAX_CALLS - K) for _ in range(20)] + [["garbage"]]
    judges = Judges(upstream)
    async with asking(upstream.base_url) as own:
        held = await asyncio.gather(*(judges.hold(own, script, refills=True) for script in scripts))
    assert [decision(votes) for votes in held] == [rule(script) for script in scripts]
    assert held[-1].calls == MAX_CALLS


async def test_the_rule_decides_within_its_calls(upstream: ScriptedUpstream) -> None:
    draw = random.Random(4)
    kinds = [*"yynn", *(kind for kind in FAILURES if kind != "hang")]
    # Two failures at the most among the first five, so that they cannot end a round, in whichever order they come.
    failing = [kind for kind in kinds if kind not in VOTES]
    firsts = [[*draw.choices("yn", k=3), *draw.choices(failing, k=2)] for _ in range(20)]
    scripts = [[*draw.sample(first, K), *draw.choices(kinds, k=MAX_CALLS - K)] for first in firsts]
    judges = Judges(upstream)
    async with asking(upstream.base_url) as own:
        held = await asyncio.gather(*(judges.hold(own, script) for script in scripts))
    assert [decision(votes) for votes in held] == [rule(script) for script in scripts]


@pytest.mark.parametrize("winner", ["y", "n"])
async def test_when_the_outcome_stands_the_losers_are_cancelled(winner: str, upstream: ScriptedUpstream) -> None:
    async with asking(upstream.base_url) as own:
        votes = await Judges(upstream).hold(own, [winner, "hang", winner, "hang", winner], timeout=60.0)
        assert own.failures.count("cancelled") == 2
    assert decision(votes) == (winner == "y")
    assert (len(votes.votes), errors(votes), votes.calls) == (3, [], 5)
    hung = [each for each in upstream.journal.to() if each.status is None]
    assert len(hung) == 2
    # A judge that is told to stop has read its prompt by then.
    assert votes.tokens == 30 + sum(len(each.body) // BYTES_PER_TOKEN for each in hung)
    for each in hung:
        await asyncio.to_thread(each.disconnected.wait)


async def test_a_ballot_that_is_given_up_leaves_no_call_behind(upstream: ScriptedUpstream) -> None:
    async with asking(upstream.base_url) as own:
        task = asyncio.create_task(Judges(upstream).hold(own, ["hang"], timeout=60.0))
        await asyncio.to_thread(upstream.journal.await_arrival, K)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for each in upstream.journal.to():
            await asyncio.to_thread(each.disconnected.wait)
    assert len(upstream.journal) == K


async def test_votes_stand_in_order_of_arrival_with_their_reasoning(upstream: ScriptedUpstream) -> None:
    texts = [
        f"<reasoning>{number}</reasoning><decision>{said}</decision>"
        for number, said in enumerate(("YES", "NO", "YES"))
    ]
    gates = [Signal(f"the turn of call {number}") for number in range(3)]
    order = iter((gates[0], gates[2], gates[2]))

    def answers(exchange: Exchange) -> Reply:
        at = len(upstream.journal) - 1
        if at == 2:
            gates[1].set()
        return completion(texts[at]).after(gates[at])

    upstream.answer(answers)
    async with asking(upstream.base_url, then=lambda: next(order).set()) as own:
        votes = await own.votes(Ballot("Judge.", "it", 3, 9, 300))
    assert votes.votes == (Vote(False, "1"), Vote(True, "0"), Vote(True, "2"))


async def test_no_other_model_is_asked_in_place_of_an_unreachable_judge(upstream: ScriptedUpstream) -> None:
    judge = JudgeRole(base_url="http://127.0.0.1:9/v1", model="judge")
    async with asking(upstream.base_url) as own:
        votes = await own.votes(Ballot("Judge.", "it", K, MAX_CALLS, 300), judge=judge)
    assert decision(votes) is False
    assert (votes.calls, errors(votes), votes.tokens) == (K, ["unreachable"] * 3, 0)
    assert len(upstream.journal) == 0


async def test_a_judge_of_its_own_gets_its_own_key_only(upstream: ScriptedUpstream) -> None:
    with ScriptedUpstream() as other:
        judges = Judges(other)
        judges.scripts["it"] = ["y"]
        judge = JudgeRole(base_url=other.base_url, model="judge", api_key="sk-judge")  # type: ignore[arg-type]
        async with asking(upstream.base_url) as own:
            await own.ask(Ballot("Judge.", "it", K, MAX_CALLS, 300), judge=judge)
        assert {each.header("authorization") for each in other.journal} == {"Bearer sk-judge"}
        assert {each.json()["model"] for each in other.journal} == {"judge"}
        assert not any("sk-1" in value for each in other.journal for _, value in each.headers)
    assert len(upstream.journal) == 0


AT_ONCE = Ballot("Judge.", "it", K, MAX_CALLS, 300, at_once=True)


async def test_votes_at_once_are_one_request(upstream: ScriptedUpstream) -> None:
    upstream.reply(completion(*[vote_text("YES")] * 3, vote_text("NO"), "?", tokens=(100, 50)))
    async with asking(upstream.base_url) as own:
        votes = await own.votes(AT_ONCE)
    assert upstream.journal.only().json()["n"] == K
    assert (decision(votes), votes.calls, votes.tokens, errors(votes)) == (True, 1, 150, ["no-decision"])
    upstream.reply(completion(*[vote_text("NO")] * 3, *[vote_text("YES")] * 40))
    async with asking(upstream.base_url) as own:
        votes = await own.votes(AT_ONCE)
    assert (decision(votes), len(votes.votes)) == (False, K)


@pytest.mark.parametrize(
    ("first", "error"),
    [
        (completion(vote_text("YES")), "not-given"),
        (error(400, "n must be 1"), "not-given"),
        (hang_up(), "unreachable"),
    ],
    ids=["one answer only", "n refused", "dropped"],
)
async def test_what_one_call_missed_is_asked_singly(first: Reply, error: str, upstream: ScriptedUpstream) -> None:
    upstream.answer(lambda exchange: first if "n" in exchange.json() else YES)
    async with asking(upstream.base_url) as own:
        votes = await own.votes(AT_ONCE)
    assert decision(votes)
    assert set(errors(votes)) == {error}
    assert [each.json().get("n") for each in upstream.journal] == [K, *[None] * (votes.calls - 1)]


async def test_a_background_ballot_ends_with_its_credential(upstream: ScriptedUpstream) -> None:
    clock, judges = Clock(), Judges(upstream)
    judges.scripts["it"] = ["y", "n", "y", *["garbage"] * 12]

    def answers(exchange: Exchange) -> Reply:
        clock.now += 13
        return judges.answer(exchange)

    upstream.answer(answers)
    async with asking(upstream.base_url, clock=clock) as own:
        votes = await own.votes(Ballot("Judge.", "it", K, MAX_CALLS, 300), caller=LATER)
    assert (votes.calls, errors(votes)) == (K, ["no-decision"] * 2 + ["expired"])
    assert decision(votes)


async def test_calls_that_never_got_a_turn_are_not_counted_and_not_made(upstream: ScriptedUpstream) -> None:
    upstream.answer(lambda exchange: YES)
    async with asking(upstream.base_url, concurrency=1) as own:
        votes = await own.votes(Ballot("Judge.", "it", K, MAX_CALLS, 300), caller=LATER)
    assert votes.votes == (Vote(True, "Because."),) * 3
    assert votes.calls <= 4
    assert len(upstream.journal.to(CHAT)) <= 4


async def test_background_votes_wait_for_a_client(upstream: ScriptedUpstream) -> None:
    gate = Signal("the first votes may come")
    upstream.answer(lambda exchange: YES.after(gate))
    async with asking(upstream.base_url, mode="idle") as own:
        task = asyncio.create_task(own.ask(Ballot("Judge.", "it", K, MAX_CALLS, 300), caller=LATER))
        await asyncio.to_thread(upstream.journal.await_arrival, K)
        with own.lane.foreground():
            for each in upstream.journal.to():
                await asyncio.to_thread(each.disconnected.wait)
            gate.set()
        (votes,) = await task
    assert isinstance(votes, Votes)
    assert errors(votes) == ["preempted"] * K
    assert (decision(votes), votes.calls) == (True, K + 3)
