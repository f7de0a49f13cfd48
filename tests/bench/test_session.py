"""The measurement of a long session: what it makes a table of, and that it can be run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.history import long_history
from bench.session import STAGES, Row, document, markdown, measure

ROW = Row("memory", True, "id", 2_000, 500_000, 300.0, dict.fromkeys(STAGES, 1.0), 5.0, 9.5, 4.9, 2_000_000, 1_900)


def test_a_generated_long_history_is_the_same_every_time_and_not_all_ascii() -> None:
    assert long_history(40) == long_history(40)
    assert len(long_history(41)) == 41
    assert not all(str(message["content"]).isascii() for message in long_history(40))


def test_a_row_is_a_line_with_its_stages_their_sum_and_a_verdict() -> None:
    _, _, met, missed = markdown([ROW, replace(ROW, condensed=False, recognised="chain", median=10.0)]).splitlines()
    assert (
        met == "| memory | half-window | id | 1.00 | 1.00 | 1.00 | 1.00 | 1.00 | 5.0 | 9.5 | 4.9 | 300 | 1,900 | met |"
    )
    assert missed.startswith("| memory | - | chain |")
    assert missed.endswith("| missed |")


def test_the_document_holds_all_of_a_row() -> None:
    (only,) = document([ROW])
    assert only["stages"] == dict.fromkeys(STAGES, 1.0)
    assert (only["store"], only["median"], only["bytes_in"]) == ("memory", 5.0, 2_000_000)


@pytest.mark.torture
def test_every_store_is_measured_both_ways_of_finding_a_session() -> None:
    rows = measure(messages=12, turns=2)
    assert {(row.store, row.recognised) for row in rows} >= {
        (store, way) for store in ("memory", "sqlite") for way in ("id", "chain")
    }
    assert all(set(row.stages) == set(STAGES) for row in rows)
