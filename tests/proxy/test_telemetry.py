"""What is told in metrics stays bounded, whatever clients call things."""

from __future__ import annotations

import pytest

from proxy.knowledge.figures import Figures
from proxy.telemetry import MAX_MODELS, OTHER, Telemetry


def test_models_that_come_when_there_are_many_share_a_label() -> None:
    telemetry = Telemetry()
    for number in range(MAX_MODELS + 50):
        telemetry.record_calibration(f"m{number}", Figures(first_error=0.1))
    telemetry.record_calibration("m0", Figures(first_error=0.2))
    lines = [line for line in telemetry.exposition().decode().splitlines() if "calibration_error{" in line]
    assert len(lines) == MAX_MODELS + 1  # of later requests nothing was measured
    assert sum(f'model="{OTHER}"' in line for line in lines) == 1
    assert 'condenser_calibration_error{kind="first",model="m0"} 0.2' in lines


@pytest.mark.parametrize("name", ["m" * 65, "my model", 'm"} 1\nforged{a="b', "modèle"])
def test_a_name_that_is_long_or_not_plain_is_no_label(name: str) -> None:
    telemetry = Telemetry()
    telemetry.record_calibration(name, Figures(first_error=0.1))
    lines = [line for line in telemetry.exposition().decode().splitlines() if "calibration_error{" in line]
    assert len(lines) == 1
    assert all(f'model="{OTHER}"' in line for line in lines)
