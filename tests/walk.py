"""Follows one request through the product and measures how hard it is to follow.

    python -m tests.walk [--derived | --streamed | --condensed | --counts] [--json] [--steps]

It serves `proxy.app` in this process over ASGI, with SQLite and a scripted upstream, and traces one request: a small
chat request in a warm session, for which there is nothing to do. With --derived it names no session, with --streamed it
asks for events; --condensed traces the first request that the default strategy condenses by rules. --counts counts all
calls of a small, a medium and a large request, and of 100 events of a stream. `test_walk.py` bounds all figures.

Whoever is new to the code follows such a request from function to function. Each figure counts something that makes
this harder, so lower is better. Splitting a good leaf out of a file raises none of them.

own_calls          Calls of functions under proxy/ and strategies/ on the event loop's thread, without comprehensions
                   and generator expressions. Going on after an await is not a call.
repeated_per_cent  How many of these go to a function that this request has called before. A property that is computed
                   ten times makes a reader look ten times; a fact that was stored is simply there.
returns            A request passes five phases, and a file on its way should belong to one. A file entered in `read`,
                   `decide` and `reply` counts 2: to change it, one has to think of three moments. What ends a phase
                   is something that every such proxy does, so the figure survives a restructuring. `read` lasts until
                   the store is first asked, `decide` until bytes leave for the upstream, `send` until the upstream's
                   status comes back, `reply` until the last byte is handed to the server; the rest is `account`.
depth_store        Product functions on the stack when the store is first asked,
depth_send         and when the request's body leaves for the upstream. At depth 17 one has sixteen callers in mind,
                   most of which only call the next one. A task continues the stack of whoever started it; what another
                   thread does is asked for when it is queued.
drivers            Files with a function that calls into another file of the product. All other files are leaves, whose
                   names can be taken at their word: ten more leaves cost a reader little, ten more drivers a lot.
modes_per_driver   A mode is what most requests do not need, such as pins or a failing store; MODES has a pattern for
                   each. Driver files, here, are the files of proxy/ that have one function calling into FAN_OUT or
                   more other files during this request. The figure is how many modes such a file names on average, in
                   code, not in comments or docstrings. At 12, the one rule that a reader seeks has 12 exceptions.
closure_lines      Lines of all modules of the product that `proxy.app` imports, directly or not, wherever the import
                   stands. A command that serves no request is not among them, as it does not lengthen the way.

files (entered by the request) and product_lines (proxy/ and strategies/) are only for orientation: merging files lowers
the first and makes nothing clearer. --steps prints each step, indented by its depth, and the table of modes. The exit
status is 2 if the request did not go the way that was to be measured.

python_calls, c_calls: with --counts, all calls during one request on the event loop's thread, generators' steps
included, but not those of the loop and of this file: the least of `TRIES` conversations.
"""

import argparse
import ast
import asyncio
import collections
import contextlib
import json
import os
import re
import socket
import sqlite3
import sys
import tempfile
import threading
from bisect import bisect_right
from collections.abc import AsyncIterator, Coroutine, Generator, Iterable, Iterator
from pathlib import Path
from queue import SimpleQueue
from types import CodeType, FrameType
from typing import Any, NamedTuple

Message = dict[str, Any]

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("proxy", "strategies")
FAN_OUT = 5
COUNTING = "Measurer.measure"  # what counts a long list beside its request
SILENCE = 2.0  # seconds without a request before the traced one, so that no timer of an earlier one fires in it
PHASES = ("read", "decide", "send", "reply", "account")
FIGURES = ["own_calls", "repeated_per_cent", "returns", "depth_store", "depth_send", "drivers", "modes_per_driver"]
FIGURES += ["closure_lines", "files", "product_lines"]
TRIES = 5
LOOP_FILES = (__file__, "/selectors.py")

