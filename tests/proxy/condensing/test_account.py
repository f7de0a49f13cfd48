"""What a decision says of itself: headers, a log line, a dry run. Only the dry run holds content."""

from __future__ import annotations

import json

import pytest

from proxy.condensing import account
from proxy.runtime.clock import Timing
from tests.support.driver import Message, decided, talk

pytestmark = pytest.mark.anyio
SECRET = "the combination is 4711"


def asked() -> list[Message]:
    return [*talk(40)[:-1], {"role": "user", "content": SECRET}]


async def test_headers_say_what_was_condensed_and_by_how_much() -> None:
    exchange = await decided(asked())
    headers = dict(exchange.headers())
    assert (headers["X-Condenser-Action"], headers["X-Condenser-Strategy"]) == ("condensed", "extract")
    assert int(headers["X-Condenser-Tokens-After"]) < int(headers["X-Condenser-Tokens-Before"])
    assert headers["X-Condenser-Stages"] == "extract"
    applied = exchange.decision.applied
    assert applied is not None
    assert headers["X-Condenser-Condensation"] == applied.id


async def test_a_request_below_the_marks_says_why_nothing_was_done() -> None:
    headers = dict((await decided(talk(1))).headers())
    assert (headers["X-Condenser-Action"], headers["X-Condenser-Reason"]) == ("passed", "below-marks")
    assert "X-Condenser-Condensation" not in headers


async def test_neither_headers_nor_log_lines_hold_content() -> None:
    exchange = await decided(asked())
    said = [*map(str, exchange.headers()), account.log_line(exchange.decision, Timing())]
    said.append(json.dumps(account.fields(exchange.decision, Timing())))
    assert [text for text in said if "4711" in text or "frost" in text] == []


async def test_a_dry_run_shows_the_list_that_would_be_forwarded() -> None:
    exchange = await decided(asked(), dry_run="true")
    document = json.loads(account.dry_run(exchange.decision))
    assert document["action"] == "condensed"
    assert document["messages"] == json.loads(exchange.decision.body)["messages"]
    assert document["messages"][-1]["content"] == SECRET
    assert document["tokens_after"] < document["budget"]["usable"]


@pytest.mark.parametrize(("tokens", "shown"), [(0, "0"), (999, "999"), (1_000, "1.0k"), (27_912, "27.9k")])
def test_tokens_are_shown_in_thousands_from_a_thousand_on(tokens: int, shown: str) -> None:
    assert account.short(tokens) == shown
