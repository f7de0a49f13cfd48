"""What applies to one request: strategy, options, window and budget, each from the first source that says it."""

import json
from typing import Any

import pytest

from proxy.condensing.policy import Policies, Policy
from proxy.controls import Controls, read
from proxy.errors import BadRequest
from proxy.settings import Settings
from strategies import Pipeline, parse
from strategies.core.budget import UNLIMITED
from tests.support.chat_bodies import read as read_body
from tests.support.servers import TABLE, server_of, window_of


class Made:
    """The policies of some settings."""

    def __init__(self, **settings: Any) -> None:
        self.settings, self.now = Settings(**settings), 0.0
        self.policies = Policies(self.settings, TABLE, lambda: self.now)


def lowest_mark(made: Made, model: str = "m") -> int | None:
    return made.policies.lowest_mark(model, window_of(made.settings, model), None)


def limit_of(members: dict[str, Any]) -> int | None:
    return read_body(json.dumps({"messages": [{"role": "user"}], **members}).encode()).envelope.reply_limit


def policy(made: Made | None = None, session: dict[str, Any] | None = None, model: str = "m", **given: Any) -> Policy:
    reply_limit = given.pop("reply_limit", None)
    made, controls = made or Made(), Controls(**given)
    return made.policies.policy(controls, session or {}, server_of(made.settings, model, controls.window), reply_limit)


def pipeline(text: str) -> Pipeline:
    found = parse(text)
    assert found is not None
    return found


@pytest.mark.parametrize(("own", "mode"), [(None, "idle"), ("on", "on"), ("off", "off")])
def test_a_models_background_comes_before_that_of_the_settings(own: object, mode: str) -> None:
    made = Made(background={"mode": "idle"}, models=[{"match": "m", "background": own}])
    assert policy(made).background == mode
    assert policy(made).prepares is (mode != "off")
    assert policy(made, model="other").background == "idle"


def test_strategy_order_is_request_session_model_settings_and_its_ladder() -> None:
    made = Made(strategy="extract", models=[{"match": "q*", "strategy": "recent"}])
    assert str(policy(made).pipeline) == "extract"
    assert str(policy(made, model="qwen").pipeline) == "recent"
    assert str(policy(made, {"strategy": "shorten"}, "qwen").pipeline) == "shorten"
    assert str(policy(made, {"strategy": "shorten"}, "qwen", strategy=pipeline("mask")).pipeline) == "mask"
    assert policy(strategy=pipeline("off")).ladder == ()
    assert [stage.name for stage in policy().ladder] == ["extract", "recent", "shorten"]


def test_what_the_request_says_sticks_and_what_the_settings_say_does_not() -> None:
    assert policy().session_settings == {}
    stuck = policy(strategy=pipeline("mask"), options={"keep": "2"}).session_settings
    assert stuck == {"strategy": "mask", "options": {"keep": "2"}}
    assert policy(session=dict(stuck)).session_settings == stuck
    found = policy(session={"strategy": "mask"}, strategy=pipeline("off"))
    assert found.pipeline.is_off
    assert found.session_settings == {"strategy": "mask"}
    found = policy(session={"strategy": "mask", "options": {"keep": 5}}, strategy=pipeline("recent"))
    assert found.session_settings == {"strategy": "recent", "options": {}}
    found = policy(session={"strategy": "mask"}, options={"keep": "7"})
    assert found.session_settings["options"] == {"keep": "7"}
    assert options_of(found)["keep"] == 7


def options_of(found: Policy, stage: int = 0) -> dict[str, Any]:
    made: Any = found.stages[stage]
    return {name: getattr(made.options, name) for name in made.options.__dataclass_fields__}


