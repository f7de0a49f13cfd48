"""How hard a request is to follow, by `tests/walk.py`: bounds that only ever go down.

A change that raises a figure does not land. Where one falls, its bound falls with it, and the commit says what went.
"""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.walk import ROOT

OWN_CALLS = {"": 373, "derived": 349, "streamed": 387, "condensed": 3_303}
BOUNDS: dict[str, dict[str, float]] = {
    "": {"returns": 38, "depth_store": 10, "depth_send": 7, "drivers": 35, "modes_per_driver": 4, "files": 55},
    "derived": {"returns": 31, "depth_store": 13, "depth_send": 7, "drivers": 33, "modes_per_driver": 4},
    "streamed": {"returns": 40, "depth_store": 10, "depth_send": 7, "drivers": 35, "modes_per_driver": 4},
    "condensed": {"returns": 61, "depth_store": 10, "depth_send": 7, "drivers": 56, "modes_per_driver": 8.3},
}
"""By case; the rest that `tests/walk.py` prints is for orientation."""

ALL_CALLS = {
    "python_calls_small": 758,
    "python_calls_medium": 870,
    "python_calls_large": 1_091,
    "python_calls_100_events": 300,
    "c_calls_large": 1_217,
}
pytestmark = pytest.mark.timeout(300)  # a busy machine takes its time to profile a conversation of an agent
CHANCE = 1.01
"""All calls vary by a few with the moment at which a thread or a socket is ready; a bound leaves as much room."""

DRIVER_LINES = 332
TRIES = 4


def walk(*arguments: str) -> Any:
    """What the tool prints, of a process of its own: it counts what this one does, and changes its sockets."""
    command = [sys.executable, "-m", "tests.walk", "--json", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("case", BOUNDS, ids=lambda case: case or "plain")
def test_a_request_is_no_harder_to_follow_than_it_was(case: str) -> None:
    bounds = {"own_calls": OWN_CALLS[case], **BOUNDS[case]}
    above = dict.fromkeys(bounds, 0.0)
    for _ in range(TRIES):  # a timer may fire in the traced request, on a slow machine more often
        found = walk(*([f"--{case}"] if case else []))
        above = {name: found[name] for name, most in bounds.items() if found[name] > most and name in above}
        if not above:
            break
    assert above == {}


def test_the_whole_way_of_a_request_is_one_short_file() -> None:
    assert len((ROOT / "proxy/turn/drive.py").read_text().splitlines()) <= DRIVER_LINES


def test_a_request_makes_no_more_calls_than_it_did() -> None:
    found = walk("--counts")
    assert {name: found[name] for name, most in ALL_CALLS.items() if found[name] > most * CHANCE} == {}
