"""Nothing is lent to a caller, stored for it or shown to it before the upstream has accepted its credential."""

import json
import sqlite3
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proxy.callers.tenants import FRESH, LIFE
from tests.support import replies, wire
from tests.support.logins import login
from tests.support.messages_upstream import StrictMessages
from tests.support.proxy import running_proxy
from tests.support.recording import CHAT, Exchange
from tests.support.replies import Reply
from tests.support.signals import Signal
from tests.support.stage import (
    EMPTY,
    WINDOW,
    Stage,
    body_of,
    chat,
    controls,
    count,
    is_own,
    proxy_with_upstream,
    store_rows,
)
from tests.support.upstream import Counting, ScriptedUpstream
from tests.support.virtual_time import Clock

FORCED = controls(strategy="summary", force="true")


class Doorman:
    """An upstream's answers: it knows some keys, and refuses all others. `models_for` may list the models."""

    def __init__(self, *known: str, models_for: Collection[str | None] | None = None) -> None:
        self.known: set[str | None] = {f"Bearer {key}" for key in known}
        self.models_for = models_for

    def __call__(self, exchange: Exchange) -> Reply | None:
        is_list = exchange.method == "GET" and self.models_for is not None
        known = (self.models_for or ()) if is_list else self.known
        if exchange.header("authorization") in known:
            return None
        return replies.error(401, "Incorrect API key provided.", code="invalid_api_key")


@contextmanager
def guarded(doorman: Doorman, **settings: Any) -> Iterator[Stage]:
    """A proxy before an upstream with a doorman."""
    with ScriptedUpstream(counting=Counting(count)) as upstream:
        upstream.answer(doorman)
        with running_proxy(upstream.url, window=WINDOW, **settings) as proxy:
            yield Stage(proxy, upstream)


@contextmanager
def lending(doorman: Doorman, **settings: Any) -> Iterator[tuple[Stage, ScriptedUpstream]]:
    """The same with a summarizer that has a key of the settings."""
    with proxy_with_upstream() as helper:
        role = {"base_url": helper.upstream.base_url, "model": "small", "api_key": "sk-operator"}
        with guarded(doorman, summarizer=role, **settings) as stage:
            yield stage, helper.upstream


def test_a_refused_caller_costs_the_summarizer_of_the_settings_no_call() -> None:
    with lending(Doorman()) as (stage, summarizer):
        for _ in range(3):
            assert stage.post(body_of(chat(12)), FORCED).status == 401
        stage.proxy.quiet()
        assert len(summarizer.journal.to()) == 0


def test_an_unknown_caller_and_one_of_long_ago_are_condensed_for_by_rules_first() -> None:
    clock = Clock(1_800_000_000.0)
    with lending(Doorman("sk-first"), clock=clock) as (stage, summarizer):
        for session, calls in (("a", 0), ("c", 1)):
            first = stage.ask(chat(12), controls(session=session))
            assert (first.action, first.reason) == ("condensed", "summary-not-accepted")
            stage.proxy.quiet()
            assert len(summarizer.journal.to()) == calls
            assert stage.ask(chat(12), controls(session=session * 2)).reason is None
            assert len(summarizer.journal.to()) == calls + 1
            clock.now += LIFE
        assert {each.header("authorization") for each in summarizer.journal.to()} == {"Bearer sk-operator"}


