"""What the user ruled in the first turns stands in the view after ten condensations, whatever a summarizer forgets."""

from typing import Any

import pytest

from strategies.core.ledger import NAMES_HEADING, SAID_HEADING
from tests.http.strict import assert_view, is_replacement
from tests.strategies.driving import FORGETFUL
from tests.support.recording import Exchange
from tests.support.replies import Reply, error
from tests.support.stage import Stage, body_of, controls, is_vote, proxy_with_upstream, summary, vote
from tests.support.transcripts import RULES, deployments

WINDOW = 4_096
TURNS = 300
ENOUGH = 10


def forgetting(exchange: Exchange) -> Reply:
    """A summarizer that drops every rule, in whatever form it is asked; judges always say YES."""
    return vote("YES") if is_vote(exchange) else summary(FORGETFUL)


def failing(_: Exchange) -> Reply:
    return error(500)


def condensed_over(stage: Stage, strategy: str) -> int:
    """Asks for every sixth turn until it was condensed often enough; how often it was."""
    history = list(deployments(TURNS))
    done = 0
    for place in range(2, len(history), 12):
        headers = controls(session="s", strategy=strategy, memory="off")
        answer = stage.ask(history[:place], headers)
        stage.proxy.quiet()
        done += answer.action == "condensed"
        assert_view(stage.last_view, history[:place])
        if done > ENOUGH:
            break
    return done


def missing(view: list[dict[str, Any]]) -> list[str]:
    """The rules that do not stand in a view word for word."""
    text = "\n".join(str(each["content"]) for each in view)
    return [rule for rule in RULES if rule not in text]


@pytest.mark.parametrize(
    ("strategy", "answers"),
    [("dynacontext", forgetting), ("extract", forgetting), ("half-window", failing), ("dynacontext", failing)],
)
def test_rules_stand_word_for_word_after_ten_condensations(strategy: str, answers: Any) -> None:
    with proxy_with_upstream(window=WINDOW, answers=answers) as stage:
        assert condensed_over(stage, strategy) > ENOUGH
        assert missing(stage.last_view) == []
        assert sum(is_replacement(each) for each in stage.last_view) == 1


def test_what_takes_a_rule_back_stands_after_it() -> None:
    with proxy_with_upstream(window=WINDOW, answers=forgetting) as stage:
        history = list(deployments(60))
        place = next(i for i, each in enumerate(history) if each["role"] == "user" and i > 40)
        history[place] = {"role": "user", "content": "Drop the billing_2019 rule. How is it now?"}
        stage.ask(history[:-1], controls(session="s", strategy="half-window", force="true"))
        (record,) = [each for each in stage.last_view if is_replacement(each)]
        assert all(rule in record["content"] for rule in RULES[1:])
        assert record["content"].index(RULES[-1]) < record["content"].index("Drop the billing_2019 rule.")


def test_the_budget_of_the_ledger_is_a_setting() -> None:
    ledger = {"said_max_tokens": 60, "names_max_tokens": 0}
    with proxy_with_upstream(window=WINDOW, answers=forgetting, ledger=ledger) as stage:
        stage.ask(list(deployments(60))[:-1], controls(session="s", strategy="half-window", force="true"))
        (record,) = [each for each in stage.last_view if is_replacement(each)]
        assert RULES[1] in record["content"]
        assert not all(rule in record["content"] for rule in RULES[1:])
        assert NAMES_HEADING not in record["content"]


def record_of(stage: Stage, place: int, options: str | None = None) -> str:
    """The record in the view of so many messages, condensed by this request; message 85 has one more rule."""
    history = list(deployments(60))
    history[85]["content"] = "Never restart node-7."
    headers = controls(session="s", force="true") + (controls(options=options) if options else [])
    answer = stage.ask(history[:place], headers)
    assert answer.action == "condensed"
    (record,) = [each for each in stage.last_view if is_replacement(each)]
    return str(record["content"])


@pytest.mark.parametrize("off", ["off", "false"])
def test_what_was_said_can_be_switched_off_for_a_session_until_its_options_change(off: str) -> None:
    with proxy_with_upstream(window=WINDOW, answers=forgetting, strategy="half-window") as stage:
        assert RULES[1] in record_of(stage, 40)
        without = record_of(stage, 60, f"said={off}")
        assert SAID_HEADING not in without
        assert NAMES_HEADING in without
        assert SAID_HEADING not in record_of(stage, 80)
        assert "- Never restart node-7." in record_of(stage, 100, "min_rounds=2, said=on")


@pytest.mark.parametrize("strategy", ["extract", "summary", "mask+half-window", "rolling"])
def test_what_was_said_is_switched_off_for_any_strategy_by_the_body_too(strategy: str) -> None:
    with proxy_with_upstream(window=WINDOW, answers=forgetting) as stage:
        condenser = {"strategy": strategy, "force": True, "options": {"said": False}}
        stage.ask(list(deployments(60))[:60], condenser=condenser)
        (record,) = [each for each in stage.last_view if is_replacement(each)]
        assert SAID_HEADING not in record["content"]
        assert NAMES_HEADING in record["content"]


def test_what_was_said_is_on_or_off() -> None:
    with proxy_with_upstream(window=WINDOW) as stage:
        answer = stage.post(body_of([{"role": "user", "content": "hi"}]), controls(options="said=some"))
        assert (answer.status, answer.json()["error"]["param"]) == (400, "X-Condenser-Options")
        assert "'said' must be true or false" in answer.json()["error"]["message"]
