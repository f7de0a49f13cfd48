"""`X-Condenser-Force` condenses now, whatever the marks say; each condensation has an id of its own."""

import pytest

from tests.support.admin_api import SESSIONS, TOKEN, admin
from tests.support.recording import Exchange
from tests.support.replies import Reply
from tests.support.scraping import Figures
from tests.support.stage import SUMMARY, Stage, agent, chat, controls, count, proxy_with_upstream, summary

ROOMY = 128_000
FORCED = controls(force="true")
PIPELINES = [
    ("recent", "recent"),
    ("extract", "extract"),
    ("summary", "summary"),
    ("half-window", "half-window"),
    ("mask+half-window", "half-window"),
    ("semantic", "semantic"),
    ("rolling", "rolling"),
    ("dynacontext", "dynacontext"),
    ("mask", "extract"),
    ("shorten", "extract"),
]
"""Each with the stage that has to condense a chat without tools: the pipeline's own, or the ladder's."""


def _tagged(_exchange: Exchange) -> Reply:
    return summary(f"<summary>{SUMMARY}</summary>")


@pytest.mark.parametrize(("strategy", "stage"), PIPELINES)
def test_force_condenses_far_below_the_marks_until_nothing_more_can_go(strategy: str, stage: str) -> None:
    with proxy_with_upstream(window=ROOMY, strategy=strategy, answers=_tagged) as talk:
        first = talk.ask(chat(6), [*FORCED, *controls(session="s")])
        assert (first.action, first.trigger) == ("condensed", "forced"), first.reason
        assert first.header("x-condenser-stages") == stage
        assert first.tokens_after < first.tokens_before
        for _ in range(5):
            answer = talk.ask(chat(6), [*FORCED, *controls(session="s")])
            assert answer.action in ("condensed", "replayed")
        assert answer.action == "replayed"
        assert answer.reason in ("nothing-to-condense", "summary-boundary")
        assert answer.header("x-condenser-stages")


def test_force_below_the_target_takes_half_of_what_may_be_condensed() -> None:
    with proxy_with_upstream(window=ROOMY, strategy="recent") as talk:
        answer = talk.ask(chat(12), FORCED)
        kept = [each for each in talk.last_view if each["role"] == "assistant"]
        assert 5 <= len(kept) <= 6
        assert answer.action == "condensed"


@pytest.mark.parametrize("strategy", ["mask+half-window", "recent", "mask", "extract", "summary", "semantic"])
def test_force_on_a_single_question_says_that_nothing_may_be_condensed(strategy: str) -> None:
    with proxy_with_upstream(window=ROOMY, strategy=strategy) as talk:
        answer = talk.ask(chat(0), FORCED)
        assert (answer.action, answer.reason) == ("passed", "nothing-to-condense")
        assert answer.header("x-condenser-stages") is None


def test_a_replayed_view_names_the_stages_that_shaped_it() -> None:
    with proxy_with_upstream(window=ROOMY, strategy="mask") as talk:
        session = controls(session="s")
        talk.ask(agent(8), [*FORCED, *session])
        answer = talk.ask(agent(9), session)
        assert (answer.action, answer.header("x-condenser-stages")) == ("replayed", "mask")


def test_equal_histories_in_several_sessions_have_own_condensation_ids() -> None:
    with proxy_with_upstream(window=ROOMY) as talk:
        ids = [_id(talk, session, strategy) for session in ("a", "b") for strategy in ("recent", "extract")]
        unrecorded = [_id(talk, "a", "recent", no_store=True) for _ in range(2)]
        assert None not in ids
        assert len({*ids, *unrecorded}) == 6


def _id(talk: Stage, session: str, strategy: str, *, no_store: bool = False) -> str | None:
    headers = controls(session=f"{session}-{strategy}", strategy=strategy, force="true", no_store=str(no_store))
    answer = talk.ask(chat(6), headers)
    return answer.condensation


def test_what_observe_would_save_is_counted_nowhere_as_saved() -> None:
    with proxy_with_upstream(strategy="observe:recent", admin={"token": TOKEN}) as talk:
        answer = talk.ask(chat(12), controls(session="s"))
        before = answer.tokens_before
        assert answer.action == "would-condense"
        assert answer.tokens_after < before
        assert answer.json()["usage"]["prompt_tokens"] == count(talk.forwarded[-1].json())
        talk.proxy.served()
        figures = Figures.of(talk.proxy.url)
        assert figures.sum("tokens_total", stage="after") == figures.sum("tokens_total", stage="before") == before
        assert {figures.sum(name) for name in ("saved_tokens_total", "rescued_total", "condensations_total")} == {0}
        (row,) = admin(talk, SESSIONS).json()["data"]
        stats = admin(talk, "/_condenser/stats").json()
        for totals in (row["totals"], stats):
            assert totals["forwarded_tokens"] == totals["client_tokens"] == before