MODES = {
    "append mode": r"\.append\b(?!\()|append_head|Append\b",
    "bound reasoning": r"bound_(under|until)|binds_reasoning|is_signed|reasoning",
    "calibration": r"\.scale\b|calibrat|expected_tokens",
    "digests only": r"keeps_text|has_text|digests_only",
    "dry run": r"dry_run",
    "economy": r"econom|[Aa]dvice",
    "parts left out": r"left_out\b|without_parts|leaving_out|LeftOut|LIGHTER",
    "keys": r"owner\.key|check_unread|check_permitted|check_prefix",
    "memory blocks": r"memory_patch|memory_block|with_memory|add_memory|block_is|Injector",
    "memory tool": r"[Oo]ffer(ed|able)?\b|HiddenRounds|has_tools",
    "moved or restarted": r"(?<!re)moved|restart",
    "no store": r"no_store|may_store",
    "observe": r"observe(?!r)|is_projected",
    "patches": r"(?<!dis)(?<!Dis)patch",
    "pins": r"\bpins?\b|pinned|Pins?\b",
    "profiles": r"[Pp]rofile|\.form\b",
    "recital": r"recital",
    "request record": r"record_of|RequestRecord|note_failed|amounts\(",
    "restored history": r"restored|MissingMessages|is_aligned|full_transcript",
    "rewriting refused": r"rewriting\b|spare[ds]|REWRITE_REFUSED",
    "several upstreams": r"upstream\.(base_url|name)|[Dd]estination|\.serves",
    "shared cache pools": r"\bpools?\b|room_for|REPEATED",
    "size refused": r"size_refused|SizeRefused|ends_size",
    "store failure": r"\.failure\b|StoreError|\bstore-",
    "take-over": r"named_reply|NamedReply|takes?_over",
    "token budgets": r"[Ss]pending|token_budget|TokenBudget",
    "trials": r"\b[Tt]rials?\b|_trial|trial_",
    "trust": r"[Tt]rust\b|may_see_stored",
    "vendor compaction": r"[Cc]ompact(?!_json)|opaque|carried",
    "votes": r"[Jj]udg|\b[Vv]otes?\b|[Vv]erdict",
}
"""Patterns that find a mode's own names in code. A new mode needs a row; a pattern follows the names it looks for."""


class Place(NamedTuple):
    file: str
    function: str


class Step(NamedTuple):
    place: Place
    caller: Place | None  # the next product function on the stack
    depth: int  # product functions on the stack, this one included
    is_resumed: bool  # it goes on after an await or a yield


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]


class NotMeasured(Exception):
    """The request did not go the way that was to be measured."""


