"""`/_condenser/`: who gets in, what an operator sees, what is gone after it was deleted."""

import json
import stat
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.support import wire
from tests.support.admin_api import SESSIONS, TOKEN, admin, place_of
from tests.support.recording import CHAT
from tests.support.stage import EMPTY, Stage, chat, controls, proxy_with_sqlite, proxy_with_upstream, store_rows


@pytest.fixture
def stage() -> Iterator[Stage]:
    with proxy_with_upstream(admin={"token": TOKEN}) as built:
        yield built


def listed(stage: Stage, query: str = "") -> list[dict[str, Any]]:
    answer = admin(stage, SESSIONS + query)
    assert answer.status == 200, answer.body
    rows: list[dict[str, Any]] = answer.json()["data"]
    return rows


def two_tenants(stage: Stage) -> Stage:
    """Both tenants have a session "s"; the first has another one."""
    other = replace(stage, key="sk-second", sent=[])
    stage.ask(chat(1), controls(session="s"))
    stage.ask(chat(2), controls(session="t"))
    other.ask(chat(3), controls(session="s"))
    return other


# -- who gets in -------------------------------------------------------------------------------------------

EVERY_PATH = ["sessions", "sessions/t/s", "sessions/t", "stats", "nothing", ""]


@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN + "x", TOKEN[:-1], "sk-first", "ümlaut"])
def test_a_wrong_or_missing_token_is_refused_whatever_is_asked(stage: Stage, token: str | None) -> None:
    for path, method in product(EVERY_PATH, ("GET", "DELETE", "POST")):
        answer = admin(stage, f"/_condenser/{path}", method, token=token)
        assert (answer.status, answer.header("www-authenticate")) == (401, "Bearer")
        error = answer.json()["error"]
        assert (error["code"], error["type"], error["param"]) == ("unauthorized", "invalid_request_error", None)
    for value in (TOKEN, f"Basic {TOKEN}", f"Bearer{TOKEN}") if token is None else ():
        assert wire.request(stage.proxy.url, "GET", SESSIONS, headers=[("Authorization", value)]).status == 401


def test_a_token_is_made_beside_the_store_on_loopback(tmp_path: Path) -> None:
    file = tmp_path / "admin.token"
    with proxy_with_sqlite(tmp_path / "s.db") as stage:
        token = file.read_text("ascii")
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert len(token) == 64
        assert admin(stage, token=token).status == 200
        assert admin(stage, token=TOKEN).status == 401
    with proxy_with_sqlite(tmp_path / "s.db") as again:
        assert admin(again, token=token).status == 200


@pytest.mark.parametrize("path", EVERY_PATH)
def test_beyond_loopback_without_a_token_in_the_settings_nothing_is_there(tmp_path: Path, path: str) -> None:
    with proxy_with_sqlite(tmp_path / "s.db", host="0.0.0.0") as stage:
        assert not (tmp_path / "admin.token").exists()
        for method, token in (("GET", None), ("GET", ""), ("DELETE", TOKEN), ("POST", TOKEN)):
            answer = admin(stage, f"/_condenser/{path}", method, token=token)
            assert (answer.status, answer.json()["error"]["code"]) == (404, "not_found")


def test_readiness_shows_addresses_to_holders_of_the_token_only(stage: Stage) -> None:
    (hidden, wrong, shown) = (admin(stage, "/readyz", token=token).json() for token in (None, "wrong", TOKEN))
    assert shown["upstream"] == stage.upstream.base_url
    assert shown["store"] == {"url": "memory://", "state": "ok"}
    assert shown["upstreams"] == {"upstream": {"url": stage.upstream.base_url, "state": "ok"}}
    bare = {"store": {"state": "ok"}, "upstreams": {"upstream": {"state": "ok"}}}
    assert hidden == wrong == {**{k: v for k, v in shown.items() if k != "upstream"}, **bare}


