"""The dashboard's pages over HTTP: who may see them, who may change anything, and what they are allowed to load."""

import json
import logging
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

import pytest

from proxy.commands.sessions import lines_of
from proxy.conversations.session import title_of
from proxy.operator.dashboard import overview
from proxy.settings.token import CODE_LIFE, COOKIE_LIFE, is_valid_cookie, new_code, new_cookie
from proxy.store.base import StoreError, StoreKey
from proxy.store.sqlite import SqliteStore
from strategies.core.messages import Reader
from strategies.dialects.chat import CHAT
from tests.support import replies, wire
from tests.support.admin_api import admin, only_place, only_session, place_of
from tests.support.replies import error
from tests.support.signals import Signal
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
        body = page(stage, f"pages/{session_of(stage)}?tab=condensations", signed_in(stage)).body
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
        first = page(stage, "", cookie).body
        assert b"4 requests fitted" in first
        assert [f">{name}<".encode() in first for name in ("garden", "a", "b", "c")] == [True, False, False, False]
        assert len(loads) == 1  # something has happened in that one only
        first, second = (page(stage, f"pages/sessions?page={n}", cookie).body for n in (1, 2))
        assert (b">c<" in first, b">b<" in first, b"Next page" in first) == (True, False, True)
        assert (b">c<" in second, b">b<" in second) == (False, True)
        assert len(loads) == 5
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


def test_a_browser_at_the_root_is_led_to_the_pages_and_no_program_is() -> None:
    def at_root(stage: Stage, *headers: tuple[str, str], method: str = "GET") -> Answer:
        return wire.request(stage.proxy.url, method, "/", b"", list(headers))

    with watched() as stage:
        led = at_root(stage, ("Accept", "text/html,application/xhtml+xml,*/*;q=0.8"))
        assert (led.status, led.header("location")) == (303, "_condenser/")
        assert [at_root(stage).status, at_root(stage, ("Accept", "*/*")).status] == [404, 404]
        assert at_root(stage, ("Accept", "text/html"), method="HEAD").status == 200
    for pages in ({"token": None}, {"token": "operator", "listen": "127.0.0.1:1"}):  # off, or at another address
        with proxy_with_upstream(admin=pages) as stage:
            assert at_root(stage, ("Accept", "text/html")).status == 404


