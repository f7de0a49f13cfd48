"""The measurement of workers: its table, and that it can be run."""

from __future__ import annotations

import pytest

from bench.scaling import CELLS, Row, document, markdown, measure


def test_workers_are_compared_with_the_first_number_of_them() -> None:
    rows = [Row("small", "sqlite", 1, 1_000.0, 0.5), Row("small", "sqlite", 2, 1_900.0, 0.55)]
    assert markdown(rows).splitlines()[2:] == [
        "| small | sqlite | 1 | 1,000 | 1.00 | 0.50 | 1.00 |",
        "| small | sqlite | 2 | 1,900 | 1.90 | 0.55 | 1.10 |",
    ]


@pytest.mark.torture
def test_workers_are_measured() -> None:
    rows = measure(workers=(1, 2), seconds=0.3, stores=("sqlite",))
    assert [(row.workers, row.cell) for row in rows] == [(number, str(cell)) for number in (1, 2) for cell in CELLS]
    assert all(row.rate > 0 and row.cpu > 0 for row in rows)
    assert len(document(rows)) == len(rows)
