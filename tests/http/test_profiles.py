"""Servers that take less than OpenAI's: what we send is in a form that they take, and clients see no refusal."""

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from tests.http.recorded import SHORT, conversations
from tests.support import replies
from tests.support.packing import PACKS
from tests.support.recording import CHAT, Exchange
from tests.support.replies import Reply
from tests.support.signals import BOUND, Signal
from tests.support.stage import (
    SUMMARY,
    Message,
    Stage,
    body_of,
    chat,
    controls,
    count,
    is_own,
    proxy_with_upstream,
    summary,
)
from tests.support.strict_servers import DEMANDS, Demand, accepted, alternation, no_names, refusal_of, sides

WINDOW = 4_096
PROFILE = {"alternate_roles": True, "assistant_name": False, "middle_system": False}


LONG = SUMMARY + " Each bed has its own seed." * 5


@contextmanager
def strict(*demands: Demand, limit: int | None = None, **settings: Any) -> Iterator[Stage]:
    """A proxy in front of a server with these demands, which also refuses more tokens than its `limit`."""
    with proxy_with_upstream(**settings) as stage:

        def answer(exchange: Exchange) -> Reply | None:
            if exchange.path != CHAT:
                return None
            body = exchange.json()
            if limit is not None and count(body) > limit:
                return replies.overflow(limit, count(body))
            if said := refusal_of(body["messages"], demands):
                return replies.error(400, said)
            is_continued = "<summary>" in str(body["messages"][-1]["content"])
            return summary(LONG) if is_continued or is_own(exchange) else None

        stage.upstream.answer(answer)
        yield stage


def has_accepted(stage: Stage) -> list[bool]:
    """Of each request that was forwarded, whether the upstream took it."""
    return [refusal_of(each.json()["messages"]) == "" for each in stage.forwarded]


@pytest.mark.parametrize("demand", [alternation, sides], ids=lambda each: each.__name__)
def test_a_refused_form_is_learned_once(demand: Demand) -> None:
    with strict(demand, strategy="rolling") as stage:
        for rounds in (2, 40, 60):
            assert b"echo" in stage.ask(chat(rounds), controls(session="s")).body
        refusals = [refusal_of(each.json()["messages"], [demand]) != "" for each in stage.forwarded]
        assert sum(refusals) == 1

        stage.ask(chat(62), controls(session="another"))
        assert refusal_of(stage.last_view, [demand]) == ""


def test_no_form_is_learned_from_an_error_it_meets_too() -> None:
    said = "This guard has refused: 'Conversation roles must alternate user/assistant/user'"
    with proxy_with_upstream(strategy="rolling") as stage:
        stage.upstream.answer(lambda each: summary() if is_own(each) else replies.error(400, said))
        body = body_of(chat(60))
        assert stage.post(body, controls(session="s")).status == 400
        stage.upstream.answer(lambda each: summary() if is_own(each) else None)
        stage.ask(chat(62), controls(session="another"))
        assert refusal_of(stage.last_view, [alternation])


def test_requests_under_way_when_a_form_is_learned_get_replies() -> None:
    both = Signal("both requests have been refused")
    with strict(alternation, strategy="rolling") as stage, ThreadPoolExecutor() as pool:

        def answer(exchange: Exchange) -> Reply | None:
            if is_own(exchange):
                return summary()
            if not (said := refusal_of(exchange.json()["messages"], [alternation])):
                return None
            if len(stage.forwarded) == 2:
                both.set()
            return replies.error(400, said).after(both)

        stage.upstream.answer(answer)
        asking = [pool.submit(stage.ask, chat(60), controls(session=each)) for each in ("one", "another")]
        assert all(b"echo" in each.result(BOUND).body for each in asking)


def test_a_server_strict_in_every_way_is_learned_at_once() -> None:
    with strict(*DEMANDS, strategy="rolling") as stage:
        answer = stage.ask(chat(60), controls(session="s"))

        assert answer.action == "condensed"
        assert has_accepted(stage)[-1]
        assert answer.header("x-condenser-tokens-after") == str(count(stage.forwarded[-1].json()))


def test_an_overflow_and_a_form_are_learned_in_one_request() -> None:
    with strict(*DEMANDS, limit=WINDOW, window=None) as stage:
        answer = stage.ask(chat(60), controls(session="s"))

        assert answer.trigger == "overflow"
        assert len(stage.forwarded) == 3


STRATEGIES: dict[str, dict[str, str]] = {
    "recent": {},
    "rolling": {},
    "dynacontext": {"options": "mode=refer"},
    "mask+half-window": {"memory": "inject"},
}
EVERY = 5  # of the requests of a recorded conversation, one in so many is sent


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_strict_server_with_its_profile_set_never_refuses(strategy: str) -> None:
    with strict(*DEMANDS, no_names, upstream={"profile": PROFILE}) as stage:
        messages = accepted(conversations(SHORT)["tau-bench/airline/gpt-4o/3-0"].messages)
        play(stage, messages, controls(session="s", strategy=strategy, window=2_048, **STRATEGIES[strategy]))


