"""Defects of ours: whatever part of the driver fails, the client gets its reply."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy import controls, wire
from proxy.intake import ChatRequest
from proxy.memory.inject import Injector
from proxy.memory.recall import Recall
from proxy.services import services
from proxy.settings import load_settings
from tests.http.talking import garden
from tests.support.signals import BOUND

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(BOUND * 3)]


class BrokenInjector(Injector):
    """Fails on every view."""

    async def inject(self, decision: Any, case: Any) -> None:
        raise ZeroDivisionError


async def test_a_request_that_a_part_of_the_driver_fails_on_goes_on_as_it_came(
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = load_settings(store={"url": "memory://"}, window=4_096)
    async with services(settings) as built:
        broken = BrokenInjector(Recall(), settings.memory, built.tasks)
        built.condenser._memories = built.condenser._memories._replace(injector=broken)
        data = json.dumps({"model": "m", "messages": garden(3)}).encode()
        request = ChatRequest("t", [], wire.read(data), "m", False, controls.read([], None, None))
        decision = await built.condenser.decide(request)
        assert decision.body == data
        assert (decision.action, decision.reason) == ("degraded", "internal-error")
        assert "ZeroDivisionError" in caplog.text
