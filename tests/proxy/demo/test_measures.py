"""Cache share, reach and time added, as pure functions."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.demo.measures import CacheUse, Messages, added_ms, cache_use, common_prefix, has_evidence, same_reply


def said(*texts: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text} for text in texts]


def characters(messages: Messages) -> int:
    return sum(len(message["content"]) for message in messages)


def test_the_common_prefix_ends_at_the_first_message_that_differs() -> None:
    assert common_prefix(said("a", "b", "c"), said("a", "x", "c")) == 1


def test_the_common_prefix_of_a_list_and_its_continuation_is_the_whole_list() -> None:
    assert common_prefix(said("a", "b"), said("a", "b", "c")) == 2


def test_a_cache_hits_what_stood_at_the_same_place_in_the_view_before() -> None:
    assert cache_use([said("aaaa"), said("aaaa", "bb")], characters) == CacheUse(hit=4, forwarded=10)


def test_a_cache_hits_nothing_behind_a_changed_message() -> None:
    assert cache_use([said("aaaa", "bb"), said("xxxx", "bb")], characters).hit == 0


def test_a_cache_has_no_share_in_what_was_never_forwarded() -> None:
    assert cache_use([], characters).share == 0.0


def test_what_a_cache_misses_is_the_rest() -> None:
    assert CacheUse(hit=30, forwarded=40).missed == 10
    assert CacheUse(hit=30, forwarded=40).share == 0.75


def test_evidence_reaches_the_model_wherever_it_stands_before_the_question() -> None:
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "read", "arguments": '{"port": 48613}'}}]}
    assert has_evidence([call, *said("which port?")], "48613")
    assert has_evidence([*said("Tür 7 ist zu"), *said("which door?")], "Tür 7")


def test_evidence_that_only_the_question_holds_does_not_count() -> None:
    assert not has_evidence(said("hello", "is it 48613?"), "48613")


def test_the_time_that_the_proxy_added_leaves_the_upstreams_out() -> None:
    assert added_ms("session;dur=1.5, count;dur=2.25, condense;dur=0.25, upstream;dur=900.0") == 4.0


@pytest.mark.parametrize("header", ["", "cdn-cache; desc=HIT", "upstream;dur=3"])
def test_without_our_durations_no_time_is_claimed(header: str) -> None:
    assert added_ms(header) is None


def test_a_reply_is_the_same_where_text_and_calls_are() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    recorded = {"role": "assistant", "content": "", "tool_calls": [call]}
    assert same_reply(recorded, {"role": "assistant", "content": None, "tool_calls": [dict(call)]})
    assert not same_reply(recorded, {"role": "assistant", "content": None})
    assert not same_reply(recorded, {**recorded, "content": "more"})
