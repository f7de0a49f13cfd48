"""`POST /v1/compress`: the view is the answer, for gateways and frameworks that send it themselves."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proxy.bodies.measure import Measurer
from proxy.callers.tenants import FRESH
from tests.http.strict import assert_view, problems
from tests.http.test_keys import ANNA, BEN, entry, keyed
from tests.http.test_store_failures import wait_until_ready
from tests.support import wire
from tests.support.logins import login
from tests.support.redis_server import RedisServer
from tests.support.replies import error
from tests.support.stage import (
    EMPTY,
    Stage,
    agent,
    chat,
    controls,
    count,
    proxy_with_sqlite,
    proxy_with_upstream,
    store_rows,
)
from tests.support.virtual_time import Clock

PATH = "/v1/compress"
Message = Mapping[str, Any]
ONE: Any = {"single_user": True}


@pytest.fixture
def stage() -> Iterator[Stage]:
    with proxy_with_upstream(strategy="mask+extract", **ONE) as built:
        yield built


def posted(stage: Stage, messages: Sequence[Any], headers: Any = (), **config: Any) -> wire.Answer:
    body = {"model": stage.model, "messages": messages, **({"config": config} if config else {})}
    return wire.post_json(stage.proxy.url, PATH, body, [("Authorization", f"Bearer {stage.key}"), *headers])


def compressed(stage: Stage, messages: Sequence[Message], headers: Any = (), **config: Any) -> Any:
    answer = posted(stage, messages, headers, **config)
    assert answer.status == 200, answer.body
    return answer.json()


def rows_of(messages: Sequence[Message]) -> list[Message]:
    """What LiteLLM's guardrail sends of a list: no system or assistant rows, and nothing of the newest turn."""
    last = max(i for i, each in enumerate(messages) if each["role"] == "user")
    return [each for each in messages[:last] if each["role"] in ("user", "tool")]


# -- the turn ----------------------------------------------------------------------------------------------------


def test_the_view_is_the_answer_and_nothing_is_sent(stage: Stage) -> None:
    messages = agent(40)
    found = compressed(stage, messages, session_id="s")
    assert_view(found["messages"], messages)
    assert found["tokens_before"] == count({"messages": messages})
    assert found["tokens_after"] == count({"messages": found["messages"]}) < 4_096
    assert found["tokens_saved"] == found["tokens_before"] - found["tokens_after"]
    assert found["compression_ratio"] == round(found["tokens_after"] / found["tokens_before"], 4)
    assert found["transforms_applied"] == ["mask", "extract"]
    assert found["action"] == "condensed"
    assert not stage.upstream.journal


def test_the_next_view_begins_with_the_bytes_of_the_one_before(stage: Stage) -> None:
    before: list[Message] = []
    condensed = 0
    for rounds in range(20, 60):
        found = compressed(stage, agent(rounds), session_id="s")
        if found["action"] == "condensed":
            condensed += 1
        else:
            assert found["messages"][: len(before)] == before
        assert problems(found["messages"]) == set()
        before = found["messages"]
    assert 2 <= condensed <= 8


def test_a_chat_request_of_the_session_goes_on_with_the_view_that_was_answered(stage: Stage) -> None:
    found = compressed(stage, agent(30), session_id="s")
    answer = stage.ask([*agent(30), {"role": "user", "content": "And now?"}], controls(session="s"))
    assert answer.action == "replayed"
    assert stage.last_view[:-1] == found["messages"]


def test_the_first_of_two_replicas_writes_and_both_answer_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite3"
    with proxy_with_sqlite(path, **ONE) as one, proxy_with_sqlite(path, **ONE) as two:
        first = posted(one, agent(30), session_id="s", strategy="mask+extract")
        other = posted(two, agent(30), session_id="s", strategy="mask+extract", options="mask.keep=1")
        assert first.json()["messages"] == other.json()["messages"]
        assert (first.json()["action"], other.json()["action"]) == ("condensed", "replayed")


