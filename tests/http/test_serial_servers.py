"""Servers of one slot, or of several that may share a cache: own calls never stand in a client's way there."""

import itertools
import json
import select
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from proxy.services import POOL_WAIT
from tests.support import wire
from tests.support.proxy import Proxy, running_proxy
from tests.support.recording import CHAT
from tests.support.signals import BOUND, Signal
from tests.support.stage import SUMMARY, body_of, chat, controls

DISCOVERS = {"discover": True}
PROMPT = "You are a gardener."
TAGGED = f"<summary>{SUMMARY}</summary>"
WHILE = 0.2  # seconds for which a call waits for another that was sent with it
FULL = "Context size has been exceeded."


@dataclass
class Serial:
    """A llama.cpp server with `slots` slots, whose answers to calls of the proxy's own take until `gate`.

    `events` tells what happened, in order. The slots share `cells`: what overfills them fails, and so does all that is
    under way. Each slot is said to have `n_ctx` of them.
    """

    slots: int
    cells: int = 1_000_000
    n_ctx: int = 4_096
    looks: int | None = 0
    """How often `/slots` says that the slot of a call works on that was hung up; None if it is not served."""
    gate: Signal = field(default_factory=lambda: Signal("own calls may be answered"))
    asked: Signal = field(default_factory=lambda: Signal("the first own call has come"))
    events: list[str] = field(default_factory=list)
    url: str = ""
    is_full: bool = False
    """Whether its cache is too full for the next request of a client."""

    takes_one: bool = False
    """Whether its cache is full as soon as two requests of clients are under way."""

    def __post_init__(self) -> None:
        self._free = threading.Semaphore(self.slots)
        self._arrival = threading.Condition()
        self._arrived = self._under_way = 0
        self._held: dict[int, int] = {}
        self._left: dict[int, int] = {}  # calls that were hung up, and for how many looks they stay
        self._full: set[int] = set()
        self._count = itertools.count()
        self._lock = threading.Lock()

    def meets_another(self, seconds: float = POOL_WAIT[1] * 1.5) -> bool:
        """Whether a second request arrives while one is under way, which is so for a while."""
        with self._arrival:
            self._arrived += 1
            mine, meets = self._arrived, self._under_way > 0
            self._under_way += 1
            self._arrival.notify_all()
            meets = meets or self._arrival.wait_for(lambda: self._arrived > mine, seconds)
            self._under_way -= 1
            return meets

    def slots_page(self) -> Any:
        """What `/slots` says; None if that is not served."""
        with self._lock:
            if self.looks is None:
                self._held = {each: cells for each, cells in self._held.items() if each not in self._left}
                self.events.append("slots are not told")
                return None
            for each in list(self._left):
                self._left[each] -= 1
                if self._left[each] < 0:
                    del self._held[each], self._left[each]
                    self.events.append("slot free")
            return [{"id": each, "is_processing": each < len(self._held)} for each in range(self.slots)]

    @contextmanager
    def cells_for(self, body: dict[str, Any]) -> Iterator[int]:
        """The cells that a request holds, of which a call that is hung up lets go late; with its number."""
        mine, needed = next(self._count), len(json.dumps(body["messages"])) // 5 + (body.get("max_tokens") or 0)
        with self._lock:
            self._held[mine] = needed
            if sum(self._held.values()) > self.cells:
                self._full |= set(self._held)
                self.events.append(FULL)
        yield mine
        with self._lock:
            if mine not in self._left:
                del self._held[mine]

    def page(self, path: str) -> Any:
        if path == "/props":
            return {"default_generation_settings": {"n_ctx": self.n_ctx}, "total_slots": self.slots}
        return {"data": [{"id": "m", "owned_by": "llamacpp", "meta": {"n_ctx": self.n_ctx}}]}

    def answer(self, body: dict[str, Any], is_gone: Any) -> str | None:
        """The answer's text; None if the caller has gone meanwhile."""
        is_own = not str(body["messages"][0]["content"]).startswith(PROMPT)
        name = "own" if is_own else "client"
        with self._free, self.cells_for(body) as mine:
            self.events.append(f"{name} begins")
            if is_own:
                self.asked.set()
                self.meets_another(WHILE)
                while not self.gate.is_set():
                    if is_gone():
                        with self._lock:
                            self.events.append("own gone")
                            if self.looks != 0:
                                self._left[mine] = self.looks or 0
                        return None
            self.events.append(f"{name} ends")
            if mine in self._full:
                return FULL
        return TAGGED if is_own else "Water it."


