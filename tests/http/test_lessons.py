"""A lesson holds for the tenant that met it: what one tenant's errors teach changes nothing for another."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from proxy.commands.checks import known_of
from proxy.commands.proxy_client import proxy_at
from proxy.values import MOST_HIDDEN, MOST_PER_BYTE
from tests.support import replies
from tests.support.admin_api import TOKEN, admin
from tests.support.proxy import running_proxy
from tests.support.recording import Exchange
from tests.support.replies import Reply
from tests.support.searching import SEARCH
from tests.support.stage import (
    MODEL,
    Message,
    Stage,
    body_of,
    chat,
    controls,
    count,
    is_own,
    proxy_with_upstream,
    summary,
)

CLAIM = "This model's maximum context length is 600 tokens. However, your messages resulted in 90000 tokens."
REFUSED = "This model's maximum context length is {} tokens. However, your messages resulted in {} tokens."
LONG: list[Message] = [{"role": "user", "content": "Plant the beds. " * 1_200}]
PYDANTIC = "[{{'type': 'float_parsing', 'loc': ('body', 'temperature'), 'msg': 'Not a number', 'input': {!r}}}]"
FORMS = [PYDANTIC.format, "Bad temperature '{}'.".format]


@contextmanager
def echoing(form: Callable[[str], str] = FORMS[1], *, limit: int | None = None, **settings: Any) -> Iterator[Stage]:
    """A proxy before an upstream that quotes a wrong temperature in its error, and refuses more than `limit` tokens."""
    with proxy_with_upstream(**{"strategy": "recent", **settings}) as stage:

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
def test_a_made_up_window_changes_no_other_tenant_here_or_in_the_next_process(
    form: Callable[[str], str], window: int | None, tmp_path: Path
) -> None:
    own, kept = controls(window=None if window else 32_768), {"url": f"sqlite:///{tmp_path / 'c.db'}"}
    with echoing(form, window=window, store=kept) as stage:
        attack(stage)
        for messages in (LONG, chat(4), chat(12)):
            answer = stage.ask(messages, own)
            assert (answer.action, answer.window) == ("passed", "32768")
            assert stage.last_view == messages
        stage.proxy.served()
        with running_proxy(stage.upstream.url, window=window, strategy="recent", store=kept) as another:
            stage.proxy = another
            assert stage.ask(LONG, own).window == "32768"


@pytest.mark.parametrize("window", [32_768, None], ids=["set", "asked"])
def test_a_smaller_stated_window_bounds_its_session_alone(window: int | None) -> None:
    asks = None if window else 32_768
    with echoing(window=window, limit=1_000) as stage:
        answer = stage.ask(chat(12), controls(session="s", window=asks))
        assert (answer.trigger, answer.window) == ("overflow", "32768")
        again = stage.ask(chat(13), controls(session="s", window=asks))
        assert (len(stage.forwarded), again.window) == (3, "32768")
        assert count(stage.forwarded[-1].json()) <= 1_000
        stage.ask(chat(12), controls(session="another", window=asks))
        assert len(stage.forwarded) == 5


@pytest.mark.parametrize("more", [0, 1])
def test_a_count_that_no_body_can_have_teaches_nothing(more: int) -> None:
    with echoing(window=None, strategy="extract", limit=6_000) as stage:
        stage.ask(chat(40), controls(session="s"))
        assert stage.ask(chat(2)).window == "6000"

        def most(exchange: Exchange) -> Reply:
            prompt = MOST_PER_BYTE * len(exchange.body) + MOST_HIDDEN + more
            return replies.completion("Yes.", tokens=(prompt, 3))

        stage.upstream.answer(most)
        headroom = stage.ask(chat(2)).headroom
        again = stage.ask(chat(2))
        assert ((again.window, again.headroom) == ("6000", headroom)) == bool(more)


def test_a_form_that_a_caller_makes_up_changes_nothing_for_another_tenant() -> None:
    with echoing(window=None, strategy="rolling") as stage:
        before = stage.ask(chat(30), controls(window=2_048, session="a"))
        expected = [each["role"] for each in stage.last_view]
        attack(stage, "Conversation roles must alternate user/assistant. System message must be at the beginning.")
        after = stage.ask(chat(30), controls(window=2_048, session="b"))
        assert [each["role"] for each in stage.last_view] == expected
        assert before.action == after.action == "condensed"


def test_a_refused_tool_is_offered_to_other_tenants_as_before() -> None:
    tools = [
        {"type": "function", "function": {"name": f"tool{number}", "parameters": {"type": "object"}}}
        for number in range(128)
    ]
    with proxy_with_upstream(strategy="recent") as stage:

        def answer(exchange: Exchange) -> Reply | None:
            many = len(exchange.json().get("tools") or ()) > 128
            return replies.error(400, "Invalid 'tools': array too long. Expected at most 128.") if many else None

        stage.upstream.answer(answer)
        own = controls(session="s", memory="tool")
        assert stage.ask(chat(12), own, tools=tools).reason == "memory-tool-refused"
        stage.key = "sk-victim"
        stage.ask(chat(12), own)
        stage.ask(chat(14), own)
        assert SEARCH in json.dumps(stage.forwarded[-1].json().get("tools"))


def test_what_is_known_of_each_model_is_listed_with_its_source() -> None:
    with echoing(window=None, limit=1_000, admin={"token": TOKEN}) as stage:
        stage.ask(chat(12))
        stage.proxy.served()
        rows = admin(stage, "/_condenser/known").json()["data"]
        found = [(row["model"], bool(row["tenant"]), row["window"], row["source"]) for row in rows]
        assert found == [(MODEL, False, None, "unknown"), (MODEL, True, 1_000, "stated in a refusal")]
        assert rows[1]["until"] > rows[1]["window"]
        said = [found.text for found in known_of(proxy_at(stage.proxy.url, TOKEN))]
        assert "window 1,000 (stated in a refusal), until 20" in said[1]
