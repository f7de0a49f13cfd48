"""An upstream that answers well and has silently read only the newest part of the prompt."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from tests.http.talking import MODEL, Stage, asked, count, counter, garden, is_own, staged, summary, workshop
from tests.support import replies, wire
from tests.support.recording import CHAT, Exchange
from tests.support.replies import Reply

KEPT = 4_096
RULE = "Never water at noon"


def read_by_upstream(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The newest messages that have `KEPT` tokens: what an upstream reads that says nothing of the others."""
    left = KEPT - counter().overhead(body)
    newest: list[Mapping[str, Any]] = []
    for message in reversed(body["messages"]):
        left -= counter().message(message)
        if left < 0:
            break
        newest.insert(0, message)
    return newest


@contextmanager
def forgetful(*, streams: bool = False, **settings: Any) -> Iterator[Stage]:
    """A proxy before an upstream that keeps the newest part of each prompt, and counts what it keeps."""

    def answer(exchange: Exchange) -> Reply | None:
        if exchange.path != CHAT:
            return None
        if is_own(exchange):
            return summary()
        body = exchange.json()
        used = count({**body, "messages": read_by_upstream(body)})
        if not body.get("stream"):
            return replies.completion("fine", tokens=(used, 2))
        wanted = (body.get("stream_options") or {}).get("include_usage")
        ending = [replies.usage_chunk(used, 2)] if wanted else []
        return replies.stream(*replies.text_chunks("fine"), *ending)

    with staged(**{"window": None, **settings}) as stage:
        stage.upstream.answer(answer)
        yield stage


def over_long(stage: Stage, turns: Sequence[int], **members: Any) -> list[wire.Answer]:
    return [stage.ask(garden(rounds, words=95), asked(session="s"), **members) for rounds in turns]


def is_whole(exchange: Exchange) -> bool:
    body = exchange.json()
    return len(read_by_upstream(body)) == len(body["messages"])


@pytest.mark.parametrize("members", [{}, {"stream": True, "stream_options": {"include_usage": True}}])
def test_from_the_third_over_long_request_on_nothing_is_truncated(members: dict[str, Any]) -> None:
    with forgetful() as stage:
        answers = over_long(stage, range(20, 240, 5), **members)

        assert [is_whole(each) for each in stage.forwarded[:2]] == [False, False]
        assert all(map(is_whole, stage.forwarded[2:]))
        for each in stage.forwarded:
            assert RULE in json.dumps(each.json()["messages"])
        assert answers[2].header("x-condenser-reason") == "silent-truncation"
        assert answers[2].header("x-condenser-action") == "condensed"
        assert int(answers[2].header("x-condenser-window") or 0) <= KEPT
        assert answers[3].header("x-condenser-reason") != "silent-truncation"


def test_a_conversation_that_grows_turn_by_turn_loses_nothing_after_its_second_over_long_request() -> None:
    with forgetful() as stage:
        over_long(stage, range(8, 30))
        cut = [place for place, each in enumerate(stage.forwarded) if not is_whole(each)]
        assert len(cut) == 2
        assert len(stage.forwarded) > max(cut) + 3 * len(cut)


def test_one_sign_alone_changes_nothing() -> None:
    with forgetful() as stage:
        over_long(stage, [40])
        answer = stage.ask(garden(40, words=95), asked(session="s"))

        assert answer.header("x-condenser-window") == "unknown"
        assert stage.forwarded[-1].json()["messages"] == garden(40, words=95)


def test_one_line_names_the_setting_that_raises_the_window(caplog: pytest.LogCaptureFixture) -> None:
    with forgetful() as stage, caplog.at_level("WARNING", "proxy.reply.watching"):
        over_long(stage, [40, 50, 60, 70])

    (line,) = [each.getMessage() for each in caplog.records if each.name == "proxy.reply.watching"]
    assert "num_ctx" in line
    assert MODEL in line


def test_a_usage_that_leaves_out_what_was_cached_is_no_truncation() -> None:
    """Some servers count only what they had to read anew: that goes with what is new, not with a window."""
    with staged(window=None) as stage:
        before = 0

        def answer(exchange: Exchange) -> Reply | None:
            nonlocal before
            if exchange.path != CHAT:
                return None
            used = count(exchange.json())
            new, before = used - before, used
            return replies.completion("fine", tokens=(new, 2))

        stage.upstream.answer(answer)
        for rounds in range(10, 200, 3):
            answer_ = stage.ask(garden(rounds, words=95), asked(session="s"))
            assert answer_.header("x-condenser-window") == "unknown"


