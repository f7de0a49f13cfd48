"""A recording of `condenser wrap` as an SVG whose lines appear as they were printed.

An agent sends the requests of the demo's session to a server that answers at once, with the official SDK, through the
proxy as it ships. Where the reader wants no motion, all lines are there at once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from bench.pictures.svg import block, picture, text
from bench.processes import serving
from proxy.commands.demo import WINDOW, load
from proxy.commands.replaying.play import request_ends

ROOT = Path(__file__).parents[2]
SHOWN = f"CONDENSER_WINDOW={WINDOW} condenser wrap -- python agent.py"
_COLUMNS, _LINE, _LONGEST_PAUSE, _TYPED = 100, 18, 0.6, 1.2
_AGENT = """\
import json
from openai import OpenAI

session = json.load(open("session.json"))
with OpenAI() as client:
    for number, end in enumerate(session["ends"], 1):
        messages = session["messages"][:end]
        client.chat.completions.create(model="gpt-4o", messages=messages, tools=session["tools"])
        if number % 20 == 0:
            print(f"agent: {number} requests sent", flush=True)
"""
_STYLE = """\
text{font:13px ui-monospace,SFMono-Regular,Menlo,"DejaVu Sans Mono",monospace;fill:#e6edf3;white-space:pre}\
.typed{fill:#7ee787}@keyframes shown{from{opacity:0}to{opacity:1}}g{animation:shown .05s both}\
@media(prefers-reduced-motion:reduce){g{animation:none}}"""


class Printed(NamedTuple):
    """A line of the terminal, and the seconds after which it came."""

    seconds: float
    text: str


def recorded() -> list[Printed]:
    """Runs the agent behind the proxy and returns what the terminal showed."""
    conversation = load()
    session = {"messages": conversation.messages, "tools": conversation.tools, "ends": [*request_ends(conversation)]}
    with tempfile.TemporaryDirectory() as folder, serving([sys.executable, "-m", "bench.stub", "{port}"]) as stub:
        here = Path(folder)
        (here / "session.json").write_text(json.dumps(session), "utf-8")
        (here / "agent.py").write_text(_AGENT, "utf-8")
        own = {
            "CONDENSER_WINDOW": str(WINDOW), "OPENAI_BASE_URL": f"http://127.0.0.1:{stub.port}/v1",
            "OPENAI_API_KEY": "k", "XDG_DATA_HOME": folder, "XDG_CONFIG_HOME": folder, "PYTHONPATH": str(ROOT),
        }  # fmt: skip
        kept = {name: value for name, value in os.environ.items() if not name.startswith("CONDENSER_")}
        own["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        command = [str(Path(sys.executable).with_name("condenser")), "wrap", "--", sys.executable, "agent.py"]
        begun = monotonic()
        with subprocess.Popen(
            command, cwd=here, env={**kept, **own}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            assert process.stdout
            lines = [Printed(monotonic() - begun, line.rstrip("\n")) for line in process.stdout]
    if process.returncode:
        raise RuntimeError("\n".join(line.text for line in lines))
    return lines


def terminal(command: str, lines: list[Printed]) -> str:
    """A terminal in which a command was typed and lines were printed; pauses are at most `_LONGEST_PAUSE` seconds."""
    drawn, y, at, before = [], 66, _TYPED, 0.0
    height = 92 + _LINE * sum(len(_wrapped(line.text)) for line in lines)
    drawn += [block(0, 0, 860, height, "fill:#0d1117;stroke:#3d444d")]
    drawn += [f'<circle cx="{20 + 18 * n}" cy="20" r="6" style="fill:{each}"/>' for n, each in enumerate(_BUTTONS)]
    drawn += [_shown(0.3, text(18, y, f"$ {command}", kind="typed"))]
    for line in lines:
        at += min(line.seconds - before, _LONGEST_PAUSE)
        before = line.seconds
        for part in _wrapped(line.text):
            y += _LINE
            drawn.append(_shown(at, text(18, y, part)))
    told = "A terminal: condenser wrap runs an agent, and prints a receipt of what was condensed."
    return picture(860, height, told, drawn, _STYLE)


_BUTTONS = ("#ff5f57", "#febc2e", "#28c840")


def _shown(seconds: float, what: str) -> str:
    return f'<g style="animation-delay:{seconds:.2f}s">{what}</g>'


def _wrapped(line: str) -> list[str]:
    return textwrap.wrap(line, _COLUMNS, subsequent_indent=" " * 17) or [""]
