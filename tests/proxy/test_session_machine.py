"""Whole sessions against the real driver and a store on disk, in any order of what clients do.

The model is the plainest there is: a line is the list of messages that one client holds. Every text carries a mark of
its own, and the summarizer signs what it writes with the tenant and the session that asked, so that whatever of another
line gets into a view is seen. Each step is a request (or two at once) whose forwarded list is checked.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from itertools import count
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from proxy import controls, wire
from proxy.decision import Action, Decision, Trigger
from proxy.intake import ChatRequest
from proxy.replaying.play import ScriptedSummarizer
from proxy.services import Services, services
from proxy.settings import ModelRole, Settings
from proxy.summarizer import Caller
from proxy.tokens.counter import Tokenizers
from strategies.core.alignment import LEAST_RUN
from strategies.core.effects import Answer, Effect, Result
from tests.http.strict import assert_stands, newest_round, problems, users

Message = dict[str, Any]
T = TypeVar("T")

WINDOW = 2_000
MODEL = "gpt-4o"
PIPELINES = ["mask+half-window", "half-window", "extract", "mask+extract", "recent", "mask"]
SHORT = settings(
    max_examples=30,
    stateful_step_count=20,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
LONG = settings(SHORT, max_examples=150, stateful_step_count=60, derandomize=False, print_blob=True)
MARK = re.compile(r"<m\d{5}>")
SIGNED = re.compile(r"<by ([^>]*)>")

lines = st.sampled_from(range(6))
sizes = st.sampled_from([3, 40, 40, 120, 120, 260])
places = st.integers(0, 200)


@dataclass(eq=False)
class Line:
    """What one client holds, and what was last forwarded for it; `kept` are the messages that it still sends."""

    tenant: str
    session: str | None
    messages: list[Message]
    dropped: int = 0
    edited: bool = False
    sent: list[str] | None = None
    applied: str = ""
    branch: tuple[str, str] = ("", "")

    @property
    def origin(self) -> str:
        return f"{self.tenant}/{self.session or 'derived'}"

    @property
    def kept(self) -> list[Message]:
        """The client's window of its history, behind the system message."""
        start = 1 if self.messages[0]["role"] == "system" else 0
        return self.messages[:start] + self.messages[start + self.dropped :]

    def copy(self) -> Line:
        """Another client with the same history, of which nothing was forwarded yet."""
        return Line(self.tenant, self.session, list(self.messages), self.dropped, self.edited)

    def forget(self) -> None:
        """From here on the line no longer goes on with what was forwarded."""
        self.sent = None


class SigningSummarizer(ScriptedSummarizer):
    """Copies from its prompt, marks included, and signs with the origin that the request's header names."""

    async def resolve(self, effects: Sequence[Effect], role: ModelRole, caller: Caller) -> tuple[Result, ...]:
        origin = dict(caller.headers)[b"x-origin"].decode()
        answers = await super().resolve(effects, role, caller)
        return tuple(
            Answer(f"<by {origin}> {each.text}", each.finish_reason, each.tokens) if isinstance(each, Answer) else each
            for each in answers
        )


@dataclass
class Proxy:
    """The driver on a store file; it can be closed and opened again."""

    strategy: str
    runner: asyncio.Runner = field(default_factory=asyncio.Runner)
    folder: TemporaryDirectory[str] = field(default_factory=TemporaryDirectory)
    opened: AbstractAsyncContextManager[Services] | None = None
    built: Services | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def open(self) -> None:
        chosen = Settings(
            strategy=self.strategy,
            window=WINDOW,
            store={"url": f"sqlite:///{self.folder.name}/store.db", "timeout": 20.0},  # type: ignore[arg-type]
        )
        self.opened = services(chosen, summarizer=SigningSummarizer(Tokenizers(None)))
        self.built = self.run(self.opened.__aenter__())

    def close(self) -> None:
        if self.opened is not None:
            self.run(self.opened.__aexit__(None, None, None))

    def end(self) -> None:
        self.close()
        self.runner.close()
        self.folder.cleanup()

    async def decide(self, line: Line, *, force: bool = False) -> Decision:
        assert self.built is not None
        return await self.built.condenser.decide(request(line, force=force))


