"""The measurement of processor time for each request: its table, and that it can be run."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from bench.cpu import Row, markdown, measure
from bench.processes import stub

ROWS = [
    Row("small, plain, warm", "naive", 1.5, 1.6),
    Row("small, plain, warm", "memory", 0.5, 0.6),
    Row("small, plain, warm", "awecompress", 0.25, 0.3),
    Row("large, plain, warm", "naive", 2.0, 2.5),
    Row("large, plain, warm", "memory", 1.25, 1.5),
    Row("large, plain, warm", "awecompress", 10.0, 10.5),
]


def test_a_kind_of_request_is_a_line_with_the_least_times_and_their_ratios() -> None:
    head, _, small, large = markdown(ROWS).splitlines()
    assert head == "| CPU ms a request | naive | memory | awecompress | naive / memory | awecompress / memory |"
    assert small == "| small, plain, warm | 1.50 | 0.50 | 0.25 | 3.00 | 0.50 |"
    assert large == "| large, plain, warm | 2.00 | 1.25 | 10.00 | 1.60 | 8.00 |"


def test_the_processor_time_of_a_process_is_that_of_the_system() -> None:
    with stub() as served:
        clock = served.cpu
        fields = Path(f"/proc/{served.pid}/stat").read_text().rpartition(")")[2].split()
    ticks = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    assert 0 < clock == pytest.approx(ticks, abs=0.1)
    assert clock < time.monotonic()


@pytest.mark.torture
@pytest.mark.usefixtures("nothing_installed")
def test_small_requests_are_measured_against_the_naive_proxy() -> None:
    rows = measure(rounds=1, stores=("memory",), only="small, plain", connections=2, requests=8)

    assert [row.target for row in rows] == ["naive", "memory"]
    assert all(0 < row.least <= row.median for row in rows)