def test_memory_comes_with_the_view_but_never_its_tool() -> None:
    with proxy_with_upstream(strategy="mask+extract", memory={"default": "inject+tool"}, **ONE) as stage:
        found = compressed(stage, agent(40), session_id="s", memory="inject+tool")
    assert found["action"] == "condensed"
    assert found["tokens_after"] == count({"messages": found["messages"]})


def test_lists_of_the_other_protocols_come_back_in_their_form(stage: Stage) -> None:
    for protocol in ("messages", "responses"):
        own = list(translated(agent(40), protocol))
        found = compressed(stage, own, session_id=protocol, protocol=protocol)
        assert found["tokens_saved"] > 0
        last = own[-1]
        assert found["messages"][-1] == last
        assert len(found["messages"]) <= len(own)
        assert [each for each in found["messages"] if each == own[0]] == [own[0]]


def translated(messages: Sequence[Message], protocol: str) -> Iterator[Message]:
    for each in messages[1:]:
        call = (each.get("tool_calls") or [None])[0]
        if call is None and each["role"] == "user":
            yield {"role": "user", "content": each["content"]}
        elif protocol == "messages" and call:
            block = {"type": "tool_use", "id": call["id"], "name": "run", "input": {"command": call["id"]}}
            yield {"role": "assistant", "content": [block]}
        elif protocol == "messages":
            result = {"type": "tool_result", "tool_use_id": each["tool_call_id"], "content": each["content"]}
            yield {"role": "user", "content": [result]}
        elif call:
            yield {"type": "function_call", "call_id": call["id"], "name": "run", "arguments": "{}"}
        else:
            yield {"type": "function_call_output", "call_id": each["tool_call_id"], "output": each["content"]}


# -- rows --------------------------------------------------------------------------------------------------------


def test_without_a_sessions_id_rows_keep_their_number_place_and_role(stage: Stage) -> None:
    turns = conversation(30)
    for given in (rows_of(turns), turns):
        found = compressed(stage, given)
        assert [each["role"] for each in found["messages"]] == [each["role"] for each in given]
        for before, after in zip(given, found["messages"], strict=True):
            assert {**before, "content": ""} == {**after, "content": ""}
            assert before == after or (before["role"] == "tool" and len(after["content"]) < len(before["content"]))
        assert found["tokens_after"] == count({"messages": found["messages"]}) < 4_096
        assert found["transforms_applied"] == ["mask"]


def test_the_rows_of_a_longer_list_begin_with_the_same_bytes_until_the_next_step(stage: Stage) -> None:
    turns, steps = conversation(60), 0
    before: list[Message] = []
    for end in range(1, len(turns)):
        given = rows_of(turns[: end + 1])
        if not given:
            continue
        found = compressed(stage, given)["messages"]
        kept = [each for each in found if each["role"] == "tool"]
        steps += kept[: len(before)] != before
        before = kept
    assert 2 <= steps <= 12


def test_rows_are_the_same_on_every_replica_and_leave_nothing_stored(tmp_path: Path) -> None:
    given = rows_of(conversation(40))
    answers = []
    for name in ("one", "two"):
        with proxy_with_sqlite(tmp_path / name, **ONE) as stage:
            answers.append(compressed(stage, given)["messages"])
            assert store_rows(tmp_path / name) == EMPTY
    assert answers[0] == answers[1] != given


def test_a_result_that_is_too_large_alone_is_cut_in_its_middle(stage: Stage) -> None:
    big = "\n".join(f"line {number}: {number * 37 % 1_001}" for number in range(2_000))
    found = compressed(stage, [{"role": "tool", "tool_call_id": "a", "content": big}])
    content = found["messages"][0]["content"]
    assert content[:20] == big[:20]
    assert content[-20:] == big[-20:]
    assert (found["tokens_after"] < 2_048, found["transforms_applied"]) == (True, ["shorten"])


