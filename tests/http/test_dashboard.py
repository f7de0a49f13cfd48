"""The dashboard's pages over HTTP: who may see them, who may change anything, and what they are allowed to load."""

import logging
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

import pytest

from proxy.commands.sessions import lines_of
from proxy.operator.dashboard import overview
from proxy.settings.token import CODE_LIFE, COOKIE_LIFE, is_valid_cookie, new_code, new_cookie
from proxy.store.base import StoreError, StoreKey
from proxy.store.sqlite import SqliteStore
from tests.support import wire
from tests.support.admin_api import admin, only_place, only_session
from tests.support.replies import error
from tests.support.stage import Stage, body_of, chat, controls, is_vote, proxy_with_upstream, rounds_over, summary, vote
from tests.support.wire import Answer

FORM = ("Content-Type", "application/x-www-form-urlencoded")


@contextmanager
def watched() -> Iterator[Stage]:
    with proxy_with_upstream(strategy="extract", window=4_096, admin={"token": "operator"}) as stage:
        stage.ask(chat(20), controls(session="garden"))
        yield stage


def page(stage: Stage, path: str, cookie: str = "") -> Answer:
    return wire.request(stage.proxy.url, "GET", f"/_condenser/{path}", b"", [("Cookie", cookie)] if cookie else [])


def posted(stage: Stage, path: str, fields: dict[str, str], cookie: str = "", origin: str | None = "") -> Answer:
    headers = [FORM, *([("Cookie", cookie)] if cookie else [])]
    if origin is not None:
        headers.append(("Origin", origin or stage.proxy.url))
    return wire.request(stage.proxy.url, "POST", f"/_condenser/pages/{path}", urlencode(fields).encode(), headers)


def signed_in(stage: Stage) -> str:
    """The cookie of somebody who has the token."""
    answer = posted(stage, "login", {"token": "operator"})
    assert answer.status == 303
    return (answer.header("set-cookie") or "").partition(";")[0]


def session_of(stage: Stage) -> str:
    return only_place(stage.proxy.url, token="operator").removeprefix("/_condenser/")


def form_of(stage: Stage, cookie: str) -> str:
    """What a form of a page carries."""
    return page(stage, "", cookie).body.decode().partition('name="form" value="')[2].partition('"')[0]


def test_nobody_sees_a_page_without_the_token() -> None:
    with watched() as stage:
        paths = ("", "pages/sessions", f"pages/{session_of(stage)}")
        for cookie in ("", "condenser-dashboard=1.2.3", new_cookie(b"another", 0, "n")):
            assert [page(stage, path, cookie).status for path in paths] == [401] * 3
        assert b"garden" not in page(stage, paths[2]).body
        assert posted(stage, "login", {"token": "guess"}).status == 401
    with proxy_with_upstream(admin={"token": None}) as stage:
        assert page(stage, "").status == 404


def test_every_page_forbids_what_it_does_not_need_and_its_cookie_is_for_no_script() -> None:
    with watched() as stage:
        cookie = posted(stage, "login", {"token": "operator"}).header("set-cookie") or ""
        assert {"HttpOnly", "SameSite=strict", "Path=/_condenser"} <= set(cookie.split("; "))
        assert "operator" not in cookie
        cookie, path = signed_in(stage), session_of(stage)
        for place in ("", "pages/sessions", f"pages/{path}", "pages/static/app.js"):
            answer = page(stage, place, cookie)
            assert answer.status == 200
            policy = answer.header("content-security-policy") or ""
            assert policy.startswith("default-src 'none'; script-src 'self';")
            assert "frame-ancestors 'none'" in policy
            assert answer.header("cache-control") == "no-store"
        exported = page(stage, f"pages/{path}?export=1", cookie).json()
        assert exported == admin(stage, f"/_condenser/{path}", token="operator").json()


