"""Defects of ours: whatever part of the driver fails, the client gets its reply."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from proxy import controls
from proxy.bodies.wire import Body, ClientRequest
from proxy.condensing import account
from proxy.condensing.attempt import Attempts
from proxy.condensing.recall import Injector
from proxy.errors import BadRequest, HistoryUnavailable
from proxy.servers.upstream.choice import DEFAULTS
from proxy.services import Services, open_services
from proxy.settings import load_settings
from proxy.turn import drive
from proxy.turn.sending import headers_of
from tests.support import chat_bodies as wire
from tests.support.driver import request
from tests.support.signals import BOUND
from tests.support.stage import chat

pytestmark = pytest.mark.timeout(BOUND * 3)


class BrokenBody(Body):
    """Takes no messages."""

    def spliced(self, *, messages: bytes | None = None, **more: Any) -> bytes:
        """Fails where a view is written."""
        if messages is not None or more.get("members") is not None:
            raise ZeroDivisionError
        return super().spliced(**more)


@asynccontextmanager
async def running() -> AsyncIterator[Services]:
    async with open_services(load_settings(store={"url": "memory://"}, window=4_096)) as built:
        yield built


def defective(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError


@pytest.fixture
def broken_intake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drive, "take_in", defective)


@pytest.mark.parametrize(("part", "step"), [(drive, "take_in"), (Injector, "inject"), (Attempts, "_of_written")])
async def test_a_failing_part_passes_the_request_on(
    part: object, step: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(part, step, defective)
    async with running() as built:
        asked = request(chat(3))
        turn = await drive.decide(built, asked)
        decision = turn.sent.decision
        assert decision.body == asked.body.data
        assert (decision.action, decision.reason) == ("degraded", "internal-error")
        assert dict(headers_of(turn))["X-Condenser-Reason"] == "internal-error"
        assert account.log_line(decision, turn.timing)
        assert "ZeroDivisionError" in caplog.text


async def test_a_view_that_cannot_be_written_sends_the_request_unchanged() -> None:
    async with running() as built:
        asked = request(chat(24), strategy="extract")
        body = BrokenBody(*asked.body)
        decision = (await drive.decide(built, asked._replace(body=body))).sent.decision
        assert decision.body == asked.body.data
        assert (decision.action, decision.reason) == ("degraded", "internal-error")


@pytest.mark.usefixtures("broken_intake")
async def test_our_members_are_left_out_when_nothing_is_known() -> None:
    data = b'{"model": "m@extract", "messages": [{"role": "user", "content": "Hi"}], "condenser": {"window": 4096}}'
    asked = ClientRequest("t", [], wire.read(data), DEFAULTS[0], "m", True, controls.Controls())
    async with running() as built:
        decision = (await drive.decide(built, asked)).sent.decision
    assert json.loads(decision.body) == {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.usefixtures("broken_intake")
async def test_an_append_that_meets_a_defect_may_be_repeated() -> None:
    async with running() as built:
        with pytest.raises(HistoryUnavailable):
            await drive.decide(built, request(chat(3), history="append"))
        with pytest.raises(ZeroDivisionError):
            await drive.decide(built, request(chat(3), dry_run="true"))


async def test_a_request_that_asks_for_what_there_is_not_is_still_refused() -> None:
    async with running() as built:
        with pytest.raises(BadRequest):
            await drive.decide(built, request(chat(3), history="append", no_store="true"))
        with pytest.raises(BadRequest):
            await drive.decide(built, request(chat(3), strategy="extract", options="nonsense=1"))