def test_rows_are_free_where_that_is_asked_for(stage: Stage) -> None:
    turns = conversation(40)
    assert len(compressed(stage, turns, rows="free")["messages"]) < len(turns)
    assert len(compressed(stage, turns, rows="keep", session_id="s")["messages"]) == len(turns)


@pytest.mark.parametrize("strategy", ["off", "observe:mask"])
def test_rows_stay_as_they_came_under_off_and_observe(stage: Stage, strategy: str) -> None:
    given = rows_of(conversation(40))
    found = compressed(stage, given, strategy=strategy)
    assert found["messages"] == given
    assert (found["tokens_saved"], found["action"]) == (0, "passed" if strategy == "off" else "would-condense")


def conversation(turns: int) -> list[Message]:
    """An agent's conversation in which the user speaks before each two calls."""
    messages = agent(2 * turns)
    spoken: list[Message] = messages[:1]
    for number, at in enumerate(range(2, len(messages), 4)):
        spoken += [{"role": "user", "content": f"Fix door {number}."}, *messages[at : at + 4]]
    return [*spoken, {"role": "user", "content": "Are all fixed?"}]


# -- who may see what --------------------------------------------------------------------------------------------


def test_tenants_never_see_each_others_views() -> None:
    with keyed(entry("anna", ANNA), entry("ben", BEN), strategy="mask+extract") as anna:
        ben = replace(anna, key=BEN)
        mine = compressed(anna, agent(30), session_id="s")
        other = agent(30)
        other[1] = {"role": "user", "content": "Paint the fence."}
        theirs = compressed(ben, other, session_id="s")
        assert theirs["action"] == "condensed"
        assert "Fix the door" not in json.dumps(theirs)
        assert compressed(anna, agent(30), session_id="s")["messages"] == mine["messages"]
        assert compressed(ben, agent(30), session_id="s")["action"] == "condensed"