def test_option_order_is_request_settings_defaults() -> None:
    made = Made(mask={"keep": 5, "min_tokens": 90})
    found = policy(made, strategy=pipeline("mask"), options={"keep": "2"})
    assert options_of(found) == {"keep": 2, "min_tokens": 90, "min_chars": 400, "paths": 0.4}
    two = pipeline("half-window+extract")
    found = policy(strategy=two, options={"extract.max_tokens": "200", "min_rounds": 6})
    assert (options_of(found)["min_rounds"], options_of(found, 1)["max_tokens"]) == (6, 200)


@pytest.mark.parametrize(
    "options", [{"no_such": 1}, {"recent.keep": 1}, {"mask.no_such": 1}, {"keep": "x"}, {"keep": 0}, {"keep": None}]
)
def test_an_option_that_does_not_fit_is_a_400(options: dict[str, object]) -> None:
    with pytest.raises(BadRequest) as raised:
        policy(strategy=pipeline("mask"), options=options)
    assert raised.value.param == "X-Condenser-Options"


def test_an_option_that_does_not_fit_is_named_as_in_the_body() -> None:
    body = {"strategy": "mask", "options": {"no_such": 1}}
    with pytest.raises(BadRequest, match=r"^condenser\.options") as raised:
        Made().policies.policy(read([], body, None), {}, server_of(Settings()))
    assert raised.value.param == "condenser.options"


def test_a_first_stage_that_is_always_shown_text_reads_nothing_from_the_cache() -> None:
    made = Made(summarizer={"form": "continue"})
    assert policy(made, strategy=pipeline("half-window")).continues_first
    assert not policy(made, strategy=pipeline("rolling")).continues_first
    assert not policy(made, strategy=pipeline("mask+half-window")).continues_first


def test_the_judge_is_never_the_summarizer() -> None:
    made = Made(
        summarizer={"model": "writer"}, judge={"model": "general"}, models=[{"match": "q*", "judge": {"model": "own"}}]
    )
    assert policy(made, model="qwen").roles["judge"].model == "own"
    assert policy(made, model="gpt").roles["judge"].model == "general"
    assert policy(Made(summarizer={"model": "writer"}), model="gpt").roles["judge"].model is None
    assert policy(made, model="gpt").roles["summarizer"].model == "writer"


def test_an_unknown_window_has_the_bound_of_the_operator_and_no_other() -> None:
    bounded = policy(Made(), model="no-such-model").budget
    assert bounded is not None
    assert (bounded.trigger, bounded.fits) == (200_000, UNLIMITED)
    none = Made(marks={"most": 0})
    assert policy(none, model="no-such-model").budget is None
    assert lowest_mark(none, "no-such-model") is None


@pytest.mark.parametrize("pays", [True, False])
def test_a_step_of_the_bundled_prices_counts_for_those_who_pay_them(pays: bool) -> None:
    made = Made(marks={"most": 0})
    server = server_of(made.settings, "claude-haiku-5-5")._replace(pays_list_prices=pays)
    budget = made.policies.policy(Controls(), {}, server).budget
    assert budget is not None
    assert budget.trigger == (100_000 if pays else 846_518)


@pytest.mark.parametrize(
    ("settings", "body", "reserve"),
    [
        ({}, {}, 1_000),
        ({"marks": {"reserve": 200}}, {}, 200),
        ({"marks": {"reserve": 7_000}}, {}, 4_000),
        ({"marks": {"reserve": 200}}, {"max_tokens": 500}, 500),
        ({}, {"max_tokens": 500, "max_completion_tokens": 700}, 700),
        ({}, {"max_completion_tokens": 100_000}, 4_000),
        ({"models": [{"match": "m", "reserve": 300}], "marks": {"reserve": 200}}, {}, 300),
        ({"models": [{"match": "m", "reserve": 0}], "marks": {"reserve": 200}}, {}, 0),
    ],
)
def test_a_reserve_is_asked_set_or_an_eighth(settings: dict[str, Any], body: dict[str, Any], reserve: int) -> None:
    budget = policy(Made(window=8_000, **settings), reply_limit=limit_of(body)).budget
    assert budget is not None
    assert budget.reserve == reserve


