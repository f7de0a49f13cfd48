"""Servers that answer one request at a time: the proxy's own calls never stand in a client's way there."""

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


@dataclass
class Serial:
    """A llama.cpp server with `slots` slots, whose answers to calls of the proxy's own take until `gate`.

    A call that is hung up frees its slot. `events` tells what happened, in order.
    """

    slots: int
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

    def meets_another(self) -> bool:
        """Whether a second request arrives while one is under way, which is so for a while."""
        with self._arrival:
            self._arrived += 1
            mine, meets = self._arrived, self._under_way > 0
            self._under_way += 1
            self._arrival.notify_all()
            meets = meets or self._arrival.wait_for(lambda: self._arrived > mine, POOL_WAIT[1] * 1.5)
            self._under_way -= 1
            return meets

    def page(self, path: str) -> Any:
        if path == "/props":
            return {"default_generation_settings": {"n_ctx": 4_096}, "total_slots": self.slots}
        return {"data": [{"id": "m", "owned_by": "llamacpp", "meta": {"n_ctx": 4_096}}]}

    def answer(self, body: dict[str, Any], is_gone: Any) -> str | None:
        """The answer's text; None if the caller has gone meanwhile."""
        is_own = not str(body["messages"][0]["content"]).startswith(PROMPT)
        name = "own" if is_own else "client"
        with self._free:
            self.events.append(f"{name} begins")
            if is_own:
                self.asked.set()
                while not self.gate.is_set():
                    if is_gone():
                        self.events.append("own gone")
                        return None
            self.events.append(f"{name} ends")
        return TAGGED if is_own else "Water it."


@contextmanager
def serving(slots: int = 1) -> Iterator[Serial]:
    serial = Serial(slots)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

        def do_GET(self) -> None:
            self._send(serial.page(self.path))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            said = serial.answer(body, self._is_gone)
            if said is None:
                self.close_connection = True
                return
            if said != TAGGED and (serial.is_full or (serial.takes_one and serial.meets_another())):
                serial.is_full = False
                self._send({"error": {"code": 500, "message": "Context size has been exceeded."}}, 500)
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


def ask(proxy: Proxy, session: str, max_tokens: int | None = None, **more: str) -> wire.Answer:
    limit = {"max_tokens": max_tokens} if max_tokens else {}
    headers = [*wire.JSON, ("Authorization", "Bearer sk-1"), *controls(session=session, window=4_096, **more)]
    return wire.request(proxy.url, "POST", CHAT, body_of(chat(20), "m", **limit), headers)


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


def test_one_own_call_runs_at_a_time() -> None:
    with serving() as serial:
        serial.gate.set()
        with running_proxy(serial.url, upstream=DISCOVERS, strategy="dynacontext+extract") as proxy:
            ask(proxy, "s", options="dynacontext.voting_k=3, dynacontext.judge=inline")
            proxy.quiet()
        own = [event for event in serial.events if event.startswith("own")]
        assert own
        assert own == ["own begins", "own ends"] * (len(own) // 2)


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
