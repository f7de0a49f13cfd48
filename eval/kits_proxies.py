"""Proxies under the public kits: each a process in front of a scripted model of its own, on loopback.

The standard library only: this runs in the environment of the kits, beside the program. What counts is the view, the
messages of the last request that reached the model. Where a proxy asks the model for a summary, one of two stand-ins
writes it: the *obliging* one copies every line with a rule, a number or a name, rules first, while they fit; the
*careless* one keeps the gist and no figure. A real model is between the two.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

Message = dict[str, Any]

WINDOW, TRIGGER = 8_192, 6_093
"""The trigger is ours in that window: 0.85 of what is usable."""
STYLES = ("obliging", "careless")
_OWN_CALLS = (
    "Transcript to compress", "Transcript segment to compress now", "Message from the context keeper",
    "=== CURRENT NOTES ===", "Write the JSON object now.",
)  # fmt: skip
"""Phrases that mark a proxy's own request for a summary; the last one is of our `rolling`."""
_WORDS = re.compile(r"at most (\d+) words")
_RULE = re.compile(
    r"\b(?:must|never|always|do not|don't|only|prefer|wants?|every|keep|no|when you|before you|until|unless)\b", re.I
)
_TELLING = re.compile(r"\d|[一-鿿]|(?<=\w )[A-Z]\w+|\b[A-Z]{3,}\b")
_GIST = "The user and the assistant set the project up, talked about several things, and agreed on the next steps."


@dataclass
class Model:
    """The scripted model: keeps the view it was asked with last, and writes summaries in a style."""

    style: str
    view: list[Message] = field(default_factory=list)
    own_calls: int = 0

    def reply(self, body: Mapping[str, Any]) -> str:
        messages: list[Message] = body["messages"]
        asked = text_of(messages[-1])
        if not any(mark in asked for mark in _OWN_CALLS):
            self.view = messages
            return "Noted. Continuing."
        self.own_calls += 1
        room = 4 * min(int(body.get("max_tokens") or body.get("max_completion_tokens") or 2_048), 2_048)
        if "JSON object" in asked:
            return self._rolling(messages)
        source = messages[1:] if "Message from the context keeper" in asked else messages[-1:]
        rules, rest = self._lines(source, room)
        if "NEW RULES" in asked:
            changes = [f"note {number}: {line}" for number, line in enumerate(rest, self.own_calls * 1_000)]
            return "\n".join(["NEW RULES", *(rules or ["(none)"]), "CHANGES", *(changes or ["(none)"]), "OPEN"])
        if "=== CURRENT NOTES ===" in asked:
            return "\n".join(["RULES", *(rules or ["(none)"]), "STATE", *rest, "OPEN"])
        return "\n".join([*rules, *rest])

    def _rolling(self, messages: Sequence[Message]) -> str:
        """What our `rolling` wants."""
        words = _WORDS.search("\n".join(map(text_of, messages)))
        rules, rest = self._lines(messages[-1:], 5 * int(words[1]) if words else 4_000)
        return json.dumps({"summary": "Key Facts:\n" + "\n".join([*rules, *rest])})

    def _lines(self, source: Sequence[Message], room: int) -> tuple[list[str], list[str]]:
        """The lines of rules and the other lines that this style keeps, in at most `room` characters."""
        if self.style == "careless":
            return [], [_GIST]
        marks = (*_OWN_CALLS, "=== ")
        lines = dict.fromkeys(line.strip() for message in source for line in text_of(message).splitlines())
        told = [line for line in lines if line and not any(mark in line for mark in marks)]
        kept: set[str] = set()
        for wanted in (_RULE, _TELLING):
            for line in (each for each in told if wanted.search(each) and each not in kept):
                if room >= len(line):
                    kept.add(line)
                    room -= len(line) + 1
        rules = [line for line in told if line in kept and _RULE.search(line)]
        return rules, [line for line in told if line in kept and line not in rules]


def text_of(message: Message) -> str:
    """All that a model reads of a message, calls included."""
    content = message.get("content") or ""
    if not isinstance(content, str):
        content = "\n".join(part.get("text") or "" for part in content)
    calls = (call["function"] for call in message.get("tool_calls") or ())
    return "\n".join([content, *(f"{call['name']} {call['arguments']}" for call in calls)])


@dataclass
class Proxy:
    """A running proxy, and the model behind it."""

    name: str
    model: Model
    port: int
    window: int = WINDOW

    def view_of(self, session: str, messages: Sequence[Message], window: int = 0) -> list[Message]:
        """What the model is asked with, when a client sends these messages."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=120)
        named = {"X-Condenser-Session": session, "X-Condenser-Window": str(window or self.window)}
        self.model.view = []
        body = json.dumps({"model": "gpt-4o", "messages": messages})
        headers = {"Content-Type": "application/json", "Authorization": "Bearer kit", **named}
        connection.request("POST", "/v1/chat/completions", body, headers)
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return list(self.model.view)


@contextmanager
def running(
    name: str, style: str, condenser: Path, tools: Path, settings: Mapping[str, str] | None = None
) -> Iterator[Proxy]:
    """A proxy by its name, in front of a model of this style; `tools` is where the rivals' commands are.

    `settings` are variables of the environment for ours.
    """
    model, port = Model(style), _free_port()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            message = {"role": "assistant", "content": model.reply(body)}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            answer = {"id": "1", "object": "chat.completion", "created": 1, "model": "gpt-4o", "choices": [choice]}
            data = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """The kits' table is the output."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    Thread(target=server.serve_forever, daemon=True).start()
    with TemporaryDirectory() as folder:
        upstream = f"http://127.0.0.1:{server.server_address[1]}"
        command, extra = _command(name, upstream, port, Path(folder), condenser, tools)
        log = Path(folder, "log")
        environment = {"PATH": "/usr/bin:/bin", "HOME": folder, **extra, **(settings or {})}
        with log.open("w") as out:
            process = subprocess.Popen(command, env=environment, stdout=out, stderr=out, cwd=folder)
            try:
                _wait_for(port, process, log)
                yield Proxy(name, model, port)
            finally:
                process.terminate()
                process.wait(30)
                server.shutdown()
                server.server_close()


def _command(
    name: str, upstream: str, port: int, folder: Path, condenser: Path, tools: Path
) -> tuple[list[str], dict[str, str]]:
    if name == "condenser":
        served = ["serve", "--port", str(port), "--upstream", f"{upstream}/v1", "--store", "memory://"]
        return [str(condenser), *served], {}
    if name == "awecompress":
        settings = {"upstream": upstream, "thresholdTokens": TRIGGER, "minSpanTokens": 1_000}
        (folder / "config.json").write_text(json.dumps(settings))
        served = ["serve", "--port", str(port), "--config", str(folder / "config.json")]
        return [str(tools / name), *served], {"AWECOMPRESS_CONFIG_DIR": str(folder)}
    served = ["--upstream", upstream, "--port", str(port), "--state-dir", str(folder / "state")]
    return [str(tools / name), *served, "--budget", str(WINDOW), "--notes-mode", "inplace", "--inplace-fit"], {}


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(600):
        if process.poll() is not None:
            break
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise RuntimeError(f"no proxy came up:\n{log.read_text()[-2_000:]}")