def test_the_first_rules_record_is_stored_before_the_reply_ends(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with guarded(Doorman("sk-first"), store={"url": f"sqlite:///{path}"}) as stage:
        assert stage.ask(chat(12), controls(session="a")).action == "condensed"
        assert store_rows(path)["records"] == store_rows(path)["sessions"] == 1
        view = stage.last_view
        assert stage.ask(chat(12), controls(session="a")).action == "replayed"
        assert stage.last_view == view


def dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return sorted(connection.iterdump())


def test_a_forged_login_learns_nothing_and_changes_nothing(tmp_path: Path) -> None:
    """It names the issuer and the subject of another's login, and so that one's tenant."""
    path, mine = tmp_path / "s.db", login("ann")
    with guarded(Doorman(mine), strategy="summary", store={"url": f"sqlite:///{path}"}) as stage:
        owner, forger = replace(stage, key=mine), replace(stage, key=login("ann", signature="forged"), sent=[])
        assert owner.ask(chat(12), [*controls(session="s"), *FORCED]).action == "condensed"
        owner.ask([{"role": "user", "content": "The code is 4711."}], controls(session="a", history="append"))
        stage.proxy.quiet()
        before, asked = dump(path), len(stage.upstream.journal)
        for headers in (controls(session="s"), [*controls(session="s"), *FORCED], *PREVIEWS.values()):
            answer = forger.post(body_of(chat(14)), headers)
            assert answer.status == 401
            assert not [name for name, _ in answer.headers if name.startswith("x-condenser-tokens")]
        stage.proxy.quiet()
        now = dump(path)
        # The sums of all requests count those that were refused too.
        assert [line for line in now if '"sums"' not in line] == [line for line in before if '"sums"' not in line]
        assert not [each for each in list(stage.upstream.journal)[asked:] if is_own(each)]
        assert owner.ask(chat(12), controls(session="s")).action == "replayed"


def test_a_forged_login_teaches_no_window() -> None:
    said = "This model's maximum context length is 3000 tokens. However, your messages resulted in 9000 tokens."
    with ScriptedUpstream() as upstream, running_proxy(upstream.url) as proxy:
        owner, forger = (Stage(proxy, upstream, key=login("ann", signature=each)) for each in ("signed", "forged"))
        owner.ask(chat(1))
        for caller, window in ((forger, "unknown"), (owner, "3000")):
            upstream.answer(lambda _: replies.error(400, said))
            caller.post(body_of(chat(12)))
            upstream.answer(lambda _: None)
            assert owner.ask(chat(1)).window == window


@pytest.mark.parametrize("status", [400, 401, 403, 500])
def test_callers_that_the_upstream_refuses_leave_nothing_in_the_store(tmp_path: Path, status: int) -> None:
    path = tmp_path / "s.db"
    with guarded(Doorman(), store={"url": f"sqlite:///{path}"}) as stage:
        stage.upstream.answer(lambda _: replies.error(status))
        for number in range(8):
            junk = replace(stage, key=f"sk-junk-{number}")
            assert junk.post(body_of(chat(12)), controls(session="s" if number % 2 else None)).status == status
        stage.proxy.quiet()
        assert store_rows(path) == EMPTY


def test_a_restart_does_not_forget_who_was_accepted(tmp_path: Path) -> None:
    store = {"url": f"sqlite:///{tmp_path / 's.db'}"}
    with lending(Doorman("sk-first"), store=store) as (stage, summarizer):
        stage.ask(chat(1))
        stage.proxy.quiet()
        role = {"base_url": summarizer.base_url, "model": "small", "api_key": "sk-operator"}
        with running_proxy(stage.upstream.url, window=WINDOW, store=store, summarizer=role) as other:
            assert replace(stage, proxy=other).ask(chat(12)).reason is None
        assert len(summarizer.journal.to()) == 1


def test_a_revoked_credential_is_lent_one_call_at_most() -> None:
    doorman = Doorman("sk-first")
    with lending(doorman) as (stage, summarizer):
        stage.ask(chat(1))
        doorman.known.clear()
        for number in range(3):
            assert stage.post(body_of(chat(12 + number)), FORCED).status == 401
        stage.proxy.quiet()
        assert len(summarizer.journal.to()) == 1


def test_a_long_reply_does_not_bring_back_a_refused_credential() -> None:
    doorman, clock, gate = Doorman("sk-first"), Clock(1_800_000_000.0), Signal()
    with lending(doorman, clock=clock) as (stage, summarizer):
        stage.upstream.answer(lambda exchange: doorman(exchange) or replies.stream(*replies.text_chunks("x"), gate))
        body, headers = body_of(chat(1), stream=True), [*wire.JSON, ("authorization", f"Bearer {stage.key}")]
        with wire.opened(stage.proxy.url, "POST", CHAT, body, headers) as reply:
            wire.until(reply, b"x")
            doorman.known.clear()
            clock.now += 1
            assert stage.post(body_of(chat(2))).status == 401
            gate.set()
            reply.read()
        stage.proxy.quiet()
        stage.post(body_of(chat(12)), FORCED)
        assert len(summarizer.journal.to()) == 0


# -- stored text -----------------------------------------------------------------------------------------------

APPENDED = controls(session="s", history="append")
PREVIEWS = {"append": [*APPENDED, *controls(dry_run="true")], "whole history": controls(session="s", dry_run="true")}
previews = pytest.mark.parametrize("preview", PREVIEWS.values(), ids=PREVIEWS)
MORE = [{"role": "user", "content": "And now?"}]


@contextmanager
def remembering(doorman: Doorman, clock: Clock) -> Iterator[Stage]:
    """A proxy with a stored conversation of a caller that was accepted."""
    with guarded(doorman, clock=clock) as stage:
        stage.ask([{"role": "user", "content": "The code is 4711."}], APPENDED)
        yield stage


def pings(stage: Stage) -> list[Exchange]:
    """The questions of one token that the upstream was asked."""
    return [each for each in stage.upstream.journal.to() if each.json().get("max_completion_tokens") == 1]


@previews
def test_a_revoked_credential_reads_nothing_that_is_stored(preview: list[tuple[str, str]]) -> None:
    doorman, clock = Doorman("sk-first"), Clock(1_800_000_000.0)
    with remembering(doorman, clock) as stage:
        doorman.known.clear()
        clock.now += FRESH + 1
        answer = stage.post(body_of(MORE), preview)
        assert (answer.status, answer.json()["error"]["code"]) == (401, "invalid_api_key")
        assert b"4711" not in answer.body
        assert [each.header("authorization") for each in pings(stage)] == ["Bearer sk-first"]


@previews
def test_an_accepted_credential_sees_what_is_stored_and_is_proven_again_after_some_minutes(
    preview: list[tuple[str, str]],
) -> None:
    clock = Clock(1_800_000_000.0)
    with remembering(Doorman("sk-first"), clock) as stage:
        assert stage.post(body_of(MORE), preview).status == 200
        assert pings(stage) == []
        clock.now += FRESH + 1
        for _ in range(2):
            assert stage.post(body_of(MORE), preview).status == 200
        assert [each.header("authorization") for each in pings(stage)] == ["Bearer sk-first"]
        assert not any(b"4711" in each.body for each in pings(stage))
        (ping,) = pings(stage)
        assert [name.lower() for name, _ in ping.headers].count("content-type") == 1


MODELS_FOR = {"everybody": {"Bearer sk-first", None}, "any key": {"Bearer sk-first"}, "nobody": set[str | None]()}


@previews
@pytest.mark.parametrize("models_for", MODELS_FOR.values(), ids=MODELS_FOR)
@pytest.mark.parametrize("is_known", [True, False])
def test_a_list_of_models_proves_nothing(
    preview: list[tuple[str, str]], is_known: bool, models_for: Collection[str | None]
) -> None:
    doorman, clock = Doorman("sk-first", models_for=models_for), Clock(1_800_000_000.0)
    with remembering(doorman, clock) as stage:
        if not is_known:
            doorman.known.clear()
        clock.now += FRESH + 1
        answer = stage.post(body_of(MORE), preview)
        assert answer.status == (200 if is_known else 401)
        assert (b"4711" in answer.body) is (is_known and preview == PREVIEWS["append"])


@previews
def test_a_page_is_no_proof_of_a_credential(preview: list[tuple[str, str]]) -> None:
    clock = Clock(1_800_000_000.0)
    with remembering(Doorman("sk-first"), clock) as stage:
        stage.upstream.answer(lambda _: replies.raw(b"<html>Welcome</html>", "text/html"))
        clock.now += FRESH + 1
        answer = stage.post(body_of(MORE), preview)
        assert (answer.status, answer.json()["error"]["code"]) == (403, "credential_unproven")
        assert b"4711" not in answer.body


def test_a_dry_run_that_shows_nothing_stored_asks_nothing() -> None:
    with guarded(Doorman()) as stage:
        assert stage.post(body_of(chat(12)), controls(dry_run="true")).status == 200
        assert len(stage.upstream.journal.to()) == 0


def test_where_callers_have_no_credential_an_open_upstream_is_enough() -> None:
    clock = Clock(1_800_000_000.0)
    with remembering(Doorman("sk-first"), clock) as stage:
        stage.upstream.answer(None)
        given = [*wire.JSON, *APPENDED]
        assert wire.request(stage.proxy.url, "POST", CHAT, body_of(MORE), given).status == 200
        clock.now += FRESH + 1
        shown = wire.request(stage.proxy.url, "POST", CHAT, body_of(MORE), [*given, *controls(dry_run="true")])
        assert shown.status == 200
        assert b"4711" not in shown.body


# -- what proves a credential ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "page",
    [replies.raw(b"<html>Welcome</html>", "text/html"), replies.raw(b'{"status": "ok"}', "application/json")],
    ids=["page", "health check"],
)
def test_an_answer_that_is_not_the_endpoints_accepts_nobody(page: Reply, tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with lending(Doorman(), store={"url": f"sqlite:///{path}"}) as (stage, summarizer):
        stage.upstream.answer(lambda _: page)
        for _ in range(3):
            assert stage.post(body_of(chat(12)), FORCED).status == 200
        stage.proxy.quiet()
        assert len(summarizer.journal.to()) == 0
        assert store_rows(path) == EMPTY


class Neighbour(Doorman):
    """The same upstream beside a neighbour that answers anybody."""

    def __call__(self, exchange: Exchange) -> Reply | None:
        return replies.completion("Hello.") if exchange.path.startswith("/public/") else super().__call__(exchange)


def test_a_prefix_that_answers_anybody_opens_only_itself() -> None:
    doorman, clock = Neighbour("sk-first"), Clock(1_800_000_000.0)
    with remembering(doorman, clock) as stage:
        doorman.known.clear()
        clock.now += FRESH + 1
        headers = [*wire.JSON, ("authorization", "Bearer sk-first")]
        for path in ("/public/chat/completions", "/public/v1/chat/completions"):
            assert wire.request(stage.proxy.url, "POST", path, body_of(MORE), headers).status == 200
            for preview in PREVIEWS.values():
                shown = wire.request(stage.proxy.url, "POST", path, body_of(MORE), [*headers, *preview])
                assert (shown.status, b"4711" in shown.body) == (200, False)
            sent = wire.request(stage.proxy.url, "POST", path, body_of(MORE), [*headers, *APPENDED])
            assert sent.status == 200
        assert not any(b"4711" in each.body for each in stage.upstream.journal if "public" in each.path)
        for preview in PREVIEWS.values():
            assert stage.post(body_of(MORE), preview).status == 401


def test_no_prefix_is_served_where_a_key_of_the_operator_asks_models() -> None:
    with lending(Neighbour("sk-first")) as (stage, summarizer):
        refused = wire.request(stage.proxy.url, "POST", "/public/chat/completions", body_of(chat(12)), wire.JSON)
        assert (refused.status, refused.json()["error"]["code"]) == (403, "path_not_allowed")
        assert len(stage.upstream.journal) == len(summarizer.journal) == 0


def test_a_refused_reply_tells_nothing_of_the_stored_conversation() -> None:
    doorman = Doorman("sk-first")
    with guarded(doorman) as stage:
        stage.ask(chat(12), FORCED + controls(session="s"))
        doorman.known.clear()
        for headers in (controls(session="s"), APPENDED, controls(session="other")):
            answer = stage.post(body_of(chat(12)), headers)
            assert answer.status == 401
            told = {name for name, _ in answer.headers if name.lower().startswith("x-condenser-")}
            assert told <= {"x-condenser-request-id", "x-condenser-protocol"} or headers == controls(session="other")


@pytest.mark.parametrize("connection", [["close, Authorization"], ["close", "Authorization"]])
def test_a_header_for_this_hop_only_is_no_credential(connection: list[str]) -> None:
    with guarded(Doorman("sk-first")) as stage:
        named = [("connection", value) for value in connection]
        headers = [*wire.JSON, ("authorization", "Bearer sk-first"), *named]
        answer = wire.request(stage.proxy.url, "POST", CHAT, body_of(MORE), headers)
        assert (answer.status, answer.json()["error"]["param"]) == (400, "Connection")


def test_counts_of_a_stored_conversation_need_an_accepted_credential() -> None:
    clock, known = Clock(1_800_000_000.0), {"sk-first"}

    def judge(exchange: Exchange) -> Reply | None:
        return None if exchange.header("x-api-key") in known else replies.error(401, "invalid x-api-key")

    with StrictMessages() as upstream, running_proxy(upstream.url, window=WINDOW, clock=clock) as proxy:
        upstream.answer(judge)
        headers = [*wire.JSON, ("x-api-key", "sk-first"), ("anthropic-version", "2023-06-01"), *APPENDED]
        body = json.dumps({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "4711"}]}).encode()
        assert wire.request(proxy.url, "POST", "/v1/messages", body, headers).status == 200
        counted = wire.request(proxy.url, "POST", "/v1/messages/count_tokens", body, headers)
        assert (counted.status, counted.session) == (200, "s")
        known.clear()
        clock.now += FRESH + 1
        refused = wire.request(proxy.url, "POST", "/v1/messages/count_tokens", body, headers)
        assert refused.status == 401
        assert not {name for name, _ in refused.headers} & {"x-condenser-tokens-before", "x-condenser-head"}