def test_a_credential_that_nothing_has_proved_gets_its_answer_from_the_list_alone(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite3"
    with proxy_with_sqlite(path, strategy="mask+extract") as stage:
        for _ in range(2):
            found = compressed(stage, agent(30), session_id="s")
            assert (found["action"], found["reason"]) == ("condensed", "credential-unproven")
            assert_view(found["messages"], agent(30))
        assert store_rows(path) == EMPTY
        stage.ask(agent(30), controls(session="s"))
        found = compressed(stage, agent(30), session_id="s")
        assert (found["action"], found["messages"]) == ("replayed", stage.last_view)
        stranger = compressed(replace(stage, key="sk-other"), agent(30), session_id="s")
        assert (stranger["action"], stranger["reason"]) == ("condensed", "credential-unproven")


def test_a_login_that_is_forged_or_was_proved_long_ago_sees_nothing() -> None:
    clock = Clock()
    with proxy_with_upstream(strategy="mask+extract", clock=clock) as stage:
        owner, forger = (replace(stage, key=login("ann", signature=each)) for each in ("signed", "forged"))
        owner.ask(agent(30), controls(session="s"))
        assert compressed(forger, agent(30), session_id="s")["reason"] == "credential-unproven"
        assert compressed(owner, agent(30), session_id="s")["action"] == "replayed"
        clock.now += FRESH + 1
        assert compressed(owner, agent(30), session_id="s")["reason"] == "credential-unproven"
        assert len(stage.upstream.journal) == 1


def test_an_operators_key_proves_no_caller() -> None:
    with proxy_with_upstream(strategy="mask+extract", upstream={"api_key": "sk-operator"}) as stage:
        stage.ask(agent(30), controls(session="s"))
        assert compressed(stage, agent(30), session_id="s")["reason"] == "credential-unproven"


def test_a_tenant_that_all_callers_share_proves_none_of_them() -> None:
    with proxy_with_upstream(strategy="mask+extract", tenant={"from": "fixed"}) as stage:
        stage.ask(agent(30), controls(session="s"))
        assert compressed(stage, agent(30), session_id="s")["action"] == "replayed"
        stranger = compressed(replace(stage, key="sk-other"), agent(30), session_id="s")
        assert stranger["reason"] == "credential-unproven"


# -- strategies that ask a model ---------------------------------------------------------------------------------


def test_rules_write_the_view_unless_the_strategy_is_named() -> None:
    with proxy_with_upstream(strategy="summary", **ONE) as stage:
        assert_view(compressed(stage, chat(60), session_id="s")["messages"], chat(60))
        assert not stage.upstream.journal


def test_a_strategy_that_asks_a_model_needs_a_key_of_the_operators(stage: Stage) -> None:
    refused = posted(stage, chat(60), session_id="s", strategy="summary")
    assert (refused.status, refused.json()["error"]["param"]) == (400, "config.strategy")
    assert not stage.upstream.journal
    with keyed(entry("anna", ANNA)) as anna:
        found = compressed(anna, chat(60), session_id="s", strategy="summary", force=True)
        assert found["transforms_applied"] == ["summary"]
        assert "keep the garden alive" in json.dumps(found["messages"])
        assert len(anna.summaries) == len(anna.upstream.journal) > 0


def test_or_an_address_of_the_summarizers_own(stage: Stage) -> None:
    with proxy_with_upstream(summarizer={"base_url": stage.upstream.url + "/v1", "model": "small"}, **ONE) as other:
        found = compressed(other, chat(60), session_id="s", strategy="summary", force=True)
        assert "keep the garden alive" in json.dumps(found["messages"])
        assert not other.upstream.journal


# -- errors and failures -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "param"),
    [
        ({"sesion_id": "s"}, "config.sesion_id"),
        ({"session": "s"}, "config.session"),
        ({"history": "append"}, "config.history"),
        ({"session_id": ""}, "config.session_id"),
        ({"window": "large"}, "config.window"),
        ({"strategy": "sumary"}, "config.strategy"),
        ({"strategy": "extract"}, "config.strategy"),
        ({"rows": "all"}, "config.rows"),
        ({"protocol": "gemini"}, "config.protocol"),
    ],
)
def test_an_error_names_the_member_that_is_wrong(stage: Stage, config: Any, param: str) -> None:
    refused = posted(stage, agent(2), **config)
    assert (refused.status, refused.json()["error"]["param"]) == (400, param)
    assert param in refused.json()["error"]["message"] or param.partition(".")[2] in refused.json()["error"]["message"]


def test_errors_have_the_form_of_the_lists_protocol(stage: Stage) -> None:
    refused = posted(stage, [{"role": "user", "content": "Hi"}], protocol="messages", window="large")
    assert refused.json()["type"] == "error"
    assert "config.window" in refused.json()["error"]["message"]
    assert refused.header("x-condenser-protocol") == "messages"
    refused = posted(stage, [{"type": "message", "role": "user", "content": "Hi"}, 7], protocol="responses")
    assert refused.json()["error"]["param"] == "messages[1]"


@pytest.mark.parametrize("body", [b"{", b'{"model": "m"}', b'{"messages": []}', b'{"messages": [{"content": 1}]}'])
def test_what_is_no_list_is_refused(stage: Stage, body: bytes) -> None:
    refused = wire.request(stage.proxy.url, "POST", PATH, body, wire.JSON)
    assert (refused.status, refused.json()["error"]["type"]) == (400, "invalid_request_error")


def test_a_request_that_the_server_holds_a_part_of_is_refused(stage: Stage) -> None:
    body = {
        "messages": [{"role": "user", "content": "Hi"}],
        "previous_response_id": "r",
        "config": {"protocol": "responses"},
    }
    refused = wire.post_json(stage.proxy.url, PATH, body)
    assert (refused.status, refused.json()["error"]["param"]) == (400, "messages")


