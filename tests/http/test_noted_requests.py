"""A figure that leads to a list leads to what it counted, however many other sessions were used since."""

import re
import sqlite3
from contextlib import closing
from http import HTTPStatus
from pathlib import Path

import pytest

from tests.http.test_dashboard import page, signed_in
from tests.http.test_encryption import FIRST
from tests.support.admin_api import admin
from tests.support.replies import error
from tests.support.stage import Stage, body_of, chat, controls, proxy_with_upstream

LISTED = 100  # sessions whose requests the page without a filter lists
ROW = re.compile(r"<tr><th scope=\"row\".*?</tr>")


def with_others(stage: Stage, number: int) -> None:
    """So many small requests in sessions of their own."""
    for each in range(number):
        stage.ask(chat(1), controls(session=f"other-{each}"))


def shown(stage: Stage, what: str) -> list[str]:
    text = page(stage, f"pages/requests?{what}", signed_in(stage)).body.decode()
    return ROW.findall(text)


def test_failed_and_rescued_requests_are_listed_after_any_number_of_other_sessions() -> None:
    with proxy_with_upstream(strategy="extract", window=4_096, admin={"token": "operator"}) as stage:
        rescued = [stage.ask(chat(rounds), controls(session="garden")) for rounds in (40, 60)]
        stage.upstream.answer(lambda _exchange: error(500))
        stage.post(body_of(chat(70)), controls(session="garden"))
        stage.post(body_of(chat(2)), controls(session="never stored"))
        stage.post(b"no json", controls(session="garden"))
        stage.upstream.answer(None)
        with_others(stage, LISTED + 1)
        stage.proxy.quiet()
        first = page(stage, "", signed_in(stage)).body.decode()
        assert "3 requests failed." in first
        link = re.search(r"(requests\?show=failed[^\"]*)", first)
        assert link is not None
        assert link[1] == "requests?show=failed&amp;range=1h"
        failed = shown(stage, "show=failed&range=24h")
        assert [">garden<" in row for row in failed].count(True) == 1
        assert ["not stored" in row for row in failed].count(True) == 2
        assert sorted(re.findall("error.>([0-9]+)<", "".join(failed))) == ["400", "500", "500"]
        (of_garden,) = [row for row in failed if ">garden<" in row]
        assert "#r-3" in of_garden
        assert len(shown(stage, "show=rescued")) == len(rescued) == 2
        assert len(shown(stage, "show=rescued&q=garden")) == 2
        assert shown(stage, "show=rescued&q=another") == []
        assert len(shown(stage, "")) == LISTED
        assert shown(stage, "show=saved") == []  # what was rescued saved nothing
        stage.ask(chat(8), controls(session="shed", force="true"))
        (saved,) = shown(stage, "show=saved")
        assert ">shed<" in saved
        found = admin(stage, "/_condenser/requests?show=rescued", token="operator")
        assert [row["after"] for row in found.json()["data"]] == [
            int(answer.header("x-condenser-tokens-after") or 0) for answer in reversed(rescued)
        ]
        assert all(row["rescued"] for row in found.json()["data"])
        assert admin(stage, "/_condenser/requests?show=passed", token="operator").status == HTTPStatus.BAD_REQUEST


@pytest.mark.parametrize("key", [None, FIRST])
def test_lists_are_there_after_a_restart_and_sealed_where_the_store_is(tmp_path: Path, key: str | None) -> None:
    path = tmp_path / "sessions.db"
    store = {"url": f"sqlite:///{path}"} | ({"encryption_key": key} if key else {})
    for asked in (True, False):
        with proxy_with_upstream(strategy="extract", window=4_096, admin={"token": "operator"}, store=store) as stage:
            if asked:
                stage.ask(chat(60), controls(session="garden"))
            assert [">garden<" in row for row in shown(stage, "show=condensed")] == [True]
    with closing(sqlite3.connect(path)) as connection:
        items = [item for (item,) in connection.execute("SELECT item FROM rings")]
    assert [stage.model.encode() in item for item in items] == [key is None] * len(items)
