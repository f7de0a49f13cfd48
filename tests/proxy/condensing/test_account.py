"""The accounts of a decision: headers, log line, dry run, and our own refusal."""

import json
from dataclasses import replace
from typing import Any

import pytest

from proxy.bodies.measure import Measured, Precision
from proxy.condensing.account import Timing, budget_document, dry_run, headers, log_line, short, where_tokens_are
from proxy.condensing.attempt import expecting, undecided
from proxy.condensing.policy import Policies, Policy
from proxy.condensing.turn import Decision, context_of
from proxy.controls import Controls
from proxy.conversations.recognition import Identity, Recognised
from proxy.protocols.chat import ChatCounter
from proxy.reasons import Action, Trigger
from proxy.servers.counting import UNCALIBRATED, Calibration
from proxy.servers.windows import SOURCE, Window
from proxy.settings import Settings
from proxy.store.access import Patience
from proxy.store.base import StoreKey
from proxy.tokens.counter import Tokenizers
from strategies import DEFAULT
from strategies.core.budget import Scale
from strategies.core.messages import Reader
from strategies.core.pieces import Literal, PieceKind
from strategies.core.transcript import Transcript
from strategies.core.view import View, fold
from tests.support.driver import request
from tests.support.servers import TABLE, server_of
from tests.support.transcripts import condensation_of

MADE = condensation_of(
    covered=3, depth=2, requirement="hard", trigger="context_limit", tokens_before=7_000, tokens_after=3_000
)


def view(*messages: dict[str, Any], overhead: int = 50) -> View:
    counter, reader = Tokenizers().for_model("m", ChatCounter), Reader()
    read = [reader.read(json.dumps(each), each, counter.message(each), counter.dialect) for each in messages]
    return fold(Transcript.of(read), (), overhead, counter)


def decision(
    window: int | None = 8_000, *, overhead: int = 3_120, calibrated: Calibration = UNCALIBRATED, **given: Any
) -> Decision:
    settings = Settings(window=window)
    policy = Policies(settings, TABLE, lambda: 0.0).policy(Controls(), {}, server_of(settings))
    hello = {"role": "user", "content": "hello"}
    counter = Tokenizers().for_model("m", ChatCounter)
    long = Transcript.of([Reader().read(json.dumps(hello), hello, 24_792, counter.dialect)])
    measured = Measured.of(long, overhead, Precision.EXACT)
    recognised = Recognised(Identity(), StoreKey("t", "d"), "conversation-4f2a", Patience(1.0))
    context = context_of(request([hello]), recognised, policy, server_of(settings), measured, measured)
    context = context._replace(sized=context.sized._replace(calibrated=calibrated))
    made = Decision(**{**undecided(context)._asdict(), "view": view(hello), "tokens_after": 412, **given})
    return expecting(made)


def headers_of(made: Decision) -> dict[str, str]:
    return dict(headers(made, Timing()))


def test_a_branch_is_shown_with_the_depth_of_its_view() -> None:
    made = [decision(applied=replace(MADE, depth=depth)) for depth in (1, 3, 4, 12)]
    shown = [headers_of(each)["X-Condenser-Branch"] for each in (decision(), *made)]
    assert shown == ["main", "main+", "main+++", "main+4", "main+12"]


def test_the_line_is_the_one_that_the_design_shows() -> None:
    prepared = replace(MADE, pieces=(Literal("{}", PieceKind.REPLACEMENT),), own_tokens=2_134)
    made = decision(
        window=32_768, applied=prepared, action=Action.CONDENSED, trigger=Trigger.THRESHOLD, was_prepared=True
    )
    assert log_line(made._replace(tokens_after=12_400), Timing(1.0, 1.2, 0.9, 500.0)) == (
        f"conversation-4f2a main++ {DEFAULT} 27.9k→12.4k of 32.8k (tools 3.1k) "
        "condensed by threshold, summary ready, +3 ms, own 2.1k tok"
    )


def test_the_line_names_action_reason_and_window() -> None:
    assert " replayed, +0 ms" in log_line(decision(applied=MADE, action=Action.REPLAYED), Timing())
    made = decision(applied=MADE, action=Action.WOULD_CONDENSE, trigger=Trigger.THRESHOLD)
    assert " would-condense by threshold, +0 ms" in log_line(made, Timing())
    made = decision(applied=MADE, action=Action.CONDENSED, trigger=Trigger.THRESHOLD, was_prepared=True)
    assert " condensed by threshold, ready, +0 ms" in log_line(made, Timing())
    line = log_line(decision(window=None, action=Action.DEGRADED, reason="store-timeout"), Timing())
    assert "of unknown" in line
    assert "degraded, store-timeout, +0 ms" in line
    assert ", own" not in line