@pytest.mark.parametrize(
    ("hours", "chosen"),
    [((), "24h"), ((0,), "1h"), ((0, 3), "24h"), ((0, 30), "24h"), ((30, 50), "7d")],
    ids=["nothing", "one hour", "one day", "more than a day", "none today"],
)
def test_the_range_is_chosen_that_has_data(hours: tuple[int, ...], chosen: str) -> None:
    now = 1_700_000_000.0
    slots = [(int(now - 60 - 3_600 * each) // 300 * 300, {"requests": 1}) for each in hours]
    assert overview.fitting(slots, now) == chosen


def test_requests_are_filtered_by_what_was_done_status_model_tenant_and_cause() -> None:
    with watched() as stage:
        for rounds, force in ((2, None), (21, None), (22, "true")):
            stage.ask(chat(rounds), controls(session="shed", force=force))
        stage.upstream.answer(lambda _exchange: error(500))
        stage.post(body_of(chat(2)), controls(session="shed"))
        stage.upstream.answer(None)
        stage.proxy.quiet()
        cookie = signed_in(stage)

        def count(query: str) -> int:
            return page(stage, f"pages/requests?{query}", cookie).body.count(b'<tr><th scope="row"')

        tenant = admin(stage, token="operator").json()["data"][0]["tenant"]
        found = {
            query: count(query)
            for query in (
                *("", "action=condensed", "action=passed", "status=500", "status=200", f"model={stage.model}"),
                *("model=other", f"tenant={tenant}", "tenant=other", "cause=forced", "cause=none&status=200", "q=shed"),
                *("show=failed&status=500", "show=failed&status=400", "show=condensed&cause=forced", "cause=%3Cb%3E"),
            )
        }
        assert found == {
            "": 5,
            "action=condensed": 3,
            "action=passed": 2,
            "status=500": 1,
            "status=200": 4,
            f"model={stage.model}": 5,
            "model=other": 0,
            f"tenant={tenant}": 5,
            "tenant=other": 0,
            "cause=forced": 1,
            "cause=none&status=200": 1,
            "q=shed": 4,
            "show=failed&status=500": 1,
            "show=failed&status=400": 0,
            "show=condensed&cause=forced": 1,
            "cause=%3Cb%3E": 0,
        }


def test_a_condensation_says_which_names_its_text_lacks() -> None:
    with proxy_with_upstream(strategy="half-window", window=4_096, admin={"token": "operator"}) as stage:
        said = ["The key is in /srv/shed/box-17.toml now.", *["Then we wait for the rain."] * 9]
        messages = [
            {"role": role, "content": text}
            for told in said
            for role, text in (("user", "And then?"), ("assistant", told))
        ]
        asked = [*messages, {"role": "user", "content": "And now?"}]
        made = stage.ask(asked, controls(session="shed", force="true")).condensation
        place = f"/_condenser/{session_of(stage)}"

        def lacks() -> bool:
            path = f"{place.removeprefix('/_condenser/')}?condensation={made}"
            body = page(stage, f"pages/{path}", signed_in(stage)).body.decode()
            return "/srv/shed/box-17.toml" in body.partition("Names that are missing")[2].partition("</section>")[0]

        assert not lacks()
        rows = {row["text"]: row["id"] for row in admin(stage, place, token="operator").json()["ledger"]}
        dropping = f"{place}/ledger/{rows['/srv/shed/box-17.toml']}?now=true"
        assert admin(stage, dropping, "DELETE", token="operator").status == 200
        assert lacks()


def test_a_form_drops_a_line_and_takes_a_revert_back() -> None:
    with watched() as stage:
        cookie, path = signed_in(stage), session_of(stage)
        session = admin(stage, f"/_condenser/{path}", token="operator").json()
        line, made = session["ledger"][0]["id"], session["latest_condensation"]
        form = {"form": form_of(stage, cookie), "branch": "main"}
        for fields, place in (
            ({"do": "drop", "id": line, "tab": "memory"}, f"l-{line}"),
            ({"do": "revert", "id": made, "tab": "condensations"}, f"c-{made}"),
            ({"do": "restore", "id": made, "tab": "condensations"}, f"c-{made}"),
        ):
            answer = posted(stage, path, {**form, **fields}, cookie)
            back = f"{path.split('/')[-1]}?tab={fields['tab']}&branch=main&done={fields['do']}#{place}"
            assert (answer.status, answer.header("location")) == (303, back)
        assert posted(stage, path, {**form, "do": "drop", "id": "ffffffff"}, cookie).status == 404
        after = admin(stage, f"/_condenser/{path}", token="operator").json()
        assert [row["id"] for row in after["ledger"] if row["dropped"]] == [line]
        assert [each["reverted"] for each in after["condensations"]] == [False]
        for tab in ("now", "condensations", "requests", "memory", "nonsense"):
            assert page(stage, f"pages/{path}?tab={tab}", cookie).status == 200


@pytest.mark.parametrize(
    ("said", "title"),
    [
        (["Fix  the\ntest."], "Fix the test."),
        (["<system-reminder>\nfiles\n</system-reminder>\n <env>x</env> Fix it."], "Fix it."),
        (["<environment_context>here</environment_context>", "Fix it."], "Fix it."),
        (["<b>unclosed Fix it."], "<b>unclosed Fix it."),
        (["word " * 40], ("word " * 40)[:80] + "…"),
        ([""], ""),
    ],
)
def test_a_session_is_named_by_its_first_words(said: list[str], title: str) -> None:
    bodies = [{"role": "user", "content": text} for text in said]
    messages = [Reader().read(json.dumps(body), body, 1, CHAT) for body in bodies]
    assert title_of(messages) == title


def test_the_first_byte_of_a_stream_is_recorded_when_it_left() -> None:
    with watched() as stage:
        gate = Signal("the stream may go on")
        parts = [replies.sse(chunk) for chunk in replies.text_chunks("Fine.")]
        stage.upstream.reply(replies.stream(*parts[:2], gate, *parts[2:]))
        began = time.monotonic()
        body = body_of(chat(21), stream=True)
        headers = [*wire.JSON, *controls(session="stream")]
        with wire.opened(stage.proxy.url, "POST", "/v1/chat/completions", body, headers) as response:
            wire.until(response, b"Fine.")
            came = time.monotonic()
            while time.monotonic() < came + 0.05:
                pass
            waited = time.monotonic() - came
            gate.set()
            response.read()
        stage.proxy.quiet()
        (row,) = (each for each in admin(stage, token="operator").json()["data"] if each["id"] == "stream")
        newest = admin(stage, place_of(row), token="operator").json()["requests"][-1]
        assert 0 < newest["first_byte"] <= (came - began) * 1000 + 1
        assert newest["milliseconds"] - newest["first_byte"] >= waited * 1000 - 2
