"""Planning grows with the history and not faster: told by what is counted, for a clock would tell of the machine."""

from collections.abc import Callable, Mapping
from functools import cache

import pytest

from bench.plan import STRATEGIES, filled_budget, planned
from strategies import TABLE, stages
from strategies.core import findings
from strategies.core.history import as_text
from strategies.core.transcript import Transcript
from strategies.core.view import fold
from tests.support.histories import agent_history, long_chat
from tests.support.planning import counted
from tests.support.transcripts import WORDS, Words

SHORT, LONG = 200, 1_000
SHORT_OF = {"semantic": 250}
"""Of 200 rounds its prompt just fits by what is known of each message; of more, abridged parts have to be counted."""
AT_MOST = 5.5
"""Five times the rounds, and a tenth for what is rounded."""


class Meter(Words):
    """Counts tokens, and how often and over how many characters it was asked to."""

    def __init__(self) -> None:
        self.calls = 0
        self.characters = 0
        self.messages = 0

    def text(self, text: str) -> int:
        self.calls += 1
        self.characters += len(text)
        return super().text(text)

    def message(self, body: Mapping[str, object]) -> int:
        self.calls += 1
        self.messages += 1
        return super().message(body)


@cache
def transcript(rounds: int) -> Transcript:
    return counted(agent_history(rounds), WORDS)


def metered(strategy: str, rounds: int) -> Meter:
    meter = Meter()
    view = fold(transcript(rounds), (), 0, meter)
    outcome = planned(stages(strategy.split("+"), {}, {}), view, filled_budget(transcript(rounds).tokens))
    assert outcome.stages or strategy == "off", outcome.reasons
    return meter


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_five_times_the_rounds_are_counted_at_most_a_tenth_more_often(strategy: str) -> None:
    rounds = SHORT_OF.get(strategy, SHORT)
    short, long = metered(strategy, rounds), metered(strategy, rounds * LONG // SHORT)

    assert long.calls <= AT_MOST * short.calls
    assert long.characters <= AT_MOST * short.characters


def test_what_is_masked_is_counted_once() -> None:
    meter = Meter()
    view = fold(transcript(SHORT), (), 0, meter)
    outcome = planned(stages(["mask"], {}, {}), view, filled_budget(transcript(SHORT).tokens))
    rewritten = [item for item in outcome.view.items if not item.intact]
    assert meter.messages == len(rewritten) > 0


def test_every_strategy_is_measured() -> None:
    assert set(TABLE) <= set(STRATEGIES)


def test_the_summarizers_prompt_is_made_without_counting_a_history_that_fits() -> None:
    meter = Meter()
    messages = list(enumerate(transcript(SHORT).chain))

    text = as_text(messages, 2 * transcript(SHORT).tokens, meter)

    assert text.count("</message>") == len(messages)
    assert meter.characters < len(text) / 100


@pytest.mark.parametrize("cap", [20, 100, 1_000, 10_000])
def test_a_summary_prompt_that_is_cut_is_counted_as_cut(cap: int) -> None:
    meter = Meter()

    text = as_text(list(enumerate(transcript(LONG).chain)), cap, meter)

    assert WORDS.text(text) <= cap
    assert meter.characters <= 40 * cap


def test_what_was_read_of_a_message_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def noted(name: str, reader: Callable[..., object]) -> Callable[..., object]:
        def noting(*told: object, **more: object) -> object:
            read.append(name)
            return reader(*told, **more)

        return noting

    for name in ("terms_of", "units", "has_name", "find_names", "subject", "keys_of", "failures"):
        monkeypatch.setattr(findings, name, noted(name, getattr(findings, name)))
    chain = counted([*agent_history(SHORT), *long_chat(SHORT)], WORDS)
    view = fold(chain, (), 0, WORDS)

    once, again = [
        (planned(stages(["extract"], {}, {}), view, filled_budget(chain.tokens)).view.to_json(), len(read))
        for _ in range(2)
    ]

    assert once[1] > SHORT
    assert again == once
