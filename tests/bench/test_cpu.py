"""The measurement of processor time for each request: its table, and that it can be run."""

import os
import time
from pathlib import Path

import pytest

from bench.cpu import REQUESTS, measure, row
from bench.processes import stub


def test_each_kind_of_request_is_a_line_with_ratios() -> None:
    assert row("small, plain, warm", {"naive": 1.5, "memory": 0.5, "awecompress": 0.25}) == {
        "CPU ms a request": "small, plain, warm",
        "naive": 1.5,
        "memory": 0.5,
        "awecompress": 0.25,
        "naive / memory": 3.0,
        "awecompress / memory": 0.5,
    }


def test_the_processor_time_of_a_process_is_that_of_the_system() -> None:
    with stub() as served:
        clock = served.cpu
        fields = Path(f"/proc/{served.pid}/stat").read_text().rpartition(")")[2].split()
    ticks = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    assert 0 < clock == pytest.approx(ticks, abs=0.1)
    assert clock < time.monotonic()


@pytest.mark.torture
@pytest.mark.usefixtures("nothing_installed")
def test_small_requests_are_measured_against_the_naive_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REQUESTS, "small", 32)
    rows = measure(rounds=1, stores=("memory",), only="small, plain")

    assert [each["CPU ms a request"] for each in rows] == ["small, plain, warm", "small, plain, cold"]
    assert all(each["naive"] > 0 and each["memory"] > 0 for each in rows)
