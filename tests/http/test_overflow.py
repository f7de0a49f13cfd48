"""An upstream that refuses a prompt for its length: the window is learned, and the client gets its reply."""

import gzip
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from proxy import services
from tests.http.strict import assert_view
from tests.support import replies, wire
from tests.support.proxy import running_proxy
from tests.support.recording import CHAT, Exchange
from tests.support.replies import Reply
from tests.support.signals import Signal
from tests.support.stage import MODEL, Stage, body_of, chat, controls, count, is_own, proxy_with_upstream, summary
from tests.support.virtual_time import Clock

WINDOW = 4_096
Refuse = Callable[[int], Reply]


def explicit(used: int) -> Reply:
    return replies.overflow(WINDOW, used)


def llama_cpp(used: int) -> Reply:
    said = {"code": 400, "message": "the request exceeds the available context size, try increasing it"}
    return replies.json_reply(
        {"error": {**said, "type": "exceed_context_size_error", "n_prompt_tokens": used, "n_ctx": WINDOW}}, status=400
    )


def numberless(used: int) -> Reply:
    return replies.error(400, "Please reduce the length of the messages or completion.", code="context_length_exceeded")


def as_an_event(used: int) -> Reply:
    said = f"This model's maximum context length is {WINDOW} tokens. However, your request has {used} input tokens."
    return replies.stream(b": keep-alive\n\n", replies.stream_error(said, "BadRequestError"))


def behind_who_speaks(used: int) -> Reply:
    begun = replies.sse(replies.chunk({"role": "assistant", "content": ""}))
    return replace(as_an_event(used), steps=(begun, *as_an_event(used).steps))


def under_a_good_status(used: int) -> Reply:
    message = f"This endpoint's maximum context length is {WINDOW} tokens. However, you requested about {used} tokens."
    return replies.json_reply({"error": {"message": message, "code": 400}})


def zipped(used: int) -> Reply:
    body = gzip.compress(cast("bytes", explicit(used).steps[0]))
    return replies.raw(body, status=400, headers=[("content-encoding", "gzip")])


SHAPES: dict[str, Refuse] = {
    each.__name__: each
    for each in (explicit, llama_cpp, numberless, as_an_event, behind_who_speaks, under_a_good_status, zipped)
}


@contextmanager
def narrow(refuse: Refuse = explicit, *, limit: int = WINDOW, **settings: Any) -> Iterator[Stage]:
    """A proxy that does not know the window of the upstream behind it."""
    with proxy_with_upstream(**{"window": None, **settings}) as stage:

        def answer(exchange: Exchange) -> Reply | None:
            used = count(exchange.json()) if exchange.path == CHAT else 0
            if used > limit:
                return refuse(used)
            return summary() if is_own(exchange) else None

        stage.upstream.answer(answer)
        yield stage


@pytest.mark.parametrize("shape", SHAPES)
def test_the_reply_comes_however_the_upstream_words_its_refusal(shape: str) -> None:
    with narrow(SHAPES[shape]) as stage:
        for rounds in range(2, 60, 4):
            answer = stage.ask(chat(rounds), controls(session="s"))
            assert b"echo" in answer.body
            assert_view(stage.last_view, chat(rounds))


def test_the_first_request_of_all_is_healed_and_says_so() -> None:
    with narrow() as stage:
        answer = stage.ask(chat(60), controls(session="s"))

        assert (answer.trigger, answer.action) == ("overflow", "condensed")
        assert answer.window == str(WINDOW)
        assert len(stage.forwarded) == 2
        assert count(stage.forwarded[1].json()) < WINDOW


