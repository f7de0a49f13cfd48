"""What a request can ask of the proxy: by header, by body, by a suffix of the model. None of it goes upstream."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.http.strict import assert_view
from tests.support.stage import (
    EMPTY,
    WINDOW,
    Message,
    Stage,
    agent,
    body_of,
    chat,
    controls,
    proxy_with_sqlite,
    proxy_with_upstream,
    store_rows,
    summary,
)
from tests.support.wire import Answer


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with proxy_with_upstream() as built:
        yield built


# -- where it is said --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "forwarded"),
    [
        (b'{"condenser":{"strategy":"off"},"model":"m","messages":[%s]}', b'{"model":"m","messages":[%s]}'),
        (b'{"model":"m" , "condenser" : {} , "messages":[%s]}', b'{"model":"m" , "messages":[%s]}'),
        (b'{"model":"m","messages":[%s]\n,"condenser":{"force":false}\n}', b'{"model":"m","messages":[%s]\n\n}'),
        (b' {"model":"m@off","messages":[%s]}', b' {"model":"m","messages":[%s]}'),
        (b'{"model" : "a/b@c@mask+half-window", "messages":[%s]}', b'{"model" : "a/b@c", "messages":[%s]}'),
        (b'{"model":"m@2024-05","messages":[%s]}', b'{"model":"m@2024-05","messages":[%s]}'),
        (b'{"messages":[%s],"model":"m@observe:mask","p":1.0}', b'{"messages":[%s],"model":"m","p":1.0}'),
        (b'{"conden\\u0073er":null,"messages":[%s],"model":"m@\\u006fff"}', b'{"messages":[%s],"model":"m"}'),
    ],
)
def test_cutting_our_members_changes_no_other_byte(given: bytes, forwarded: bytes, stage: Stage) -> None:
    message = b'{ "role":"user","big":123456789012345678901234567890,"content":"caf\xc3\xa9 \\u00e9 \\/ 1.50" }'
    assert stage.post(given % message).status == 200
    assert stage.forwarded[-1].body == forwarded % message


def test_an_ending_that_is_almost_a_strategy_goes_on_with_a_warning(stage: Stage) -> None:
    body = b'{"model":"m@rollin","messages":[{"role":"user","content":"hi"}]}'
    answer = stage.post(body)
    assert stage.forwarded[-1].body == body
    assert "@rollin, did you mean @rolling?" in str(answer.header("X-Condenser-Warning"))


def test_a_pipeline_with_a_stage_twice_is_refused_by_name(stage: Stage) -> None:
    answer = stage.post(json.dumps({"model": "m", "messages": chat(2)}).encode(), controls(strategy="rolling+rolling"))
    assert answer.status == 400
    assert "'rolling' stands twice in 'rolling+rolling'" in answer.json()["error"]["message"]


def test_a_changed_body_keeps_every_byte_but_those_of_changed_messages(stage: Stage) -> None:
    odd = '{"content" : "What\\u0020now? caf\\u00e9", "role":"user" , "x":1e5, "y":0.10}'
    listed = ",".join([*map(json.dumps, chat(12)[:-1]), odd])
    before = f'{{"model":"m", "seed":12345678901234567890123,"messages":[{listed}],"temperature": 0.10,"user":"ü"}}'
    assert stage.post(before.encode(), controls(session="odd")).action == "condensed"
    after = stage.forwarded[-1].body.decode()
    assert after.startswith(before[: before.index("[")])
    assert after.endswith(before[before.rindex(odd) :])
    assert len(after) < len(before)


# -- strategies that stick ---------------------------------------------------------------------------------


def test_a_strategy_sticks_to_an_explicit_session_until_it_is_changed(stage: Stage) -> None:
    asked = [("sticky", "recent"), ("sticky", None), ("other", None), ("sticky", "mask"), ("sticky", None)]
    given = [stage.ask(chat(1), controls(session=session, strategy=name)) for session, name in asked]
    assert [each.strategy for each in given] == ["recent", "recent", "mask+half-window", "mask", "mask"]


def test_options_stick_with_their_strategy_and_go_with_it(stage: Stage) -> None:
    def budgeted(headers: list[tuple[str, str]]) -> Any:
        answer = stage.ask(agent(12, lines=20), [*controls(session="options", dry_run="true", force="true"), *headers])
        return answer.json()["plan"]["mask"]["maskedMessageCount"]

    stage.ask(chat(1), controls(session="options", strategy="mask", options="keep=8"))
    few = budgeted([])
    stage.ask(chat(1), controls(session="options", strategy="mask"))
    assert budgeted([]) > few


def test_off_forwards_the_clients_bytes_also_where_a_condensation_stands(stage: Stage) -> None:
    stage.ask(chat(12), controls(session="stands"))
    answer = stage.ask(chat(12), controls(session="stands", strategy="off"))
    assert stage.forwarded[-1].body == stage.sent[-1]
    assert (answer.action, answer.reason) == ("passed", "strategy-off")
    assert stage.ask(chat(12), controls(session="stands")).action == "replayed"


# -- observe, dry run, force, no store, window -------------------------------------------------------------


def test_observe_changes_nothing_asks_no_model_and_says_what_would_be_done(stage: Stage) -> None:
    calls = len(stage.summaries)
    answer = stage.ask(chat(12), controls(session="watched", strategy="observe:half-window"))
    assert stage.forwarded[-1].body == stage.sent[-1]
    assert len(stage.summaries) == calls
    assert (answer.action, answer.trigger) == ("would-condense", "context_limit")
    assert answer.condensation is None
    assert answer.tokens_after < answer.tokens_before


def test_observe_counts_on_the_condensation_that_stands(stage: Stage) -> None:
    real = stage.ask(chat(12), controls(session="stands"))
    answer = stage.ask(chat(12), controls(session="stands", strategy="observe:half-window"))
    assert stage.forwarded[-1].body == stage.sent[-1]
    assert (answer.action, answer.trigger) == ("would-condense", "none")
    assert answer.tokens_after == real.tokens_after


def test_a_dry_run_answers_with_plan_and_view_and_leaves_no_trace(tmp_path: Path) -> None:
    with proxy_with_sqlite(tmp_path / "s.db") as stage:
        answer = stage.ask(chat(12), controls(session="dry", dry_run="true"))
        assert list(stage.upstream.journal) == []
        assert store_rows(tmp_path / "s.db") == EMPTY
    document = answer.json()
    assert answer.header("content-type") == "application/json"
    assert document["object"] == "condenser.dry_run"
    assert (document["action"], document["trigger"]) == ("condensed", "context_limit")
    assert document["window"] == WINDOW
    assert document["tokens_after"] < document["tokens_before"]
    assert document["plan"]["stages"] == ["half-window"]
    assert answer.header("x-condenser-count") == "exact"
    assert_view(document["messages"], chat(12))


def foretold(stage: Stage, messages: Sequence[Message]) -> tuple[Answer, Answer, Answer]:
    """What a dry run says of a request, what `observe:` says, and what then happens."""
    return (
        stage.ask(messages, controls(session="s", dry_run="true")),
        stage.ask(messages, controls(session="o", strategy="observe:mask+half-window")),
        stage.ask(messages, controls(session="s")),
    )


@pytest.mark.parametrize("window", [2_048, 3_000, 4_096, 6_000, 8_192, 16_384])
def test_a_dry_run_foretells_the_summary_in_any_window(window: int) -> None:
    brief = summary(" ".join(f"Bed {number} is planned." for number in range(12)))
    with proxy_with_upstream(window=window, answers=lambda _: brief) as stage:
        planned, observed, real = foretold(stage, chat(window // 100, words=20))
    assert [each.reason for each in (planned, observed, real)] == [None] * 3
    assert planned.json()["plan"]["stages"] == ["half-window"]
    assert planned.action == real.action == "condensed"
    assert observed.action == "would-condense"
    assert observed.header("x-condenser-tokens-after") == planned.header("x-condenser-tokens-after")


def test_at_the_trigger_a_summary_that_nobody_has_prepared_is_not_foretold() -> None:
    with proxy_with_upstream() as stage:
        told = foretold(stage, chat(10))
    assert [each.reason for each in told] == ["not-prepared"] * 3
    assert {each.action for each in told} == {"passed"}


def test_a_dry_run_shows_what_stands_and_what_comes_next(stage: Stage) -> None:
    real = stage.ask(chat(12), controls(session="shown"))
    answer = stage.ask(chat(12), controls(session="shown", dry_run="true"))
    assert answer.json()["action"] == "replayed"
    assert answer.condensation == real.condensation
    assert answer.json()["messages"] == stage.last_view


def test_a_request_of_system_messages_alone_passes(stage: Stage) -> None:
    only = [{"role": "system", "content": "Say hello."}]
    for headers in ([], controls(force="true"), controls(session="systems")):
        stage.ask(only, headers)
        assert stage.forwarded[-1].body == stage.sent[-1]


@pytest.mark.parametrize("session", ["kept out", None])
def test_no_store_condenses_and_keeps_nothing(session: str | None, tmp_path: Path) -> None:
    with proxy_with_sqlite(tmp_path / "s.db") as stage:
        answer = stage.ask(chat(12), controls(session=session, no_store="true", strategy="half-window"))
        assert answer.action == "condensed"
        assert store_rows(tmp_path / "s.db") == EMPTY
        assert stage.ask(chat(1), controls(session=session)).strategy == "mask+half-window"


def test_a_larger_window_shows_the_longest_view_that_fits(stage: Stage) -> None:
    stage.ask(chat(12), controls(session="windows"))
    wide = stage.ask(chat(12), controls(session="windows", window=100_000))
    assert wide.action == "passed"
    assert stage.forwarded[-1].body == stage.sent[-1]
    assert stage.ask(chat(12), controls(session="windows")).action in ("replayed", "condensed")


# -- what cannot be asked ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"), [("X-Condenser-Window", "many"), ("X-Condenser-Options", "mask.keep=0")], ids=["value", "option"]
)
def test_a_bad_header_is_a_400_that_names_it(name: str, value: str, stage: Stage) -> None:
    before = len(stage.upstream.journal)
    answer = stage.post(body_of(chat(1)), [(name, value)])
    error = answer.json()["error"]
    assert answer.status == 400
    assert set(error) == {"message", "type", "param", "code"}
    assert name in error["message"]
    assert error["param"] == name
    assert error["type"] == "invalid_request_error"
    assert len(stage.upstream.journal) == before
