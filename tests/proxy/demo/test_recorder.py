"""The recorder keeps what a proxy forwarded and what its own calls cost; it changes no body."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from proxy.demo.recorder import NUMBER, Recorder, total_tokens
from proxy.demo.server import serving

USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}


class Model:
    """Answers all alike; remembers what it got."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        routes = [
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
            Route("/v1/models", self._models),
        ]
        self.app = Starlette(routes=routes)

    async def _chat(self, request: Request) -> Response:
        self.bodies.append(await request.body())
        self.headers.append(dict(request.headers))
        choice = {"index": 0, "message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}
        body = {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
        return JSONResponse({**body, "usage": USAGE}, headers={"server-timing": "session;dur=500"})

    async def _models(self, _request: Request) -> Response:
        return JSONResponse({"object": "list", "data": []})


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def recorder(model: Model) -> Recorder:
    return Recorder(model.app)


@pytest.fixture
def client(recorder: Recorder) -> Iterator[openai.OpenAI]:
    with serving(recorder) as url, openai.OpenAI(base_url=url, api_key="any", max_retries=0) as client:
        yield client


def ask(client: openai.OpenAI, text: str, number: int | None = None) -> Any:
    headers = {NUMBER: str(number)} if number else {}
    create = client.chat.completions.with_raw_response.create
    return create(model="m", messages=[{"role": "user", "content": text}], extra_headers=headers)


def test_it_keeps_the_bytes_that_the_model_got(recorder: Recorder, model: Model, client: openai.OpenAI) -> None:
    ask(client, "Grüße", 1)
    ask(client, "again", 2)
    kept = [recorder.view(number) for number in (1, 2)]
    assert [view and view.data for view in kept] == model.bodies
    second = kept[1]
    assert second is not None
    assert second.body["messages"] == [{"role": "user", "content": "again"}]
    assert recorder.view(3) is None


def test_of_several_attempts_the_last_is_the_view(recorder: Recorder, client: openai.OpenAI) -> None:
    ask(client, "long", 1)
    ask(client, "short", 1)
    view = recorder.view(1)
    assert view is not None
    assert json.loads(view.data)["messages"][0]["content"] == "short"


def test_a_request_without_a_number_is_a_call_of_our_own(recorder: Recorder, client: openai.OpenAI) -> None:
    ask(client, "conversation", 1)
    ask(client, "summary please")
    assert (recorder.own_calls, recorder.own_tokens) == (1, 7)
    assert recorder.view(2) is None


def test_the_number_does_not_go_on(model: Model, client: openai.OpenAI) -> None:
    ask(client, "hello", 1)
    assert NUMBER not in model.headers[0]


def test_an_own_calls_answer_is_not_compressed(model: Model, client: openai.OpenAI) -> None:
    ask(client, "hello", 1)
    ask(client, "summary please")
    assert "accept-encoding" in model.headers[0]
    assert "accept-encoding" not in model.headers[1]


def test_an_inner_server_timing_is_not_taken_for_the_proxys(client: openai.OpenAI) -> None:
    assert "server-timing" not in ask(client, "hello", 1).headers


def test_other_paths_pass(recorder: Recorder, client: openai.OpenAI) -> None:
    assert client.models.list().data == []
    assert recorder.own_calls == 0


@pytest.mark.parametrize("answer", [b"", b"not json", b"[]", b"{}", b'{"usage": null}', b'{"usage": {}}'])
def test_an_answer_that_says_nothing_of_its_cost_costs_nothing(answer: bytes) -> None:
    assert total_tokens(answer) == 0