class Trace:
    """The steps of one request on the event loop's thread, and where in them its phases end."""

    def __init__(self) -> None:
        self.root, self.loop_thread = f"{ROOT}{os.sep}", threading.get_ident()
        self.homes = tuple(f"{self.root}{package}{os.sep}" for package in PACKAGES)
        self.places: dict[CodeType, Place | None] = {}
        self.below: dict[asyncio.Task[Any] | None, int] = {}
        self.upstream_port = 0
        self.is_on = False
        self.start()
        self.is_on = False

    def start(self) -> None:
        self.steps: list[Step] = []
        self.ends: dict[str, int] = {}
        self.queued: tuple[int, int] | None = None
        self.depth_store: int | None = None
        self.depth_send: int | None = None
        self.is_on = True

    def end_phase(self, name: str, at: int | None = None) -> None:
        if self.is_on:
            self.ends.setdefault(name, len(self.steps) if at is None else at)

    def ask(self, name: str, frame: FrameType | None) -> int | None:
        """Ends a phase because something outside is asked; at which depth."""
        is_on_loop = threading.get_ident() == self.loop_thread
        asked = (len(self.steps), self.depth(frame)) if is_on_loop else self.queued
        if asked is None:
            return None
        self.end_phase(name, asked[0])
        return asked[1]

    def walk(self) -> list[tuple[Step, str]]:
        """Each step with its phase."""
        if missing := [name for name in PHASES[:-1] if name not in self.ends]:
            raise NotMeasured(f"the end of a phase was not seen: {', '.join(missing)}")
        ends = [min(self.ends[later] for later in PHASES[number:-1]) for number in range(len(PHASES) - 1)]
        return [(step, PHASES[bisect_right(ends, number)]) for number, step in enumerate(self.steps)]

    def profile(self, frame: FrameType, event: str, function: Any) -> None:
        """What `sys.setprofile` calls, in all threads."""
        if not self.is_on:
            return
        is_on_loop = threading.get_ident() == self.loop_thread
        if event == "call" and is_on_loop and (place := self.place(frame.f_code)):
            callers = self.stack(frame.f_back)
            # A coroutine or generator that goes on stands at a RESUME whose argument is not 0.
            is_resumed = frame.f_lasti >= 0 and bool(frame.f_code.co_code[frame.f_lasti + 1] & 3)
            self.steps.append(Step(place, callers[0] if callers else None, self.depth(frame), is_resumed))
        elif event == "c_call":
            target = getattr(function, "__self__", None)
            if is_on_loop and isinstance(target, SimpleQueue):  # how executors hand a job to their threads
                self.queued = len(self.steps), self.depth(frame)
            elif isinstance(target, sqlite3.Connection | sqlite3.Cursor) and "read" not in self.ends:
                self.depth_store = self.ask("read", frame)

    def place(self, code: CodeType) -> Place | None:
        if code not in self.places:
            is_own = code.co_filename.startswith(self.homes)
            is_part = code.co_name in ("<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>")
            file = code.co_filename.removeprefix(self.root)
            self.places[code] = Place(file, code.co_qualname) if is_own and not is_part else None
        return self.places[code]

    def stack(self, frame: FrameType | None) -> list[Place]:
        """The product functions on the stack, innermost first."""
        found: list[Place] = []
        while frame is not None:
            if place := self.place(frame.f_code):
                found.append(place)
            frame = frame.f_back
        return found

    def depth(self, frame: FrameType | None) -> int:
        """How many product functions are on the stack, with those that were there when the current task was started."""
        with contextlib.suppress(RuntimeError):
            return len(self.stack(frame)) + self.below.get(asyncio.current_task(), 0)
        return len(self.stack(frame))

    def make_task(
        self,
        loop: asyncio.AbstractEventLoop,
        coroutine: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
        **options: Any,
    ) -> asyncio.Task[Any]:
        """What the event loop makes its tasks with."""
        task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **options)
        if self.is_on:
            self.below[task] = self.depth(sys._getframe(1))
        return task

    def watch_sending(self, name: str) -> None:
        """Notes when a method of sockets sends bytes to the upstream; the last before its status are the body's."""
        really = getattr(socket.socket, name)

        def sending(connection: socket.socket, *arguments: Any) -> Any:
            is_awaited = self.is_on and "send" not in self.ends and connection.family == socket.AF_INET
            if is_awaited and connection.getpeername()[1] == self.upstream_port:
                self.depth_send = self.ask("decide", sys._getframe(1))
            return really(connection, *arguments)

        setattr(socket.socket, name, sending)


# --- the two sides of the proxy ---------------------------------------------------------------------------------------

ANSWER = {"role": "assistant", "content": "That is done."}