def play(stage: Stage, messages: Sequence[Message], headers: list[tuple[str, str]]) -> None:
    """Sends a conversation turn by turn; each list begins with the one before unless something was condensed."""
    before, actions = "[", set()
    lengths = [length for length in range(2, len(messages)) if messages[length]["role"] == "assistant"]
    for length in lengths[::EVERY]:
        answer = stage.post(body_of(messages[:length]), headers)
        if answer.status == 400:
            assert answer.json()["error"]["code"] == "context_length_exceeded", answer.body
            continue
        assert answer.status == 200, answer.body
        action = answer.action
        now = json.dumps(stage.last_view)
        block = any("## Relevant Memories" in text for text in (before, now))
        assert action == "condensed" or block or now.startswith(before)
        before = now[:-1]
        actions.add(action)
    assert "condensed" in actions


def test_a_profile_of_one_model_holds_for_it_alone() -> None:
    with strict(*DEMANDS, no_names, models=[{"match": "strict-*", "profile": PROFILE}]) as stage:
        body = body_of(chat(60), "strict-1")
        assert stage.post(body, controls(session="s")).status == 200
        assert len(stage.forwarded) == 1

        stage.ask(chat(60), controls(session="t"))
        assert len(stage.forwarded) > 2


@pytest.mark.parametrize(("rounds", "headers"), [(None, controls(session="s")), (40, controls(strategy="off"))])
def test_a_refused_list_of_the_client_is_left_alone(rounds: int | None, headers: list[tuple[str, str]]) -> None:
    with strict(*DEMANDS) as stage:
        more = [{"role": "user", "content": "two"}] if rounds is None else chat(rounds)
        body = body_of([{"role": "user", "content": "one"}, *more])
        answer = stage.post(body, headers)
        assert (answer.status, answer.json()["error"]["message"][:18]) == (400, "Conversation roles")
        assert [each.body for each in stage.forwarded] == [body]


def test_a_learned_form_holds_for_summaries_too() -> None:
    settings: Mapping[str, Any] = {"summarizer": {"form": "continue"}, "upstream": {"profile": PROFILE}}
    with strict(*DEMANDS, no_names, **settings) as stage:
        answer = stage.ask(chat(40), controls(session="s", strategy="half-window"))
        assert answer.action == "condensed"
        assert answer.reason is None


@pytest.mark.parametrize(
    ("strategy", "cached", "continued"),
    [("half-window", 0.1, True), ("half-window", 0.9, False), ("rolling", 0.1, False)],
)
def test_a_summary_goes_on_from_the_view_where_that_is_cheaper_except_under_rolling(
    strategy: str, cached: float, continued: bool
) -> None:
    prices = [{"match": "*", "prices": {"input": 1.0, "cached_input": cached}}]
    with proxy_with_upstream(summarizer={"form": "auto"}, models=prices, window=16_384) as stage:
        answer = stage.ask(chat(40), controls(session="s", strategy=strategy, force="true"))
        assert answer.action == "condensed"
        assert len(stage.upstream.journal.to()) == 2
        assert len(stage.summaries) == (0 if continued else 1)


@pytest.mark.parametrize("status", [400, 404, 422, 500])
def test_a_server_without_stream_options_is_asked_again_without_them(status: int) -> None:
    def without_stream_options(exchange: Exchange) -> Reply | None:
        body = exchange.json()
        if exchange.path != CHAT or "stream_options" not in body:
            return replies.overflow(WINDOW, count(body)) if count(body) > WINDOW else None
        if status == 422:
            found = {"type": "extra_forbidden", "loc": ["body", "stream_options"], "msg": "Extra inputs", "input": body}
            return replies.json_reply({"detail": [found]}, status=422)
        return replies.error(status, "Unrecognized request argument supplied: stream_options")

    with proxy_with_upstream(strategy="recent", window=WINDOW) as stage:
        stage.upstream.answer(without_stream_options)
        stage.ask(chat(1), controls(session="first"), stream=True)
        for rounds in (40, 41):  # the original does not fit
            answer = stage.ask(chat(rounds), controls(session="s", force="true"), stream=True)
            assert (answer.action, answer.reason) == ("condensed", None)
        assert ["stream_options" in each.json() for each in stage.forwarded] == [False, True, False, False]
        asked = stage.post(body_of(chat(2), stream=True, stream_options={"include_usage": True}))
        assert asked.status == status  # what the client asks for is its own
    unknown = {"profile": {"stream_options": False}}
    with proxy_with_upstream(strategy="recent", window=32_768, upstream=unknown) as stage:
        stage.upstream.answer(without_stream_options)
        answer = stage.ask(chat(20), controls(session="s", force="true"), stream=True)
        assert (answer.action, len(stage.forwarded)) == ("condensed", 1)


# -- packed errors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd"])
def test_a_packed_refusal_is_read(encoding: str) -> None:
    refused = replies.overflow(WINDOW, 2 * WINDOW).steps[0]
    assert isinstance(refused, bytes)
    packed = replies.raw(PACKS[encoding](refused), status=400, headers=[("content-encoding", encoding)])
    with proxy_with_upstream(window=None) as stage:
        stage.upstream.answer(lambda each: packed if count(each.json()) > WINDOW else None)
        reply = stage.ask(chat(60), [*controls(session="s"), ("Accept-Encoding", encoding)])

        assert (reply.status, reply.trigger) == (200, "overflow")
