"""The table that all measurements print."""

import pytest

from bench.__main__ import main, table


def test_texts_are_aligned_left_and_figures_right() -> None:
    rows = [{"what": "one", "figure": 1.234, "count": 1_000}, {"what": "two", "figure": 123.4, "count": 20}]

    assert table(rows).splitlines() == [
        "| what | figure | count |",
        "| --- | ---: | ---: |",
        "| one | 1.23 | 1,000 |",
        "| two | 123 | 20 |",
    ]


def test_what_was_measured_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--rounds", "8", "--runs", "1"]) == 0

    printed = capsys.readouterr().out
    assert "| at the trigger | `mask` |" in printed
    assert "| 128k window | `mask` |" in printed


def test_a_measurement_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reading"]) == 2
    assert "there is no measurement 'reading'" in capsys.readouterr().err
