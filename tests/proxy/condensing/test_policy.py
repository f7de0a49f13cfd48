"""What applies to one request: strategy, options, window and budget, each from the first source that says it."""

import json
from typing import Any

import pytest

from proxy import config_directory
from proxy.condensing.policy import Policies, Policy, Window
from proxy.controls import Controls, read
from proxy.errors import BadRequest
from proxy.knowledge.profiles import LessonScope
from proxy.settings import Settings
from proxy.tokens.models import ModelTable, StatedWindow
from strategies import Pipeline, parse
from strategies.core.budget import UNLIMITED
from tests.support.chat_bodies import read as read_body

TABLE = ModelTable.load(config_directory() / "models.toml")


def policies(**settings: Any) -> Policies:
    return Policies(Settings(**settings), TABLE)


def lowest_mark(made: Policies, model: str = "m") -> int | None:
    return made.lowest_mark(model, made.basis(None, LessonScope(model)).window, None)


def limit_of(members: dict[str, Any]) -> int | None:
    return read_body(json.dumps({"messages": [{"role": "user"}], **members}).encode()).envelope.reply_limit


def policy(
    made: Policies | None = None, session: dict[str, Any] | None = None, model: str = "m", **given: Any
) -> Policy:
    reply_limit = given.pop("reply_limit", None)
    return (made or policies()).policy(Controls(**given), session or {}, LessonScope(model), reply_limit)


def pipeline(text: str) -> Pipeline:
    found = parse(text)
    assert found is not None
    return found


@pytest.mark.parametrize(("own", "mode"), [(None, "idle"), ("on", "on"), ("off", "off")])
def test_a_models_background_comes_before_that_of_the_settings(own: object, mode: str) -> None:
    made = policies(background={"mode": "idle"}, models=[{"match": "m", "background": own}])
    assert policy(made).background == mode
    assert policy(made).prepares is (mode != "off")
    assert policy(made, model="other").background == "idle"


def test_strategy_order_is_request_session_model_settings_and_its_ladder() -> None:
    made = policies(strategy="extract", models=[{"match": "q*", "strategy": "recent"}])
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
    made = policies(mask={"keep": 5, "min_tokens": 90})
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
        policies().policy(read([], body, None), {}, LessonScope("m"))
    assert raised.value.param == "condenser.options"


def test_a_first_stage_that_is_always_shown_text_reads_nothing_from_the_cache() -> None:
    made = policies(summarizer={"form": "continue"})
    assert policy(made, strategy=pipeline("half-window")).continues_first
    assert not policy(made, strategy=pipeline("rolling")).continues_first
    assert not policy(made, strategy=pipeline("mask+half-window")).continues_first


def test_the_judge_is_never_the_summarizer() -> None:
    made = policies(
        summarizer={"model": "writer"}, judge={"model": "general"}, models=[{"match": "q*", "judge": {"model": "own"}}]
    )
    assert policy(made, model="qwen").roles["judge"].model == "own"
    assert policy(made, model="gpt").roles["judge"].model == "general"
    assert policy(policies(summarizer={"model": "writer"}), model="gpt").roles["judge"].model is None
    assert policy(made, model="gpt").roles["summarizer"].model == "writer"


def test_window_order_is_request_model_settings_table() -> None:
    made = policies(window=9_000, models=[{"match": "q*", "window": 7_000}])
    assert made.window(5_000, LessonScope("qwen")) == Window(5_000, "request")
    assert made.window(None, LessonScope("qwen")) == Window(7_000, "settings for 'q*'")
    assert made.window(None, LessonScope("gpt-4o")) == Window(9_000, "settings")
    assert policies().window(None, LessonScope("gpt-4o")) == Window(128_000, "bundled table")


def test_a_window_that_is_unknown_or_stated_later_changes_the_policy() -> None:
    made = policies()
    assert str(made.window(None, LessonScope("no-such-model"))) == "unknown"
    bounded = policy(made, model="no-such-model").budget
    assert bounded is not None
    assert (bounded.trigger, bounded.fits) == (200_000, UNLIMITED)
    none = policies(marks={"most": 0})
    assert policy(none, model="no-such-model").budget is None
    assert lowest_mark(none, "no-such-model") is None
    stated: list[StatedWindow] = []
    made = Policies(Settings(), TABLE, lambda _: stated[-1] if stated else None)
    assert policy(made, model="local").window.tokens is None
    stated.append(StatedWindow(9_000, None, "llama.cpp"))
    assert policy(made, model="local").window.tokens == 9_000


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
    budget = policy(policies(window=8_000, **settings), reply_limit=limit_of(body)).budget
    assert budget is not None
    assert budget.reserve == reserve