def test_marks_are_the_models_the_strategys_or_the_settings() -> None:
    made = Made(window=8_000, marks={"reserve": 0}, models=[{"match": "q*", "marks": {"trigger": 0.5}}])
    own, general = policy(made, model="qwen").budget, policy(made).budget
    assert own is not None
    assert general is not None
    assert (own.trigger, general.trigger) == (4_000, 6_800)
    capped = policy(Made(window=8_000, ledger={"said_max_tokens": 7})).budget
    assert capped is not None
    assert capped.ledger.said == 7
    made = Made(window=100_000, marks={"reserve": 0, "prepare": 0.3, "trigger": 0.4})
    budgets = [policy(made, strategy=pipeline(name)).budget for name in ("half-window", "mask+rolling")]
    assert [budget and budget.trigger for budget in budgets] == [40_000, 80_000]
    assert [budget and budget.target for budget in budgets] == [32_000, 60_000]
    assert lowest_mark(Made(window=8_000, marks={"reserve": 0, "prepare": 0.3})) == 2_400
    # A strategy may have a trigger of its own from half of usable on, and the session's is not known yet.
    assert lowest_mark(Made(window=8_000, marks={"reserve": 0})) == 4_000


def test_a_length_counts_only_where_it_is_a_positive_whole_number() -> None:
    assert limit_of({"max_tokens": 5}) == limit_of({"max_tokens": 5, "max_completion_tokens": None}) == 5
    assert limit_of({"max_tokens": 5, "max_completion_tokens": 6}) == 6
    assert {limit_of({"max_tokens": odd}) for odd in (None, True, "5", 0, -5, 5.0)} == {None}


def test_only_equal_requests_share_a_policy() -> None:
    made = Made(strategy="mask")
    first = policy(made, options={"mask.keep": "3"})
    assert policy(made, options={"mask.keep": "3"}) is first
    given: tuple[dict[str, Any], ...] = (
        {"options": {"mask.keep": "4"}},
        {"options": {"mask.keep": "3"}, "window": 9_000},
        {"options": {"mask.keep": "3"}, "no_store": True},
        {"options": {"mask.keep": "3"}, "reply_limit": 7},
        {"options": {"mask.keep": "3"}, "model": "other"},
        {"options": {"mask.keep": "3"}, "session": {"memory": "off"}},
    )
    assert all(policy(made, **each) is not first for each in given)


def test_prices_that_are_announced_for_a_day_hold_from_then_on_in_a_proxy_that_runs() -> None:
    made, model = Made(), "gemini-4-argon"
    change = made.policies.table.next_change(0)
    found = []
    for made.now in (0.0, change - 1, change):
        found.append(policy(made, model=model).costs.input)
    assert found == [2.0, 2.0, 4.0]


NEWEST = (
    *("claude-fable-5-2", "claude-mythos-5-2", "claude-opus-5-5", "claude-sonnet-5-5", "claude-haiku-5-5"),
    *("claude-fable-5-1", "gpt-6.2-sol", "gpt-6.2-astra", "gpt-6.1-sol", "gpt-6.1-terra", "gpt-6-astra", "gpt-6-sol"),
    *("gpt-6-luna", "gpt-6-cyber", "gemini-4-argon", "gemini-4-carbon", "gemini-4-hydrogen", "gemini-4-neon"),
    *("gemini-3.8-flash", "hy4", "minimax-m3.1-flash", "deepseek-v4-pro", "glm-5", "kimi-k2.7-code-highspeed"),
)


def test_a_window_or_marks_most_acts_on_each_of_the_newest_models() -> None:
    triggers = {model: budget.trigger for model in NEWEST if (budget := policy(model=model).budget) is not None}
    assert len(triggers) == len(NEWEST) == 24
    assert max(triggers.values()) <= 200_000