def test_keys_models_and_paths_hold_here_too() -> None:
    with keyed(entry("anna", ANNA, models=["small-*"])) as anna:
        assert posted(replace(anna, key="no"), agent(2)).status == 401
        refused = posted(anna, agent(2))
        assert (refused.status, refused.json()["error"]["code"]) == (403, "model_not_allowed")
        assert posted(replace(anna, model="small-1"), agent(2)).status == 200
    with keyed(entry("anna", ANNA), server={"paths": ["POST chat/completions"]}) as anna:
        assert posted(anna, agent(2)).json()["error"]["code"] == "path_not_allowed"
    with keyed(entry("anna", ANNA), controls={"allow": ["session"]}) as anna:
        assert posted(anna, agent(2), session_id="s").status == 200
        assert posted(anna, agent(2), session_id="s", force=True).json()["error"]["param"] == "config.force"


def test_budgets_and_the_limit_of_bodies_hold_here_too() -> None:
    limits = {"tokens_per_minute": 2_000, "body": 100_000}
    with proxy_with_upstream(strategy="mask+extract", limits=limits, **ONE) as stage:
        assert posted(stage, agent(400)).status == 413
        assert [posted(stage, agent(30)).status for _ in range(2)] == [200, 429]


def test_a_store_that_is_out_costs_no_answer(redis: RedisServer) -> None:
    with proxy_with_upstream(strategy="mask+extract", store={"url": redis.url}, **ONE) as stage:
        before = compressed(stage, agent(30), session_id="s")
        redis.stop()
        found = compressed(stage, agent(31), session_id="s")
        redis.cont()
        assert found["degraded"].startswith("store-")
        assert_view(found["messages"], agent(31))
        wait_until_ready(stage)
        found = compressed(stage, agent(31), session_id="s")
        assert (found["action"], "degraded" in found) == ("replayed", False)
        assert found["messages"][: len(before["messages"])] == before["messages"]


def test_a_tokenizer_that_fails_costs_no_answer(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: object) -> None:
        raise RuntimeError("no ranks")

    monkeypatch.setattr(Measurer, "measure", fails)
    for config in ({"session_id": "s"}, {"rows": "keep"}):
        found = compressed(stage, agent(33, lines=11), **config)
        assert (found["degraded"], found["messages"]) == ("internal-error", agent(33, lines=11))


def test_an_upstream_that_is_down_is_never_asked(stage: Stage) -> None:
    stage.upstream.reply(error(500))
    assert compressed(stage, agent(30), session_id="s")["action"] == "condensed"
    assert not stage.upstream.journal


@pytest.mark.parametrize("config", [{"session_id": "s"}, {"rows": "free"}, {}])
def test_a_strategy_that_fails_costs_no_answer(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, config: Mapping[str, str]
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("a defect")

    for part in ("mask.Mask.condense", "extract.Extract.condense", "rows.Rows.go_through"):
        monkeypatch.setattr(f"strategies.{part}", fails)
    found = compressed(stage, agent(24), **config)
    assert found["degraded"] == "internal-error"
    assert problems(found["messages"]) == set()
    assert config or found["messages"] == agent(24)


def test_nothing_that_is_stored_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite3"
    with proxy_with_sqlite(path, strategy="mask+extract", **ONE) as stage:
        stage.ask(agent(30), controls(session="s"))
        first = stage.last_view
        compressed(stage, agent(31), session_id="s")
        compressed(stage, chat(60), session_id="s")  # another branch
        compressed(stage, agent(40))
        compressed(stage, agent(30), session_id="s", no_store=True)
        with_others = store_rows(path)
        answer = stage.ask(agent(32), controls(session="s"))
        assert (answer.action, stage.last_view[: len(first)]) == ("replayed", first)
        assert with_others["sessions"] == 1


def test_a_slash_at_the_end_leads_nowhere_else(stage: Stage) -> None:
    body = {"model": stage.model, "messages": agent(2)}
    assert wire.post_json(stage.proxy.url, f"{PATH}/", body).json()["action"] == "passed"
    assert not stage.upstream.journal