@contextmanager
def serving(slots: int = 1, **more: Any) -> Iterator[Serial]:
    serial = Serial(slots, **more)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

        def do_GET(self) -> None:
            if self.path == "/slots":
                page = serial.slots_page()
                self._send(page or {"error": {"code": 501}}, 200 if page else 501)
                return
            self._send(serial.page(self.path))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            said = serial.answer(body, self._is_gone)
            if said is None:
                self.close_connection = True
                return
            if said == FULL or (said != TAGGED and (serial.is_full or (serial.takes_one and serial.meets_another()))):
                serial.is_full = False
                self._send({"error": {"code": 500, "message": FULL}}, 500)
                return
            choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
            self._send({"object": "chat.completion", "model": "m", "choices": [choice]})

        def _is_gone(self) -> bool:
            readable, _, _ = select.select([self.connection], [], [], 0.01)
            return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)

        def _send(self, document: Any, status: int = 200) -> None:
            data = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    serial.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield serial
    finally:
        serial.gate.set()
        server.shutdown()
        thread.join(BOUND)
        server.server_close()


def ask(proxy: Proxy, session: str, max_tokens: int | None = None, rounds: int = 20, **more: str) -> wire.Answer:
    limit = {"max_tokens": max_tokens} if max_tokens else {}
    headers = [*wire.JSON, ("Authorization", "Bearer sk-1"), *controls(session=session, window=4_096, **more)]
    return wire.request(proxy.url, "POST", CHAT, body_of(chat(rounds), "m", **limit), headers)


@pytest.mark.parametrize("background", ["on", "off"])
def test_a_late_summary_is_broken_off_before_the_request_is_sent(background: str) -> None:
    with (
        serving() as serial,
        running_proxy(
            serial.url, upstream=DISCOVERS, strategy="half-window", inline_timeout=1.0, background={"mode": background}
        ) as proxy,
    ):
        answer = ask(proxy, "s", force="true")
        assert (answer.status, answer.reason) == (200, "summary-timeout")
        assert serial.events[:4] == ["own begins", "own gone", "client begins", "client ends"]


@pytest.mark.parametrize("slots", [1, 4])
def test_one_own_call_runs_at_a_time(slots: int) -> None:
    with serving(slots, cells=4_096) as serial:
        serial.gate.set()
        with running_proxy(serial.url, upstream=DISCOVERS, strategy="dynacontext+extract") as proxy:
            ask(proxy, "s", options="dynacontext.voting_k=3, dynacontext.judge=inline")
            proxy.quiet()
        own = [event for event in serial.events if event.startswith("own")]
        assert own
        assert own == ["own begins", "own ends"] * (len(own) // 2)
        assert FULL not in serial.events


@pytest.mark.parametrize(
    ("n_ctx", "looks", "between"),
    [
        pytest.param(4_096, 1, ["slot free"], id="its slot is free late"),
        pytest.param(4_096, None, ["slots are not told"], id="slots are not told"),
        pytest.param(50_000, 1, [], id="both fit the cache"),
    ],
)
def test_a_request_waits_until_the_slot_of_a_call_that_was_hung_up_is_free(
    n_ctx: int, looks: int | None, between: list[str]
) -> None:
    with (
        serving(4, cells=n_ctx, n_ctx=n_ctx, looks=looks) as serial,
        running_proxy(
            serial.url, upstream=DISCOVERS, strategy="half-window", inline_timeout=1.0, background={"mode": "off"}
        ) as proxy,
    ):
        ask(proxy, "first", rounds=1)  # it has the proxy look at the server
        proxy.quiet()
        before = len(serial.events)
        answer = ask(proxy, "s", force="true")
        assert (answer.status, answer.reason) == (200, "summary-timeout")
    expected = ["own begins", "own gone", *between, "client begins", "client ends"]
    assert serial.events[before:][: len(expected)] == expected


@pytest.mark.parametrize(("is_full", "reason", "asks"), [(True, "summary-shared-cache", False), (False, "", True)])
def test_what_does_not_fit_a_shared_cache_is_not_asked(is_full: bool, reason: str, asks: bool) -> None:
    with serving(4) as serial:
        serial.gate.set()
        with running_proxy(serial.url, upstream=DISCOVERS, strategy="half-window", background={"mode": "off"}) as proxy:
            ask(proxy, "first")
            proxy.quiet()
            serial.is_full = is_full
            assert ask(proxy, "second").status == 200
            begun = serial.events.count("own begins")
            answer = ask(proxy, "s", force="true")
        assert (answer.reason or "") == reason
        assert (serial.events.count("own begins") > begun) == asks


def test_requests_that_do_not_fit_a_shared_cache_together_take_turns() -> None:
    with (
        serving(4) as serial,
        running_proxy(serial.url, upstream=DISCOVERS, strategy="recent") as proxy,
        ThreadPoolExecutor(2) as clients,
    ):
        ask(proxy, "first")
        proxy.quiet()
        serial.takes_one = True
        for begun in (4, 2):  # two are refused and repeated; now the cache is known, and two more wait for each other
            before = len(serial.events)
            answers = list(clients.map(lambda name: ask(proxy, name, max_tokens=2_400), ("a", "b")))
            assert [answer.status for answer in answers] == [200, 200]
            assert serial.events[before:].count("client begins") == begun