def test_the_token_of_an_operator_is_sent_to_no_upstream(stage: Stage) -> None:
    admin(stage)
    admin(stage, "/_condenser/v1/models")
    assert stage.upstream.journal.to() == []
    assert stage.upstream.journal.to(CHAT) == []


# -- what is seen ------------------------------------------------------------------------------------------


def test_a_session_is_listed_with_what_became_of_it(stage: Stage) -> None:
    stage.ask(chat(12), controls(session="mine"))
    (row,) = listed(stage)
    assert row["id"] == "mine"
    assert row["session"].startswith("e")
    assert row["source"] == "X-Condenser-Session"
    assert (row["branches"], row["condensations"], row["totals"]["requests"]) == (1, 1, 1)
    assert row["totals"]["forwarded_tokens"] < row["totals"]["client_tokens"]
    assert row.pop("title") == "Plan my garden. Never water at noon."  # nothing else that was said
    assert "garden" not in json.dumps(row)


def test_a_listing_can_be_of_one_tenant_or_of_one_name(stage: Stage) -> None:
    two_tenants(stage)
    rows = listed(stage)
    assert sorted(row["id"] for row in rows) == ["s", "s", "t"]
    (tenant,) = {row["tenant"] for row in rows if row["id"] == "t"}
    assert sorted(row["id"] for row in listed(stage, f"?tenant={tenant}")) == ["s", "t"]
    assert [row["id"] for row in listed(stage, "?id=t")] == ["t"]
    (key,) = (row["session"] for row in rows if row["id"] == "t")
    assert [row["id"] for row in listed(stage, f"?id={key}")] == ["t"]
    assert listed(stage, f"?tenant={tenant}&id=none") == listed(stage, "?tenant=*") == []


def test_one_session_shows_branches_condensations_and_messages(stage: Stage) -> None:
    said = chat(12)
    stage.ask(said, controls(session="mine", strategy="half-window"))
    stage.ask([*chat(3)[:-1], {"role": "user", "content": "Something else."}], controls(session="mine"))
    document = admin(stage, place_of(listed(stage)[0])).json()
    assert document["settings"]["strategy"] == "half-window"
    main, second = document["branches"]
    assert main["messages"] == said[1:]
    assert second["messages"][-1]["content"] == "Something else."
    (condensation,) = document["condensations"]
    assert condensation["standing"] is True
    assert main["applied"] == condensation["id"]
    assert condensation["strategy"] == "half-window"
    assert any(isinstance(piece, dict) and "never water at noon" in piece["raw"] for piece in condensation["pieces"])
    assert any(isinstance(piece, list) for piece in condensation["pieces"])


def test_a_message_with_odd_members_is_shown_as_it_was_sent(stage: Stage) -> None:
    odd = {"role": "user", "content": "\ud800 \x00 ü", "n": 10**300, "deep": json.loads("[" * 90 + "]" * 90)}
    body = json.dumps({"model": "m", "messages": [odd]}).encode()
    assert stage.post(body, controls(session="mine")).status == 200
    assert admin(stage, place_of(listed(stage)[0])).json()["branches"][0]["messages"] == [odd]


def test_a_session_is_found_by_key_or_id_and_an_id_of_several_tenants_is_refused(stage: Stage) -> None:
    odd = "chat 7/a?b"
    stage.ask(chat(1), controls(session=odd))
    (row,) = listed(stage)
    for name in (row["session"], quote(odd, safe="")):
        assert admin(stage, f"{SESSIONS}/{name}").json() == admin(stage, place_of(row)).json()
    assert admin(stage, f"{SESSIONS}/{row['session']}?tenant=another").status == 404
    assert admin(stage, f"{SESSIONS}/nobody").status == 404
    two_tenants(stage)
    answer = admin(stage, f"{SESSIONS}/s")
    told = answer.json()["error"]
    assert (answer.status, told["code"], told["param"]) == (400, "ambiguous_session", "tenant")
    for row in [row for row in listed(stage) if row["id"] == "s"]:
        assert f"{row['tenant']}/{row['session']}" in told["message"]
        assert admin(stage, f"{SESSIONS}/s?tenant={row['tenant']}").json() == admin(stage, place_of(row)).json()
    assert "garden" not in answer.body.decode()


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "/t/",
        "//s",
        "/t/s/",
        "/t/s/more",
        "/*/*",
        "/%2e%2e/stats",
        "/t%2Fs",
        "/t/s%00",
        "/../stats",
        "/t/" + "x" * 300,
    ],
)
def test_a_path_that_names_nothing_is_not_found_and_deletes_nothing(stage: Stage, path: str) -> None:
    stage.ask(chat(1), controls(session="s"))
    answer = admin(stage, SESSIONS + path, "DELETE")
    assert answer.status == (405 if path == "" else 404)
    assert len(listed(stage)) == 1


