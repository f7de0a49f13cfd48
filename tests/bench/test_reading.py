"""The measurement of how long reading a body takes."""

from __future__ import annotations

import pytest

from bench import reading


def test_a_turn_is_read_faster_than_a_new_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "SIZES", ((400, 300),))
    (row,) = rows = reading.measure()
    assert row.messages == 400
    assert row.turn < row.cold
    assert row.longest_turn <= row.cold
    assert reading.markdown(rows).count("\n") == 2
