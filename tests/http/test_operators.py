"""Who may administer: roles of keys, the log of what they do, and that wrong tokens wait."""

import asyncio
import logging
import re
import time

import pytest

from proxy.callers import operators
from proxy.callers.operators import Operator, Operators
from proxy.errors import TooManyAttempts
from proxy.settings.tables import LogSettings
from tests.http.test_keys import ANNA, BEN, OLD, entry, keyed
from tests.support import wire
from tests.support.admin_api import SESSIONS, TOKEN, admin, only_place
from tests.support.stage import Stage, chat, controls

LATE = operators._LATE  # seconds; the other tests of this folder do not wait
ROLES = (entry("anna", ANNA, admin=True), entry("ben", BEN, read_only=True), entry("old", OLD))


def browser(stage: Stage, path: str, cookie: str = "", **form: str) -> wire.Answer:
    headers = [("Accept", "text/html"), ("Cookie", cookie), ("Origin", stage.proxy.url)]
    body = "&".join(f"{name}={value}" for name, value in form.items()).encode()
    return wire.request(stage.proxy.url, "POST" if form else "GET", path, body, headers)


def signed_in(stage: Stage, key: str) -> str:
    answer = browser(stage, "/_condenser/pages/login", token=key)
    return (answer.header("set-cookie") or "").partition(";")[0]


def test_a_key_administers_by_its_role_and_the_log_says_who_did_what(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    with keyed(*ROLES, admin={"token": TOKEN}) as stage:
        stage.ask(chat(1), controls(session="s"))
        place = only_place(stage.proxy.url)
        for key, reads, deletes in ((BEN, 200, 403), (OLD, 403, 403), ("condenser-no", 401, 401), (ANNA, 200, 200)):
            for path in (SESSIONS, "/metrics"):
                assert admin(stage, path, token=key).status == reads, (key, path)
            assert admin(stage, place, "DELETE", token=key).status == deletes, key
            assert ("upstream" in admin(stage, "/readyz", token=key).json()) is (reads == 200)
        assert admin(stage, "/metrics", token=None).status == 401
        monkeypatch.setattr(operators, "_LATE", LATE)
        began = time.monotonic()
        assert "upstream" not in admin(stage, "/readyz", token="condenser-no").json()
        assert time.monotonic() - began >= LATE  # as late as a refusal: it tells as much
        stage.proxy.served()
        lines = [record.getMessage() for record in caplog.records if record.name == "condenser"]
        done = [line for line in lines if " DELETE " in line]
        assert [re.findall(r"^\d+|by \w+", line) for line in done] == [
            ["403", "by ben"], ["403", "by old"], ["401", "by unknown"], ["200", "by anna"],
        ]  # fmt: skip
        assert not any(key in caplog.text for key in (ANNA, BEN, OLD, TOKEN, "condenser-no"))


def test_a_key_signs_in_to_the_pages_and_changes_what_its_role_allows(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with keyed(*ROLES, admin={"token": TOKEN}) as stage:
        stage.ask(chat(1), controls(session="s"))
        page = only_place(stage.proxy.url).replace("/_condenser/", "/_condenser/pages/")
        assert not signed_in(stage, OLD)
        for key, status in ((BEN, 403), (ANNA, 303)):
            cookie = signed_in(stage, key)
            shown = browser(stage, page, cookie)
            sign = re.search(r'name="form" value="(\w+)"', shown.body.decode())
            assert shown.status == 200
            assert sign
            assert browser(stage, page, cookie, form=sign[1], do="delete").status == status
        assert browser(stage, "/_condenser/", cookie.replace(".", ".0", 1)).status == 401
        stage.proxy.served()
        assert [line for line in caplog.messages if line.startswith("303 ") and ", by anna, delete, request" in line]


async def test_few_are_looked_at_while_wrong_ones_wait_for_their_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "_LATE", LATE)
    gate, asked = asyncio.Event(), list[float]()

    async def sleep(seconds: float) -> None:
        asked.append(seconds)
        await gate.wait()

    held = Operators(TOKEN, sleep=sleep)
    looked = list[str]()

    def guess(text: str) -> asyncio.Task[Operator | None]:
        def find() -> Operator | None:
            looked.append(text)
            return held.by_text(text)

        return asyncio.create_task(held.judged(find))

    assert await guess(TOKEN) == held.holder
    waiting = [guess(f"{each}") for each in range(127)]
    right = guess(TOKEN)
    await asyncio.sleep(0)
    with pytest.raises(TooManyAttempts):
        await held.judged(lambda: pytest.fail("it was looked at"))
    assert looked == [TOKEN, *map(str, range(8))]  # whatever the connections, in half a second
    gate.set()
    assert await asyncio.gather(*waiting) == [None] * 127
    assert await right == held.holder
    assert await guess(TOKEN) == held.holder
    assert set(asked) == {0.5}


def test_what_operators_change_is_written_at_any_level() -> None:
    from proxy.log import configure_logging

    root, before = logging.getLogger(), logging.getLogger().handlers[:]
    try:
        configure_logging(LogSettings(level="error"))
        assert not logging.getLogger("condenser").isEnabledFor(logging.INFO)
        assert logging.getLogger("condenser.audit").isEnabledFor(logging.INFO)
    finally:
        configure_logging(LogSettings())
        root.handlers = before
