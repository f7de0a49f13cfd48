"""Web pages cannot use the proxy: requests with a foreign `Host` or `Origin` are refused, on every path."""

import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from proxy.settings import Settings
from proxy.turn.layer import Guard, NotAllowed
from tests.http.strict import assert_openai_error
from tests.support import wire
from tests.support.proxy import Proxy, running_proxy
from tests.support.recording import CHAT
from tests.support.signals import BOUND
from tests.support.upstream import ScriptedUpstream
from tests.support.wire import Answer

BODY = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
PATHS = ["/livez", "/readyz", "/metrics", "/", "/nowhere", "/_condenser/sessions", "/v1/models", CHAT]
EVERYWHERE = "0.0.0.0"
APP = "https://app.example.com"


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream() as scripted:
        yield scripted


@pytest.fixture(scope="module")
def proxy(upstream: ScriptedUpstream) -> Iterator[Proxy]:
    with running_proxy(upstream.url) as running:
        yield running


def ask(proxy: Proxy, path: str = "/livez", method: str = "GET", **headers: str) -> Answer:
    body = BODY if method == "POST" else None
    return wire.request(proxy.url, method, path, body, [(k.replace("_", "-"), v) for k, v in headers.items()])


def own_origin(proxy: Proxy) -> str:
    return "http://" + urlsplit(proxy.url).netloc


# -- Host --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
def test_a_foreign_host_is_refused_on_every_path(path: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    before = len(upstream.journal.to())
    answer = ask(proxy, path, "POST" if path == CHAT else "GET", Host="evil.example:8484")
    assert answer.status == 403
    assert answer.header("x-condenser-request-id")
    error = assert_openai_error(answer.body)
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", "Host", "host_not_allowed")
    assert "'evil.example:8484'" in error["message"]
    assert "server.hosts" in error["message"]
    assert len(upstream.journal.to()) == before


BEHIND = {"host": EVERYWHERE, "admin": {"listen": "127.0.0.1:9090"}}
ACCEPTED = ["127.0.0.1", "localhost:1", "LocalHost", "a.b.localhost:8484", "[::1]:8484", "[::1]", "10.0.0.5:80"]
FOREIGN = ["localhost.evil.example", "127.0.0.1.evil.example", "xlocalhost", "[::1", "a:b:c", "\xff"]


def test_addresses_and_localhost_are_accepted_and_what_only_looks_like_them_is_not(proxy: Proxy) -> None:
    assert {host: ask(proxy, Host=host).status for host in ACCEPTED} == dict.fromkeys(ACCEPTED, 200)
    assert {host: ask(proxy, Host=host).status for host in FOREIGN} == dict.fromkeys(FOREIGN, 403)


def test_a_request_without_a_host_is_served(proxy: Proxy) -> None:
    parts = urlsplit(proxy.url)
    with socket.create_connection((str(parts.hostname), int(parts.port or 0)), BOUND) as connection:
        connection.sendall(b"GET /livez HTTP/1.0\r\n\r\n")
        assert b" 200 " in connection.recv(65_536)


def test_hosts_of_the_settings_are_accepted_and_others_are_not(upstream: ScriptedUpstream) -> None:
    hosts = {"hosts": ["proxy.lan", "*.Example.com"]}
    with running_proxy(upstream.url, host="listens.here", server=hosts) as proxy:
        accepted = ["proxy.lan:8484", "PROXY.LAN", "a.example.com", "a.b.example.com:1", "listens.here", "127.0.0.1"]
        assert [ask(proxy, Host=host).status for host in accepted] == [200] * 6
        foreign = ["example.com", "notexample.com", "x.proxy.lan", "condenser:8484"]
        assert [ask(proxy, Host=host).status for host in foreign] == [403] * 4


def test_an_open_proxy_checks_hosts_only_where_it_is_told(upstream: ScriptedUpstream) -> None:
    with running_proxy(upstream.url, host=EVERYWHERE) as proxy:
        assert ask(proxy, Host="condenser:8484").status == 200
    for more in ({"server": {"hosts": ["proxy.lan"]}}, {"open_to_all": True}):
        with running_proxy(upstream.url, host=EVERYWHERE, **more) as proxy:
            assert ask(proxy, Host="condenser:8484").status == 403
            assert ask(proxy, Host="10.0.0.5:8484").status == 200


def test_the_listener_of_the_operators_checks_hosts_where_the_other_does_not() -> None:
    guard, evil = Guard(Settings.model_validate(BEHIND)), {b"host": b"rebound.example:9090"}
    guard.check(evil, None, 8484)
    guard.check({b"host": b"localhost:9090"}, None, 9090)
    with pytest.raises(NotAllowed):
        guard.check(evil, None, 9090)


# -- Origin ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1", "http://localhost:1", ""])
@pytest.mark.parametrize("path", PATHS)
def test_pages_of_other_origins_are_refused(path: str, origin: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    before = len(upstream.journal.to())
    answer = ask(proxy, path, "POST" if path == CHAT else "GET", Origin=origin, Content_Type="text/plain")
    assert answer.status == 403
    error = assert_openai_error(answer.body)
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", "Origin", "origin_not_allowed")
    assert "server.origins" in error["message"]
    assert len(upstream.journal.to()) == before


def test_a_page_of_the_proxys_own_origin_is_served(proxy: Proxy) -> None:
    assert ask(proxy, CHAT, "POST", Origin=own_origin(proxy)).status == 200


def test_a_foreign_name_of_this_address_is_no_own_origin(upstream: ScriptedUpstream) -> None:
    with running_proxy(upstream.url, host=EVERYWHERE) as proxy:
        answer = ask(proxy, CHAT, "POST", Host="evil.example", Origin="http://evil.example")
        assert assert_openai_error(answer.body)["param"] == "Origin"


def test_pages_of_an_allowed_origin_may_ask_and_read(upstream: ScriptedUpstream) -> None:
    with running_proxy(upstream.url, server={"origins": [APP]}) as proxy:
        preflight = ask(
            proxy,
            CHAT,
            "OPTIONS",
            Origin=APP,
            Access_Control_Request_Method="POST",
            Access_Control_Request_Headers="authorization,x-condenser-session",
            Access_Control_Request_Private_Network="true",
        )
        assert (preflight.status, preflight.header("access-control-allow-origin")) == (200, APP)
        assert preflight.header("access-control-allow-headers") == "authorization,x-condenser-session"
        assert preflight.header("access-control-allow-private-network") == "true"
        assert "POST" in str(preflight.header("access-control-allow-methods"))
        answer = ask(proxy, CHAT, "POST", Origin=APP)
        assert (answer.status, answer.header("access-control-allow-origin")) == (200, APP)
        assert answer.header("access-control-expose-headers") == "*"
        refused = ask(proxy, CHAT, "POST", Origin=APP, X_Condenser_Window="x")
        assert (refused.status, refused.header("access-control-allow-origin")) == (400, APP)
        assert ask(proxy, CHAT, "POST", Origin="https://other.example.com").status == 403
        foreign = ask(proxy, CHAT, "OPTIONS", Origin="null", Access_Control_Request_Method="POST")
        assert (foreign.status, foreign.header("access-control-allow-origin")) == (403, None)


def test_a_star_allows_pages_of_all_origins(upstream: ScriptedUpstream) -> None:
    with running_proxy(upstream.url, server={"origins": ["*"]}) as proxy:
        for origin in (APP, "null"):
            answer = ask(proxy, CHAT, "POST", Origin=origin)
            assert (answer.status, answer.header("access-control-allow-origin")) == (200, "*")
        assert ask(proxy, CHAT, "POST", Origin=APP, Host="evil.example").status == 403