def request(line: Line, *, force: bool) -> ChatRequest:
    body = {"model": MODEL, "messages": line.kept}
    given = {"x-condenser-session": line.session, "x-condenser-force": "true" if force else None}
    asked = [(name.encode(), value.encode()) for name, value in given.items() if value]
    return ChatRequest(
        tenant=line.tenant,
        headers=[(b"x-origin", line.origin.encode())],
        body=wire.read(json.dumps(body).encode()),
        model=MODEL,
        renamed=False,
        controls=controls.read(asked, None, None),
    )


async def settle(*decisions: Decision) -> None:
    await asyncio.gather(*(each.settle(None) for each in decisions if each.settle is not None))


def forwarded(decision: Decision) -> list[str]:
    return [element.raw for element in wire.read(decision.body).elements]


def assert_nothing_foreign(line: Line, decision: Decision) -> None:
    """No text of another branch, session or tenant, and no summary that another one paid for."""
    text = decision.body.decode()
    assert set(MARK.findall(text)) - set(MARK.findall(json.dumps(line.messages))) == set()
    assert set(SIGNED.findall(text)) <= {line.origin}


def assert_sound(line: Line, decision: Decision) -> None:
    """A strict upstream takes it; the task and the last user message stand."""
    view = [json.loads(raw) for raw in forwarded(decision)]
    assert problems(view) == set()
    if line.dropped:
        assert users(line.kept)[-1] in view
    else:
        assert_stands(view, line.kept)
        assert decision.tokens_after <= decision.tokens_before
    newest = newest_round(line.kept)
    if decision.trigger is not Trigger.CONTEXT_LIMIT and not _was_shortened(decision):
        assert view[len(view) - len(newest) :] == newest


def _was_shortened(decision: Decision) -> bool:
    return decision.applied is not None and decision.applied.trigger == Trigger.CONTEXT_LIMIT


def assert_grown(line: Line, decision: Decision, *, alone: bool) -> None:
    """Where nothing new was condensed, the list begins with the last one; `alone`: no other client moved the branch."""
    applied = decision.applied.id if decision.applied else ""
    if line.sent is None or line.dropped:
        return
    if applied == line.applied or (alone and decision.action is not Action.CONDENSED):
        assert forwarded(decision)[: len(line.sent)] == line.sent


