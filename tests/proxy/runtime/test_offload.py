"""Long work runs in a thread, so the event loop stays free; short work does not pay for one."""

from __future__ import annotations

import threading

import pytest

from proxy.runtime.owned_tasks import LARGE, MESSAGE_TOKENS, message_load, offload

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("messages", "tokens", "stays"),
    [
        (3, 100, True),
        (LARGE - 1, LARGE * MESSAGE_TOKENS - 1, True),
        (LARGE, 0, False),
        (3, LARGE * MESSAGE_TOKENS, False),
    ],
    ids=["small", "just-small", "many-messages", "long-messages"],
)
async def test_work_on_many_or_long_messages_goes_to_a_thread(messages: int, tokens: int, stays: bool) -> None:
    thread = await offload(message_load(messages, tokens), threading.get_ident)
    assert (thread == threading.get_ident()) is stays
