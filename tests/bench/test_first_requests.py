"""The table of how well the upstream's count is predicted has a row for each way of counting and of predicting."""

from __future__ import annotations

import pytest

from bench import first_requests
from tests.http.recorded import SHORT, conversations


@pytest.mark.timeout(120)
def test_prices_of_each_kind_of_text_predict_first_requests_better_than_one_slope() -> None:
    assert conversations(SHORT)
    rows = first_requests.measure(seeds=1, sessions=14)
    assert len(rows) == 5 * 2 * len(first_requests.FITS)
    mean = {name: sum(row.first for row in rows if row.prices == name) for name in first_requests.FITS}
    assert mean["fitted"] < mean["one slope"]
    assert first_requests.markdown(rows).count("\n") == len(rows) + 1