class Sessions(RuleBasedStateMachine):
    """What clients do, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[Line] = []
        self.numbers = count()
        self.owners: dict[tuple[str, str, str], Line] = {}
        self.proxy: Proxy | None = None

    @initialize(strategy=st.sampled_from(PIPELINES), size=sizes, turns=st.sampled_from([8, 9, 3, 0]))
    def start(self, strategy: str, size: int, turns: int) -> None:
        """A named session and a derived one, mostly as long as is condensed."""
        self.proxy = Proxy(strategy)
        self.proxy.open()
        for session in ("s", None):
            line = self.opened("tenant", session, size)
            self.lines.append(line)
            for _ in range(turns):
                self.say(line, 120)
                self.request(line)

    def teardown(self) -> None:
        if self.proxy is not None:
            self.proxy.end()

    # --- what is said -------------------------------------------------------------------------------------------

    def text(self, size: int) -> str:
        mark = f"<m{next(self.numbers):05d}>"
        return f"{mark} " + " ".join(f"word{i * 7 % 97}" for i in range(size))

    def opened(self, tenant: str, session: str | None, size: int) -> Line:
        system = {"role": "system", "content": self.text(3)}
        return Line(tenant, session, [system, {"role": "user", "content": self.text(size)}])

    def say(self, line: Line, size: int) -> None:
        line.messages.append({"role": "assistant", "content": self.text(size // 2 + 1)})
        line.messages.append({"role": "user", "content": self.text(size)})

    def work(self, line: Line, size: int, results: int) -> None:
        ids = [f"call_{next(self.numbers)}" for _ in range(results)]
        line.messages.append({"role": "assistant", "content": None, "tool_calls": [self.call(each) for each in ids]})
        line.messages += [{"role": "tool", "tool_call_id": each, "content": self.text(size)} for each in ids]

    def call(self, name: str) -> Message:
        arguments = json.dumps({"path": f"src/{self.text(1)}.py"})
        return {"id": name, "type": "function", "function": {"name": "read_file", "arguments": arguments}}

    # --- what is asked ------------------------------------------------------------------------------------------

    def line(self, index: int) -> Line:
        return self.lines[index % len(self.lines)]

    def decided(self, line: Line, *, force: bool = False) -> Decision:
        assert self.proxy is not None
        decision = self.proxy.run(self.proxy.decide(line, force=force))
        self.check(line, decision)
        return decision

    def check(self, line: Line, decision: Decision) -> None:
        assert_sound(line, decision)
        assert_nothing_foreign(line, decision)
        assert_grown(line, decision, alone=self.owners.get((line.tenant, *line.branch)) is line)

    def settled(self, line: Line, decision: Decision) -> None:
        assert self.proxy is not None
        self.proxy.run(settle(decision))
        self.noted(line, decision)

    def noted(self, line: Line, decision: Decision) -> None:
        line.sent = forwarded(decision)
        line.applied = decision.applied.id if decision.applied else ""
        line.branch = decision.session, decision.branch
        self.owners[(line.tenant, *line.branch)] = line

    def request(self, line: Line, *, force: bool = False) -> Decision:
        decision = self.decided(line, force=force)
        self.settled(line, decision)
        return decision

    def again(self, line: Line) -> None:
        """The same request is answered from the same bytes."""
        first = line.sent
        assert forwarded(self.request(line)) == first

    # --- the rules ----------------------------------------------------------------------------------------------

    @rule(index=lines, size=sizes, turns=st.integers(1, 5))
    def next_turns(self, index: int, size: int, turns: int) -> None:
        line = self.line(index)
        for _ in range(turns):
            self.say(line, size)
            self.request(line)

    @rule(index=lines, size=sizes, results=st.integers(1, 3), rounds=st.integers(1, 4))
    def tool_rounds(self, index: int, size: int, results: int, rounds: int) -> None:
        line = self.line(index)
        for _ in range(rounds):
            self.work(line, min(size, 120), results)
            self.request(line)

    @rule(index=lines, place=places, size=sizes)
    def edit_an_earlier_message(self, index: int, place: int, size: int) -> None:
        line = self.line(index)
        places = [i for i, each in enumerate(line.messages[:-1]) if each["content"] and i > line.dropped]
        if places:
            line.edited = True
            self.rewrite(line, places[place % len(places)], size)

    @rule(index=lines, size=sizes)
    def rewrite_the_last_message(self, index: int, size: int) -> None:
        line = self.line(index)
        self.rewrite(line, len(line.messages) - 1, size)

    def rewrite(self, line: Line, place: int, size: int) -> None:
        line.messages[place] = {**line.messages[place], "content": self.text(min(size, 120))}
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
        ends = [i for i in _ends(branch.messages) if i > branch.dropped + 1] or [len(branch.messages)]
        del branch.messages[ends[place % len(ends)] :]
        self.lines.append(branch)
        self.say(branch, size)
        self.request(branch)
        self.again(branch)

    @rule(index=lines, oldest=st.integers(1, 8), turns=st.integers(1, 3))
    def send_a_window_of_the_history(self, index: int, oldest: int, turns: int) -> None:
        line = self.line(index)
        self.slide(line, oldest)
        for _ in range(turns):
            known = self.can_align(line)
            self.say(line, 40)
            decision = self.request_of_window(line, known=known)
            self.slide(line, 2)
            self.settled(line, decision)

    def request_of_window(self, line: Line, *, known: bool) -> Decision:
        """Where the stored head can be reached, what was covered keeps standing."""
        before = line.applied
        decision = self.decided(line)
        if known and decision.action is not Action.CONDENSED:
            assert (decision.applied.id if decision.applied else "") == before
        return decision

    def slide(self, line: Line, oldest: int) -> None:
        """Drops the oldest messages, to a legal start, and never the last user message.

        Not after an edit: two lines may then share the run, and nothing is put back, as the last test here says.
        """
        if line.edited:
            return
        starts = [i - 1 for i, each in enumerate(line.messages) if each["role"] in ("user", "assistant")]
        last_user = max(i for i, each in enumerate(line.messages) if each["role"] == "user") - 1
        possible = [each for each in starts if line.dropped < each <= last_user]
        if possible:
            line.dropped = possible[min(oldest, len(possible)) - 1]

    def can_align(self, line: Line) -> bool:
        """Whether the client still sends enough of a named session whose head is its own last request."""
        mine = self.owners.get((line.tenant, *line.branch)) is line and line.sent is not None
        return mine and line.session is not None and len(line.kept) > LEAST_RUN + 1

    @rule(index=lines, size=sizes)
    def unrelated_call_under_the_same_id(self, index: int, size: int) -> None:
        line = self.line(index)
        call = self.opened(line.tenant, line.session, min(size, 120))
        decision = self.request(call)
        assert decision.applied is None
        assert [json.loads(raw) for raw in forwarded(decision)] == call.messages

    @rule(index=lines, size=sizes)
    def two_at_once(self, index: int, size: int) -> None:
        line = self.line(index)
        self.say(line, size)
        assert self.proxy is not None
        both = self.proxy.run(_together(self.proxy, line, line))
        for each in both:
            self.check(line, each)
        assert both[0].body == both[1].body
        self.proxy.run(settle(*both))
        self.noted(line, both[1])
        self.again(line)

    @rule(index=lines, size=sizes)
    def two_branches_at_once(self, index: int, size: int) -> None:
        line = self.line(index)
        other = line.copy()
        self.lines.append(other)
        pair = (line, other)
        for each in pair:
            self.say(each, size)
        assert self.proxy is not None
        decisions = self.proxy.run(_together(self.proxy, *pair))
        for each, decision in zip(pair, decisions, strict=True):
            self.check(each, decision)
        self.proxy.run(settle(*decisions))
        for each, decision in zip(pair, decisions, strict=True):
            self.noted(each, decision)
        self.owners.clear()  # which of the two came first is not told

    @rule(index=lines, turn=st.booleans())
    def force(self, index: int, turn: bool) -> None:
        line = self.line(index)
        if turn:
            self.say(line, 40)
        self.request(line, force=True)
        self.again(line)

    @rule(index=lines, size=sizes, force=st.booleans(), restarts=st.booleans())
    def crash_before_settling_and_retry(self, index: int, size: int, force: bool, restarts: bool) -> None:
        line = self.line(index)
        self.say(line, size)
        first = self.decided(line, force=force)
        if restarts:
            self.restart()
        line.forget()
        again = self.request(line, force=force)
        assert force or again.body == first.body  # what is forced twice may be condensed twice

    @rule(index=lines, size=sizes)
    def crash_and_give_up(self, index: int, size: int) -> None:
        line = self.line(index)
        self.say(line, size)
        self.decided(line)
        del line.messages[-2:]
        line.forget()
        self.request(line)

    @rule()
    def restart(self) -> None:
        assert self.proxy is not None
        self.proxy.close()
        self.proxy.open()

    @rule(index=lines)
    def the_same_text_elsewhere(self, index: int) -> None:
        """Another tenant with the same id, and another id of this tenant: nothing is known there."""
        name, line = f"other{next(self.numbers)}", self.line(index)
        for place in ("tenant", "session"):
            other = line.copy()
            setattr(other, place, name)
            self.lines.append(other)
            decision = self.request(other)
            assert decision.action is not Action.REPLAYED
            assert decision.depth <= 1
            self.say(other, 40)
            self.request(other)


def _ends(messages: Sequence[Message]) -> Iterator[int]:
    """Lengths of the histories that end with what a reply can follow."""
    roles = [each["role"] for each in messages]
    return (i for i in range(2, len(roles) + 1) if roles[i - 1] in ("user", "tool") and roles[i : i + 1] != ["tool"])


async def _together(proxy: Proxy, *asked: Line) -> list[Decision]:
    return await asyncio.gather(*(proxy.decide(each) for each in asked))


def test_sessions_keep_their_promises_whatever_clients_do() -> None:
    run_state_machine_as_test(Sessions, settings=SHORT)


@pytest.mark.torture
@pytest.mark.timeout(1800)
def test_sessions_keep_their_promises_over_thousands_of_steps() -> None:
    run_state_machine_as_test(Sessions, settings=LONG)


def test_a_window_that_ends_two_branches_brings_back_no_message_of_the_wrong_one() -> None:
    machine = Sessions()
    machine.start("extract", 3, 5)
    try:
        line = machine.lines[0]
        branch = line.copy()
        branch.messages[1] = {"role": "user", "content": machine.text(3)}
        machine.request(branch)
        line.dropped = 2
        machine.say(line, 3)
        machine.request(line)
    finally:
        machine.teardown()