def test_a_dry_run_is_json_with_plan_budget_and_view() -> None:
    document = json.loads(dry_run(decision(metadata={"stages": ["mask"]})))
    assert document["messages"] == [{"role": "user", "content": "hello"}]
    assert document["plan"] == {"stages": ["mask"]}
    assert document["window_source"] == "settings"
    marks = {"prepare": 4_900, "trigger": 5_950, "target": 3_500, "step": 1_050}
    assert document["budget"] == {
        "reserve": 1_000,
        "usable": 7_000,
        **marks,
        "least_headroom": 500,
        "trigger_by": "share",
        "fits": 7_000,
    }


def test_a_dry_run_sums_up_tokens_of_the_upstream() -> None:
    calibrated = Calibration(Scale(200, 1.25))
    made = decision(calibrated=calibrated, tokens_after=4_000)
    document = json.loads(dry_run(made))
    assert (document["tokens_after"], document["upstream_tokens"]) == (4_000, 5_200)
    assert document["budget"]["usable"] == document["window"] - document["budget"]["reserve"] == 7_000
    assert document["headroom"] == document["budget"]["usable"] - document["upstream_tokens"]
    assert document["headroom"] == int(headers_of(made)["X-Condenser-Headroom"])


def test_a_dry_run_shows_nulls_for_what_is_unknown() -> None:
    assert json.loads(dry_run(decision()))["floor"] is None
    assert json.loads(dry_run(decision(floor=3_900)))["floor"] == 3_900
    document = json.loads(dry_run(decision(window=None)))
    assert (document["window"], document["headroom"], document["reason"]) == (None,) * 3
    assert (document["budget"]["trigger"], document["budget"]["trigger_by"]) == (200_000, "most")
    assert document["budget"]["fits"] is None
    assert budget_document(Policy()) is None
    odd = view({"role": "user", "content": "\ud800 é 会"})
    assert json.loads(dry_run(decision(view=odd)))["messages"][0]["content"] == "\ud800 é 会"


def test_numbers_are_short_and_timings_our_own() -> None:
    for tokens, text in [(0, "0"), (999, "999"), (1_000, "1.0k"), (27_912, "27.9k")]:
        assert short(tokens) == text
    assert headers_of(decision(tokens_after=9_000))["X-Condenser-Headroom"] == "-2000"
    timing = Timing(session=1.5, count=2.25, condense=3.0, upstream=400.0)
    assert timing.header() == "session;dur=1.50, count;dur=2.25, condense;dur=3.00, upstream;dur=400.00"
    assert timing.ours == 6.75


def test_the_account_names_every_part_and_where_the_window_came_from() -> None:
    call = {"id": "c", "function": {"name": "f", "arguments": "{}"}}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "rule " * 300},
        {"role": "user", "content": "task " * 200},
        {"role": "assistant", "content": "old " * 50},
        {"role": "user", "content": "more " * 40},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "out " * 500},
    ]
    text = where_tokens_are(decision(view=view(*messages, overhead=3_120)))
    assert "context length is 8,000 tokens (from the settings)" in text
    assert "tools and framing 3,120" in text
    for part in ("system messages 30", "user message 250", "newest round 511", "other messages 55"):
        assert part in text
    assert "1,000 are reserved" in text


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("request", "(from this request's X-Condenser-Window header or condenser.window member)"),
        ("settings for 'qwen3*'", "(from the settings for 'qwen3*')"),
        ("bundled table", "(from the bundled table)"),
        ("stated by Ollama", "(stated by Ollama)"),
        (SOURCE, "(as the upstream said when it refused a longer prompt)"),
    ],
)
def test_an_account_says_where_the_window_comes_from(source: str, says: str) -> None:
    made = decision()
    policy = made.context.policy._replace(window=Window(8_000, source))
    made = made.in_context(made.context._replace(policy=policy))
    assert f"context length is 8,000 tokens {says}. " in where_tokens_are(made)


def test_parts_that_are_empty_or_one_are_not_named_twice() -> None:
    text = where_tokens_are(decision(view=view({"role": "user", "content": "word " * 9_000}), overhead=0))
    assert "tools" not in text
    assert "system" not in text
    assert "newest round" not in text
    only = view({"role": "user", "content": "word " * 900}, overhead=0)
    text = where_tokens_are(decision(view=only, overhead=0))
    assert f"the first and the last user message {only.tokens:,}" in text
    assert "other messages" not in text
