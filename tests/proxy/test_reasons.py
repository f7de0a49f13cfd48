"""What is told outside stays bounded: labels of metrics, and the closed list of reasons."""

import re
from pathlib import Path

import pytest

from proxy.reasons import REASONS, Reason
from proxy.servers.figures import Figures
from proxy.store.base import ANSWERS, REFUSED_WRITES
from proxy.telemetry import MAX_MODELS, OTHER, Telemetry

ROOT = Path(__file__).resolve().parents[2]
WORD = re.compile(r"[a-z]+(-[a-z]+)*")
VOTING = ROOT / "strategies" / "dynacontext.py"  # why no vote is held is told in the session
GIVEN = [
    *({*(ROOT / "strategies").rglob("*.py"), *(ROOT / "proxy" / "asking").glob("*.py")} - {VOTING}),
    ROOT / "proxy" / "conversations" / "recognition.py",
    ROOT / "proxy" / "condensing" / "making.py",
]
CALLS = re.compile(
    r"(Declined|StoreError|super\(\).__init__|AnswerRefused|return|Failure)\(?\s*f?\"([a-z]+(?:-[a-z]+)+)\""
)


@pytest.mark.parametrize("reason", sorted(REASONS))
def test_a_reason_is_kebab_case(reason: str) -> None:
    assert WORD.fullmatch(reason)


def test_reasons_are_named_like_their_values() -> None:
    assert all(reason.name == reason.value.upper().replace("-", "_") for reason in Reason)


def test_every_store_error_that_the_code_raises_is_in_the_list() -> None:
    raised = re.compile(r'\bStoreError\(\s*"([a-z-]+)"')
    texts = [path.read_text("utf-8") for path in (ROOT / "proxy").rglob("*.py")]
    given = {reason for text in texts for reason in raised.findall(text)}
    assert given >= {"store-contended", "store-quota", "store-timeout"}
    assert given | ANSWERS | REFUSED_WRITES <= REASONS


def test_every_reason_that_the_code_gives_is_in_the_list() -> None:
    given = {found.group(2) for path in GIVEN for found in CALLS.finditer(path.read_text("utf-8"))}
    failures = {"unknown-effect", "not-asked", "bad-option", "server-error"}  # the last one is in the metrics
    splits = {"turn-boundary", "active-only"}
    missing = {each for each in given - failures - splits if each not in REASONS and f"summary-{each}" not in REASONS}
    assert len(given) > 10
    assert not missing


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
