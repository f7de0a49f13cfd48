"""The app: completions take a short way past the framework's layers, and nobody can tell by the answers."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest
from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from proxy.app import create_app
from proxy.settings import Settings

PATH = "/v1/chat/completions"
UNDER_V1 = "the API is under /v1: set base_url to http://localhost:8484/v1."
BODIES = [b"", b"nope", b"{}", b'{"messages":[]}', b'{"messages":[{"role":7}]}', b'{"messages":[{"role":"user"}]}']


class Answer(NamedTuple):
    """What an app has sent; the time that it took is left out."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


@asynccontextmanager
async def started() -> AsyncIterator[FastAPI]:
    """The app with an upstream that cannot be reached."""
    upstream = {"base_url": "http://127.0.0.1:1/v1", "discover": False}
    settings = Settings.model_validate({"store": {"url": "memory://"}, "upstream": upstream})
    app = create_app(settings, new_request_id=lambda: "one")
    async with app.router.lifespan_context(app):
        yield app


async def answer(
    app: ASGIApp,
    body: bytes,
    *,
    method: str = "POST",
    below: str = "",
    path: str = PATH,
    headers: Sequence[tuple[bytes, bytes]] = (),
) -> Answer:
    """What is answered to a request; `below` is where another app has mounted this one."""
    sent: list[Message] = []
    messages: asyncio.Queue[Message] = asyncio.Queue()  # the client stays: nothing comes behind its body
    messages.put_nowait({"type": "http.request", "body": body, "more_body": False})

    async def send(message: Message) -> None:
        sent.append(message)

    place = {"path": below + path, "raw_path": (below + path).encode(), "root_path": below, "query_string": b""}
    scope: Scope = {"type": "http", "method": method, **place, "headers": [*headers], "client": ("127.0.0.1", 1)}
    await app(scope, messages.get, send)
    answered = [pair for pair in sent[0]["headers"] if pair[0] != b"server-timing"]
    return Answer(sent[0]["status"], answered, b"".join(each.get("body", b"") for each in sent[1:]))


@pytest.mark.parametrize("body", BODIES)
async def test_what_is_refused_or_fails_is_answered_alike_whichever_way_it_came(body: bytes) -> None:
    async with started() as app:
        short = await answer(app, body)
        assert short.status in (400, 502)
        assert await answer(app, body, below="/mounted") == short


async def test_other_methods_and_paths_go_through_the_routes() -> None:
    async with started() as app:
        passed_on = await answer(app, b"", method="GET")
        assert b"upstream_unreachable" in passed_on.body
        assert (await answer(app, b"", method="GET", path="/livez")).status == 200
        assert (await answer(app, b"", path="/nowhere")).status == 404


async def test_a_middleware_that_somebody_adds_is_around_completions_too() -> None:
    passed: list[str] = []

    class Noting:
        def __init__(self, app: ASGIApp) -> None:
            self._app = app

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            passed.append(scope["path"])
            await self._app(scope, receive, send)

    async with started() as app:
        app.add_middleware(Noting)
        assert (await answer(app, b"{}")).status == 400
    assert passed == [PATH]


@pytest.mark.parametrize(
    ("method", "path", "says"),
    [
        ("POST", "/chat/completions", f"Nothing is served at POST /chat/completions; {UNDER_V1}"),
        ("GET", "/models", f"Nothing is served at GET /models; {UNDER_V1}"),
        ("POST", "/metrics", "POST is not allowed at /metrics; use GET."),
        ("GET", "/a" + "x" * 999, f"Nothing is served at GET /a{'x' * 62}…; the API is under"),
    ],
)
async def test_a_wrong_path_or_method_is_told_the_right_one(method: str, path: str, says: str) -> None:
    async with started() as app:
        refused = await answer(app, b"{}", method=method, path=path, headers=[(b"host", b"localhost:8484")])
    problem = json.loads(refused.body)["error"]
    assert problem["message"].startswith(says)
    assert (problem["type"], problem["param"]) == ("invalid_request_error", None)
    assert problem["code"] == ("not_found" if refused.status == 404 else "method_not_allowed")


@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_a_client_that_adds_v1_itself_is_told_so(method: str) -> None:
    async with started() as app:
        refused = await answer(app, b"{}", method=method, path="/v1/v1/messages")
    assert refused.status == 404
    assert "leave it out of its base URL" in json.loads(refused.body)["error"]["message"]


async def test_a_closed_admin_api_says_what_may_be_missing() -> None:
    async with started() as app:
        refused = await answer(app, b"", method="GET", path="/_condenser/sessions")
    assert refused.status == 404
    assert "no admin.token" in json.loads(refused.body)["error"]["message"]
