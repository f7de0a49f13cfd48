"""Which controls clients may set is up to the deployment: by header, member of the body or suffix of the model."""

from collections.abc import Iterator
from typing import Any

import pytest

from proxy.controls import KEYS
from tests.http.strict import assert_openai_error
from tests.support.stage import MODEL, Stage, body_of, chat, controls, proxy_with_upstream
from tests.support.wire import Answer

VALUES = {
    "session": "s",
    "strategy": "observe:mask",
    "options": "mask.keep=2",
    "window": "8192",
    "history": "append",
    "if-head": "0-a",
    "memory": "inject",
    "memory-scope": "team",
    "economy": "auto",
    "strict": "true",
    "upstream": "other",
    "force": "true",
    "no-store": "true",
    "dry-run": "true",
}


@pytest.fixture(scope="module")
def closed() -> Iterator[Stage]:
    """A proxy that accepts no control but the session."""
    with proxy_with_upstream(controls={"allow": ["session"]}) as built:
        yield built


def post(stage: Stage, headers: list[tuple[str, str]], model: str = MODEL, **members: Any) -> Answer:
    return stage.post(body_of(chat(1), model, **members), headers)


def assert_refused(answer: Answer, param: str, says: str, stage: Stage) -> None:
    error = assert_openai_error(answer.body)
    assert (answer.status, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert error["message"] == f"{param}{says}"
    assert list(stage.upstream.journal) == []


@pytest.mark.parametrize("key", [key for key in KEYS if key != "session"])
def test_a_control_that_is_not_allowed_is_a_400_that_names_it(key: str, closed: Stage) -> None:
    says = f": this proxy accepts no {key} from clients."
    given = {key: VALUES[key], **({"history": "append"} if key == "if-head" else {})}
    by_header = post(closed, [(f"X-Condenser-{name}", value) for name, value in given.items()])
    by_member = post(closed, [], condenser={name.replace("-", "_"): value for name, value in given.items()})
    assert_refused(by_header, f"X-Condenser-{key.title()}", says, closed)
    assert_refused(by_member, f"condenser.{key.replace('-', '_')}", says, closed)


def test_a_suffix_of_the_model_needs_the_strategy(closed: Stage) -> None:
    answer = post(closed, [], f"{MODEL}@observe:mask")
    assert_refused(answer, "model", ": this proxy accepts no strategy from clients.", closed)


def test_a_body_that_is_not_read_sets_no_controls_either(closed: Stage) -> None:
    packed = [("Content-Encoding", "compress"), *controls(force="true")]
    assert_refused(post(closed, packed), "X-Condenser-Force", ": this proxy accepts no force from clients.", closed)


def test_what_is_allowed_and_what_is_no_control_passes() -> None:
    with proxy_with_upstream(controls={"allow": ["session", "no-store"]}) as stage:
        headers = [*controls(session="mine", no_store="false"), ("X-Condenser-Unheard-Of", "1")]
        answer = post(stage, headers, f"{MODEL}@2024")
        assert (answer.status, answer.session) == (200, "mine")


def test_a_window_may_be_capped() -> None:
    with proxy_with_upstream(controls={"max_window": 8_192}) as stage:
        for answer, param in (
            (post(stage, controls(window=8_193)), "X-Condenser-Window"),
            (post(stage, [], condenser={"window": 999_999_999}), "condenser.window"),
        ):
            assert_refused(answer, param, " may be at most 8,192 at this proxy.", stage)
        assert post(stage, controls(window=8_192)).window == "8192"


def test_clients_may_be_kept_from_strategies_that_ask_a_model() -> None:
    with proxy_with_upstream(controls={"own_calls": False}, strategy="summary") as stage:
        says = ": this proxy lets no client choose half-window, which asks a model."
        assert_refused(post(stage, controls(strategy="mask+half-window")), "X-Condenser-Strategy", says, stage)
        assert_refused(post(stage, [], f"{MODEL}@half-window"), "model", says, stage)
        for strategy in ("mask+extract", "observe:half-window", "off"):
            assert post(stage, controls(strategy=strategy)).strategy == strategy
        assert post(stage, []).strategy == "summary"
