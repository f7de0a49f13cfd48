"""`rolling` over HTTP: its own trigger in place of the mark, and its message, which other strategies read."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.http.strict import assert_view, is_replacement
from tests.http.test_preparing import rounds_above
from tests.support.stage import SUMMARY, Stage, chat, controls, proxy_with_upstream, summary

WINDOW = 4_096
USABLE = WINDOW - 512
TRIGGER = USABLE - WINDOW // 5
ANSWER = json.dumps({"summary": SUMMARY, "memories": [{"content": "Bed 10 is open.", "type": "todo"}]})


def action_for(stage: Stage, rounds: int, strategy: str = "rolling", force: str = "false") -> str:
    """What was done for a conversation of so many rounds."""
    answer = stage.ask(chat(rounds), controls(session="s", strategy=strategy, memory="off", force=force))
    stage.proxy.quiet()
    return answer.action or ""


def test_a_lower_mark_condenses_nothing_and_its_own_trigger_does() -> None:
    marks = {"prepare": 0.3, "trigger": 0.4, "target": 0.2}
    with proxy_with_upstream(answers=lambda _: summary(ANSWER), marks=marks) as stage:
        assert action_for(stage, rounds_above(int(USABLE * 0.5))) == "passed"
        assert action_for(stage, rounds_above(TRIGGER) - 1) == "passed"
        assert action_for(stage, rounds_above(TRIGGER)) == "condensed"


def test_its_message_stands_in_the_view_and_is_merged_by_another_strategy() -> None:
    with proxy_with_upstream(answers=lambda _: summary(ANSWER)) as stage:
        action_for(stage, rounds_above(TRIGGER), force="true")
        (message,) = [each for each in stage.last_view if is_replacement(each)]
        assert (message["role"], message["name"]) == ("assistant", "context_summary")
        assert SUMMARY in message["content"]
        assert "memories" not in message["content"]
        longer = rounds_above(TRIGGER) + 20
        action_for(stage, longer, "half-window", force="true")
        shown = [each.json()["messages"][1]["content"] for each in stage.summaries]
        assert any(each.startswith(f"<earlier_record>\n{SUMMARY}\n") for each in shown)
        assert_view(stage.last_view, chat(longer))


# -- what memory puts back ---------------------------------------------------------------------------------------

NAMES = [f"The plant number {n} is called {name}." for n, name in enumerate(["Ada", "Berta", "Carla", "Dora"])]
ASKS = {"role": "user", "content": "What are all the plants called: number 0, number 1, number 2, number 3?"}


@contextmanager
def naming(**settings: Any) -> Iterator[Stage]:
    """A proxy with a session of `rolling` whose beginning was condensed away, with the names of four plants."""
    cards = [{"content": name, "type": "fact"} for name in NAMES]
    answer = json.dumps({"summary": SUMMARY, "memories": cards})
    with proxy_with_upstream(answers=lambda _: summary(answer), strategy="rolling", **settings) as stage:
        stage.ask(chat(rounds_above(TRIGGER)), controls(session="s", force="true"))
        yield stage


def block(stage: Stage, options: str = "", memory: str = "") -> str:
    """The memory block that a question has put before it, "" for none."""
    chosen = controls(strategy="rolling", options=options) if options else []
    wanted = controls(memory=memory) if memory else []
    stage.ask([*chat(rounds_above(TRIGGER))[:-1], ASKS], [*controls(session="s"), *chosen, *wanted])
    return "".join(each["content"] for each in stage.last_view if each.get("name") == "memory_context")


def cards_shown(text: str) -> int:
    """How many of the cards stand in a block."""
    return sum(name in text for name in NAMES)


@pytest.mark.parametrize(
    ("options", "settings", "cards"),
    [
        ("", {}, 4),
        ("memory_top_k=2", {}, 2),
        ("", {"memory": {"top_k": 2}}, 2),
        ("memory_top_k=3", {"memory": {"top_k": 2}}, 3),
        ("", {"memory": {"top_k": 2}, "rolling": {"memory_top_k": 1}}, 1),
        ("memory_max_tokens=75", {}, 2),
        ("", {"memory": {"max_tokens": 75}}, 2),
        ("memory_max_tokens=800", {"memory": {"max_tokens": 75}}, 4),
        ("memory_max_tokens=80000", {"memory": {"max_tokens": 75}}, 4),
    ],
)
def test_an_option_bounds_the_block_before_the_settings_do(options: str, settings: dict[str, Any], cards: int) -> None:
    with naming(**settings) as stage:
        assert cards_shown(block(stage, options, memory="inject")) == cards


def test_enable_memory_injection_holds_where_no_request_asks() -> None:
    with naming(rolling={"enable_memory_injection": False}) as stage:
        assert block(stage) == ""
        assert cards_shown(block(stage, "enable_memory_injection=true")) == 4
        assert cards_shown(block(stage, "enable_memory_injection=false", memory="inject")) == 4
        assert block(stage, "enable_memory_injection=true", memory="off") == ""
