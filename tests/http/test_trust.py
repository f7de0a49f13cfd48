"""Nothing is lent to a caller, stored for it or shown to it before the upstream has accepted its credential."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proxy.request.callers import FRESH, LIFE
from tests.support import replies, wire
from tests.support.proxy import proxying
from tests.support.recording import CHAT, Exchange
from tests.support.replies import Reply
from tests.support.stage import EMPTY, WINDOW, Stage, asked, body_of, chat, count, staged, stored
from tests.support.upstream import Counting, ScriptedUpstream

FORCED = asked(strategy="summary", force="true")


class Clock:
    """A clock that stands still until it is told to move."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


class Doorman:
    """An upstream's answers: it knows some keys, and refuses all others."""

    def __init__(self, *known: str, public_models: bool = False) -> None:
        self.known = {f"Bearer {key}" for key in known}
        self.public_models = public_models

    def __call__(self, exchange: Exchange) -> Reply | None:
        if exchange.header("authorization") in self.known or (self.public_models and exchange.method == "GET"):
            return None
        return replies.error(401, "Incorrect API key provided.", code="invalid_api_key")


@contextmanager
def guarded(doorman: Doorman, **settings: Any) -> Iterator[Stage]:
    """A proxy before an upstream with a doorman."""
    with ScriptedUpstream(counting=Counting(count)) as upstream:
        upstream.answer(doorman)
        with proxying(upstream.url, window=WINDOW, **settings) as proxy:
            yield Stage(proxy, upstream)


@contextmanager
def lending(doorman: Doorman, **settings: Any) -> Iterator[tuple[Stage, ScriptedUpstream]]:
    """The same with a summarizer that has a key of the settings."""
    with staged() as helper:
        role = {"base_url": helper.upstream.base_url, "model": "small", "api_key": "sk-operator"}
        with guarded(doorman, summarizer=role, **settings) as stage:
            yield stage, helper.upstream


def test_a_refused_caller_costs_the_summarizer_of_the_settings_no_call() -> None:
    with lending(Doorman()) as (stage, summarizer):
        for _ in range(3):
            assert stage.post(body_of(chat(12)), FORCED).status == 401
        stage.proxy.quiet()
        assert len(summarizer.journal.to()) == 0


def test_a_caller_of_whom_nothing_is_known_is_condensed_for_by_rules_and_then_by_models() -> None:
    with lending(Doorman("sk-first")) as (stage, summarizer):
        first = stage.ask(chat(12), asked(session="a"))
        assert first.header("x-condenser-action") == "condensed"
        assert first.header("x-condenser-reason") == "summary-not-accepted"
        stage.proxy.quiet()
        assert len(summarizer.journal.to()) == 0
        assert stage.ask(chat(12), asked(session="b")).header("x-condenser-reason") is None
        assert len(summarizer.journal.to()) == 1
        assert {each.header("authorization") for each in summarizer.journal.to()} == {"Bearer sk-operator"}


def test_what_rules_made_for_the_first_request_is_recorded_before_its_reply_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with guarded(Doorman("sk-first"), store={"url": f"sqlite:///{path}"}) as stage:
        assert stage.ask(chat(12), asked(session="a")).header("x-condenser-action") == "condensed"
        assert stored(path)["records"] == stored(path)["sessions"] == 1
        view = stage.last_view
        assert stage.ask(chat(12), asked(session="a")).header("x-condenser-action") == "replayed"
        assert stage.last_view == view


@pytest.mark.parametrize("status", [400, 401, 403, 500])
def test_callers_that_the_upstream_refuses_leave_nothing_in_the_store(tmp_path: Path, status: int) -> None:
    path = tmp_path / "s.db"
    with guarded(Doorman(), store={"url": f"sqlite:///{path}"}) as stage:
        stage.upstream.answer(lambda _: replies.error(status))
        for number in range(8):
            junk = replace(stage, key=f"sk-junk-{number}")
            assert junk.post(body_of(chat(12)), asked(session="s" if number % 2 else None)).status == status
        stage.proxy.quiet()
        assert stored(path) == EMPTY


def test_a_restart_does_not_forget_who_was_accepted(tmp_path: Path) -> None:
    store = {"url": f"sqlite:///{tmp_path / 's.db'}"}
    with lending(Doorman("sk-first"), store=store) as (stage, summarizer):
        stage.ask(chat(1))
        stage.proxy.quiet()
        role = {"base_url": summarizer.base_url, "model": "small", "api_key": "sk-operator"}
        with proxying(stage.upstream.url, window=WINDOW, store=store, summarizer=role) as other:
            assert replace(stage, proxy=other).ask(chat(12)).header("x-condenser-reason") is None
        assert len(summarizer.journal.to()) == 1


