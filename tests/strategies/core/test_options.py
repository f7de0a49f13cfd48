"""Options from text: types, bounds, names."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from strategies import DEFAULT, TABLE, Pipeline, options_by_stage, parse, stages
from strategies.core.errors import OptionError
from strategies.core.protocol import Options, Value, expand_mode, fill_options, option


@dataclass(frozen=True, slots=True)
class Example(Options):
    count: int = option(3, 1, 10)
    share: float = option(0.5, 0, 1)
    eager: bool = option(False)
    mode: str = option("drop", one_of="drop keep")
    note: str = option("")


@dataclass(frozen=True, slots=True)
class WithModes(Options):
    mode: str = option("plain", one_of="plain short")
    count: int = option(3)
    note: str = option("")

    def preset(self, mode: str) -> Mapping[str, Value]:
        return {"count": 1, "note": "brief"} if mode == "short" else {}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("count", "7", 7),
        ("count", 7, 7),
        ("count", 7.0, 7),
        ("share", "0.25", 0.25),
        ("share", 1, 1.0),
        ("eager", "true", True),
        ("eager", "ON", True),
        ("eager", "0", False),
        ("eager", True, True),
        ("mode", "keep", "keep"),
        ("note", "anything at all", "anything at all"),
    ],
)
def test_a_text_becomes_a_value_of_the_defaults_type(name: str, text: object, value: object) -> None:
    found = getattr(fill_options(Example(), {name: text}), name)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("count", "0", "a whole number at least 1 and at most 10"),
        ("count", "11", "a whole number at least 1 and at most 10"),
        ("count", "2.5", "a whole number"),
        ("count", 2.5, "a whole number"),
        ("count", True, "a whole number"),
        ("count", None, "a whole number"),
        ("count", float("inf"), "a whole number"),
        ("share", "nan", "a number at least 0 and at most 1"),
        ("share", "-0.1", "a number at least 0"),
        ("share", [], "a number"),
        ("eager", "maybe", "true or false"),
        ("mode", "lose", "one of drop, keep"),
        ("note", True, "a text"),
    ],
)
def test_a_wrong_value_is_refused_with_what_would_be_right(name: str, text: object, wanted: str) -> None:
    with pytest.raises(OptionError) as refused:
        fill_options(Example(), {name: text})
    assert f"'{name}'" in refused.value.detail
    assert wanted in refused.value.detail


def test_an_unknown_name_is_refused_with_the_nearest_and_all_known_ones() -> None:
    message = "unknown option 'cuont'; did you mean 'count'? Known: count, share, eager, mode, note"
    with pytest.raises(OptionError, match=re.escape(message)):
        fill_options(Example(), {"cuont": 1})
    with pytest.raises(OptionError, match="known: none"):
        fill_options(Options(), {"count": 1})


def test_options_beside_a_mode_come_first() -> None:
    options = WithModes()
    assert expand_mode(options, {"mode": "short", "count": 2}) == {"mode": "short", "count": 2, "note": "brief"}
    assert expand_mode(options, {"mode": "plain", "count": 2}) == {"mode": "plain", "count": 2}
    assert expand_mode(options, {"count": 2}) == {"count": 2}
    assert expand_mode(Example(), {"mode": "keep"}) == {"mode": "keep"}


@pytest.mark.parametrize("name", TABLE)
def test_the_defaults_of_every_strategy_are_within_their_own_bounds(name: str) -> None:
    defaults = TABLE[name].options
    values = {each: getattr(defaults, each) for each in defaults.__dataclass_fields__}
    assert fill_options(defaults, values) == defaults


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mask", Pipeline(("mask",))),
        ("mask+half-window", Pipeline(("mask", "half-window"))),
        ("mask + recent", Pipeline(("mask", "recent"))),
        ("observe:mask", Pipeline(("mask",), observe=True)),
        ("off", Pipeline(("off",))),
        ("off+mask", None),
        ("", None),
        ("mask+", None),
        ("Mask", None),
        ("observe:", None),
        ("gpt-4o", None),
    ],
)
def test_a_pipeline_is_a_list_of_known_names(text: str, expected: Pipeline | None) -> None:
    assert parse(text) == expected


def test_a_pipeline_is_written_as_it_is_read() -> None:
    for text in (DEFAULT, "off", "observe:mask+recent"):
        assert str(parse(text)) == text


def test_an_option_names_its_stage_or_belongs_to_one_only() -> None:
    pipeline = Pipeline(("mask", "half-window", "shorten"))
    found = options_by_stage(pipeline, {"mask.keep": 2, "min_rounds": 5, "shorten.min_tokens": 90})
    assert found == {"mask": {"keep": 2}, "half-window": {"min_rounds": 5}, "shorten": {"min_tokens": 90}}


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("min_tokens", "'min_tokens' belongs to mask and shorten; write 'mask.min_tokens'"),
        ("recent.keep", "names a stage that is not in 'mask"),
        ("kepe", "unknown option 'kepe'; did you mean 'mask.keep'? Known: mask.keep"),
        ("min_runds", "did you mean 'half-window.min_rounds'?"),
        ("MIN_ROUNDS", "did you mean 'half-window.min_rounds'?"),
        ("voting_k", "'voting_k' is an option of dynacontext, not of a stage of 'mask+half-window+shorten'"),
    ],
)
def test_an_option_that_is_not_unique_or_unknown_is_refused(key: str, message: str) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        options_by_stage(Pipeline(("mask", "half-window", "shorten")), {key: 1})


def test_options_of_the_request_come_before_those_of_the_settings() -> None:
    (mask,) = stages(["mask"], {"mask": {"keep": 2}}, {"mask": {"keep": 5, "min_tokens": 99}})
    assert (mask.options.keep, mask.options.min_tokens) == (2, 99)  # type: ignore[attr-defined]


def test_a_wrong_option_is_refused_when_stages_are_made() -> None:
    with pytest.raises(OptionError, match="'keep' must be a whole number at least 1"):
        stages(["mask"], {"mask": {"keep": 0}}, {})


@pytest.mark.parametrize("prefix", ["", "dynacontext."])
def test_a_name_in_capitals_leads_to_the_option(prefix: str) -> None:
    pipeline = parse("dynacontext")
    assert pipeline is not None
    with pytest.raises(OptionError, match=r"did you mean '(dynacontext\.)?voting_k'"):
        stages(pipeline.names, options_by_stage(pipeline, {f"{prefix}VOTING_K": 3}), {})