@pytest.mark.parametrize("refuse", [numberless, explicit])
def test_a_refused_size_bounds_its_session_for_an_hour(refuse: Refuse) -> None:
    clock = Clock()
    with narrow(refuse, limit=9_500, window=100_000, strategy="recent", clock=clock) as stage:
        answer = stage.ask(chat(40), controls(session="s"))
        assert (answer.trigger, answer.window) == ("overflow", "100000")
        refused, sent = [count(each.json()) for each in stage.forwarded]
        assert sent <= 0.7 * refused

        stage.ask(chat(41), controls(session="s"))
        assert len(stage.forwarded) == 3
        assert count(stage.forwarded[2].json()) <= 0.85 * refused
        stage.ask(chat(41), controls(session="another"))
        assert len(stage.forwarded) == 5

        clock.now += 3_601
        stage.ask(chat(42), controls(session="s"))
        assert len(stage.forwarded) == 7


def test_a_refused_size_bounds_a_session_of_unknown_window() -> None:
    with narrow(numberless, limit=5_000, strategy="recent") as stage:
        answer = stage.ask(chat(20), controls(session="s"))
        refused = count(stage.forwarded[0].json())
        assert answer.header("x-condenser-headroom") is None
        assert abs(int(str(answer.window)) - refused) < refused / 20
        stage.ask(chat(22), controls(session="s"))
        assert [count(each.json()) > refused for each in stage.forwarded[1:]] == [False, False]

        stage.upstream.answer(lambda _: None)
        stage.ask([*chat(1), {"role": "user", "content": "bed " * refused}], controls(session="s"))
        assert stage.ask(chat(34), controls(session="s")).action == "passed"  # the longest view that may fit
        assert count(stage.forwarded[-1].json()) > refused


def test_a_request_for_another_model_leaves_a_session_its_size_refused() -> None:
    with narrow(numberless, limit=5_000, strategy="recent") as stage:
        stage.ask(chat(20), controls(session="s"))
        stage.upstream.answer(lambda _: None)
        stage.post(body_of(chat(21), "scripted-2"), controls(session="s"))
        stage.ask(chat(30), controls(session="s"))
        _, sent, other, bounded = [count(each.json()) for each in stage.forwarded]
        assert other > sent
        assert bounded < other


def test_a_request_refused_twice_is_served_when_it_comes_again() -> None:
    with narrow(numberless, limit=2_000, window=100_000, strategy="recent") as stage:
        body = body_of(chat(16))
        statuses = [stage.post(body, controls(session="s")).status for _ in range(3)]
        assert (statuses[0], statuses[-1]) == (400, 200)


def test_another_replica_is_bound_by_the_size_refused(tmp_path: Path) -> None:
    store = {"url": f"sqlite:///{tmp_path}/sessions.db"}
    with narrow(numberless, limit=5_000, store=store, strategy="recent") as stage:
        stage.ask(chat(20), controls(session="s"))
        with running_proxy(stage.upstream.url, store=store, strategy="recent") as other:
            Stage(other, stage.upstream).ask(chat(21), controls(session="s"))
        assert len(stage.forwarded) == 3


@pytest.mark.parametrize("window", [20_000, None])
def test_a_413_without_a_body_is_mended_once_and_bounds_its_session(window: int | None) -> None:
    with proxy_with_upstream(window=window, strategy="recent") as stage:
        stage.upstream.reply(Reply(413))
        assert stage.ask(chat(60), controls(session="s")).trigger == "overflow"
        refused, sent = [count(each.json()) for each in stage.forwarded]
        assert 0.5 * refused < sent < 0.75 * refused
        later = stage.ask(chat(1), controls(session="s"))
        assert abs(int(later.window or 0) - (window or refused)) < refused / 20
        assert window is None or later.headroom < refused


def test_a_window_that_is_set_does_not_tell_what_the_server_takes() -> None:
    """The greeting to a view of a tenth of the window waits too."""
    gate = Signal("the error")
    with proxy_with_upstream(window=100_000, strategy="recent") as stage:
        greeting, error = behind_who_speaks(9_000).steps[0], as_an_event(9_000).steps[1]
        stage.upstream.reply(replies.stream(greeting, gate, error))
        body, own = body_of(chat(60), stream=True), [("Authorization", f"Bearer {stage.key}"), *controls(session="s")]
        threading.Timer(0.3, gate.set).start()
        with wire.opened(stage.proxy.url, "POST", CHAT, body, [*wire.JSON, *own]) as response:
            assert b"echo" in response.read()
        assert len(stage.forwarded) == 2


