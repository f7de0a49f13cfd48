"""An upstream that answers well and has silently read only the newest part of the prompt."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support import replies, wire
from tests.support.recording import CHAT, Exchange
from tests.support.replies import Reply
from tests.support.stage import MODEL, Stage, agent, asked, chat, count, counter, is_own, staged, summary
from tests.support.upstream import ScriptedUpstream

KEPT = 4_096
RULE = "Never water at noon"


def read_by_upstream(body: Mapping[str, Any]) -> int:
    """Tokens that an upstream reads which keeps the newest ones that fit into its window, and says nothing."""
    return min(count(body), KEPT)


@contextmanager
def forgetful(*, streams: bool = False, **settings: Any) -> Iterator[Stage]:
    """A proxy before an upstream that keeps the newest tokens of each prompt, as Ollama does, and counts these."""

    def answer(exchange: Exchange) -> Reply | None:
        if exchange.path != CHAT:
            return None
        if is_own(exchange):
            return summary()
        body = exchange.json()
        used = read_by_upstream(body)
        if not body.get("stream"):
            return replies.completion("fine", tokens=(used, 2))
        wanted = (body.get("stream_options") or {}).get("include_usage")
        ending = [replies.usage_chunk(used, 2)] if wanted else []
        return replies.stream(*replies.text_chunks("fine"), *ending)

    with staged(**{"window": None, **settings}) as stage:
        stage.upstream.answer(answer)
        yield stage


def over_long(stage: Stage, turns: Sequence[int], **members: Any) -> list[wire.Answer]:
    return [stage.ask(chat(rounds, words=95), asked(session="s"), **members) for rounds in turns]


def is_whole(exchange: Exchange) -> bool:
    return count(exchange.json()) <= KEPT


STREAMED = {"stream": True, "stream_options": {"include_usage": True}}


@pytest.mark.parametrize("members", [{}, STREAMED], ids=["whole", "streamed"])
def test_from_the_fourth_over_long_request_on_nothing_is_truncated(members: dict[str, Any]) -> None:
    with forgetful() as stage:
        answers = over_long(stage, range(20, 240, 5), **members)

        assert not any(map(is_whole, stage.forwarded[:3]))
        assert all(map(is_whole, stage.forwarded[3:]))
        for each in stage.forwarded:
            assert RULE in json.dumps(each.json()["messages"])
        assert answers[3].header("x-condenser-reason") == "silent-truncation"
        assert answers[3].header("x-condenser-action") == "condensed"
        assert answers[3].header("x-condenser-window") == str(KEPT)
        assert answers[4].header("x-condenser-reason") != "silent-truncation"


def test_what_truncated_replies_taught_of_the_tokenizer_is_dropped_with_the_proof() -> None:
    """Three requests that are five times too long: as counts they would make each token look like a fifth of one."""
    with forgetful() as stage:
        over_long(stage, (50, 60, 70, 71))
        assert is_whole(stage.forwarded[-1])
        headroom = int(stage.ask(chat(72, words=95), asked(session="s")).header("x-condenser-headroom") or 0)
        assert headroom == pytest.approx(KEPT * 7 // 8 - count(stage.forwarded[-1].json()), rel=0.05)


def test_a_conversation_that_grows_turn_by_turn_loses_nothing_once_truncation_is_proven() -> None:
    with forgetful() as stage:
        over_long(stage, range(8, 40))
        cut = [place for place, each in enumerate(stage.forwarded) if not is_whole(each)]
        lengths = [count(stage.forwarded[place].json()) for place in cut]
        assert max(lengths) < 1.3 * KEPT
        assert len(stage.forwarded) > 2 * max(cut)


def test_two_counts_alike_change_nothing() -> None:
    with forgetful() as stage:
        over_long(stage, [40, 50])
        answer = stage.ask(chat(51, words=95), asked(session="s"))

        assert answer.header("x-condenser-window") == "unknown"
        assert stage.forwarded[-1].json()["messages"] == chat(51, words=95)


def test_a_window_that_the_operator_set_is_not_lowered(caplog: pytest.LogCaptureFixture) -> None:
    with forgetful(window=32_768) as stage, caplog.at_level("WARNING", "proxy.condensing.knowledge"):
        answers = over_long(stage, (20, 30, 40, 50))
        assert {each.header("x-condenser-window") for each in answers} == {"32768"}
    assert [each.name for each in caplog.records].count("proxy.condensing.knowledge") == 1


def test_a_window_that_a_request_asks_for_is_lowered() -> None:
    with forgetful() as stage:
        for rounds in (20, 30, 40):
            stage.ask(chat(rounds, words=95), asked(session="s", window=16_384))
        answer = stage.ask(chat(41, words=95), asked(session="s", window=16_384))
        assert answer.header("x-condenser-window") == str(KEPT)
        assert is_whole(stage.forwarded[-1])


def test_one_reply_is_a_proof_where_the_server_reports_the_loaded_window() -> None:
    with forgetful(upstream={"discover": True}) as stage:
        stage.upstream.answer(_as_ollama(stage.upstream))
        stage.ask(chat(4), asked(session="t"))
        stage.proxy.quiet()
        stage.ask(chat(30, words=95), asked(session="s", window=32_768))
        answer = stage.ask(chat(31, words=95), asked(session="s", window=32_768))
        assert answer.header("x-condenser-window") == str(KEPT)
        assert is_whole(stage.forwarded[-1])


def _as_ollama(upstream: ScriptedUpstream) -> Callable[[Exchange], Reply | None]:
    """The upstream's answers, and beside them the page on which Ollama lists the models that it has loaded."""
    chat = upstream.answers
    assert chat is not None
    loaded = {"models": [{"name": MODEL, "model": MODEL, "context_length": KEPT}]}

    def answer(exchange: Exchange) -> Reply | None:
        if exchange.method != "GET":
            return chat(exchange)
        return replies.json_reply(loaded if exchange.path == "/api/ps" else {}, status=200)

    return answer


