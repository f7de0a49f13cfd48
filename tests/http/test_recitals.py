"""Recitals: the record's rules stand again behind a user message that is far below them, and stay there."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest

from proxy.endpoints.hidden_calls import NAME
from strategies.memory.recital import FAR, HEADING
from tests.http.test_agents import MESSAGES, RESPONSES, Api
from tests.http.test_agents_memory import Speech, each_speech
from tests.support import wire
from tests.support.proxy import proxy_before
from tests.support.stage import Message, Stage, controls, proxy_with_upstream
from tests.support.transcripts import RULES, deployments

RECITAL = 60
WINDOW = 8_192
STRATEGIES = ["extract", "mask+extract", "half-window", "rolling"]


def text_of(message: Any) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else "\n".join(part.get("text") or "" for part in content or ())


def recitals(view: Sequence[Any]) -> list[int]:
    return [place for place, message in enumerate(view) if HEADING in text_of(message)]


def assert_kept(views: Sequence[tuple[str, list[Any]]]) -> int:
    """Every view begins with the one before it, unless something was condensed; how many views have a recital."""
    for (_, before), (action, after) in pairwise(views):
        assert action == "condensed" or after[: len(before)] == before
    return sum(bool(recitals(view)) for _, view in views)


def talked(stage: Stage, history: Sequence[Message], headers: Sequence[tuple[str, str]]) -> Iterator[Any]:
    """The action and view of the request of each turn."""
    for place in range(2, len(history), 2):
        answer = stage.ask(history[:place], headers)
        stage.proxy.quiet()
        yield answer.action, stage.last_view
        stage.forget()


@pytest.mark.parametrize(
    ("strategy", "profile"), [*((name, {}) for name in STRATEGIES), ("mask+extract", {"alternate_roles": True})]
)
def test_rules_stand_behind_a_question_far_below_the_record_until_they_are_condensed(
    strategy: str, profile: dict[str, bool]
) -> None:
    settings: dict[str, Any] = {"ledger": {"recital": RECITAL}, "upstream": {"profile": profile}}
    with proxy_with_upstream(window=WINDOW, **settings) as stage:
        views = list(talked(stage, list(deployments(45)), controls(session="s", strategy=strategy, memory="inject")))
    assert assert_kept(views) > 10
    for _, view in views:
        for place in recitals(view):
            told, before = text_of(view[place]), view[place] if profile else view[place - 1]
            assert any(f"- {rule}" in told for rule in RULES)
            assert "How is deployment" in text_of(before)
            assert view[place]["role"] == "user"
        assert len(recitals(view)) <= sum(len(text_of(each)) for each in view) / FAR / RECITAL


def test_nothing_is_recited_unless_wanted_with_memory_and_rules() -> None:
    off: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {}),
        ({"ledger": {"recital": RECITAL}}, {"memory": "off"}),
        ({"ledger": {"recital": RECITAL}}, {"options": "rules=off"}),
    ]
    for settings, asked in off:
        with proxy_with_upstream(window=WINDOW, **settings) as stage:
            headers = controls(session="s", strategy="extract", **{"memory": "inject", **asked})
            views = list(talked(stage, list(deployments(40)), headers))
        assert "condensed" in [action for action, _ in views]
        assert assert_kept(views) == 0


@pytest.mark.parametrize("api", [MESSAGES, RESPONSES], ids=["messages", "responses"])
@pytest.mark.parametrize("strategy", ["mask+extract", "half-window"])
def test_a_thinking_agent_is_never_refused_for_what_is_recited(api: Api, strategy: str) -> None:
    memory = {"default": "inject"}
    settings = {"ledger": {"recital": RECITAL}, "strategy": strategy, "window": WINDOW, "memory": memory}
    with proxy_before(api.upstream(api.tests.reader, window=WINDOW), **settings) as (upstream, proxy):
        agent = api.tests.Agent(proxy.url, stream=False)
        history = agent.messages if api is MESSAGES else agent.items
        actions = []
        for number in range(30):
            actions.append(agent.turn().action)
            proxy.quiet()
            if number % 3 == 0:
                history.append({"role": "user", "content": f"Never restart node-{number}."})
        assert upstream.refusals == []
        views = list(zip(actions, api.views(upstream), strict=True))
    assert "condensed" in actions
    assert assert_kept(views) > 0


def test_a_request_that_is_sent_again_has_its_recital_again_and_a_changed_question_has_none_of_it() -> None:
    with proxy_with_upstream(window=WINDOW, ledger={"recital": RECITAL}) as stage:
        history, headers = list(deployments(60)), controls(session="s", strategy="extract", memory="inject")
        for place in range(2, len(history), 2):
            stage.ask(history[:place], headers)
            if recitals(view := stage.last_view) == [len(view) - 1]:
                break
        stage.ask(history[:place], headers)
        assert stage.last_view == view
        stage.ask([*history[: place - 1], {"role": "user", "content": "And the others?"}], headers)
        assert stage.last_view[: len(view) - 2] == view[:-2]
        assert stage.last_view[-2]["content"] == "And the others?"
        assert recitals(stage.last_view) == [len(view) - 1]


@each_speech
def test_a_search_of_the_same_turn_follows_the_recital_and_both_stay(speech: Speech) -> None:
    def searching(body: Mapping[str, Any]) -> Sequence[Any] | str:
        last = str(body[speech.api.listed][-1])
        is_found = "tool_result" in last or "function_call_output" in last
        return "Yes." if is_found or NAME not in str(body.get("tools")) else speech.opening("search")

    memory = {"default": "inject+tool"}
    window = WINDOW // 2 if speech.api is MESSAGES else WINDOW
    settings = {"ledger": {"recital": RECITAL}, "strategy": "extract", "window": window, "memory": memory}
    talk = [each for each in deployments(60) if each["role"] != "system"]
    with proxy_before(speech.api.upstream(searching), **settings) as (upstream, proxy):
        agent = speech.api.tests.Agent(proxy.url, **speech.more)
        searched = 0
        sent: list[Any] = []
        for place in range(1, len(talk), 2):
            speech.history(agent)[:] = talk[:place]
            answer = wire.post_json(proxy.url, speech.api.path, {**agent.body(), "stream": False}, speech.api.key)
            assert answer.status == 200, answer.body
            proxy.quiet()
            views = speech.api.views(upstream)  # one, or one more behind a search
            assert answer.action == "condensed" or views[0][: len(sent)] == sent
            sent = views[-1]
            searched += recitals(views[0])[-1:] == [len(views[0]) - 1] and len(views) > 1
            upstream.journal.clear()
        assert upstream.refusals == []
        assert searched > 0