def test_a_credential_that_a_count_was_refused_for_sees_nothing_from_then_on() -> None:
    known = {"sk-first"}

    def judge(exchange: Exchange) -> Reply | None:
        return None if exchange.header("x-api-key") in known else replies.error(401, "invalid x-api-key")

    with StrictMessages() as upstream, running_proxy(upstream.url, window=WINDOW) as proxy:
        upstream.answer(judge)
        headers = [("x-api-key", "sk-first"), ("anthropic-version", "2023-06-01"), *APPENDED]
        body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "4711"}]}
        assert wire.post_json(proxy.url, "/v1/messages", body, headers).status == 200
        known.clear()
        refused = wire.post_json(proxy.url, "/v1/messages/count_tokens", body, headers)
        assert refused.status == 401
        assert not {name for name, _ in refused.headers} & {"x-condenser-tokens-before", "x-condenser-head"}
        shown = wire.post_json(proxy.url, "/v1/messages", body, [*headers, *controls(dry_run="true")])
        assert (shown.status, b"4711" in shown.body) == (401, False)


def test_a_count_for_an_unproven_credential_condenses_nothing() -> None:
    clock, page = Clock(1_800_000_000.0), replies.raw(b"<html>Welcome</html>", "text/html")
    body = {"model": "m@mask", "max_tokens": 9, "messages": [{"role": "user", "content": "4711"}]}
    with StrictMessages() as upstream, running_proxy(upstream.url, window=WINDOW, clock=clock) as proxy:
        headers = [("x-api-key", "sk-first"), ("anthropic-version", "2023-06-01"), *controls(session="s")]
        assert wire.post_json(proxy.url, "/v1/messages", body, headers).status == 200
        clock.now += FRESH + 1
        upstream.answer(lambda exchange: page if exchange.path == "/v1/messages" else None)
        counting = "/v1/messages/count_tokens"
        counted = wire.post_json(proxy.url, counting, {**body, "condenser": {"window": 9_000}}, headers)
        assert (counted.status, counted.reason) == (200, "credential-unproven")
        assert upstream.journal.only(counting).json() == {**body, "model": "m"}


def test_a_dry_run_of_a_count_shows_the_decision_and_asks_nothing() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "4711"}]}
    with StrictMessages() as upstream, running_proxy(upstream.url, window=WINDOW) as proxy:
        shown = wire.post_json(proxy.url, "/v1/messages/count_tokens", body, controls(dry_run="true"))
        assert shown.json()["action"] == "passed"
        assert len(upstream.journal) == 0