def test_one_line_names_the_setting_that_raises_the_window(caplog: pytest.LogCaptureFixture) -> None:
    with forgetful() as stage, caplog.at_level("WARNING", "proxy.condensing.knowledge"):
        over_long(stage, [40, 50, 60, 70])

    (line,) = [each.getMessage() for each in caplog.records if each.name == "proxy.condensing.knowledge"]
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
            answer_ = stage.ask(chat(rounds, words=95), asked(session="s"))
            assert answer_.header("x-condenser-window") == "unknown"


@pytest.mark.parametrize("invented", [1_000, 5_000])
def test_a_server_that_invents_its_usage_is_not_taken_for_one_that_truncates(invented: int) -> None:
    """Stubs and some gateways say the same round number whatever they were sent."""
    with staged(window=None) as stage:
        stage.upstream.answer(
            lambda exchange: replies.completion("fine", tokens=(invented, 2)) if exchange.path == CHAT else None
        )
        for rounds in (1, 4, *range(40, 70, 5)):
            answer = stage.ask(chat(rounds, words=95), asked(session="s"))
            assert answer.header("x-condenser-window") == "unknown"
            assert stage.forwarded[-1].json()["messages"] == chat(rounds, words=95)


def _with_shorter_systems(stage: Stage) -> None:
    """An agent that lists the files it has open, now many and now few."""
    for rounds, files in ((8, 400), (9, 5), (12, 400), (13, 5), (16, 400), (17, 5)):
        system = {"role": "system", "content": "Open files:\n" + "\n".join(f"src/{each}.py" for each in range(files))}
        stage.ask([system, *chat(rounds)[1:]], asked(session="s"))


def _with_calls_that_offer_no_tools(stage: Stage) -> None:
    tools = [{"type": "function", "function": {"name": f"f{each}", "description": "does " * 60}} for each in range(30)]
    for rounds in (12, 15, 18):
        stage.ask(chat(rounds), asked(session="s"), tools=tools)
        stage.ask(chat(rounds + 1), asked(session="s"))


def _with_a_trimming_client(stage: Stage) -> None:
    for rounds in (5, 12, 13):
        stage.ask(chat(rounds), asked(session="s", window=4_096))
    for rounds in range(14, 22):
        stage.ask(chat(rounds)[-9:], asked(session="s", window=4_096))


@pytest.mark.parametrize("talk", [_with_shorter_systems, _with_calls_that_offer_no_tools, _with_a_trimming_client])
def test_a_prompt_that_has_become_shorter_is_not_taken_for_a_truncated_one(talk: Callable[[Stage], None]) -> None:
    with staged(window=32_768, store={"content": "digests"}, background={"mode": "off"}) as stage:
        talk(stage)
        assert truncations(stage) == 0


def _thinking(turns: int) -> Iterator[list[Mapping[str, Any]]]:
    """The requests of an agent whose client sends its reasoning back: some rounds, then the next question."""
    messages: list[Mapping[str, Any]] = []
    for turn in range(turns):
        for message in agent(6, lines=4)[1:]:
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
        assert truncations(stage) == 0


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
            stage.ask(chat(12), asked(session=session))
        assert truncations(stage) == 0


def truncations(stage: Stage) -> int:
    """How many replies the proxy has counted as a proof."""
    text = wire.request(stage.proxy.url, "GET", "/metrics").body.decode()
    return int(float(re.findall(r"^condenser_truncations_total (\S+)", text, re.MULTILINE)[0]))


def test_proofs_are_counted() -> None:
    with forgetful() as stage:
        over_long(stage, [40, 50])
        assert truncations(stage) == 0
        over_long(stage, [60])
        assert truncations(stage) == 1


def is_chat(exchange: Exchange) -> bool:
    return exchange.path == CHAT


def test_a_model_name_forges_no_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with forgetful() as stage:
        stage.model = "evil\nWARNING: \x1b[31mforged"
        over_long(stage, range(20, 60, 5))
    [line] = [each.getMessage() for each in caplog.records if "silently reads" in each.getMessage()]
    assert line.startswith("'evil?WARNING: ?[31mforged' silently reads")
