"""Calls over httpx: which address a request goes to, whatever its path is."""

from __future__ import annotations

import gzip

import pytest

from proxy.errors import UpstreamUnavailable
from proxy.settings.tables import UpstreamSettings
from proxy.upstream import MAX_ANSWER, Upstream, UpstreamRequest
from tests.support.packing import PACKS
from tests.support.replies import Reply, hang, hang_up, raw
from tests.support.signals import Signal
from tests.support.upstream import ScriptedUpstream

pytestmark = pytest.mark.anyio


async def target(base: str, path: bytes, query: bytes = b"") -> str:
    """Where a path of ours leads, as it stands in the request line."""
    with ScriptedUpstream() as upstream:
        client = Upstream(UpstreamSettings(base_url=upstream.url + base))
        try:
            reply = await client.send(UpstreamRequest("GET", path, query, [], b""))
            assert [chunk async for chunk in reply.chunks()]
            await reply.close()
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
        ("/a%20b", b"/v1/x", b"", "/a%20b/x"),
        ("/v1", b"/api/coding/v1/messages", b"", "/api/coding/v1/messages"),
        ("/team-a/v1", b"/v1beta/openai/chat", b"", "/team-a/v1beta/openai/chat"),
        ("/v1/account/gateway", b"/x/chat", b"", "/v1/account/gateway/x/chat"),
        ("/team-a", b"/v1-evil/x", b"", "/team-a/v1-evil/x"),
    ],
)
async def test_a_path_never_leads_above_the_base_to_the_base(base: str, path: bytes, query: bytes, seen: str) -> None:
    assert await target(base, path, query) == seen


async def body_read(body: bytes, encoding: str = "") -> bytes:
    """What a call of the proxy's own reads of an answer with this body."""
    with ScriptedUpstream() as upstream:
        upstream.reply(raw(body, "application/json", headers=[("content-encoding", encoding)] if encoding else []))
        client = Upstream(UpstreamSettings(base_url=upstream.url))
        try:
            return (await client.ask(None, "/v1/chat/completions", [], b"{}", 10)).body
        finally:
            await client.close()


@pytest.mark.parametrize("encoding", ["", "gzip", "deflate", "br", "zstd"])
async def test_an_answer_is_read_whole(encoding: str) -> None:
    body = b'{"text":"%s"}' % (b"word " * 20_000)
    assert await body_read(PACKS[encoding](body) if encoding else body, encoding) == body


async def test_an_answer_without_end_is_cut() -> None:
    assert MAX_ANSWER <= len(await body_read(b"x" * 3 * MAX_ANSWER)) < 2 * MAX_ANSWER


async def test_a_packed_answer_that_is_a_bomb_is_not_read() -> None:
    assert await body_read(gzip.compress(b"x" * 300_000_000), "gzip") == b""


async def test_an_answer_in_an_unwanted_encoding_is_not_read() -> None:
    assert await body_read(b"{}", "compress") == b""


async def test_a_server_that_is_not_there_is_unreachable() -> None:
    client = Upstream(UpstreamSettings(base_url="http://127.0.0.1:9/v1"))
    with pytest.raises(UpstreamUnavailable) as raised:
        await client.probe()
    assert raised.value.code == "upstream_unreachable"
    await client.close()


async def test_hanging_up_is_unreachable_and_silence_is_late(upstream: ScriptedUpstream) -> None:
    never = Signal("the end of the test")
    upstream.reply(hang_up(), hang(never))
    client = Upstream(UpstreamSettings(base_url=upstream.base_url, read_timeout=0.1))
    for code in ("upstream_unreachable", "upstream_timeout"):
        with pytest.raises(UpstreamUnavailable) as raised:
            await client.ask(None, "/v1/chat/completions", [], b"{}", 0.1)
        assert raised.value.code == code
    never.set()
    await client.close()


async def test_whatever_the_model_list_answers_means_that_it_is_there(upstream: ScriptedUpstream) -> None:
    client = Upstream(UpstreamSettings(base_url=upstream.base_url))
    assert await client.probe() == 200
    upstream.answer(lambda request: Reply(401, (("content-length", "0"),)))
    assert await client.probe() == 401
    await client.close()


@pytest.mark.parametrize(
    ("base_url", "server"),
    [
        (None, "http://up:8000/"),
        ("http://up:8000/other/v1", "http://up:8000/"),
        ("http://UP:8000", "http://up:8000/"),
        ("https://up:8000/v1", "https://up:8000/"),
        ("http://up/v1", "http://up/"),
    ],
)
async def test_a_server_is_known_by_its_scheme_host_and_port(base_url: str | None, server: str) -> None:
    client = Upstream(UpstreamSettings(base_url="http://up:8000/v1"))
    assert client.server(base_url) == server
    await client.close()


async def test_a_reply_to_an_own_call_has_its_retry_after(upstream: ScriptedUpstream) -> None:
    upstream.reply(Reply(429, (("content-length", "0"), ("Retry-After", "9"))), Reply(200, (("content-length", "0"),)))
    client = Upstream(UpstreamSettings(base_url=upstream.base_url))
    assert await client.ask(None, "/v1/chat/completions", [], b"{}", 5.0) == (429, b"", "9")
    assert await client.ask(None, "/v1/chat/completions", [], b"{}", 5.0) == (200, b"", None)
    await client.close()


async def test_a_cookie_of_one_reply_is_sent_with_no_other_call(upstream: ScriptedUpstream) -> None:
    upstream.reply(Reply(200, (("content-length", "0"), ("set-cookie", "caller=first; Path=/"))))
    client = Upstream(UpstreamSettings(base_url=upstream.base_url))
    await client.ask(None, "/v1/chat/completions", [], b"{}", 5.0)
    await client.page("/models", [], 5.0, 1_000)
    assert [exchange.header("cookie") for exchange in upstream.journal] == [None, None]
    await client.close()


@pytest.mark.parametrize(
    ("base", "listed", "beside"),
    [
        ("/v1", "/v1/models", "/props"),
        ("/api/v1/", "/api/v1/models", "/api/props"),
        ("/openai", "/openai/models", "/openai/props"),
    ],
)
async def test_a_page_is_below_the_base_or_beside_v1(base: str, listed: str, beside: str) -> None:
    with ScriptedUpstream() as upstream:
        client = Upstream(UpstreamSettings(base_url=upstream.url + base))
        await client.page("/models", [(b"authorization", b"Bearer ours")], 5.0, 1_000)
        await client.page("/props", [], 5.0, 1_000, beside_v1=True)
        asked = [(each.method, each.target, each.header("authorization")) for each in upstream.journal]
        assert asked == [("GET", listed, "Bearer ours"), ("GET", beside, None)]
        await client.close()


async def test_a_long_page_is_cut_off(upstream: ScriptedUpstream) -> None:
    upstream.answer(lambda request: raw(b"x" * 5_000_000, "application/json"))
    client = Upstream(UpstreamSettings(base_url=upstream.base_url))
    assert 1_000 < len((await client.page("/models", [], 5.0, 1_000)).body) < 1_000_000
    await client.close()
