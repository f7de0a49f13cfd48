"""A client gets what the server says, in its three protocols; the proxy finds the window and heals a refusal."""

import json
from typing import Any

import pytest

from tests.live.llama import MODEL, history, llama, post, talk
from tests.support import wire
from tests.support.proxy import running_proxy

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

ASKED = [{"role": "user", "content": "Name three garden tools."}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": ASKED, "max_tokens": 16},
    "/v1/messages": {"messages": ASKED, "max_tokens": 16},
    "/v1/responses": {"input": ASKED, "max_output_tokens": 16},
}
OF_ONE_RUN = {"id", "item_id", "created", "created_at", "completed_at", "timings"}
"""Members that differ between two equal requests to the server itself."""


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items() if name not in OF_ONE_RUN}
    return [plain(each) for each in value] if isinstance(value, list) else value


def said(answer: wire.Answer, *, stream: bool) -> Any:
    assert answer.status == 200, answer.body
    if not stream:
        return plain(answer.json())
    return [plain(json.loads(each)) if each.startswith("{") else each for each in wire.events(answer.body)]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
def test_a_reply_is_that_of_the_server(server: str, path: str, stream: bool) -> None:
    body = {"model": MODEL, "temperature": 0, "stream": stream, **BODIES[path]}
    post(server, path, body)  # now the prompt is cached for both
    direct = post(server, path, body)
    with running_proxy(server, as_shipped=True) as proxy:
        answer = post(proxy.url, path, body)
    assert answer.action == "passed"
    assert said(answer, stream=stream) == said(direct, stream=stream)


@pytest.mark.parametrize(
    ("parameters", "window"),
    [
        pytest.param({"n_ctx": 1_024, "n_parallel": 1}, "1024", id="one slot"),
        pytest.param({"n_ctx": 2_048, "n_parallel": 4}, "512", id="four slots"),
        pytest.param({"n_ctx": 1_024, "n_parallel": -1}, "1024", id="one pool"),
    ],
)
def test_the_window_is_found(parameters: dict[str, int], window: str) -> None:
    with llama(**parameters) as url, running_proxy(url, as_shipped=True) as proxy:
        found = [talk(proxy.url, ASKED, max_tokens=2).window for _ in range(4)]
    assert found[-1] == window, found


@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_for_length_heals(server: str, stream: bool) -> None:
    with running_proxy(server, as_shipped=True, upstream={"discover": False}) as proxy:
        answer = talk(proxy.url, history(30), stream=stream)
        assert (answer.status, answer.trigger) == (200, "overflow"), answer
        assert talk(proxy.url, history(31), stream=stream).window == "1024"