def test_a_record_that_rules_wrote_in_a_models_place_says_why_everywhere(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with proxy_with_upstream(strategy="semantic", answers=lambda _: summary(""), admin={"token": "operator"}) as stage:
        for tokens in (2_510, 3_050):  # past `prepare`, then at the trigger
            answer = stage.ask(chat(rounds_over(tokens)), controls(session="garden"))
            stage.proxy.quiet()
        assert answer.action == "condensed"
        warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert warnings == ["preparing a condensation by a model failed: summary-empty"]
        assert " condensed by threshold, record by rules ready: summary-empty, +" in caplog.text
        shown = " ".join(lines_of(only_session(stage.proxy.url, token="operator")))
        assert ": used, semantic by threshold, record by rules: summary-empty," in " ".join(shown.split())
        body = page(stage, f"pages/{session_of(stage)}", signed_in(stage)).body
        assert b"Record by rules: <code>summary-empty</code>." in body


def test_a_form_of_another_page_or_without_its_token_changes_nothing() -> None:
    with watched() as stage:
        cookie, path = signed_in(stage), session_of(stage)
        fields = {"do": "delete", "form": form_of(stage, cookie)}
        for origin in (None, "null", "http://evil.example", "http://127.0.0.1:1"):
            assert posted(stage, path, fields, cookie, origin).status == 403
        for token in ("", "0" * 48, "é"):
            assert posted(stage, path, {**fields, "form": token}, cookie).status == 403
        assert posted(stage, path, fields).status == 401
        assert page(stage, f"pages/{path}", cookie).status == 200


def test_a_form_does_what_the_api_does() -> None:
    with watched() as stage:
        cookie, path = signed_in(stage), session_of(stage)
        form = form_of(stage, cookie)
        assert posted(stage, path, {"do": "pin", "form": form, "branch": "main", "message": "1"}, cookie).status == 303
        assert b"Unpin" in page(stage, f"pages/{path}", cookie).body
        assert posted(stage, path, {"do": "pin", "form": form, "branch": "main", "message": "x"}, cookie).status == 400
        assert posted(stage, path, {"do": "delete", "form": form}, cookie).status == 303
        assert page(stage, f"pages/{path}", cookie).status == 404


def test_a_link_signs_in_once_and_not_for_long() -> None:
    with watched() as stage:
        code = new_code(b"operator", time.time(), "nonce")
        late = new_code(b"operator", time.time() - CODE_LIFE, "n")
        for wrong in ("", "1.2.3", new_code(b"another", time.time(), "n"), late):
            assert page(stage, f"?code={wrong}").status == 401
        assert page(stage, f"pages/sessions?code={code}").status == 401
        first = page(stage, f"?code={code}")
        assert (first.status, first.header("location")) == (303, "./")
        cookie = (first.header("set-cookie") or "").partition(";")[0]
        assert page(stage, "pages/sessions", cookie).status == 200
        assert page(stage, f"?code={code}").status == 401
        assert page(stage, "", code).status == 401


def test_a_link_is_used_up_by_whoever_opens_it_and_by_no_program_that_looks_at_it() -> None:
    with watched() as stage:
        cookie, codes = signed_in(stage), [new_code(b"operator", time.time(), name) for name in ("a", "b")]
        assert wire.request(stage.proxy.url, "HEAD", f"/_condenser/?code={codes[0]}").status == 401
        assert page(stage, f"?code={codes[0]}").status == 303
        assert page(stage, f"?code={codes[1]}", cookie).status == 303
        for code in codes:
            assert page(stage, f"?code={code}").status == 401


def test_signing_out_and_time_end_what_the_cookie_allows() -> None:
    cookie = new_cookie(b"operator", 1_000.0, "nonce")
    assert is_valid_cookie(cookie, b"operator", 1_000.0 + COOKIE_LIFE - 1)
    assert not is_valid_cookie(cookie, b"operator", 1_000.0 + COOKIE_LIFE)
    assert not is_valid_cookie(cookie, b"another", 1_000.0)
    later = "9" + cookie[1:]
    assert not is_valid_cookie(later, b"operator", 1_000.0)
    with watched() as stage:
        known = signed_in(stage)
        ended = posted(stage, "logout", {"form": form_of(stage, known)}, known)
        assert "Max-Age=0" in (ended.header("set-cookie") or "")
        assert page(stage, "", known).status == 401
        assert page(stage, "", signed_in(stage)).status == 200


def test_whoever_has_signed_out_stays_so_while_the_store_is_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(_store: SqliteStore, _name: str) -> None:
        raise StoreError("store-unavailable", "out")

    with watched() as stage:
        cookie = signed_in(stage)
        form = form_of(stage, cookie)
        assert posted(stage, "logout", {"form": form}, cookie).status == 303
        monkeypatch.setattr(SqliteStore, "get_fact", fails)
        assert page(stage, "", cookie).status == 503
        assert posted(stage, session_of(stage), {"do": "delete", "form": form}, cookie).status == 503
        assert session_of(stage)


@pytest.mark.parametrize(
    ("trusted", "page", "status"),
    [("127.0.0.1", "https", 303), ("127.0.0.1", "http", 403), ("192.0.2.1", "https", 403), ("192.0.2.1", "http", 303)],
)
def test_a_user_signs_in_behind_a_server_that_speaks_tls(trusted: str, page: str, status: int) -> None:
    with proxy_with_upstream(admin={"token": "operator"}, server={"trusted_proxies": [trusted]}) as stage:
        origin = ("Origin", stage.proxy.url.replace("http:", f"{page}:"))
        headers = [FORM, origin, ("X-Forwarded-Proto", "https")]
        answer = wire.request(stage.proxy.url, "POST", "/_condenser/pages/login", b"token=operator", headers)
        assert answer.status == status, answer.body
        cookie = answer.header("set-cookie") or ""
        assert ("Secure" in cookie.split("; ")) is (trusted == "127.0.0.1" and status == 303)


def test_a_number_with_thousands_of_digits_is_a_bad_request() -> None:
    with watched() as stage:
        cookie, path = signed_in(stage), session_of(stage)
        digits = "9" * 5_000
        assert page(stage, f"pages/{path}?from={digits}", cookie).status == 400
        fields = {"do": "pin", "form": form_of(stage, cookie), "message": digits}
        assert posted(stage, path, fields, cookie).status == 400
        assert page(stage, f"pages/{path}?from=99999999", cookie).status == 200


def test_the_first_page_reads_no_more_sessions_than_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "NEWEST", 2)
    monkeypatch.setattr(overview, "PAGE", 1)
    loads: list[str] = []
    load = SqliteStore.load

    def counted(store: SqliteStore, key: StoreKey) -> Any:
        loads.append(key.name)
        return load(store, key)

    with watched() as stage:
        for name in "abc":
            stage.ask(chat(4), controls(session=name))
        cookie = signed_in(stage)
        monkeypatch.setattr(SqliteStore, "load", counted)
        assert b"4 requests fitted" in page(stage, "", cookie).body
        assert len(loads) == 2
        first, second = (page(stage, f"pages/sessions?page={n}", cookie).body for n in (1, 2))
        assert (b">c<" in first, b">b<" in first, b"Next page" in first) == (True, False, True)
        assert (b">c<" in second, b">b<" in second) == (False, True)
        assert len(loads) == 6
        assert b">garden<" in page(stage, "pages/sessions?sort=rescued", cookie).body


