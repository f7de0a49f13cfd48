"""How paths are read, and which are served: proxy/http/paths.py."""

from __future__ import annotations

import pytest

from proxy.errors import BadRequest
from proxy.http.paths import Paths, read_path

ENDINGS = ("/chat/completions", "/responses", "/v1/messages")


@pytest.mark.parametrize(
    "raw",
    [
        b"/v%31/models",
        b"/%76%31/models",
        b"/v%2531/models",
        b"/%2576%2531/models",
        b"/v1%2fmodels",
        b"/x/v%31/chat/completions",
        b"//v1/models",
        b"/v1//models",
        b"/v1/models//",
        b"/v1/a%2f%2fb",
        b"/v1/../admin",
        b"/v1/./x",
        b"/v1/..",
        b"/v1/%2e%2E/x",
        b"/v1/.%2e%2fx",
        b"/v1/a%2f..%2fb",
        b"/v1/..;/x",
        b"/v1/..;a=b/x",
        b"/v1/..%3b/x",
        b"/v1/models/..%3fx",
        b"/v1/models/..%23/x",
        b"/v1/models/..%20/..%20/x",
        b"/v1/models/%20../x",
        b"/v1/..%252f..%252fx",
        b"/v1/%252e%252e/x",
        b"/v1/%c0%ae%c0%ae/x",
        "/v1/．．/x".encode(),
        b"/v1/a%5c..%5cb",
        b"/v1/a\\b",
        b"/v1/a%00b",
        b"/v1/a%0d%0ab",
        b"/v1/%",
        b"/v1@host/models",
        b"/@host/models",
        b"/v1-evil/chat/completions",
        b"/v1.evil/models",
        b"/v1;x/models",
        b"@host/v1/models",
        b"*",
        b"",
    ],
)
def test_a_path_that_servers_read_differently_is_refused(raw: bytes) -> None:
    with pytest.raises(BadRequest) as raised:
        read_path(raw)
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


def test_a_query_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(BadRequest, match="UTF-8"):
        read_path(b"/v1/models", b"q=\xff")


def paths(*prefixes: str, allowed: tuple[str, ...] | None = None, own_key: bool = True) -> Paths:
    return Paths(prefixes, allowed, ENDINGS, ["upstream.api_key"] if own_key else [])


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/v1/models", True),
        ("HEAD", "/v1/models", True),
        ("GET", "/v1/models/org/name", True),
        ("POST", "/v1/models", False),
        ("DELETE", "/v1/models/m", False),
        ("POST", "/v1/chat/completions", True),
        ("POST", "/v1/chat/completions/", True),
        ("GET", "/v1/chat/completions", False),
        ("POST", "/v1/responses/compact", True),
        ("GET", "/v1/responses/resp_1", False),
        ("POST", "/v1/messages/count_tokens", True),
        ("POST", "/v1/messages/batches", False),
        ("POST", "/v1/audio/speech", True),
        ("GET", "/v1/files", False),
        ("GET", "/v1/files/f/content", False),
        ("GET", "/v1/", False),
        ("GET", "/livez", True),
        ("POST", "/api/coding/v1/messages", False),
        ("POST", "/x/chat/completions", False),
    ],
)
def test_the_operators_key_opens_only_what_asks_a_model(method: str, path: str, expected: bool) -> None:
    assert paths().allows(method, path) is expected
    assert paths(own_key=False).allows(method, path)


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


def test_the_longest_prefix_holds_where_one_begins_another() -> None:
    for prefixes in (("/api", "/api/coding", "/api/cod"), ("/api/coding", "/api/cod", "/api")):
        served = paths(*prefixes)
        assert served.allows("GET", "/api/coding/v1/models")
        assert served.allows("GET", "/api/models")
        assert not served.allows("GET", "/api/codings/models")


def test_the_operators_own_list_replaces_the_default() -> None:
    served = paths(allowed=("GET files/*", "* /v1/batches"))
    assert served.allows("GET", "/v1/files/f")
    assert served.allows("DELETE", "/v1/batches")
    assert not served.allows("GET", "/v1/models")
