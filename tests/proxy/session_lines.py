"""Clients' lines of history, the replicas that they ask, and what must hold of every answer.

The model is the plainest there is: a line is the list of messages that one client holds. Every text carries a mark of
its own, and the summarizer signs what it writes with the tenant and the session that asked, so that whatever of another
line gets into a view is seen.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar

from proxy import controls
from proxy.asking import Caller, Roles
from proxy.bodies.wire import ClientRequest
from proxy.commands.replaying.models import ScriptedSummarizer
from proxy.condensing.attempt import Turn
from proxy.condensing.turn import Decision
from proxy.errors import HistoryUnavailable
from proxy.reasons import Action, Trigger
from proxy.servers.upstream.choice import DEFAULTS
from proxy.services import Services, open_services
from proxy.settings import Settings
from proxy.store.redis_store import RedisStore
from proxy.tokens.counter import Tokenizers
from proxy.turn import drive
from strategies.core.alignment import MIN_RUN
from strategies.core.effects import Answer, Effect, Result
from tests.http.strict import assert_stands, newest_round, problems, users
from tests.support import chat_bodies as wire
from tests.support.stores import PATIENT

Message = dict[str, Any]
T = TypeVar("T")

WINDOW = 2_000
MODEL = "gpt-4o"
REPLICAS = 2
MARK = re.compile(r"<m\d{5}>")
SIGNED = re.compile(r"<by ([^>\[]*)>")  # one that was cut in the middle, with a note in brackets, says nothing


@dataclass(eq=False)
class Line:
    """What one client holds, and what was last forwarded for it; it no longer sends its oldest `dropped` messages.

    In append mode it sends none of its first `appended` messages; `head` is what the last reply named.
    """

    tenant: str
    session: str | None
    messages: list[Message]
    dropped: int = 0
    sent: list[str] | None = None
    applied: str = ""
    branch: tuple[str, str] = ("", "")
    appended: int | None = None
    head: str = ""

    @property
    def origin(self) -> str:
        return f"{self.tenant}/{self.session or 'derived'}"

    @property
    def kept(self) -> list[Message]:
        """The newest part of its history that the client sends, behind the system message."""
        start = 1 if self.messages[0]["role"] == "system" else 0
        return self.messages[:start] + self.messages[start + self.dropped :]

    def copy(self) -> Line:
        """Another client with the same history, of which nothing was forwarded yet."""
        return Line(self.tenant, self.session, list(self.messages), self.dropped)

    def forget(self) -> None:
        """From here on the line no longer goes on with what was forwarded."""
        self.sent = None


class Speech:
    """Messages of any size; no two texts are alike, for each begins with a mark."""

    def __init__(self) -> None:
        self._numbers = count()

    def number(self) -> int:
        return next(self._numbers)

    def text(self, size: int) -> str:
        return f"<m{self.number():05d}> " + " ".join(f"word{i * 7 % 97}" for i in range(size))

    def opened(self, tenant: str, session: str | None, size: int) -> Line:
        system = {"role": "system", "content": self.text(3)}
        return Line(tenant, session, [system, {"role": "user", "content": self.text(size)}])

    def say(self, line: Line, size: int) -> None:
        """A reply, and the user's next message."""
        line.messages.append({"role": "assistant", "content": self.text(size // 2 + 1)})
        line.messages.append({"role": "user", "content": self.text(size)})

    def work(self, line: Line, size: int, results: int) -> None:
        """Tool calls, and what came of them."""
        ids = [f"call_{self.number()}" for _ in range(results)]
        line.messages.append({"role": "assistant", "content": None, "tool_calls": [self._call(each) for each in ids]})
        line.messages += [{"role": "tool", "tool_call_id": each, "content": self.text(size)} for each in ids]

    def _call(self, name: str) -> Message:
        arguments = json.dumps({"path": f"src/{self.text(1)}.py"})
        return {"id": name, "type": "function", "function": {"name": "read_file", "arguments": arguments}}


class SessionFacts:
    """What was asked so far: the histories of each named session, and whose newest request each branch had."""

    def __init__(self) -> None:
        self._histories: defaultdict[str, set[tuple[str, ...]]] = defaultdict(set)
        self._owners: dict[tuple[str, str, str], Line] = {}

    def note(self, line: Line, decision: Decision) -> None:
        """Keeps what a settled request has shown; a window that was not put back may be a history of its own."""
        self._histories[line.origin].add(_chain(line.messages))
        if not self.is_whole(line):
            self._histories[line.origin].add(_chain(line.kept))
        line.sent = forwarded(decision)
        line.applied = decision.applied.id if decision.applied else ""
        line.branch = decision.session, decision.context.branch_name
        self._owners[(line.tenant, *line.branch)] = line

    def disown(self) -> None:
        """Nothing is told any more of whose newest request a branch had."""
        self._owners.clear()

    def is_alone(self, line: Line) -> bool:
        """Whether the newest request of its branch was its own."""
        return self._owners.get((line.tenant, *line.branch)) is line and line.sent is not None

    def is_whole(self, line: Line) -> bool:
        """Whether the proxy knows the whole history: all was sent, or a window that can be of one history only."""
        if not line.dropped:
            return True
        can_be_found = line.session is not None and len(line.kept) > MIN_RUN + 1
        return can_be_found and self.is_alone(line) and self._is_unique(line)

    def _is_unique(self, line: Line) -> bool:
        """Whether only one history of its session goes on, or begins, as this window does."""
        run = _chain(line.kept)[:MIN_RUN]
        behind = {
            each[:start]
            for each in self._histories[line.origin]
            for start in range(len(each))
            if each[start : start + MIN_RUN] == run
        }
        return len(behind) == 1


def _chain(messages: Sequence[Message]) -> tuple[str, ...]:
    return tuple(json.dumps(each) for each in messages if each["role"] != "system")


class SigningSummarizer(ScriptedSummarizer):
    """Copies from its prompt, marks included, and signs with the origin that the request's header names."""

    async def resolve(self, effects: Sequence[Effect], roles: Roles, caller: Caller) -> tuple[Result, ...]:
        origin = dict(caller.headers)[b"x-origin"].decode()
        answers = await super().resolve(effects, roles, caller)
        return tuple(
            Answer(f"<by {origin}> {each.text}", each.finish_reason, each.tokens) if isinstance(each, Answer) else each
            for each in answers
        )


@dataclass
class Replicas:
    """Drivers on one store, asked in turn. They can be closed and opened again; one that crashes is never closed."""

    store: str
    strategy: str
    runner: asyncio.Runner = field(default_factory=asyncio.Runner)
    opened: list[tuple[AbstractAsyncContextManager[Services], Services]] = field(default_factory=list)
    crashed: list[AbstractAsyncContextManager[Services]] = field(default_factory=list)
    asked: int = 0
    asked_of: dict[int, Services] = field(default_factory=dict)  # by the id of a turn

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def open(self) -> None:
        chosen = Settings(
            strategy=self.strategy,
            window=WINDOW,
            memory={"default": "off"},  # type: ignore[arg-type]
            store={"url": self.store, "timeout": 20.0},  # type: ignore[arg-type]
        )
        while len(self.opened) < REPLICAS:
            opening = _replica(chosen)
            self.opened.append((opening, self.run(opening.__aenter__())))

    def close(self) -> None:
        for opening in [*(each for each, _ in self.opened), *self.crashed]:
            self.run(opening.__aexit__(None, None, None))
        self.opened, self.crashed = [], []

    def crash(self) -> None:
        """The replica that would be asked next is gone, with all that it only remembered."""
        opening, _ = self.opened.pop(self.asked % REPLICAS)
        self.crashed.append(opening)
        self.open()

    def end(self) -> None:
        self.close()
        self.runner.close()

    async def decide(
        self, line: Line, *, force: bool = False, guard: str | None = None, ahead: int | None = None
    ) -> Turn:
        """Asks the replica whose turn it is, or the one that is `ahead` of it."""
        _, built = self.opened[(self.asked + (ahead or 0)) % REPLICAS]
        self.asked += ahead is None
        turn = await drive.decide(built, _request(line, force=force, guard=guard))
        self.asked_of[id(turn)] = built
        return turn

    async def settle(self, *turns: Turn, reply: Message | None = None) -> None:
        """Stores requests at the same time; an append that is not stored says so, and changes nothing."""
        items = [reply] if reply else []
        settling = [drive.store(self.asked_of.pop(id(turn)), turn, items) for turn in turns]
        for outcome in await asyncio.gather(*settling, return_exceptions=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, HistoryUnavailable):
                raise outcome

    async def together(self, *lines: Line, apart: bool) -> list[Turn]:
        """All at once: each at another replica, or all at one."""
        return await asyncio.gather(*(self.decide(each, ahead=i if apart else 0) for i, each in enumerate(lines)))


@asynccontextmanager
async def _replica(chosen: Settings) -> AsyncIterator[Services]:
    """A driver with a store of its own; a Redis may take its time, for this is no test of its limits."""
    url = chosen.store.url
    store = RedisStore(url, shown=url, limits=PATIENT) if url.startswith("redis") else None
    async with open_services(chosen, store=store, summarizer=SigningSummarizer(Tokenizers(None))) as built:
        yield built
    if store is not None:
        await store.close()


def _request(line: Line, *, force: bool, guard: str | None) -> ClientRequest:
    messages = line.kept if line.appended is None else line.messages[line.appended :]
    given = {
        "x-condenser-session": line.session,
        "x-condenser-force": "true" if force else None,
        "x-condenser-history": None if line.appended is None else "append",
        "x-condenser-if-head": guard,
    }
    asked = [(name.encode(), value.encode()) for name, value in given.items() if value]
    return ClientRequest(
        tenant=line.tenant,
        upstream=DEFAULTS[0],
        headers=[(b"x-origin", line.origin.encode())],
        body=wire.read(json.dumps({"model": MODEL, "messages": messages}).encode()),
        model=MODEL,
        has_suffix=False,
        controls=controls.read(asked, None, None),
    )


def ends(messages: Sequence[Message]) -> Iterator[int]:
    """Lengths of the histories that end with what a reply can follow."""
    roles = [each["role"] for each in messages]
    return (i for i in range(2, len(roles) + 1) if roles[i - 1] in ("user", "tool") and roles[i : i + 1] != ["tool"])


def forwarded(decision: Decision) -> list[str]:
    return [element.raw for element in wire.read(decision.body).elements]


def assert_nothing_foreign(line: Line, decision: Decision) -> None:
    """No text of another branch, session or tenant, and no summary that another one paid for."""
    text = decision.body.decode()
    assert set(MARK.findall(text)) - set(MARK.findall(json.dumps(line.messages))) == set()
    assert set(SIGNED.findall(text)) <= {line.origin}


def assert_in_order(line: Line, decision: Decision) -> None:
    """What stands as the client wrote it stands once, in the order in which it was said."""
    places = {json.dumps(each): i for i, each in enumerate(line.messages)}
    shown = [places[text] for text in (json.dumps(json.loads(raw)) for raw in forwarded(decision)) if text in places]
    assert shown == sorted(set(shown))


def assert_sound(line: Line, decision: Decision) -> None:
    """A strict upstream takes it; the task and the last user message stand."""
    view = [json.loads(raw) for raw in forwarded(decision)]
    assert problems(view) == set()
    if line.dropped:
        assert users(line.kept)[-1] in view
    else:
        assert_stands(view, line.kept)
        assert decision.tokens_after <= decision.context.history.sent.tokens
    newest = newest_round(line.kept)
    if decision.trigger is not Trigger.CONTEXT_LIMIT and not _was_shortened(decision):
        assert view[len(view) - len(newest) :] == newest


def _was_shortened(decision: Decision) -> bool:
    return decision.applied is not None and decision.applied.trigger == Trigger.CONTEXT_LIMIT


def assert_grown(line: Line, decision: Decision, *, alone: bool) -> None:
    """With the same condensation, the list begins with the last one; `alone`: no other client moved the branch.

    Another one may be replayed where the last one's view does not fit any more: one of another line, or of a request
    that its client gave up.
    """
    applied = decision.applied.id if decision.applied else ""
    if line.sent is None:
        return
    if applied == line.applied or (alone and decision.action not in {Action.CONDENSED, Action.REPLAYED}):
        assert forwarded(decision)[: len(line.sent)] == line.sent