def test_a_refusal_that_stays_one_reaches_the_client_byte_for_byte() -> None:
    with proxy_with_upstream(window=None) as stage:
        refusal = replies.overflow(WINDOW, 9_000)
        stage.upstream.answer(lambda exchange: summary() if is_own(exchange) else refusal)

        answer = stage.post(body_of(chat(60)))

        assert answer.status == 400
        assert answer.body == refusal.steps[0]
        assert len(stage.forwarded) == 2


@pytest.mark.parametrize("strategy", ["off", "observe:half-window"])
def test_a_stated_window_is_learned_where_nothing_may_be_changed(strategy: str) -> None:
    with narrow() as stage:
        answer = stage.post(body_of(chat(60)), controls(strategy=strategy))

        [refused] = stage.forwarded
        assert (answer.status, answer.body) == (400, refused.sent)
        assert stage.ask(chat(60), controls(session="s")).window == str(WINDOW)


def test_a_quoted_number_of_the_client_is_no_window() -> None:
    said = "The old server said: this model's maximum context length is 4,096 tokens."
    refusal = replies.error(400, f"Please reduce the length of the messages. You sent: {said}", code="invalid_request")
    with narrow(lambda _: refusal, limit=9_000, strategy="recent") as stage:
        stage.ask([*chat(40), {"role": "user", "content": said}], controls(session="s"))
        refused, sent = [count(each.json()) for each in stage.forwarded]
        assert 0.5 * refused < sent < 0.75 * refused
        assert stage.ask(chat(20), controls(session="another")).window == "unknown"


def test_a_task_that_does_not_fit_gets_the_upstream_s_own_error() -> None:
    """Nothing can be condensed: one message is all there is."""
    with narrow() as stage:
        messages = [{"role": "user", "content": "word " * 9_000}]
        answer = stage.post(body_of(messages))

        assert (answer.status, answer.body) == (400, stage.forwarded[0].sent)
        assert answer.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("memory", ["off", "inject"])
def test_without_a_store_the_prompt_is_shrunk_all_the_same(memory: str) -> None:
    with narrow(store={"url": "redis://127.0.0.1:1/0"}, memory={"default": memory}) as stage:
        answer = stage.ask(chat(60), controls(session="s"))
        assert (answer.action, answer.trigger) == ("degraded", "overflow")


@pytest.mark.parametrize(("window", "step"), [(4_096, 40), (8_192, 1)])
def test_every_turn_of_a_long_conversation_gets_its_reply_whatever_the_window(window: int, step: int) -> None:
    """60,000 tokens, in many small turns or in few large ones."""
    with narrow(lambda used: replies.overflow(window, used), limit=window) as stage:
        whole = chat(240, words=95)
        assert count({"messages": whole, "model": MODEL}) > 60_000
        for rounds in range(1, 240, step if step > 1 else 12):
            stage.ask(whole[: 2 + 2 * rounds], controls(session="s"))
            assert count(stage.forwarded[-1].json()) <= window


