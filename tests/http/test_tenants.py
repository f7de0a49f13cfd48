"""Tenants share nothing: neither ids nor texts nor what was condensed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support import wire
from tests.support.admin_api import SESSIONS, TOKEN, admin, place_of
from tests.support.logins import login
from tests.support.recording import CHAT
from tests.support.stage import Stage, body_of, chat, controls, proxy_with_sqlite, proxy_with_upstream
from tests.support.wire import Answer


def test_with_one_tenant_for_all_keys_share_their_sessions() -> None:
    with proxy_with_upstream(tenant={"from": "fixed"}) as stage:
        stage.ask(chat(12), controls(session="shared"))
        other = replace(stage, key="sk-second", sent=[])
        assert other.ask(chat(12), controls(session="shared")).action == "replayed"


def test_a_tenant_header_is_needed_where_the_settings_name_one_and_refused_from_strangers() -> None:
    with proxy_with_upstream(tenant={"from": "header:X-Team"}) as stage:
        refused = stage.post(body_of(chat(1)))
        assert (refused.status, refused.json()["error"]["param"]) == (400, "X-Team")
        for name, team, action in (
            ("X-Team", "red", "condensed"),
            ("X-Team", "blue", "condensed"),
            ("x-team", "red", "replayed"),
        ):
            assert stage.ask(chat(12), [*controls(session="s"), (name, team)]).action == action
    with proxy_with_upstream(tenant={"from": "header:X-Team"}, server={"trusted_proxies": ["10.0.0.1"]}) as stage:
        assert stage.post(body_of(chat(1)), [("X-Team", "red")]).status == 400


def test_a_refreshed_login_goes_on_with_its_sessions() -> None:
    with proxy_with_upstream() as stage:
        first = replace(stage, key=login("ann", exp=1), sent=[])
        assert first.ask(chat(12), controls(session="s")).action == "condensed"
        refreshed = replace(stage, key=login("ann", exp=2, signature="anew"), sent=[])
        assert refreshed.ask(chat(12), controls(session="s")).action == "replayed"
        for other in (login("bob", exp=1), login("ann", "https://other.example", exp=1)):
            assert replace(stage, key=other, sent=[]).ask(chat(12), controls(session="s")).action == "condensed"


def test_what_a_login_says_counts_only_where_an_upstream_checks_it() -> None:
    with proxy_with_upstream(upstream={"api_key": "sk-operator"}) as stage:
        for signature in ("signed", "forged"):
            caller = replace(stage, key=login("ann", signature=signature), sent=[])
            assert caller.ask(chat(12), controls(session="s")).action == "condensed"


def test_a_single_user_keeps_sessions_whatever_the_credential_unless_told_otherwise() -> None:
    for tenant, action in (({}, "replayed"), ({"from": "credential"}, "condensed")):
        with proxy_with_upstream(single_user=True, tenant=tenant) as stage:
            stage.ask(chat(12), controls(session="s"))
            assert replace(stage, key="sk-second", sent=[]).ask(chat(12), controls(session="s")).action == action


def test_an_id_that_is_known_under_another_tenant_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with proxy_with_upstream() as stage:
        for key in ("sk-first", "sk-first", "sk-second", "sk-second", "sk-third"):
            replace(stage, key=key, sent=[]).ask(chat(12), controls(session="garden"))
        stage.ask(chat(12), controls(session="another"))
    told = [record.getMessage() for record in caplog.records if "another tenant" in record.getMessage()]
    assert len(told) == 1
    assert told[0].startswith("the session id garden is known under another tenant")


# -- two tenants say the same under the same id ------------------------------------------------------------

OURS = ("session", "session-source", "action", "reason", "trigger", "branch", "condensation", "tokens-after", "head")
SESSION = pytest.mark.parametrize("session", ["shared", None], ids=["one id", "no id"])


def pair(stage: Stage) -> tuple[Stage, Stage]:
    return stage, replace(stage, key="sk-second", sent=[])


def ours(answer: Answer) -> dict[str, str | None]:
    """What our headers say of the conversation, but for the random id of a derived session."""
    told = {name: answer.header(f"x-condenser-{name}") for name in OURS}
    return {**told, "session": None} if told["session-source"] == "derived" else told


@SESSION
def test_the_headers_of_a_second_tenant_are_those_of_a_first(stage: Stage, session: str | None) -> None:
    """Turn by turn: nothing in them tells that another tenant was here before."""
    first, second = pair(stage)
    histories = [chat(1), chat(12), chat(13), [*chat(11), *chat(13)[-3:]], chat(20)]
    told = [[ours(each.ask(said, controls(session=session))) for said in histories] for each in (first, second)]
    ids = [{row.pop("condensation") for row in rows} - {None} for rows in told]
    assert ids[0].isdisjoint(ids[1])
    assert told[0] == told[1]
    assert {row["action"] for row in told[0]} == {"passed", "condensed", "replayed"}


@SESSION
def test_the_views_of_two_tenants_are_made_once_for_each_of_them(stage: Stage, session: str | None) -> None:
    views = []
    for each in pair(stage):
        each.ask(chat(12), controls(session=session))
        views.append(each.last_view)
    assert views[0] == views[1]
    assert len(stage.summaries) == 2
    assert [call.header("authorization") for call in stage.summaries] == ["Bearer sk-first", "Bearer sk-second"]


@pytest.mark.parametrize(
    "headers",
    [("Authorization", "Bearer sk-second"), ("Api-Key", "sk-first"), ("X-Api-Key", "sk-first"), None],
    ids=["another key", "the key in api-key", "the key in x-api-key", "no key"],
)
def test_each_credential_is_a_tenant_wherever_it_stands(stage: Stage, headers: tuple[str, str] | None) -> None:
    stage.ask(chat(12), controls(session="shared"))
    named = [*wire.JSON, *controls(session="shared"), *([headers] if headers else [])]
    answer = wire.request(stage.proxy.url, "POST", CHAT, body_of(chat(13)), named)
    assert (answer.action, answer.branch) == ("condensed", "main+")


def test_callers_with_one_dummy_key_are_told_apart_by_their_real_ones(stage: Stage) -> None:
    for real, action in (("one", "condensed"), ("two", "condensed"), ("one", "replayed")):
        named = [*wire.JSON, *controls(session="s"), ("Authorization", "Bearer EMPTY"), ("X-LiteLLM-Api-Key", real)]
        answer = wire.request(stage.proxy.url, "POST", CHAT, body_of(chat(12)), named)
        assert answer.action == action


@SESSION
def test_a_tenant_never_gets_back_what_another_trimmed(stage: Stage, session: str | None) -> None:
    first, second = pair(stage)
    first.ask(chat(8), controls(session=session))
    second.ask([chat(8)[0], *chat(9)[-8:]], controls(session=session))
    assert second.forwarded[-1].body == second.sent[-1]


def test_what_one_tenant_has_appended_is_no_head_of_another(stage: Stage) -> None:
    first, second = pair(stage)
    head = first.ask(chat(0), controls(session="shared", history="append")).header("x-condenser-head") or ""
    more = [{"role": "user", "content": "More."}]
    guarded = controls(session="shared", history="append", if_head=head)
    assert second.post(body_of(more), guarded).status == 409
    second.ask(more, controls(session="shared", history="append"))
    assert second.last_view == more
    assert first.post(body_of(more), guarded).status == 200


@SESSION
def test_the_admin_api_keeps_two_tenants_apart(session: str | None) -> None:
    with proxy_with_upstream(admin={"token": TOKEN}) as stage:
        for each, rounds in zip(pair(stage), (12, 13), strict=True):
            each.ask(chat(rounds), controls(session=session))
        rows = admin(stage, SESSIONS).json()["data"]
        assert len({row["tenant"] for row in rows}) == len(rows) == 2
        lengths = {row["tenant"]: history_of(stage, row) for row in rows}
        assert sorted(lengths.values()) == [len(chat(12)) - 1, len(chat(13)) - 1]
        gone, left = rows
        crossed = f"{SESSIONS}/{gone['tenant']}/{left['session']}"
        assert admin(stage, crossed).status == (404 if session is None else 200)
        assert admin(stage, f"{SESSIONS}/{gone['tenant']}", "DELETE").json()["sessions"] == 1
        assert admin(stage, SESSIONS).json()["data"] == [left]
        assert history_of(stage, left) == lengths[left["tenant"]]


def history_of(stage: Stage, row: dict[str, Any]) -> int:
    """How many messages a session's only branch has."""
    (branch,) = admin(stage, place_of(row)).json()["branches"]
    return len(branch["messages"])


def test_no_credential_is_in_the_store(tmp_path: Path) -> None:
    with proxy_with_sqlite(tmp_path / "s.db") as stage:
        for each in pair(stage):
            each.ask(chat(12), controls(session="shared"))
    data = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"sk-first" not in data
    assert b"sk-second" not in data
