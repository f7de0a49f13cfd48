"""What the response headers say of a request, through the real proxy on a real socket."""

import re
from collections.abc import Iterator

import pytest

from strategies.core.budget import Budget
from tests.http.strict import assert_view
from tests.support import wire
from tests.support.stage import MODEL, WINDOW, Stage, body_of, chat, controls, count, proxy_with_upstream

USABLE = Budget.of(WINDOW).usable
ALWAYS = {
    "x-condenser-protocol",
    "x-condenser-session",
    "x-condenser-session-source",
    "x-condenser-strategy",
    "x-condenser-action",
    "x-condenser-trigger",
    "x-condenser-branch",
    "x-condenser-tokens-before",
    "x-condenser-tokens-after",
    "x-condenser-count",
    "x-condenser-window",
    "server-timing",
}


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with proxy_with_upstream() as built:
        yield built


@pytest.fixture(scope="module")
def other() -> Iterator[Stage]:
    """One whose upstream may get requests without a body."""
    with proxy_with_upstream() as built:
        yield built


def test_a_request_that_fits_passes_and_says_so(stage: Stage) -> None:
    answer = stage.ask(chat(0), controls(session="fits"))
    assert {name.lower() for name, _ in answer.headers} >= ALWAYS
    assert (answer.action, answer.reason, answer.trigger) == ("passed", "below-marks", "none")
    assert (answer.branch, answer.strategy, answer.condensation) == ("main", "mask+half-window", None)
    assert answer.header("x-condenser-count") == "estimate"
    assert stage.upstream.journal.to()[-1].body == stage.sent[-1]
    parts = "session", "count", "condense", "upstream"
    timing = answer.header("server-timing") or ""
    assert re.fullmatch(", ".join(rf"{part};dur=[\d.]+" for part in parts), timing)


@pytest.mark.parametrize(
    ("path", "protocol"),
    [
        ("/v1/chat/completions", "chat"),
        ("/v1/responses", "responses"),
        ("/v1/responses/input_tokens", "responses"),
        ("/v1/responses/compact", "responses"),
        ("/v1/messages", "messages"),
        ("/v1/messages/count_tokens", "messages"),
        ("/api/coding/v1/messages", "messages"),
        ("/v1/completions", None),
        ("/v1/threads/t/messages", None),
        ("/livez", None),
    ],
)
def test_each_reply_of_a_condensed_endpoint_names_its_protocol(path: str, protocol: str | None, other: Stage) -> None:
    stage = other
    for method, body in (("POST", b"{"), ("POST", b'{"model":"m","messages":[],"input":[]}'), ("GET", b"")):
        answer = wire.request(stage.proxy.url, method, path, body, wire.JSON)
        assert answer.header("x-condenser-protocol") == protocol
    refused = wire.request(stage.proxy.url, "POST", path, b"{}", [*wire.JSON, ("Origin", "http://elsewhere.example")])
    assert (refused.status, refused.header("x-condenser-protocol")) == (403, protocol)


def test_a_new_condensation_is_named_with_its_sizes(stage: Stage) -> None:
    answer = stage.ask(chat(12), controls(session="new"))
    before, after = (int(answer.header(f"x-condenser-tokens-{each}") or 0) for each in ("before", "after"))
    assert (answer.action, answer.trigger, answer.branch) == ("condensed", "context_limit", "main+")
    assert answer.condensation
    assert answer.header("x-condenser-count") == "exact"
    assert before == count({"model": MODEL, "messages": chat(12)})
    assert after == count(stage.forwarded[-1].json())
    assert after < before
    assert answer.header("x-condenser-headroom") == str(USABLE - after)
    assert_view(stage.last_view, chat(12))


def test_an_unknown_window_is_named_and_nothing_is_condensed() -> None:
    with proxy_with_upstream(window=None) as stage:
        answer = stage.ask(chat(60))
        assert answer.window == "unknown"
        assert answer.header("x-condenser-headroom") is None
        assert (answer.action, answer.reason) == ("passed", "window-unknown")
        assert stage.upstream.journal.only().body == stage.sent[-1]


def test_the_reply_length_that_a_request_asks_for_is_held_back() -> None:
    with proxy_with_upstream() as stage:  # a proxy that has learned nothing of its upstream's count
        asks_much = stage.ask(chat(0), controls(session="r"), max_completion_tokens=1_000)
    tokens = asks_much.tokens_after
    assert asks_much.header("x-condenser-headroom") == str(WINDOW - 1_000 - tokens)


def test_an_error_of_the_upstream_carries_our_headers_too(stage: Stage) -> None:
    body = body_of([{"role": "user"}])  # the scripted upstream accepts it, a count of it is still told
    assert stage.post(body).action == "passed"
