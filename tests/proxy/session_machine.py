"""A machine of sessions: the real driver, two replicas and a real store, and what clients do, in any order.

Each step is a request (or two at once) whose forwarded list is checked against the list that its client holds: see
`tests/proxy/session_lines.py`.
"""

import json
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from proxy.condensing.attempt import Turn
from proxy.condensing.turn import Decision
from proxy.errors import HeadMismatch
from proxy.reasons import Action
from tests.proxy.session_lines import (
    Line,
    Replicas,
    SessionFacts,
    Speech,
    assert_grown,
    assert_in_order,
    assert_nothing_foreign,
    assert_sound,
    ends,
    forwarded,
)
from tests.support.redis_server import RedisServer, asking

PIPELINES = ["mask+half-window", "half-window", "extract", "mask+extract", "recent", "mask"]
lines = st.sampled_from(range(6))
sizes = st.sampled_from([3, 40, 40, 120, 120, 260])
places = st.integers(0, 200)


class Sessions(RuleBasedStateMachine):
    """What clients do, in any order; `redis` is None where the store is a file."""

    redis: ClassVar[RedisServer | None] = None

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.lines: list[Line] = []
        self.facts = SessionFacts()
        self.speech = Speech()
        self.replicas: Replicas | None = None

    @initialize(strategy=st.sampled_from(PIPELINES), size=sizes, turns=st.sampled_from([8, 9, 3, 0]))
    def start(self, strategy: str, size: int, turns: int) -> None:
        """A named session and a derived one, mostly as long as is condensed, and one in append mode."""
        self.replicas = Replicas(self.store(), strategy)
        self.replicas.open()
        for session in ("s", None):
            line = self.speech.opened("tenant", session, size)
            self.lines.append(line)
            for _ in range(turns):
                self.speech.say(line, 120)
                self.request(line)
        self.diary = self.speech.opened("tenant", "diary", size)
        self.diary.appended = 0
        self.before_newest = self.diary.appended, self.diary.head
        self.answered(self.diary, self.decided(self.diary))

    def store(self) -> str:
        if self.redis is None:
            return f"sqlite:///{self.folder.name}/store.db"
        with asking(self.redis.port) as client:
            client.flushall()
        return self.redis.url

    def teardown(self) -> None:
        if self.replicas is not None:
            self.replicas.end()
        self.folder.cleanup()

    def line(self, index: int) -> Line:
        return self.lines[index % len(self.lines)]

    @property
    def running(self) -> Replicas:
        assert self.replicas is not None
        return self.replicas

    def decided(self, line: Line, *, force: bool = False, guard: str | None = None) -> Turn:
        turn = self.running.run(self.running.decide(line, force=force, guard=guard))
        self.check(line, turn.sent.decision)
        return turn

    def check(self, line: Line, decision: Decision) -> None:
        """What holds of every answer; of a window that is known, what was covered keeps standing."""
        assert line.session or decision.context.branch_name == "main", "a derived session holds one conversation"
        assert_sound(line, decision)
        assert_nothing_foreign(line, decision)
        assert_in_order(line, decision)
        alone = self.facts.is_alone(line)
        if self.facts.is_whole(line):
            assert_grown(line, decision, alone=alone)
            if line.dropped and alone and decision.action is not Action.CONDENSED:
                assert (decision.applied.id if decision.applied else "") == line.applied

    def settled(self, line: Line, turn: Turn) -> None:
        self.running.run(self.running.settle(turn))
        self.facts.note(line, turn.sent.decision)

    def request(self, line: Line, *, force: bool = False) -> Decision:
        turn = self.decided(line, force=force)
        self.settled(line, turn)
        return turn.sent.decision

    def again(self, line: Line) -> None:
        """The same request is answered from the same bytes."""
        first = line.sent
        assert forwarded(self.request(line)) == first

    @rule(index=lines, size=sizes, turns=st.integers(1, 5))
    def next_turns(self, index: int, size: int, turns: int) -> None:
        line = self.line(index)
        for _ in range(turns):
            self.speech.say(line, size)
            self.request(line)

    @rule(index=lines, size=sizes, results=st.integers(1, 3), rounds=st.integers(1, 4))
    def tool_rounds(self, index: int, size: int, results: int, rounds: int) -> None:
        line = self.line(index)
        for _ in range(rounds):
            self.speech.work(line, min(size, 120), results)
            self.request(line)

    @rule(index=lines, place=places, size=sizes)
    def edit_an_earlier_message(self, index: int, place: int, size: int) -> None:
        line = self.line(index)
        places = [i for i, each in enumerate(line.messages[:-1]) if each["content"] and i > line.dropped]
        if places:
            self.rewrite(line, places[place % len(places)], size)

    @rule(index=lines, size=sizes)
    def rewrite_the_last_message(self, index: int, size: int) -> None:
        line = self.line(index)
        self.rewrite(line, len(line.messages) - 1, size)

    def rewrite(self, line: Line, place: int, size: int) -> None:
        line.messages[place] = {**line.messages[place], "content": self.speech.text(min(size, 120))}
        line.forget()
        self.request(line)
        self.again(line)

    @rule(index=lines)
    def regenerate(self, index: int) -> None:
        line = self.line(index)
        self.request(line)
        self.again(line)

    @rule(index=lines, place=places, size=sizes)
    def fork(self, index: int, place: int, size: int) -> None:
        branch = self.line(index).copy()
        possible = [i for i in ends(branch.messages) if i > branch.dropped + 1] or [len(branch.messages)]
        del branch.messages[possible[place % len(possible)] :]
        self.lines.append(branch)
        self.speech.say(branch, size)
        self.request(branch)
        self.again(branch)

    @rule(index=lines, turn=st.booleans())
    def force(self, index: int, turn: bool) -> None:
        line = self.line(index)
        if turn:
            self.speech.say(line, 40)
        self.request(line, force=True)
        self.again(line)

    @rule(index=lines, size=sizes)
    def unrelated_call_under_the_same_id(self, index: int, size: int) -> None:
        line = self.line(index)
        call = self.speech.opened(line.tenant, line.session, min(size, 120))
        decision = self.request(call)
        assert decision.applied is None
        assert [json.loads(raw) for raw in forwarded(decision)] == call.messages

    @rule(index=lines)
    def the_same_text_elsewhere(self, index: int) -> None:
        """Another tenant with the same id, and another id of this tenant: nothing is known there."""
        name, line = f"other{self.speech.number()}", self.line(index)
        for place in ("tenant", "session"):
            other = line.copy()
            setattr(other, place, name)
            self.lines.append(other)
            decision = self.request(other)
            assert decision.action is not Action.REPLAYED
            assert decision.applied is None or decision.applied.depth <= 1
            self.speech.say(other, 40)
            self.request(other)

    @rule(index=lines, least=st.sampled_from([1, 6, 8, 8, 12]), turns=st.integers(1, 3))
    def send_a_window_of_the_history(self, index: int, least: int, turns: int) -> None:
        line = self.line(index)
        for _ in range(turns):
            self.slide(line, least)
            self.speech.say(line, 40)
            self.request(line)

    def slide(self, line: Line, least: int) -> None:
        """Drops the oldest messages up to a legal start, but `least` messages and the last user message."""
        starts = [i - 1 for i, each in enumerate(line.messages) if each["role"] in ("user", "assistant")]
        last_user = max(i for i, each in enumerate(line.messages) if each["role"] == "user") - 1
        last = min(last_user, len(line.messages) - 1 - least)
        line.dropped = max((each for each in starts if line.dropped < each <= last), default=line.dropped)

    @rule(index=lines, size=sizes)
    def compact_without_us(self, index: int, size: int) -> None:
        """The client puts a summary of its own in front of its newest messages: what it stands for never comes back."""
        line = self.line(index)
        self.slide(line, 4)
        told = {"role": "user", "content": self.speech.text(min(size, 120))}
        line.messages = [line.messages[0], told, *line.kept[1:]]
        line.dropped = 0
        line.forget()
        self.request(line)
        self.again(line)

    @rule(index=lines, size=sizes, apart=st.booleans())
    def two_at_once(self, index: int, size: int, apart: bool) -> None:
        line = self.line(index)
        self.speech.say(line, size)
        both = self.running.run(self.running.together(line, line, apart=apart))
        for each in both:
            self.check(line, each.sent.decision)
        assert both[0].sent.decision.body == both[1].sent.decision.body
        self.running.run(self.running.settle(*both))
        self.facts.note(line, both[1].sent.decision)
        self.again(line)

    @rule(index=lines, size=sizes, apart=st.booleans())
    def two_branches_at_once(self, index: int, size: int, apart: bool) -> None:
        line = self.line(index)
        other = line.copy()
        self.lines.append(other)
        pair = (line, other)
        for each in pair:
            self.speech.say(each, size)
        exchanges = self.running.run(self.running.together(*pair, apart=apart))
        for each, turn in zip(pair, exchanges, strict=True):
            self.check(each, turn.sent.decision)
        self.running.run(self.running.settle(*exchanges))
        for each, turn in zip(pair, exchanges, strict=True):
            self.facts.note(each, turn.sent.decision)
        self.facts.disown()  # which of the two came first is not told

    @rule(index=lines, size=sizes, force=st.booleans(), crashes=st.booleans())
    def crash_before_settling_and_retry(self, index: int, size: int, force: bool, crashes: bool) -> None:
        line = self.line(index)
        self.speech.say(line, size)
        first = self.decided(line, force=force)
        if crashes:
            self.crash()
        line.forget()
        again = self.request(line, force=force)
        assert force or again.body == first.sent.decision.body  # what is forced twice may be condensed twice

    @rule(index=lines, size=sizes)
    def crash_and_give_up(self, index: int, size: int) -> None:
        line = self.line(index)
        self.speech.say(line, size)
        self.decided(line)
        del line.messages[-2:]
        line.forget()
        self.request(line)

    @rule()
    def crash(self) -> None:
        self.running.crash()

    @rule()
    def restart(self) -> None:
        self.running.close()
        self.running.open()

    @rule(size=sizes, turns=st.integers(1, 5), guarded=st.booleans())
    def append(self, size: int, turns: int, guarded: bool) -> None:
        for _ in range(turns):
            self.diary.messages.append({"role": "user", "content": self.speech.text(size)})
            before = self.diary.appended or 0, self.diary.head
            turn = self.decided(self.diary, guard=self.diary.head if guarded else None)
            self.before_newest = before
            self.answered(self.diary, turn)

    def answered(self, line: Line, turn: Turn) -> None:
        """The reply has come, and is stored with what it answers."""
        reply = {"role": "assistant", "content": self.speech.text(20)}
        self.running.run(self.running.settle(turn, reply=reply))
        self.facts.note(line, turn.sent.decision)
        line.messages.append(reply)
        line.appended, line.head = len(line.messages), turn.sent.decision.context.heads[1]

    @rule()
    def append_the_same_again(self) -> None:
        """The reply was lost on its way: the same guarded append replaces it."""
        line = self.diary
        newest = line.head
        line.appended, guard = self.before_newest
        if not guard:
            line.appended = len(line.messages)
            return
        line.messages.pop()
        turn = self.decided(line, guard=guard)
        assert turn.sent.decision.context.heads[1] == newest
        self.answered(line, turn)

    @rule(old=st.booleans())
    def append_to_another_head(self, old: bool) -> None:
        """What a client believes that has missed an append, or never was here."""
        guard = self.before_newest[1] if old and self.before_newest[1] else "9-" + "0" * 32
        self.diary.messages.append({"role": "user", "content": self.speech.text(3)})
        with pytest.raises(HeadMismatch) as refused:
            self.decided(self.diary, guard=guard)
        assert self.diary.head in str(refused.value)
        self.diary.messages.pop()

    @rule(size=sizes, apart=st.booleans())
    def append_two_at_once(self, size: int, apart: bool) -> None:
        """The one that is answered first is stored, and the other one never hides it."""
        line = self.diary
        late = replace(line, messages=list(line.messages))
        before = line.appended or 0, line.head
        for each in (line, late):
            each.messages.append({"role": "user", "content": self.speech.text(size)})
        first, second = self.running.run(self.running.together(line, late, apart=apart))
        self.check(line, first.sent.decision)
        self.check(late, second.sent.decision)
        self.before_newest = before
        self.answered(line, first)
        self.running.run(self.running.settle(second, reply={"role": "assistant", "content": self.speech.text(3)}))

    @rule(size=sizes)
    def append_without_a_reply(self, size: int) -> None:
        """The upstream failed, or its stream was cut: nothing of it is stored."""
        self.diary.messages.append({"role": "user", "content": self.speech.text(size)})
        self.running.run(self.running.settle(self.decided(self.diary), reply=None))
        self.diary.messages.pop()
        self.diary.forget()
