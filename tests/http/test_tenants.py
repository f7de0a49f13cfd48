"""Tenants share nothing: neither ids nor texts nor what was condensed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.http.talking import Stage, asked, body_of, garden, staged, summary


@pytest.fixture
def stage() -> Iterator[Stage]:
    with staged() as built:
        yield built


@pytest.mark.parametrize("session", ["shared", None])
def test_the_same_id_and_text_with_another_key_is_another_history(session: str | None) -> None:
    said = iter(("Goal: of the first.", "Goal: of the second."))
    with staged(answers=lambda _: summary(next(said))) as stage:
        other = replace(stage, key="sk-second", sent=[])
        first = stage.ask(garden(12), asked(session=session))
        second = other.ask(garden(12), asked(session=session))
        assert second.header("x-condenser-action") == "condensed"
        assert "of the second" in str(other.last_view)
        assert "of the first" not in str(other.last_view)
        if session is None:
            assert first.header("x-condenser-session") != second.header("x-condenser-session")
        stage.ask(garden(13), asked(session=session))
        assert "of the first" in str(stage.last_view)


def test_a_second_tenants_view_is_untouched_by_what_the_first_one_has_condensed(stage: Stage) -> None:
    stage.ask(garden(9), asked(session="shared", force="true"))
    other = replace(stage, key="sk-second", sent=[])
    assert other.ask(garden(9), asked(session="shared")).header("x-condenser-action") == "passed"
    assert other.forwarded[-1].body == other.sent[-1]


def test_a_strategy_that_sticks_for_one_tenant_is_not_anothers(stage: Stage) -> None:
    stage.ask(garden(1), asked(session="shared", strategy="extract"))
    other = replace(stage, key="sk-second", sent=[])
    assert other.ask(garden(1), asked(session="shared")).header("x-condenser-strategy") == "mask+half-window"


def test_the_short_lived_ids_of_two_tenants_differ(stage: Stage) -> None:
    other = replace(stage, key="sk-second", sent=[])
    assert stage.ask(garden(0)).header("x-condenser-session") != other.ask(garden(0)).header("x-condenser-session")


def test_with_one_tenant_for_all_keys_share_their_sessions() -> None:
    with staged(tenant={"from": "fixed"}) as stage:
        stage.ask(garden(12), asked(session="shared"))
        other = replace(stage, key="sk-second", sent=[])
        assert other.ask(garden(12), asked(session="shared")).header("x-condenser-action") == "replayed"


def test_a_tenant_header_is_needed_where_the_settings_name_one() -> None:
    with staged(tenant={"from": "header:X-Team"}) as stage:
        refused = stage.post(body_of(garden(1)))
        assert (refused.status, refused.json()["error"]["param"]) == (400, "X-Team")
        stage.ask(garden(12), [*asked(session="s"), ("X-Team", "red")])
        assert (
            stage.ask(garden(12), [*asked(session="s"), ("X-Team", "blue")]).header("x-condenser-action") == "condensed"
        )
        assert (
            stage.ask(garden(12), [*asked(session="s"), ("x-team", "red")]).header("x-condenser-action") == "replayed"
        )


def test_a_tenant_header_from_a_stranger_is_refused() -> None:
    with staged(tenant={"from": "header:X-Team", "trusted_proxies": ["10.0.0.1"]}) as stage:
        assert stage.post(body_of(garden(1)), [("X-Team", "red")]).status == 400
