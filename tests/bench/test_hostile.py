"""The requests of the measurement of hostile ones: of the size that they name, and such as a proxy condenses."""

import pytest

from bench import hostile
from tests.support.stage import proxy_with_upstream


def test_texts_have_their_length_and_differ() -> None:
    assert len(hostile.sentences(1, 600)) >= 600
    assert hostile.sentences(1, 600) != hostile.sentences(2, 600)
    assert 500 < len(hostile.characters(1, 600)) <= 600


def test_results_answer_their_calls() -> None:
    messages = [*hostile.results(iter(["one", "two"])), *hostile.talk(iter(["So?"]))][:-1]
    with proxy_with_upstream() as stage:
        assert stage.ask(messages).action == "passed"


@pytest.mark.torture
def test_a_request_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "32 messages of 64,000 characters"
    monkeypatch.setattr(hostile, "REQUESTS", {name: hostile.REQUESTS[name]})
    (row,) = hostile.measure()
    assert (row["request"], row["status"], row["s"] > 0) == (name, 200, True)
