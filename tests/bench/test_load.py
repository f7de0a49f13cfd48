"""The measurement under load: requests that differ where they should, verdicts, and one round over real processes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from bench.load import CELLS, DIRECT, NAIVE, Cell, Row, document, markdown, measure, verdict
from bench.payloads import request_parts
from strategies.core.digest import message_digest

CELL = Cell("small", False, "warm")
ROW = Row(str(CELL), "memory", 6_000.0, 0.4, 0.4, 1.0, 0.4, 1.0, 9_000)
DIRECTLY = replace(ROW, target=DIRECT, rate=50_000.0, cpu=None, p50=0.02, first_p50=0.02)
NAIVELY = replace(ROW, target=NAIVE, rate=1_000.0, cpu=1.7, p50=1.0, first_p50=1.0)


def digests(payload: str, number: int, *, cold: bool) -> list[bytes]:
    sent = request_parts(payload, streamed=False, cold=cold).request(b"s000000000001", number)
    head, _, body = sent.partition(b"\r\n\r\n")
    assert f"content-length: {len(body)}".encode() in head
    return [message_digest(each) for each in json.loads(body)["messages"]]


@pytest.mark.parametrize("payload", ["small", "medium", "large"])
def test_of_warm_requests_only_the_last_message_differs_and_of_cold_ones_every_message(payload: str) -> None:
    warm, next_warm = digests(payload, 1, cold=False), digests(payload, 2, cold=False)
    cold, next_cold = digests(payload, 1, cold=True), digests(payload, 2, cold=True)

    assert warm[:-1] == next_warm[:-1]
    assert warm[-1] != next_warm[-1]
    assert not set(cold) & set(next_cold)


def test_every_kind_of_request_is_measured_plain_and_streamed() -> None:
    assert {(cell.payload, cell.streamed) for cell in CELLS if cell.state == "warm"} == {
        (payload, streamed) for payload in ("small", "medium", "large") for streamed in (False, True)
    }
    assert all(cell.goal is not None for cell in CELLS if cell.state == "warm")


def test_a_goal_is_met_by_throughput_and_by_what_is_added() -> None:
    assert verdict(ROW, DIRECTLY, NAIVELY) == "met"
    assert verdict(replace(ROW, rate=5_000.0), DIRECTLY, NAIVELY) == "missed: 5.5 x"
    assert verdict(replace(ROW, p50=0.6), DIRECTLY, NAIVELY) == "missed: 0.5 ms"
    assert verdict(NAIVELY, DIRECTLY, NAIVELY) == "-"


def test_replaying_a_condensation_is_judged_by_its_processor_time() -> None:
    replayed = replace(ROW, cell=str(Cell("large", False, "replay")))
    assert verdict(replayed, DIRECTLY, NAIVELY) == "met"
    assert verdict(replace(replayed, cpu=4.1), DIRECTLY, NAIVELY) == "missed: 4 ms of CPU"


def test_a_row_is_a_line_with_ratios_to_the_naive_proxy_and_what_is_added_to_none() -> None:
    lines = markdown([DIRECTLY, NAIVELY, ROW]).splitlines()
    assert lines[-1] == ("| small, plain, warm | memory | 6,000 | 6.00 | 0.40 ms | 0.38 ms | 0.00 ms | 0.38 ms | met |")
    assert "(0.02 ms)" in lines[2]


def test_all_targets_are_measured_in_one_run() -> None:
    rows = measure(rounds=1, seconds=0.1, stores=("memory",), only="small, streamed, warm")

    assert {row.target for row in rows} >= {DIRECT, NAIVE, "memory"}
    assert all(row.requests > 0 and row.rate > 0 and 0 < row.first_p50 <= row.p50 for row in rows)
    assert [row.cpu is None for row in rows if row.target in (DIRECT, "memory")] == [True, False]
    assert len(document(rows)) == len(rows)