def test_a_server_that_invents_its_usage_is_not_taken_for_one_with_a_tiny_window(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Stubs and some gateways say the same round number whatever they were sent; people hear of that once."""
    with staged(window=None) as stage, caplog.at_level("INFO", "proxy.reply.watching"):
        stage.upstream.answer(
            lambda exchange: replies.completion("fine", tokens=(1_000, 2)) if exchange.path == CHAT else None
        )
        for rounds in range(40, 52, 2):
            answer = stage.ask(garden(rounds, words=95), asked(session="s"))
            assert answer.header("x-condenser-window") == "unknown"
            assert stage.forwarded[-1].json()["messages"] == garden(rounds, words=95)

    said = [each.getMessage() for each in caplog.records if each.name == "proxy.reply.watching"]
    assert len(said) == 1


def _with_shorter_systems(stage: Stage) -> None:
    """An agent that lists the files it has open, now many and now few."""
    for rounds, files in ((8, 400), (9, 5), (12, 400), (13, 5), (16, 400), (17, 5)):
        system = {"role": "system", "content": "Open files:\n" + "\n".join(f"src/{each}.py" for each in range(files))}
        stage.ask([system, *garden(rounds)[1:]], asked(session="s"))


def _with_calls_that_offer_no_tools(stage: Stage) -> None:
    tools = [{"type": "function", "function": {"name": f"f{each}", "description": "does " * 60}} for each in range(30)]
    for rounds in (12, 15, 18):
        stage.ask(garden(rounds), asked(session="s"), tools=tools)
        stage.ask(garden(rounds + 1), asked(session="s"))


def _with_a_trimming_client(stage: Stage) -> None:
    for rounds in (5, 12, 13):
        stage.ask(garden(rounds), asked(session="s", window=4_096))
    for rounds in range(14, 22):
        stage.ask(garden(rounds)[-9:], asked(session="s", window=4_096))


@pytest.mark.parametrize("talk", [_with_shorter_systems, _with_calls_that_offer_no_tools, _with_a_trimming_client])
def test_a_prompt_that_has_become_shorter_is_not_taken_for_a_truncated_one(talk: Callable[[Stage], None]) -> None:
    with staged(window=32_768, store={"content": "digests"}, background={"mode": "off"}) as stage:
        talk(stage)
        metrics = wire.request(stage.proxy.url, "GET", "/metrics").body.decode()
        assert "condenser_truncations_total{" not in metrics


def _thinking(turns: int) -> Iterator[list[Mapping[str, Any]]]:
    """The requests of an agent whose client sends its reasoning back: some rounds, then the next question."""
    messages: list[Mapping[str, Any]] = []
    for turn in range(turns):
        for message in workshop(6, lines=4)[1:]:
            thought = {"reasoning_content": f"{turn} hinges? " * 60} if message["role"] == "assistant" else {}
            messages.append({**message, **thought})
            if message["role"] != "assistant":
                yield list(messages)


def test_reasoning_that_a_template_leaves_out_of_later_turns_is_no_truncation() -> None:
    def read(exchange: Exchange) -> Reply | None:
        body = exchange.json()
        last = max(at for at, each in enumerate(body["messages"]) if each["role"] == "user")
        thoughts = [{"role": "user", "content": each.get("reasoning_content", "")} for each in body["messages"][last:]]
        return replies.completion("fine", tokens=(count(body) + sum(map(counter().message, thoughts)), 2))

    with staged(window=None) as stage:
        stage.upstream.answer(lambda exchange: read(exchange) if is_chat(exchange) else None)
        for messages in _thinking(5):
            stage.ask(messages, asked(session="s"))
        metrics = wire.request(stage.proxy.url, "GET", "/metrics").body.decode()
        assert "condenser_truncations_total{" not in metrics


@pytest.mark.parametrize("share", [0.8, 1.1, 1.5])
def test_the_same_prompt_counted_the_same_is_no_sign(share: float) -> None:
    """What is learned of the first reply changes what is expected of the second."""
    with staged(window=16_384) as stage:
        stage.upstream.answer(
            lambda exchange: (
                replies.completion("fine", tokens=(int(count(exchange.json()) * share), 2))
                if is_chat(exchange)
                else None
            )
        )
        for session in ("s", "s", "s", "another"):
            stage.ask(garden(12), asked(session=session))
        metrics = wire.request(stage.proxy.url, "GET", "/metrics").body.decode()
        assert "condenser_truncations_total{" not in metrics


def test_suspicions_and_confirmations_are_counted() -> None:
    with forgetful() as stage:
        over_long(stage, [40, 50])
        text = wire.request(stage.proxy.url, "GET", "/metrics").body.decode()
        assert 'condenser_truncations_total{standing="suspect"} 1.0' in text
        assert 'condenser_truncations_total{standing="confirmed"} 1.0' in text


def test_an_upstream_with_a_tokenizer_of_its_own_is_not_taken_for_one_that_truncates() -> None:
    """Nothing is known of it when the first request comes, and each of its counts is far below ours."""
    with staged(window=None) as stage:

        def answer(exchange: Exchange) -> Reply | None:
            return (
                replies.completion("fine", tokens=(count(exchange.json()) * 6 // 10, 2)) if is_chat(exchange) else None
            )

        stage.upstream.answer(answer)
        for rounds in range(30, 90, 4):
            assert stage.ask(garden(rounds, words=95), asked(session="s")).header("x-condenser-window") == "unknown"
        metrics = wire.request(stage.proxy.url, "GET", "/metrics").body.decode()
        assert 'truncations_total{standing="confirmed"}' not in metrics


def test_a_suspect_reply_teaches_nothing_of_how_the_upstream_counts() -> None:
    with forgetful(window=100_000) as stage:
        first, again = over_long(stage, [55]), over_long(stage, [55])
        assert first[0].header("x-condenser-headroom") == again[0].header("x-condenser-headroom")


def is_chat(exchange: Exchange) -> bool:
    return exchange.path == CHAT