def test_a_credential_that_was_accepted_long_ago_is_unknown_again() -> None:
    clock = Clock()
    with lending(Doorman("sk-first"), clock=clock) as (stage, summarizer):
        stage.ask(chat(1))
        clock.now += LIFE
        assert stage.ask(chat(12)).header("x-condenser-reason") == "summary-not-accepted"
        assert len(summarizer.journal.to()) == 0


def test_a_revoked_credential_is_lent_one_call_at_most() -> None:
    doorman = Doorman("sk-first")
    with lending(doorman) as (stage, summarizer):
        stage.ask(chat(1))
        doorman.known.clear()
        for number in range(3):
            assert stage.post(body_of(chat(12 + number)), FORCED).status == 401
        stage.proxy.quiet()
        assert len(summarizer.journal.to()) == 1


def test_the_callers_own_credential_pays_for_summaries_from_the_first_request_on() -> None:
    with staged() as stage:
        assert stage.ask(chat(12)).header("x-condenser-reason") is None
        assert len(stage.summaries) == 1


# -- stored text -----------------------------------------------------------------------------------------------

APPENDED = asked(session="s", history="append")
PREVIEWS = {"append": [*APPENDED, *asked(dry_run="true")], "whole history": asked(session="s", dry_run="true")}
previews = pytest.mark.parametrize("preview", PREVIEWS.values(), ids=PREVIEWS)
MORE = [{"role": "user", "content": "And now?"}]


@contextmanager
def remembering(doorman: Doorman, clock: Clock) -> Iterator[Stage]:
    """A proxy with a stored conversation of a caller that was accepted."""
    with guarded(doorman, clock=clock) as stage:
        stage.ask([{"role": "user", "content": "The code is 4711."}], APPENDED)
        yield stage


def probes(stage: Stage) -> list[str | None]:
    """The credentials with which the upstream was asked for its models."""
    return [each.header("authorization") for each in stage.upstream.journal.to("/v1/models")]


@previews
def test_a_caller_that_was_just_accepted_may_see_what_is_stored(preview: list[tuple[str, str]]) -> None:
    with remembering(Doorman("sk-first"), Clock()) as stage:
        assert stage.post(body_of(MORE), preview).status == 200
        assert probes(stage) == []


@previews
def test_a_revoked_credential_reads_nothing_that_is_stored(preview: list[tuple[str, str]]) -> None:
    doorman, clock = Doorman("sk-first"), Clock()
    with remembering(doorman, clock) as stage:
        doorman.known.clear()
        clock.now += FRESH + 1
        answer = stage.post(body_of(MORE), preview)
        assert (answer.status, answer.json()["error"]["code"]) == (401, "invalid_api_key")
        assert b"4711" not in answer.body
        assert probes(stage) == ["Bearer sk-first"]


@previews
def test_a_credential_is_proven_again_after_some_minutes(preview: list[tuple[str, str]]) -> None:
    clock = Clock()
    with remembering(Doorman("sk-first"), clock) as stage:
        clock.now += FRESH + 1
        for _ in range(2):
            assert stage.post(body_of(MORE), preview).status == 200
        assert probes(stage) == ["Bearer sk-first", None]


@previews
def test_a_list_of_models_that_everybody_may_read_proves_nothing(preview: list[tuple[str, str]]) -> None:
    doorman, clock = Doorman("sk-first", public_models=True), Clock()
    with remembering(doorman, clock) as stage:
        doorman.known.clear()
        clock.now += FRESH + 1
        answer = stage.post(body_of(MORE), preview)
        assert (answer.status, answer.json()["error"]["code"]) == (403, "credential_unproven")
        assert b"4711" not in answer.body


def test_a_dry_run_that_shows_nothing_stored_asks_nothing() -> None:
    with guarded(Doorman()) as stage:
        assert stage.post(body_of(chat(12)), asked(dry_run="true")).status == 200
        assert len(stage.upstream.journal.to()) == 0


def test_where_callers_have_no_credential_an_open_upstream_is_enough() -> None:
    clock = Clock()
    with remembering(Doorman("sk-first", public_models=True), clock) as stage:
        stage.upstream.answer(None)
        given = [*wire.JSON, *APPENDED]
        assert wire.request(stage.proxy.url, "POST", CHAT, body_of(MORE), given).status == 200
        clock.now += FRESH + 1
        shown = wire.request(stage.proxy.url, "POST", CHAT, body_of(MORE), [*given, *asked(dry_run="true")])
        assert shown.status == 200
        assert b"4711" not in shown.body
