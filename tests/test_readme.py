"""The figures of README and of the first pages are those that their own commands print."""

import asyncio
import io
import json
import re
import tomllib
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from bench.pictures import drawn
from proxy.commands.demo import WINDOW, Run, load, played
from strategies import DEFAULT
from tests.support import wire
from tests.support.recording import CHAT
from tests.support.stage import proxy_with_upstream

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
FIVE_MINUTES = (ROOT / "docs" / "start" / "five-minutes.md").read_text("utf-8")
WHAT_HAPPENED = (ROOT / "docs" / "start" / "what-happened.md").read_text("utf-8")
CHANGES = ("server-timing", "x-condenser-condensation", "content-length", "x-condenser-request-id")
"""Headers whose values differ from run to run or with the upstream."""


@pytest.fixture(scope="module")
def run() -> Run:
    """The demo as `condenser demo` runs it."""
    return asyncio.run(played(load(), DEFAULT, WINDOW))


@pytest.fixture(scope="module")
def demo(run: Run) -> list[str]:
    return run.text().splitlines()


def test_the_demo_prints_the_lines_that_are_shown(demo: list[str]) -> None:
    block = FIVE_MINUTES.split("<!-- demo -->")[1].split("```")[1].strip("\n").splitlines()
    assert [line for line in block if "ms to decide" not in line] == [
        line for line in demo[: len(block)] if "ms to decide" not in line
    ]
    assert len(block) > 15


def test_the_table_has_the_figures_of_the_demo(demo: list[str]) -> None:
    def cells(label: str) -> str:
        (line,) = [line for line in demo if line.startswith(label)]
        return " | ".join(re.split(r"\s{2,}", line.removeprefix(label).strip()))

    assert f"| tokens of the last request | {cells('prompt of the last request, tokens')} |" in README
    facts = cells("facts of turns 1 to 3 that reach the model").split(" | ")[1:]
    row = next(line for line in README.splitlines() if line.startswith("| facts of the beginning"))
    assert [cell.strip() for cell in row.split("|")[3:5]] == facts


def test_pictures_are_drawn_from_what_the_demo_does(run: Run) -> None:
    for name, picture in drawn(run).items():
        assert (ROOT / "docs" / "images" / name).read_text("utf-8") == picture, f"{name}: make pictures"


def test_the_table_of_models_has_as_many_as_are_told() -> None:
    told = re.search(r"bundled table of (\d+) models", README)
    lines = (ROOT / "config" / "models.toml").read_text("utf-8").splitlines()
    assert tomllib.loads("\n".join(lines))
    assert told
    assert int(told[1]) == sum("{ window =" in line for line in lines)


def test_a_request_as_it_is_shown_has_the_headers_that_are_shown() -> None:
    section = WHAT_HAPPENED.split("## An example")[1]
    script, shown = re.search(r"<<'PY'\n(.*?)\nPY\n", section, re.DOTALL), section.split("```")[3]
    assert script
    with redirect_stdout(io.StringIO()) as printed:
        exec(script[1], {})
    asked = [("X-Condenser-Session", "readme"), ("X-Condenser-Strategy", "recent"), ("X-Condenser-Window", "4096")]
    headers = [*wire.JSON, ("Authorization", "Bearer k"), *asked]
    assert all(f"'{name}: {value}'" in section for name, value in asked)
    with proxy_with_upstream(window=None) as stage:
        answer = wire.request(stage.proxy.url, "POST", CHAT, printed.getvalue().strip().encode(), headers)
    assert json.loads(printed.getvalue())["model"] == "gpt-4o"
    told = dict(line.split(": ", 1) for line in shown.strip().splitlines()[1:])
    made = {name.lower(): value for name, value in answer.headers}
    assert {name: made.get(name) for name in told if name not in CHANGES} == {
        name: value for name, value in told.items() if name not in CHANGES
    }
    assert {name for name in made if name.startswith("x-condenser")} - set(told) - set(CHANGES) == set()
