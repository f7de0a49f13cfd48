"""The measurement of the loop's lag: that it can be run on the real app."""

import pytest

from bench.lag import STATES, measure


@pytest.mark.torture
def test_the_real_app_is_watched_under_each_kind_of_large_request() -> None:
    rows = measure(seconds=0.3, stores=("memory",))

    assert [row["large requests"] for row in rows] == list(STATES)
    assert all(row["callbacks"] > 0 and row["large"] >= 4 and row["small"] > 0 for row in rows)
    assert all((row["target"] == "met") == (row["over"] == 0) for row in rows)