def test_marks_are_the_models_the_strategys_or_the_settings() -> None:
    made = policies(window=8_000, marks={"reserve": 0}, models=[{"match": "q*", "marks": {"trigger": 0.5}}])
    own, general = policy(made, model="qwen").budget, policy(made).budget
    assert own is not None
    assert general is not None
    assert (own.trigger, general.trigger) == (4_000, 6_800)
    capped = policy(policies(window=8_000, ledger={"said_max_tokens": 7})).budget
    assert capped is not None
    assert capped.ledger.said == 7
    made = policies(window=100_000, marks={"reserve": 0, "prepare": 0.3, "trigger": 0.4})
    budgets = [policy(made, strategy=pipeline(name)).budget for name in ("half-window", "mask+rolling")]
    assert [budget and budget.trigger for budget in budgets] == [40_000, 80_000]
    assert [budget and budget.target for budget in budgets] == [32_000, 60_000]
    assert lowest_mark(policies(window=8_000, marks={"reserve": 0, "prepare": 0.3})) == 2_400
    # A strategy may have a trigger of its own from half of usable on, and the session's is not known yet.
    assert lowest_mark(policies(window=8_000, marks={"reserve": 0})) == 4_000


def test_a_length_counts_only_where_it_is_a_positive_whole_number() -> None:
    assert limit_of({"max_tokens": 5}) == limit_of({"max_tokens": 5, "max_completion_tokens": None}) == 5
    assert limit_of({"max_tokens": 5, "max_completion_tokens": 6}) == 6
    assert {limit_of({"max_tokens": odd}) for odd in (None, True, "5", 0, -5, 5.0)} == {None}


def test_a_stated_window_goes_before_the_bundled_table() -> None:
    stated = StatedWindow(4_096, 3_000, "stated by TGI")
    told, set_too = (
        Policies(given, TABLE, {LessonScope("gpt-4o"): stated}.get) for given in (Settings(), Settings(window=9_000))
    )
    assert told.window(None, LessonScope("gpt-4o")) == Window(4_096, "stated by TGI", 3_000)
    assert told.window(None, LessonScope("gpt-4")) == Window(8_192, "bundled table")
    assert told.window(5_000, LessonScope("gpt-4o")) == Window(5_000, "request")
    assert set_too.window(None, LessonScope("gpt-4o")).tokens == 9_000


def test_a_ceiling_lowers_the_bundled_table_and_stands_where_it_has_nothing() -> None:
    def window(model: str, ceiling: int) -> Window:
        stated = StatedWindow(ceiling, None, "a maximum listed by the upstream", is_ceiling=True)
        return Policies(Settings(), TABLE, {LessonScope(model): stated}.get).window(None, LessonScope(model))

    assert window("gpt-4o", 4_096).tokens == 4_096
    assert window("gpt-4o", 1_000_000) == Window(128_000, "bundled table")
    assert window("novel", 4_096).tokens == 4_096
    assert not window("novel", 4_096).is_known


@pytest.mark.parametrize(
    ("model", "is_long", "tokens"),
    [
        ("claude-sonnet-4-5", True, 1_000_000),
        ("claude-sonnet-4-5[1m]", False, 1_000_000),
        ("claude-sonnet-4-5", False, 200_000),
        ("claude-haiku-4-5[1m]", True, 200_000),
        ("claude-opus-4-7[1m]", True, 1_000_000),
        ("novel[1m]", True, None),
    ],
)
def test_a_million_tokens_are_given_where_asked_for_and_possible(model: str, is_long: bool, tokens: int | None) -> None:
    scope = LessonScope(model)
    stated = StatedWindow(200_000, None, "stated by the upstream")
    for discovered in ({}, {LessonScope("claude-sonnet-4-5"): stated}):
        known = Policies(Settings(), TABLE, discovered.get)
        assert known.window(None, scope, is_long=is_long).tokens == tokens
    assert known.window(5_000, scope, is_long=is_long).tokens == 5_000


def test_only_equal_requests_share_a_policy() -> None:
    made = policies(strategy="mask")
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
