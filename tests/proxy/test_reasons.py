"""The closed list of reasons: everything that can stand in the header is in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from proxy.reasons import Reason
from proxy.store.base import ANSWERS, REFUSED_WRITES

ROOT = Path(__file__).resolve().parents[2]
WORD = re.compile(r"[a-z]+(-[a-z]+)*")
VOTING = ROOT / "strategies" / "dynacontext" / "voting.py"  # why no vote is held is told in the session
GIVEN = [
    *({*(ROOT / "strategies").rglob("*.py"), *(ROOT / "proxy" / "asking").glob("*.py")} - {VOTING}),
    ROOT / "proxy" / "sessions" / "recognition.py",
    ROOT / "proxy" / "condensing" / "running.py",
]
CALLS = re.compile(
    r"(Declined|StoreError|super\(\).__init__|AnswerRefused|return|Failure)\(?\s*f?\"([a-z]+(?:-[a-z]+)+)\""
)


@pytest.mark.parametrize("reason", list(Reason))
def test_a_reason_is_kebab_case_and_named_like_its_value(reason: Reason) -> None:
    assert WORD.fullmatch(reason.value)
    assert reason.name == reason.value.upper().replace("-", "_")


def test_every_store_error_that_the_code_raises_is_in_the_list() -> None:
    raised = re.compile(r'\bStoreError\(\s*"([a-z-]+)"')
    texts = [path.read_text("utf-8") for path in (ROOT / "proxy").rglob("*.py")]
    given = {reason for text in texts for reason in raised.findall(text)}
    assert given >= {"store-contended", "store-quota", "store-timeout"}
    assert given | ANSWERS | REFUSED_WRITES <= set(Reason)


def test_every_reason_that_the_code_gives_is_in_the_list() -> None:
    given = {found.group(2) for path in GIVEN for found in CALLS.finditer(path.read_text("utf-8"))}
    failures = {"unknown-effect", "not-asked", "bad-option", "server-error"}  # the last one is in the metrics
    splits = {"turn-boundary", "active-only"}
    known = {each.value for each in Reason}
    missing = {each for each in given - failures - splits if each not in known and f"summary-{each}" not in known}
    assert len(given) > 10
    assert not missing
