"""An upstream that refuses what the proxy makes of a request, without a reason that anybody knows."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support import replies
from tests.support.admin_api import TOKEN, admin, place_of
from tests.support.proxy import running_proxy
from tests.support.recording import CHAT, Exchange
from tests.support.replies import Reply
from tests.support.stage import (
    SUMMARY,
    WINDOW,
    Stage,
    body_of,
    chat,
    controls,
    count,
    is_own,
    proxy_with_upstream,
    summary,
)
from tests.support.virtual_time import Clock

OPAQUE = b'{"error": {"message": "The request could not be processed.", "type": "invalid_request_error"}}'
SPARED = "passed", "rewrite-refused"
FITS, IS_TOO_LONG = 11, 40  # rounds: within the window, but too long to leave room; and beyond the window
Refuses = Callable[[Mapping[str, Any]], bool]


def is_rewritten(body: Mapping[str, Any]) -> bool:
    """Whether a message list is not one of `chat`, because the proxy has put something into it."""
    messages = body["messages"]
    return bool(messages != chat((len(messages) - 2) // 2))


@contextmanager
def refusing(refuses: Refuses = is_rewritten, *, status: int = 400, **settings: Any) -> Iterator[Stage]:
    """A proxy in front of an upstream that refuses such bodies with an error that says nothing."""
    with proxy_with_upstream(**settings) as stage:
        stage.upstream.answer(answering(refuses, status))
        yield stage


def answering(refuses: Refuses, status: int = 400) -> Callable[[Exchange], Reply | None]:
    def answer(exchange: Exchange) -> Reply | None:
        if exchange.path != CHAT:
            return None
        if is_own(exchange):
            return summary()
        return replies.raw(OPAQUE, status=status) if refuses(exchange.json()) else None

    return answer


def refusals(stage: Stage) -> list[bool]:
    """Of each request as it was forwarded, whether it was rewritten."""
    return [is_rewritten(each.json()) for each in stage.forwarded]


@pytest.mark.parametrize(
    ("status", "session", "members"), [(400, "s", {"stream": True}), (422, "s", {}), (400, None, {})]
)
def test_a_second_proof_within_an_hour_spares_the_session(
    status: int, session: str | None, members: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    with refusing(status=status, clock=clock) as stage, caplog.at_level("WARNING", "proxy.condensing.refusals"):
        for proofs in (1, 2):
            answer = stage.ask(chat(FITS), controls(session=session), **members)
            assert refusals(stage) == [True, False] * proofs
            assert stage.forwarded[-1].body == stage.sent[-1]
            assert (answer.action, answer.reason) == SPARED
        spared = stage.ask(chat(FITS), controls(session=session), **members)
        assert (spared.action, spared.reason) == SPARED
        assert refusals(stage) == [True, False, True, False, False]
        assert stage.forwarded[-1].body == stage.sent[-1]

        stage.upstream.answer(answering(lambda _: False))
        longer = stage.ask(chat(IS_TOO_LONG), controls(session=session), **members)
        assert (longer.action, longer.session) == ("condensed", spared.session)
        clock.now += 3_601
        later = stage.ask(chat(FITS), controls(session=session), **members)
        assert later.action in ("condensed", "replayed")

    lines = [each.getMessage() for each in caplog.records if each.name == "proxy.condensing.refusals"]
    assert [str(status) in line for line in lines] == [True, True]
    assert str(spared.session) in lines[-1]


def test_a_spared_list_that_is_refused_for_its_length_is_condensed() -> None:
    with refusing() as stage:
        for _ in range(2):
            stage.ask(chat(FITS), controls(session="s"))
        too_long = replies.overflow(2_000, 3_900)
        stage.upstream.answer(lambda exchange: None if is_rewritten(exchange.json()) else too_long)
        answer = stage.ask(chat(FITS), controls(session="s"))
        assert answer.trigger == "overflow"


@pytest.mark.parametrize("session", ["s", "t"], ids=["the same session", "another"])
def test_one_unexplained_error_ends_nothing(session: str) -> None:
    with refusing() as stage:
        stage.ask(chat(FITS), controls(session="s"))
        stage.upstream.answer(answering(lambda _: False))
        assert stage.ask(chat(FITS), controls(session=session)).action in ("condensed", "replayed")


def test_another_replica_respects_it(tmp_path: Path) -> None:
    store = {"url": f"sqlite:///{tmp_path / 'store.db'}"}
    with refusing(store=store) as stage:
        stage.ask(chat(FITS), controls(session="s"))
        with running_proxy(stage.upstream.url, window=WINDOW, store=store, admin={"token": TOKEN}) as other:
            there = Stage(other, stage.upstream)
            for _ in range(2):
                answer = there.ask(chat(FITS), controls(session="s"))
                assert answer.reason == "rewrite-refused"
            (listed,) = admin(there).json()["data"]
            shown = admin(there, place_of(listed)).json()
            assert shown["rewriting"]["proofs"] == 2
        assert refusals(stage) == [True, False, True, False, False]


@pytest.mark.parametrize(
    ("refuses", "status", "body"),
    [
        (is_rewritten, 400, body_of(chat(IS_TOO_LONG))),
        (is_rewritten, 400, body_of(chat(FITS), max_tokens=WINDOW // 2)),
        (is_rewritten, 503, body_of(chat(FITS))),
        (lambda _: True, 400, body_of(chat(2))),
    ],
    ids=["it does not fit", "its reply does not fit", "no refusal", "not rewritten"],
)
def test_an_original_is_sent_only_where_that_may_help(refuses: Refuses, status: int, body: bytes) -> None:
    with refusing(refuses, status=status) as stage:
        for sent in (1, 2):
            answer = stage.post(body, controls(session="s"))
            assert (answer.status, answer.body) == (status, OPAQUE)
            assert refusals(stage) == [refuses is is_rewritten] * sent


def test_a_request_that_is_refused_as_it_came_says_nothing_about_rewriting() -> None:
    with refusing(lambda _: True) as stage:
        answer = stage.post(body_of(chat(FITS)), controls(session="s"))
        assert (answer.status, answer.body) == (400, OPAQUE)
        assert refusals(stage) == [True, False]

        stage.upstream.answer(answering(lambda _: False))
        assert stage.ask(chat(FITS), controls(session="s")).action in ("condensed", "replayed")


def test_the_appended_history_is_sent_whole() -> None:
    appending = controls(session="s", history="append")
    with refusing(lambda body: SUMMARY[:20] in json.dumps(body)) as stage:
        stage.ask(chat(FITS - 2), appending)
        answer = stage.ask([{"role": "user", "content": "bed " * 600}], appending)
        assert answer.reason == "rewrite-refused"
        assert stage.last_view[:-2] == chat(FITS - 2)
        assert (answer.header("x-condenser-head") or "").startswith(f"{len(chat(FITS - 2)) + 1}-")


def test_what_the_client_has_dropped_is_left_out_of_the_original() -> None:
    with refusing(lambda _: False) as stage:
        stage.ask(chat(6), controls(session="s"))
        stage.upstream.answer(answering(lambda body: len(body["messages"]) > 9))
        answer = stage.ask(chat(7)[-9:], controls(session="s"))
        assert answer.reason == "rewrite-refused"
        assert len(stage.forwarded) == 3
        assert stage.forwarded[-1].body == stage.sent[-1]
        stage.ask(chat(8)[-9:], controls(session="s"))
        assert len(stage.forwarded) == 5
        assert stage.forwarded[-1].body == stage.sent[-1]


TRIMMED = -9
"""A client that trims sends this many of its newest messages."""


@contextmanager
def spared_client_that_trims(refusal: Reply) -> Iterator[Stage]:
    """A session that is spared rewriting; then the upstream refuses one request so."""
    with refusing(lambda _: False) as stage:
        stage.ask(chat(6), controls(session="s"))
        stage.upstream.answer(answering(lambda body: len(body["messages"]) > -TRIMMED))
        for rounds in (7, 8, 9):
            answer = stage.ask(chat(rounds)[TRIMMED:], controls(session="s"))
        assert answer.reason == "rewrite-refused"
        stage.forget()
        stage.upstream.answer(lambda exchange: refusal if len(stage.forwarded) == 1 else None)
        yield stage


def test_a_spared_list_that_is_too_long_is_condensed_with_all_that_is_known() -> None:
    with spared_client_that_trims(replies.overflow(1_200, 3_900)) as stage:
        answer = stage.ask(chat(10)[TRIMMED:], controls(session="s"))
        assert (answer.action, answer.trigger) == ("condensed", "overflow")
        assert answer.reason != "rewrite-refused"
        first, second = (each.json() for each in stage.forwarded)
        assert first["messages"] == chat(10)[TRIMMED:]
        assert count(second) < count(first)
        assert second["messages"][-1] == chat(10)[-1]


def test_a_refusal_of_pictures_that_are_not_there_reaches_the_client_that_trims() -> None:
    said = b'{"error": {"message": "At most 1 image(s) may be provided in one prompt."}}'
    with spared_client_that_trims(replies.raw(said, status=400)) as stage:
        answer = stage.post(body_of(chat(10)[TRIMMED:]), controls(session="s"))
        assert (answer.status, answer.body, len(stage.forwarded)) == (400, said, 1)