def test_another_method_is_not_allowed(stage: Stage) -> None:
    both = "GET, DELETE"
    for path, allowed in {"sessions": "GET", "sessions/t": both, "sessions/t/s": both, "stats": "GET"}.items():
        answer = admin(stage, f"/_condenser/{path}", "POST")
        assert (answer.status, answer.json()["error"]["code"]) == (405, "method_not_allowed")
        assert answer.header("allow") == allowed


def test_a_store_that_is_out_is_an_error() -> None:
    with proxy_with_upstream(admin={"token": TOKEN}, store={"url": "redis://127.0.0.1:9/0"}) as stage:
        for path in ("sessions", "sessions/t/s", "stats"):
            answer = admin(stage, f"/_condenser/{path}")
            assert (answer.status, answer.json()["error"]["code"]) == (503, "store-unavailable")


def test_the_stats_count_all_sessions(stage: Stage) -> None:
    two_tenants(stage)
    stage.ask(chat(12), controls(session="long"))
    stats = admin(stage, "/_condenser/stats").json()
    assert {name: stats[name] for name in ("tenants", "sessions", "branches", "condensations", "requests")} == {
        "tenants": 2,
        "sessions": 4,
        "branches": 4,
        "condensations": 1,
        "requests": 4,
    }
    assert 0 < stats["forwarded_tokens"] < stats["client_tokens"]


# -- what is deleted ---------------------------------------------------------------------------------------


def test_a_deleted_session_is_gone_and_the_next_request_begins_anew(stage: Stage) -> None:
    stage.ask(chat(12), controls(session="s"))
    stage.ask(chat(1), controls(session="other"))
    (row,) = [each for each in listed(stage) if each["id"] == "s"]
    answer = admin(stage, place_of(row), "DELETE")
    assert (answer.status, answer.json()) == (200, {"object": "deleted", "sessions": 1})
    assert admin(stage, place_of(row), "DELETE").status == admin(stage, place_of(row)).status == 404
    assert [each["id"] for each in listed(stage)] == ["other"]
    assert stage.ask(chat(12), controls(session="s")).action == "condensed"


def test_all_of_a_tenant_is_deleted_and_nothing_of_another(tmp_path: Path) -> None:
    with proxy_with_sqlite(tmp_path / "s.db", admin={"token": TOKEN}) as stage:
        two_tenants(stage)
        (tenant,) = {row["tenant"] for row in listed(stage) if row["id"] == "t"}
        assert admin(stage, f"{SESSIONS}/{tenant}", "DELETE").json()["sessions"] == 2
        assert admin(stage, f"{SESSIONS}/{tenant}", "DELETE").status == 404
        (left,) = listed(stage)
        assert left["tenant"] != tenant
        admin(stage, place_of(left), "DELETE")
        assert store_rows(tmp_path / "s.db") == EMPTY


def test_no_token_and_no_text_is_in_the_log(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.ask(chat(12), controls(session="s"))
    caplog.clear()
    (row,) = listed(stage)
    admin(stage, place_of(row))
    admin(stage, token="a-wrong-token")
    admin(stage, place_of(row), "DELETE")
    assert not any(each in caplog.text for each in (TOKEN, "a-wrong-token", "garden", "noon"))
