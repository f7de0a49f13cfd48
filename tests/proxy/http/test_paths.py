"""How paths are read, and which are served: proxy/http/paths.py."""

import re

import pytest

from proxy.errors import BadRequest, NotHere
from proxy.http.paths import Paths, check_listener, read_path

ENDINGS = ("/chat/completions", "/responses", "/v1/messages")


AMBIGUOUS = r"""
    /v%31/models  /%76%31/models  /v%2531/models  /%2576%2531/models  /v1%2fmodels  /x/v%31/chat/completions
    //v1/models  /v1//models  /v1/models//  /v1/a%2f%2fb  /v1/../admin  /v1/./x  /v1/..
    /v1/%2e%2E/x  /v1/.%2e%2fx  /v1/a%2f..%2fb  /v1/..;/x  /v1/..;a=b/x  /v1/..%3b/x
    /v1/models/..%3fx  /v1/models/..%23/x  /v1/models/..%20/..%20/x  /v1/models/%20../x
    /v1/..%252f..%252fx  /v1/%252e%252e/x  /v1/%c0%ae%c0%ae/x  /v1/．．/x  /v1/a%5c..%5cb  /v1/a\b
    /v1/a%00b  /v1/a%0d%0ab  /v1/%  /v1@host/models  /@host/models  /v1-evil/chat/completions
    /v1.evil/models  /v1;x/models  @host/v1/models  *
"""


@pytest.mark.parametrize("path", ["", *AMBIGUOUS.split()])
def test_a_path_that_servers_read_differently_is_refused(path: str) -> None:
    with pytest.raises(BadRequest) as raised:
        read_path(path.encode())
    assert (raised.value.code, raised.value.param) == ("bad_path", "path")


@pytest.mark.parametrize(
    ("raw", "path", "forwarded"),
    [
        (b"/v1/models", "/v1/models", b"/v1/models"),
        (b"/v1/models/org%2fname", "/v1/models/org/name", b"/v1/models/org%2fname"),
        (b"/v1/%63hat/completions", "/v1/chat/completions", b"/v1/chat/completions"),
        (b"/v1/..hidden/file..name/...", "/v1/..hidden/file..name/...", b"/v1/..hidden/file..name/..."),
        (b"/v1/models/a@b:c;d%20e/", "/v1/models/a@b:c;d e/", b"/v1/models/a@b:c;d%20e/"),
        (b"/v1beta/openai/chat/completions", "/v1beta/openai/chat/completions", b"/v1beta/openai/chat/completions"),
        (b"/", "/", b"/"),
    ],
)
def test_other_paths_have_one_form(raw: bytes, path: str, forwarded: bytes) -> None:
    assert read_path(raw) == (path, forwarded)


def test_a_query_is_utf8() -> None:
    with pytest.raises(BadRequest, match="UTF-8"):
        read_path(b"/v1/models", b"q=\xff")


def paths(*prefixes: str, allowed: tuple[str, ...] | None = None, own_key: bool = True) -> Paths:
    return Paths(prefixes, allowed, ENDINGS, ["upstream.api_key"] if own_key else [])


OPEN = """
    GET /v1/models  HEAD /v1/models  GET /v1/models/org/name  POST /v1/chat/completions  POST /v1/chat/completions/
    POST /v1/responses/compact  POST /v1/messages/count_tokens  POST /v1/audio/speech  GET /livez
"""
CLOSED = """
    POST /v1/models  DELETE /v1/models/m  GET /v1/chat/completions  GET /v1/responses/resp_1  POST /v1/messages/batches
    GET /v1/files  GET /v1/files/f/content  GET /v1/  POST /api/coding/v1/messages  POST /x/chat/completions
"""


def test_the_operators_key_opens_only_what_asks_a_model() -> None:
    for routes, is_open in ((OPEN, True), (CLOSED, False)):
        for route in re.split(r"\s{2,}", routes.strip()):
            assert paths().allows(*route.split()) is is_open, route
            assert paths(own_key=False).allows(*route.split()), route


def test_listed_prefixes_end_at_segments_and_may_have_wildcards() -> None:
    served = paths("/api/coding", "/openai/deployments/*", "/v1beta/openai")
    for path in (
        "/api/coding/v1/messages",
        "/openai/deployments/gpt/chat/completions",
        "/v1beta/openai/chat/completions",
    ):
        assert served.allows("POST", path), path
    assert served.allows("GET", "/v1beta/openai/models")
    assert not served.allows("GET", "/v1beta/openai/files")
    assert not served.allows("POST", "/api/codingx/v1/messages")
    assert not served.allows("POST", "/openai/deployments/a/b/chat/completions")


def test_prefixes_and_the_operators_own_list_decide_what_is_served() -> None:
    for prefixes in (("/api", "/api/coding", "/api/cod"), ("/api/coding", "/api/cod", "/api")):
        served = paths(*prefixes)
        assert served.allows("GET", "/api/coding/v1/models")
        assert served.allows("GET", "/api/models")
        assert not served.allows("GET", "/api/codings/models")
    served = paths(allowed=("GET files/*", "* /v1/batches"))
    assert served.allows("GET", "/v1/files/f")
    assert served.allows("DELETE", "/v1/batches")
    assert not served.allows("GET", "/v1/models")


@pytest.mark.parametrize(
    ("paths", "places"),
    [
        ("/livez /readyz /health /healthz /", {False, True}),
        ("/metrics /_condenser/ /_condenser/sessions /_condenser/pages/requests /_condenser/owner", {True}),
        ("/v1/chat/completions /x/v1/messages /v1/metrics /_condenser/own/search /_condenser /nowhere", {False}),
    ],
)
def test_each_of_two_listeners_serves_what_is_its_own(paths: str, places: set[bool]) -> None:
    for path in paths.split():
        for is_admin in (False, True):
            try:
                check_listener(path, is_admin=is_admin)
            except NotHere:
                assert is_admin not in places, path
            else:
                assert is_admin in places, path