def test_the_calls_of_judges_are_own_calls_once() -> None:
    settings: dict[str, Any] = {"strategy": "dynacontext", "window": 16_384, "admin": {"token": "operator"}}
    with proxy_with_upstream(answers=lambda exchange: vote("NO") if is_vote(exchange) else None, **settings) as stage:
        stage.ask(chat(12), controls(session="garden"))
        stage.proxy.quiet()
        place = session_of(stage)
        token = [("Authorization", "Bearer operator")]
        totals = wire.request(stage.proxy.url, "GET", f"/_condenser/{place}", b"", token).json()["totals"]
        assert totals["own_tokens"] == totals["judge_tokens"] > 0
        shown = page(stage, f"pages/{place}", signed_in(stage)).body.decode()
        assert f"own model calls</dt><dd>{totals['own_tokens']:,} tokens" in shown


def test_the_page_of_a_session_that_has_not_changed_is_not_made_again() -> None:
    with watched() as stage:
        cookie, path = ("Cookie", signed_in(stage)), f"/_condenser/pages/{session_of(stage)}"

        def fetched(version: str = "") -> Answer:
            return wire.request(stage.proxy.url, "GET", path, b"", [cookie, ("If-None-Match", version)])

        version = fetched().header("etag") or ""
        assert (fetched(version).status, fetched(version).body) == (304, b"")
        stage.ask(chat(21), controls(session="garden"))
        stage.proxy.quiet()
        newer = fetched(version)
        assert (newer.status, newer.header("etag") != version) == (200, True)
        latest = admin(stage, path.replace("pages/", ""), token="operator").json()["latest_condensation"]
        form = {"do": "revert", "form": form_of(stage, cookie[1]), "id": latest}
        assert posted(stage, path.removeprefix("/_condenser/pages/"), form, cookie[1]).status == 303
        assert fetched(newer.header("etag") or "").status == 200


def test_the_figures_of_the_pages_are_those_of_the_records() -> None:
    with proxy_with_upstream(strategy="mask+extract", window=4_096, admin={"token": "operator"}) as stage:
        for rounds in range(2, 40, 4):
            stage.ask(chat(rounds), controls(session="garden"))
        stage.upstream.answer(lambda _exchange: error(500))
        stage.post(body_of(chat(90)), controls(session="garden"))
        stage.proxy.quiet()
        cookie, path = signed_in(stage), session_of(stage)
        shown = page(stage, f"pages/{path}", cookie).body.decode()
        first = page(stage, "", cookie).body.decode()
        records = admin(stage, f"/_condenser/{path}", token="operator").json()["requests"]
    rescued, saved = (sum(record[name] for record in records) for name in ("rescued", "saved"))
    told = f"{rescued} of {len(records)} requests fitted only because they were condensed; 1 failed."
    assert rescued > 0
    assert told in shown
    assert told in first
    assert f"<strong>{saved:,}</strong>" in first
    # The request that failed left no messages, so it does not fill the window either.
    answered = [record["after"] for record in records if record["status"] == 200]
    bar = re.search(r'class="window".*?aria-label="([^"]*) of 4,096 tokens"', shown)
    assert bar is not None
    parts = {name.strip(): int(size.replace(",", "")) for name, size in re.findall(r"([a-z ]+) ([\d,]*\d)", bar[1])}
    assert sum(parts.values()) == 4_096
    assert 4_096 - parts["free"] == answered[-1]
