"""The upstream: where a request goes, whatever its path says."""

from __future__ import annotations

import pytest

from proxy.errors import BadRequest, UpstreamUnavailable
from proxy.settings import UpstreamSettings
from proxy.upstream import Upstream, UpstreamRequest, is_plain
from tests.support.replies import Reply, hang, hang_up
from tests.support.signals import Signal
from tests.support.upstream import ScriptedUpstream

pytestmark = pytest.mark.anyio


async def target(base: str, path: bytes, query: bytes = b"") -> str:
    """Where a path of ours leads, as it stands in the request line."""
    with ScriptedUpstream() as upstream:
        client = Upstream(UpstreamSettings(base_url=upstream.url + base))
        try:
            async with client.exchange(UpstreamRequest("GET", path, query, [], b"")) as reply:
                assert [chunk async for chunk in reply.chunks()]
        finally:
            await client.close()
        return next(iter(upstream.journal)).target


@pytest.mark.parametrize(
    ("base", "path", "query", "seen"),
    [
        ("/v1", b"/v1/models", b"", "/v1/models"),
        ("/v1/", b"/v1/models", b"a=1&a=2", "/v1/models?a=1&a=2"),
        ("/openai/deployments/x", b"/v1/chat", b"api-version=1", "/openai/deployments/x/chat?api-version=1"),
        ("/v1", b"/v1/models/org%2Fname", b"q=%20", "/v1/models/org%2Fname?q=%20"),
        ("/v1", b"/v1//double//", b"", "/v1//double//"),
        ("/a%20b", b"/v1/x", b"", "/a%20b/x"),
    ],
)
async def test_what_follows_v1_is_set_behind_the_base(base: str, path: bytes, query: bytes, seen: str) -> None:
    assert await target(base, path, query) == seen


@pytest.mark.parametrize(
    "path",
    [
        b"/v1/..",
        b"/v1/../admin",
        b"/v1/a/../../b",
        b"/v1/%2e%2e/x",
        b"/v1/%2E./x",
        b"/v1/.%2e%2fx",
        b"/v1/./x",
        b"/v1/a%5c..%5cb",
        b"/v1/a\\b",
        b"/v1/a%2f..%2fb",
    ],
)
async def test_a_path_that_climbs_is_refused(path: bytes) -> None:
    assert not is_plain(path)
    client = Upstream(UpstreamSettings(base_url="http://127.0.0.1:9/v1"))
    with pytest.raises(BadRequest) as raised:
        await client.send(UpstreamRequest("GET", path, b"", [], b""))
    assert raised.value.code == "bad_path"
    await client.close()


@pytest.mark.parametrize("path", [b"/..hidden/file..name/...", b"/a.b", b"/", b"", b"/a@b:c;d", b"/%2541"])
async def test_dots_within_a_name_do_not_climb(path: bytes) -> None:
    assert is_plain(path)


async def test_a_server_that_is_not_there_is_unreachable() -> None:
    client = Upstream(UpstreamSettings(base_url="http://127.0.0.1:9/v1"))
    with pytest.raises(UpstreamUnavailable) as raised:
        await client.reachable()
    assert raised.value.code == "upstream_unreachable"
    await client.close()


async def test_a_server_that_hangs_up_is_unreachable_and_one_that_is_silent_is_late(upstream: ScriptedUpstream) -> None:
    never = Signal("the end of the test")
    upstream.reply(hang_up(), hang(never))
    client = Upstream(UpstreamSettings(base_url=upstream.base_url, read_timeout=0.1))
    for code in ("upstream_unreachable", "upstream_timeout"):
        with pytest.raises(UpstreamUnavailable) as raised:
            await client.ask(None, [], {"messages": []}, 0.1)
        assert raised.value.code == code
    never.set()
    await client.close()


async def test_whatever_the_model_list_answers_means_that_it_is_there(upstream: ScriptedUpstream) -> None:
    client = Upstream(UpstreamSettings(base_url=upstream.base_url))
    assert await client.reachable() == 200
    upstream.answer(lambda request: Reply(401, (("content-length", "0"),)))
    assert await client.reachable() == 401
    await client.close()
