"""A lesson never travels further than its proof: what one tenant's errors teach changes nothing for another."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from proxy.knowledge.learned_windows import TRIAL
from tests.proxy.store.conftest import Clock
from tests.support import replies
from tests.support.proxy import proxying
from tests.support.recording import Exchange
from tests.support.replies import Reply
from tests.support.searching import SEARCH
from tests.support.stage import Message, Stage, asked, body_of, chat, count, is_own, staged, summary

CLAIM = "This model's maximum context length is 600 tokens. However, your messages resulted in 90000 tokens."
REFUSED = "This model's maximum context length is {} tokens. However, your messages resulted in {} tokens."
LONG: list[Message] = [{"role": "user", "content": "Plant the beds. " * 1_200}]
PYDANTIC = "[{{'type': 'float_parsing', 'loc': ('body', 'temperature'), 'msg': 'Not a number', 'input': {!r}}}]"
FORMS = [PYDANTIC.format, "Bad temperature '{}'.".format]


@contextmanager
def echoing(form: Callable[[str], str] = FORMS[1], *, limit: int | None = None, **settings: Any) -> Iterator[Stage]:
    """A proxy before an upstream that quotes a wrong temperature in its error, and refuses more than `limit` tokens."""
    with staged(**{"strategy": "recent", **settings}) as stage:

        def answer(exchange: Exchange) -> Reply | None:
            if is_own(exchange):
                return summary()
            body = exchange.json()
            if isinstance(body.get("temperature"), str):
                return replies.error(400, form(body["temperature"]))
            if limit is not None and count(body) > limit:
                return replies.error(400, REFUSED.format(limit, count(body)))
            return None

        stage.upstream.answer(answer)
        yield stage


def attack(stage: Stage, claim: str = CLAIM) -> None:
    """Has the upstream quote a text of the caller, three times and from another tenant."""
    stage.key = "sk-attacker"
    for _ in range(3):
        answer = stage.post(body_of(chat(12), stage.model, temperature=claim))
        assert answer.status == 400
    stage.key = "sk-victim"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("window", [32_768, None], ids=["set", "asked"])
def test_a_window_that_a_caller_makes_up_changes_nothing_for_another_tenant(
    form: Callable[[str], str], window: int | None
) -> None:
    own = asked(window=None if window else 32_768)
    with echoing(form, window=window) as stage:
        attack(stage)
        for messages in (LONG, chat(4), chat(12)):
            answer = stage.ask(messages, own)
            assert answer.header("x-condenser-action") == "passed"
            assert answer.header("x-condenser-window") == "32768"
            assert stage.last_view == messages


def test_a_made_up_window_does_not_outlive_the_process_for_another_tenant(tmp_path: Path) -> None:
    kept: dict[str, Any] = {"store": {"url": f"sqlite:///{tmp_path / 'c.db'}"}, "window": None, "strategy": "recent"}
    with echoing(**kept) as stage:
        attack(stage)
        stage.proxy.served()
        with proxying(stage.upstream.url, **kept) as another:
            stage.proxy = another
            answer = stage.ask(LONG, asked(window=32_768))
    assert answer.header("x-condenser-window") == "32768"


def test_a_window_that_the_operator_set_is_lowered_for_nobody() -> None:
    with echoing(window=32_768) as stage:
        attack(stage)
        stage.key = "sk-attacker"
        answer = stage.ask(chat(12))
        assert answer.header("x-condenser-window") == "32768"
        assert answer.header("x-condenser-action") == "passed"


def test_a_refusal_is_met_by_a_smaller_view_where_the_operator_set_a_larger_window() -> None:
    with echoing(window=32_768, limit=1_000) as stage:
        for _ in range(2):
            answer = stage.ask(chat(12))
            assert answer.header("x-condenser-trigger") == "overflow"
            assert count(stage.forwarded[-1].json()) <= 1_000


def test_a_window_that_the_server_names_by_itself_is_known_to_all_tenants() -> None:
    with echoing(window=None, limit=1_000) as stage:
        stage.ask(chat(12), asked(window=32_768))
        stage.key = "sk-another"
        answer = stage.ask(chat(14), asked(window=32_768))
        assert answer.header("x-condenser-window") == "1000"
        assert len(stage.forwarded) == 3


def test_a_window_whose_number_stands_in_the_request_is_known_to_its_tenant_only() -> None:
    told = [*chat(12), {"role": "user", "content": "Is it 1000?"}]
    with echoing(window=None, limit=1_000) as stage:
        stage.ask(told, asked(window=32_768))
        assert stage.ask(chat(1), asked(window=32_768)).header("x-condenser-window") == "1000"
        stage.key = "sk-another"
        assert stage.ask(chat(1), asked(window=32_768)).header("x-condenser-window") == "32768"


def test_a_form_that_a_caller_makes_up_changes_nothing_for_another_tenant() -> None:
    with echoing(window=None, strategy="rolling") as stage:
        before = stage.ask(chat(30), asked(window=2_048, session="a"))
        expected = [each["role"] for each in stage.last_view]
        attack(stage, "Conversation roles must alternate user/assistant. System message must be at the beginning.")
        after = stage.ask(chat(30), asked(window=2_048, session="b"))
        assert [each["role"] for each in stage.last_view] == expected
        assert before.header("x-condenser-action") == after.header("x-condenser-action") == "condensed"


def test_a_refused_tool_is_offered_to_other_tenants_as_before() -> None:
    tools = [
        {"type": "function", "function": {"name": f"tool{number}", "parameters": {"type": "object"}}}
        for number in range(128)
    ]
    with staged(strategy="recent") as stage:

        def answer(exchange: Exchange) -> Reply | None:
            many = len(exchange.json().get("tools") or ()) > 128
            return replies.error(400, "Invalid 'tools': array too long. Expected at most 128.") if many else None

        stage.upstream.answer(answer)
        own = asked(session="s", memory="tool")
        assert stage.ask(chat(12), own, tools=tools).header("x-condenser-reason") == "memory-tool-refused"
        stage.key = "sk-victim"
        stage.ask(chat(12), own)
        stage.ask(chat(14), own)
        assert SEARCH in json.dumps(stage.forwarded[-1].json().get("tools"))


def test_a_longer_request_is_sent_whole_now_and_then_and_disproves_a_learned_window() -> None:
    clock = Clock()
    with echoing(window=None, clock=clock) as stage:
        attack(stage)
        stage.key = "sk-attacker"
        own = asked(window=32_768)
        assert stage.ask(chat(14), own).header("x-condenser-window") == "600"
        clock.now += TRIAL
        trial = stage.ask(chat(16), own)
        assert (trial.header("x-condenser-action"), trial.header("x-condenser-reason")) == ("passed", "window-trial")
        assert stage.last_view == chat(16)
        stage.proxy.served()
        assert stage.ask(chat(18), own).header("x-condenser-window") == "32768"


def test_a_request_that_is_refused_as_a_trial_is_condensed_as_usual_and_no_other_is_tried() -> None:
    clock = Clock()
    with echoing(window=None, limit=1_000, clock=clock) as stage:
        own = asked(window=32_768)
        stage.ask(chat(12), own)
        clock.now += TRIAL
        for rounds in (30, 32):
            answer = stage.ask(chat(rounds), own)
            assert answer.header("x-condenser-action") in ("condensed", "replayed")
            assert answer.header("x-condenser-window") == "1000"
        assert sum(count(each.json()) > 1_000 for each in stage.forwarded) == 2
