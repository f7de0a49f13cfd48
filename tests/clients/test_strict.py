"""`strict` refuses what stays over the budget, in the form that each official SDK reads."""

from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest
from anthropic import Anthropic
from openai import OpenAI

from tests.support.stage import Stage, body_of, chat, controls, proxy_with_upstream

WINDOW = 4_096
LONG = "water " * 3_800
"""Text for a message that fits the window, but leaves the reply less than is reserved for it."""


@pytest.fixture
def stage() -> Iterator[Stage]:
    with proxy_with_upstream(window=WINDOW, strict=True) as stage:
        yield stage


@pytest.mark.parametrize("param", ["messages", "input"])
def test_openai_gets_a_bad_request_and_nothing_is_sent(param: str, stage: Stage) -> None:
    with OpenAI(base_url=stage.proxy.base_url, api_key="k", max_retries=0) as client:
        create: Any = client.responses.create if param == "input" else client.chat.completions.create
        with pytest.raises(openai.BadRequestError) as refused:
            create(model="m", **{param: [{"role": "user", "content": LONG}]})
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", param)
    assert "As strict is set, at most" in refused.value.message
    assert list(stage.upstream.journal) == []


def test_anthropic_gets_an_error_of_its_own_form(stage: Stage) -> None:
    with (
        Anthropic(base_url=stage.proxy.base_url.removesuffix("/v1"), api_key="k", max_retries=0) as client,
        pytest.raises(anthropic.BadRequestError) as refused,
    ):
        client.messages.create(model="m", max_tokens=512, messages=[{"role": "user", "content": LONG}])
    body: Any = refused.value.body
    assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
    assert list(stage.upstream.journal) == []


LAST = body_of([{"role": "user", "content": LONG}])


def test_it_may_be_set_for_a_session_and_taken_back() -> None:
    with proxy_with_upstream(window=WINDOW) as stage:
        assert stage.ask(chat(2), controls(session="s", strict="true")).status == 200
        assert stage.post(LAST, controls(session="s")).status == 400
        assert stage.post(LAST, controls(session="other")).status == 200
        assert stage.post(LAST, controls(session="s", strict="false")).status == 200


def test_a_model_may_have_it_and_what_fits_after_condensing_is_served() -> None:
    with proxy_with_upstream(window=WINDOW, models=[{"match": "scripted-*", "strict": True}]) as stage:
        served = stage.ask(chat(40), controls(session="s"))
        assert (served.status, served.action) == (200, "condensed")
        assert stage.post(LAST, controls(session="t")).status == 400
        assert stage.post(LAST, controls(session="t", strategy="off")).status == 200