POOL = replies.json_reply(
    {"error": {"code": 500, "message": "Context size has been exceeded.", "type": "server_error"}}, status=500
)
STATES = replies.json_reply(
    {"object": "list", "data": [{"id": MODEL, "meta": {"n_ctx": 4_096}, "owned_by": "llamacpp"}]}
)
CEILING = replies.json_reply({"object": "list", "data": [{"id": MODEL, "context_length": 4_096}]})


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request is sent a second time at once."""
    monkeypatch.setattr(services, "POOL_WAIT", (0.0, 0.0))


@contextmanager
def pooled(*refusals: Reply, states: bool = True, listed: Reply = STATES) -> Iterator[Stage]:
    """A server that states its window, or has `listed` it, and finds its cache full for so many requests."""
    with proxy_with_upstream(window=None, upstream={"discover": states}) as stage:
        left = list(refusals)

        def answer(exchange: Exchange) -> Reply | None:
            if exchange.path == "/v1/models":
                return listed
            return left.pop(0) if exchange.path == CHAT and len(exchange.json()["messages"]) > 4 and left else None

        stage.upstream.answer(answer)
        stage.ask(chat(1))
        stage.proxy.quiet()
        assert stage.ask(chat(1)).window == ("4096" if states else "unknown")
        stage.forget()
        yield stage


@pytest.mark.usefixtures("no_pause")
def test_a_full_cache_pool_is_asked_once_more_and_the_line_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    in_stream = replies.stream(
        replies.sse({"error": {"code": 500, "message": "Context size has been exceeded.", "type": "server_error"}})
    )
    for refusal, members in ((POOL, {}), (in_stream, {"stream": True})):
        with pooled(refusal) as stage:
            answer = stage.ask(chat(8), controls(session="s"), **members)
            assert answer.action == "passed"
            assert [each.body for each in stage.forwarded[-2:]] == [stage.sent[-1]] * 2
            assert stage.ask(chat(9), controls(session="s")).window == "4096"
            assert stage.last_view == chat(9)
            stage.proxy.served()
        assert caplog.text.count(f"the cache of {MODEL} was full; the request is sent again as it is") == 1
        lines = [each for each in caplog.messages if f" {MODEL} s main " in each]
        assert [", sent 2 times, " in each for each in lines] == [True, False]
        caplog.clear()


@pytest.mark.usefixtures("no_pause")
def test_a_full_cache_pool_is_passed_on() -> None:
    with pooled(POOL, POOL) as stage:
        answer = stage.post(body_of(chat(8)))
        assert (answer.status, answer.body) == (500, POOL.steps[0])
    for how in ({"states": False}, {"listed": CEILING}):
        with pooled(POOL, **how) as stage:
            answer = stage.post(body_of(chat(8)))
            assert (answer.status, answer.body, len(stage.forwarded)) == (500, POOL.steps[0], 1)
            assert stage.ask(chat(8)).action == "passed"


@pytest.mark.parametrize("states", [True, False])
def test_an_overflow_after_content_is_passed_on_and_learned(*, states: bool) -> None:
    error = cast("bytes", as_an_event(9_000).steps[1])
    if not states:
        error = replies.stream_error("Please reduce the length of the messages.", "context_length_exceeded")
    gate = Signal("the error")
    with proxy_with_upstream(window=None, strategy="recent") as stage:
        stage.upstream.reply(replies.stream(*replies.text_chunks("one two")[:2], gate, error))
        body, own = body_of(chat(40), stream=True), [("Authorization", f"Bearer {stage.key}"), *controls(session="s")]
        with wire.opened(stage.proxy.url, "POST", CHAT, body, [*wire.JSON, *own]) as response:
            while b"one " not in (line := response.readline()):
                assert line
            gate.set()
            assert error in response.read()
        stage.proxy.served()
        assert len(stage.forwarded) == 1
        again = stage.ask(chat(41), controls(session="s"))
        assert (len(stage.forwarded), again.action) == (2, "condensed")
        told = int(str(again.window))
        assert told == WINDOW if states else told > WINDOW  # the size refused, where no number was stated


def test_a_reply_that_fills_the_window_bounds_nothing() -> None:
    with proxy_with_upstream(window=None, strategy="recent") as stage:
        ended = replies.sse(replies.chunk({}, finish="model_context_window_exceeded"))
        stage.upstream.reply(replies.stream(*replies.text_chunks("one two")[:2], ended, replies.DONE))
        stage.post(body_of(chat(40), stream=True), controls(session="s"))
        stage.proxy.served()
        again = stage.ask(chat(41), controls(session="s"))
        assert (again.action, again.window) == ("passed", "unknown")