async def serve_upstream(trace: Trace, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One connection to an upstream that gives the same answer to each chat."""
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
            body = await reader.readexactly(int(length[1])) if length else b""
            status, kind, reply = "404 Not Found", "application/json", b"{}"
            if b"/chat/completions" in head:
                status, (kind, reply) = "200 OK", chat_reply(body)
                await asyncio.sleep(0.02)  # so that what the proxy does right after sending belongs to `send`
                trace.end_phase("send")
            start = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(reply)}\r\n\r\n"
            writer.write(start.encode() + reply)
    writer.close()


def chat_reply(body: bytes) -> tuple[str, bytes]:
    """The content type and the bytes of the answer to a chat request."""
    usage = {"prompt_tokens": len(body) // 4, "completion_tokens": 4, "total_tokens": len(body) // 4 + 4}
    common: Message = {"id": "c1", "created": 1, "model": "m", "object": "chat.completion"}
    if not json.loads(body).get("stream"):
        choice = {"index": 0, "message": ANSWER, "finish_reason": "stop"}
        return "application/json", json.dumps({**common, "choices": [choice], "usage": usage}).encode()
    common["object"] += ".chunk"
    first, last = ({"index": 0, "delta": d, "finish_reason": f} for d, f in ((ANSWER, None), ({}, "stop")))
    number = json.loads(body).get("events", 1)
    events = [*[{**common, "choices": [first]}] * number, {**common, "choices": [last]}]
    events += [{**common, "choices": [], "usage": usage}]
    return "text/event-stream", "".join(f"data: {each}\n\n" for each in [*map(json.dumps, events), "[DONE]"]).encode()


async def ask(
    app: Any, trace: Trace, messages: list[Message], *, window: int, session: str, is_traced: bool, **options: Any
) -> Answer:
    """Sends a chat request as a server would; the status and the headers of its reply."""
    body = json.dumps({"model": "m", "messages": messages, **options}).encode()
    headers = {"host": "127.0.0.1", "content-type": "application/json", "authorization": "Bearer k"}
    headers |= {"content-length": str(len(body)), "x-condenser-window": str(window)}
    headers |= {"x-condenser-session": session} if session else {}
    coming: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    is_over, start = asyncio.Event(), dict[str, Any]()

    async def receive() -> Message:
        if not coming:
            await is_over.wait()
            return {"type": "http.disconnect"}
        return coming.pop()

    async def send(event: Message) -> None:
        if event["type"] == "http.response.start":
            start.update(event)
        elif not event.get("more_body"):
            trace.end_phase("reply")

    scope: Message = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
    }
    scope |= {"path": "/v1/chat/completions", "raw_path": b"/v1/chat/completions", "root_path": "", "query_string": b""}
    scope |= {"client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "state": {}}
    if is_traced:
        await asyncio.sleep(SILENCE)
        trace.start()
        sys.setprofile(trace.profile)
    await app({**scope, "headers": [(k.encode(), v.encode()) for k, v in headers.items()]}, receive, send)
    is_over.set()
    seen = -1
    while is_traced and seen != len(trace.steps):  # until the work that follows the reply is done
        seen = len(trace.steps)
        await asyncio.sleep(0.2)
    trace.is_on = False
    if is_traced:
        sys.setprofile(None)
    return Answer(start["status"], {k.decode().lower(): v.decode() for k, v in start["headers"]})


async def small_talk(case: str, name: str, is_traced: bool, app: Any, trace: Trace) -> Answer:
    """Four small requests, of which the last may be traced: a system prompt and seven messages."""
    messages: list[Message] = [{"role": "system", "content": f"Be brief, {name}."}]
    messages += [{"role": "user", "content": f"Hello from {name}."}]
    options: Message = {"window": 128_000, "session": "" if case == "derived" else name}
    options |= {"stream": True} if case == "streamed" else {}
    for turn in range(4):
        answered = await ask(app, trace, messages, is_traced=is_traced and turn == 3, **options)
        messages += [ANSWER, {"role": "user", "content": f"And part {turn + 2} of {name}?"}]
    return answered


async def agent_run(_case: str, name: str, is_traced: bool, app: Any, trace: Trace) -> Answer:
    """An agent that reads files until a request is condensed; that one is last, and so its trace is the one kept."""
    task = f"Fix the failing tests of {name}. You must never touch setup.py."
    messages: list[Message] = [{"role": "system", "content": f"Be brief, {name}."}]
    messages += [{"role": "user", "content": task}]
    for turn in range(60):
        function = {"name": "read_file", "arguments": json.dumps({"path": f"{name}/m{turn}.py"})}
        calls = [{"id": f"c{turn}", "type": "function", "function": function}]
        text = f"the result of step {turn} = compute({turn})\n" * 90 + name
        messages += [{"role": "assistant", "content": None, "tool_calls": calls}]
        messages += [{"role": "tool", "tool_call_id": f"c{turn}", "content": text}]
        answered = await ask(app, trace, messages, window=16_000, session=name, is_traced=is_traced)
        if answered.headers.get("x-condenser-action") == "condensed":
            break
    return answered


@contextlib.asynccontextmanager
async def started(app: Any) -> AsyncIterator[None]:
    """Runs the app's lifespan, as a server does."""
    to_app, from_app = asyncio.Queue[Message](), asyncio.Queue[Message]()
    running = asyncio.create_task(app({"type": "lifespan", "asgi": {"version": "3.0"}}, to_app.get, from_app.put))
    await to_app.put({"type": "lifespan.startup"})
    if (answer := await from_app.get())["type"] != "lifespan.startup.complete":
        raise NotMeasured(f"the app did not start: {answer}")
    yield
    await to_app.put({"type": "lifespan.shutdown"})
    await running


@contextlib.asynccontextmanager
async def served(trace: Trace) -> AsyncIterator[Any]:
    """The app over SQLite, in front of a scripted upstream."""
    from proxy.app import create_app
    from proxy.settings import Settings

    asyncio.get_running_loop().set_task_factory(trace.make_task)
    for method in ("send", "sendall", "sendmsg"):
        trace.watch_sending(method)
    server = await asyncio.start_server(lambda *ends: serve_upstream(trace, *ends), "127.0.0.1", 0)
    trace.upstream_port = server.sockets[0].getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        own = {
            "upstream": {"base_url": f"http://127.0.0.1:{trace.upstream_port}/v1"},
            "store": {"url": f"sqlite:///{folder}/s.db"},
            "marks": {"most": 0},  # so that nothing is due to a large request in a large window
            "log": {"level": "error"},
        }
        app = create_app(Settings.model_validate(own))
        threading.setprofile(trace.profile)  # before the store starts a thread
        async with started(app):
            yield app
    server.close()


async def traced(case: str) -> tuple[Trace, Answer]:
    """The trace of one request, made after two conversations like its own, and its reply."""
    trace, converse = Trace(), agent_run if case == "condensed" else small_talk
    async with served(trace) as app:
        for name in ("Ada", "Grace", "Edsger"):
            answered = await converse(case, name, name == "Edsger", app, trace)
    return trace, answered


# --- the figures ------------------------------------------------------------------------------------------------------


def measured(case: str) -> tuple[dict[str, Any], Trace]:
    """All that is told of a request, and its trace."""
    trace, (status, headers) = asyncio.run(traced(case))
    said = {key: headers.get(f"x-condenser-{key}") for key in ("action", "reason", "count")}
    if status != 200 or said["action"] != ("condensed" if case == "condensed" else "passed"):
        raise NotMeasured(f"the request was answered otherwise: status {status}, {said}")
    calls = [(step, phase) for step, phase in trace.walk() if not step.is_resumed]
    entered, callees = collections.defaultdict[str, set[str]](set), collections.defaultdict[Place, set[str]](set)
    for step, phase in calls:
        entered[step.place.file].add(phase)
        if step.caller and step.caller.file != step.place.file:
            callees[step.caller].add(step.place.file)
    busy = {place.file for place, called in callees.items() if len(called) >= FAN_OUT}
    driver = sorted(file for file in busy if file.startswith("proxy/"))
    codes = {file: code_of(ROOT / file) for file in driver}
    modes = {mode: [file for file in driver if re.search(pattern, codes[file])] for mode, pattern in MODES.items()}
    figures = {
        "own_calls": len(calls),
        "repeated_per_cent": round(100 * (1 - len({step.place for step, _ in calls}) / len(calls)), 1),
        "returns": sum(len(phases) - 1 for phases in entered.values()),
        "depth_store": trace.depth_store,
        "depth_send": trace.depth_send,
        "drivers": len({place.file for place in callees}),
        "modes_per_driver": round(sum(map(len, modes.values())) / max(len(driver), 1), 1),
        "closure_lines": lines(closure()),
        "files": len(entered),
        "product_lines": lines(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")),
    }
    by_phase = collections.Counter(phase for _, phase in calls)
    return {"case": case, **said, **figures, "calls_by_phase": by_phase, "driver": driver, "modes": modes}, trace


def lines(paths: Iterable[Path]) -> int:
    return sum(path.read_bytes().count(b"\n") for path in paths)


def code_of(path: Path) -> str:
    """The code of a file without comments and docstrings."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value.value = ...
    return ast.unparse(tree)


def closure() -> set[Path]:
    """The files of the product that `proxy.app` imports, directly or not."""
    found, to_read = set[Path](), ["proxy.app"]
    while to_read:
        module = to_read.pop()
        package = module.rpartition(".")[0]
        path = ROOT.joinpath(*module.split("."))
        path, package = (path / "__init__.py", module) if path.is_dir() else (path.with_suffix(".py"), package)
        # What is taken from a module may be a module too, or else is no file.
        if module.split(".")[0] in PACKAGES and path not in found and path.exists():
            found.add(path)
            to_read += [module.rpartition(".")[0], *imported(ast.parse(path.read_text()), package)]
    return found


def imported(tree: ast.AST, package: str) -> Iterator[str]:
    """The modules that code in a package imports, and all that it takes from them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            above = parts[: len(parts) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            yield from [base, *(f"{base}.{each.name}" for each in node.names)]


def tell(found: dict[str, Any], trace: Trace, *, with_steps: bool) -> None:
    if with_steps:
        for step, phase in trace.walk():
            resumed = " (goes on)" if step.is_resumed else ""
            print(f"{phase:8}{'  ' * step.depth}{step.place.file}: {step.place.function}{resumed}")
        for mode, files in sorted(found["modes"].items(), key=lambda row: -len(row[1])):
            print(f"{mode:19}{len(files):>8}  {' '.join(files)}")
    print("calls by phase:", ", ".join(f"{phase} {found['calls_by_phase'][phase]}" for phase in PHASES))
    print("driver files:", " ".join(found["driver"]))
    print(f"request: {found['case']}, {found['action']}, {found['reason'] or 'no reason'}")
    for name in FIGURES:
        print(f"{name:19}{found[name]:>8}")


# --- all calls --------------------------------------------------------------------------------------------------------


async def counted() -> dict[str, int]:
    """All calls of one request of each size, and of one event of a stream."""
    trace, found = Trace(), dict[str, int]()
    async with served(trace) as app:
        for size, messages, letters in (("small", 7, 20), ("medium", 60, 400), ("large", 400, 2_000)):
            python, c = await least_calls(app, trace, size, (messages, letters))
            found[f"python_calls_{size}"], found[f"c_calls_{size}"] = python, c
        few, _ = await least_calls(app, trace, "few", (7, 20), stream=True, events=100)
        many, _ = await least_calls(app, trace, "many", (7, 20), stream=True, events=500)
        found["python_calls_100_events"] = (many - few) // 4  # a timer that fires in one of them weighs less
    return found


def talk(name: str, number: int, letters: int) -> list[Message]:
    """A conversation of so many messages, each so long, that ends with a question."""
    roles = ("user", "assistant")
    said = [{"role": roles[i % 2], "content": f"{i} {name} ".ljust(letters, "x")} for i in range(number)]
    return [{"role": "system", "content": f"Be brief, {name}."}, *said]


async def least_calls(app: Any, trace: Trace, name: str, size: tuple[int, int], **options: Any) -> tuple[int, int]:
    """The Python and the C calls of a fourth turn: the least of `TRIES` conversations, as a timer may fire in one.

    A long new list is sent on a sample and counted beside. The next two turns wait for that, so that the third finds
    all counts on any machine.
    """
    counts = []
    for session in (f"{name}-{i}" for i in range(TRIES)):
        messages = talk(session, *size)
        for turn in range(4):
            tally = collections.Counter[str]()

            def note(frame: FrameType, event: str, _: Any, tally: collections.Counter[str] = tally) -> None:
                # The loop wakes as often as its sockets are ready, which says more of the machine than of the product.
                if not frame.f_code.co_filename.endswith(LOOP_FILES) and "/asyncio/" not in frame.f_code.co_filename:
                    tally[event] += 1

            sys.setprofile(note)
            status, _ = await ask(app, trace, messages, window=1_000_000, session=session, is_traced=False, **options)
            sys.setprofile(None)
            if status != 200:
                raise NotMeasured(f"a request was answered with status {status}")
            if turn < 2:
                for task in [each for each in asyncio.all_tasks() if COUNTING in str(each.get_coro())]:
                    await task
            messages = [*messages, ANSWER, {"role": "user", "content": f"And part {turn + 2} of {session}?"}]
        counts.append((tally["call"], tally["c_call"]))
    return min(python for python, _ in counts), min(c for _, c in counts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    which = parser.add_mutually_exclusive_group()
    for case in ("derived", "streamed", "condensed"):
        which.add_argument(f"--{case}", dest="case", action="store_const", const=case, default="idle")
    which.add_argument("--counts", action="store_true", help="count all calls instead")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--steps", action="store_true", help="print each step too, and which file names which mode")
    options = parser.parse_args()
    for name in [name for name in os.environ if name.startswith("CONDENSER_")]:
        del os.environ[name]
    try:
        if options.counts:
            print(json.dumps(asyncio.run(counted()), indent=None if options.json else 2))
            return 0
        found, trace = measured(options.case)
    except NotMeasured as error:
        parser.exit(2, f"not measured: {error}\n")
    if options.json:
        steps = [{"phase": phase, **step._asdict()} for step, phase in trace.walk()]
        print(json.dumps({**found, **({"steps": steps} if options.steps else {})}))
    else:
        tell(found, trace, with_steps=options.steps)
    return 0


if __name__ == "__main__":
    sys.exit(main())
