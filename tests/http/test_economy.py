"""Where condensing is cheapest: what `advise` says, what `auto` does, and who chooses."""

from typing import Any

import pytest

from tests.support.admin_api import TOKEN, only_session
from tests.support.stage import Stage, body_of, chat, controls, count, proxy_with_upstream, rounds_over
from tests.support.wire import Answer

WINDOW = 32_768
"""Its target is 14,336 tokens and its trigger 24,371."""
PRICES = {"input": 1.0, "cached_input": 0.5}
"""With reads this dear the cheapest trigger is near its least."""
PRICED: dict[str, Any] = {"window": WINDOW, "strategy": "extract", "models": [{"match": "*", "prices": PRICES}]}


ROUNDS = rounds_over(20_000)
"""Of a chat that has passed the cheapest trigger and not the mark."""


def grown(stage: Stage) -> Answer:
    """The reply in such a chat."""
    return stage.ask(chat(ROUNDS), controls(session="s"))


def test_reply_and_session_say_where_condensing_is_cheapest_by_default() -> None:
    with proxy_with_upstream(**PRICED, admin={"token": TOKEN}) as stage:
        answer = grown(stage)
        mode, *said = (answer.header("x-condenser-economy") or "").split("; ")
        advice = {name: float(value) for name, _, value in (part.partition("=") for part in said)}
        assert mode == "advise"
        assert advice["target"] < 14_336
        assert advice["target"] / 0.8 <= advice["trigger"] < 20_000
        assert 0.01 <= advice["saves"] < 0.9
        assert answer.action == "passed"
        assert stage.upstream.journal.only().body == stage.sent[-1]
        economy = only_session(stage.proxy.url)["economy"]
        assert economy["mode"] == "advise"
        assert economy["target"] < economy["trigger"] < 20_000


def test_auto_condenses_there_and_the_view_is_replayed_up_to_the_trigger() -> None:
    with proxy_with_upstream(**PRICED, economy="auto") as stage:
        answer = grown(stage)
        assert answer.action == "condensed"
        assert (answer.header("x-condenser-economy") or "").startswith("auto; trigger=")
        assert count(stage.forwarded[-1].json()) <= 14_336
        assert stage.ask(chat(ROUNDS + 1), controls(session="s")).action == "replayed"


def test_auto_leaves_alone_what_would_save_next_to_nothing() -> None:
    cheap_reads = [{"match": "*", "prices": {"input": 1.0, "cached_input": 0.01}}]
    marks = {"trigger": 0.72, "target": 0.1}
    with proxy_with_upstream(**{**PRICED, "models": cheap_reads}, marks=marks, economy="auto") as stage:
        answer = grown(stage)
        assert answer.header("x-condenser-economy") is None
        assert answer.action == "passed"


def test_auto_condenses_a_chat_that_is_short_for_its_window() -> None:
    cheap_reads = [{"match": "*", "prices": {"input": 1.0, "cached_input": 0.1}}]
    with proxy_with_upstream(**{**PRICED, "window": 1_000_000, "models": cheap_reads}, economy="auto") as stage:
        assert grown(stage).action == "condensed"


def test_off_says_and_does_nothing() -> None:
    with proxy_with_upstream(**PRICED, economy="off") as stage:
        answer = grown(stage)
        assert answer.header("x-condenser-economy") is None
        assert answer.action == "passed"


@pytest.mark.parametrize("entry", [{"economy": "auto"}, {}], ids=["of the model", "of the session"])
def test_the_models_entry_and_the_session_choose(entry: dict[str, str]) -> None:
    models = [{"match": "*", "prices": PRICES, **entry}]
    with proxy_with_upstream(**{**PRICED, "models": models}) as stage:
        if not entry:
            stage.ask(chat(2), controls(session="s", economy="auto"))
        assert grown(stage).action == "condensed"


def test_a_mode_that_there_is_not_is_refused_and_named() -> None:
    with proxy_with_upstream(**PRICED) as stage:
        answer = stage.post(body_of(chat(1)), controls(session="s", economy="cheap"))
        assert answer.status == 400
        assert answer.json()["error"]["param"] == "X-Condenser-Economy"
