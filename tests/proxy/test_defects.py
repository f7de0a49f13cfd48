"""Defects of ours: whatever part of the driver fails, the client gets its reply."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from proxy import controls
from proxy.condensing import account
from proxy.condensing.exchange import Exchanges
from proxy.condensing.intake import Intake
from proxy.condensing.recall import Injector, Recall
from proxy.errors import BadRequest, HistoryUnavailable
from proxy.request.wire import Body, ClientRequest
from proxy.services import Services, open_services
from proxy.sessions.keeping import Keeper
from proxy.settings import load_settings
from tests.support import chat_bodies as wire
from tests.support.signals import BOUND
from tests.support.stage import chat

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(BOUND * 3)]


class BrokenInjector(Injector):
    """Fails on every view."""

    async def inject(self, decision: Any) -> Any:
        """Fails."""
        raise ZeroDivisionError


class BrokenIntake(Intake):
    """Fails on every request."""

    def __init__(self) -> None:
        """Has no parts."""

    async def build_context(self, request: Any, timing: Any) -> Any:
        """Fails."""
        raise ZeroDivisionError


class BrokenKeeper(Keeper):
    """Fails on every request that is to be stored."""

    @property
    def refused(self) -> str:
        """Fails."""
        raise ZeroDivisionError


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


def request(data: bytes | None = None, **ours: str) -> ClientRequest:
    data = data or json.dumps({"model": "m", "messages": chat(3)}).encode()
    given = [(f"x-condenser-{name}".replace("_", "-").encode(), value.encode()) for name, value in ours.items()]
    return ClientRequest("t", [], wire.read(data), "m", False, controls.read(given, None, None))


def broken(built: Services, part: str) -> Exchanges:
    """The app's exchanges with a defect in one of its parts."""
    exchanges = built.exchanges
    match part:
        case "intake":
            return replace(exchanges, intake=BrokenIntake())
        case "keeper":
            keeper = BrokenKeeper(built.stored, ttl=60, clock=built.clock)
            decider, attempts = replace(exchanges.decider, keeper=keeper), replace(exchanges.attempts, keeper=keeper)
            return replace(exchanges, decider=decider, attempts=attempts)
        case _:
            injector = BrokenInjector(Recall())
            return replace(exchanges, decider=replace(exchanges.decider, injector=injector))


@pytest.mark.parametrize("part", ["intake", "injector", "keeper"])
async def test_a_failing_part_passes_the_request_on(part: str, caplog: pytest.LogCaptureFixture) -> None:
    async with running() as built:
        asked = request(session="s")
        exchange = await broken(built, part).open(asked)
        decision = exchange.decision
        assert decision.body == asked.body.data
        assert (decision.action, decision.reason) == ("degraded", "internal-error")
        assert dict(exchange.headers())["X-Condenser-Reason"] == "internal-error"
        assert account.log_line(decision, exchange.timing)
        assert "ZeroDivisionError" in caplog.text


async def test_a_view_that_cannot_be_written_sends_the_request_unchanged() -> None:
    async with running() as built:
        asked = request(json.dumps({"model": "m", "messages": chat(24)}).encode(), strategy="extract")
        body = BrokenBody(*asked.body)
        decision = (await built.exchanges.open(asked._replace(body=body))).decision
        assert decision.body == asked.body.data
        assert (decision.action, decision.reason) == ("degraded", "internal-error")


async def test_our_members_are_left_out_when_nothing_is_known() -> None:
    data = b'{"model": "m@extract", "messages": [{"role": "user", "content": "Hi"}], "condenser": {"window": 4096}}'
    asked = ClientRequest("t", [], wire.read(data), "m", True, controls.Controls())
    async with running() as built:
        decision = (await broken(built, "intake").open(asked)).decision
    assert json.loads(decision.body) == {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


async def test_an_append_that_meets_a_defect_may_be_repeated() -> None:
    async with running() as built:
        with pytest.raises(HistoryUnavailable):
            await broken(built, "intake").open(request(session="s", history="append"))


async def test_a_dry_run_tells_of_a_defect() -> None:
    async with running() as built:
        with pytest.raises(ZeroDivisionError):
            await broken(built, "intake").open(request(dry_run="true"))


async def test_a_request_that_asks_for_what_there_is_not_is_still_refused() -> None:
    async with running() as built:
        with pytest.raises(BadRequest):
            await built.exchanges.open(request(session="s", history="append", no_store="true"))
        with pytest.raises(BadRequest):
            await built.exchanges.open(request(strategy="extract", options="nonsense=1"))
