"""A search whose result the upstream does not take: the official client gets an answer all the same, where it can."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletion

from proxy.conversations.searching import NO_ROOM
from tests.http.strict import problems
from tests.http.test_search_memory import FOUND, LOOK, LOOKS, both, question, remembering, streaming, views
from tests.support import replies, wire
from tests.support.recording import Exchange
from tests.support.replies import Reply
from tests.support.searching import SEARCH, TOOL, is_prefix, offers_search, reply_calls, reply_of, reply_opening, search
from tests.support.signals import Signal
from tests.support.stage import Stage, body_of, controls, count

MAX_BYTES = 60  # of a reply that breaks off
PLAIN = "I do not know where it hangs."
ROOM = 500  # tokens that the upstream takes beside the first view
GONE = (replies.hang_up(), replies.hang_up())
REFUSALS = {
    "400": (replies.error(400, "messages with role 'tool' are not taken"),),
    "429": (replies.error(429, "slow down", headers=[("retry-after", "7")]),),
    "gone": GONE,
}


def asks(stage: Stage, streamed: bool, *more: Any, **members: Any) -> ChatCompletion:
    """What the official client makes of the answer to a question."""
    headers = dict([*controls(session="s"), TOOL])
    with OpenAI(base_url=stage.proxy.base_url, api_key=stage.key, max_retries=0, default_headers=headers) as client:
        given: Any = {"model": stage.model, "messages": [*question(), *more], **members}
        if not streamed:
            whole: ChatCompletion = client.chat.completions.create(**given)
            return whole
        with client.chat.completions.stream(**given, stream_options={"include_usage": True}) as stream:
            return stream.get_final_completion()


def text_of(completion: ChatCompletion) -> str | None:
    """Its text; the client was given no call, and was told once why the reply ended."""
    (choice,) = completion.choices
    assert (choice.message.tool_calls or [], choice.finish_reason) == ([], "stop")
    return choice.message.content


def next_view(stage: Stage, streamed: bool, text: str) -> list[dict[str, Any]]:
    """The view of the next turn; all views are sound."""
    stage.upstream.answer(None)
    asks(stage, streamed, {"role": "assistant", "content": text}, {"role": "user", "content": "Thanks."})
    assert all(problems(view) == set() for view in views(stage))
    return stage.last_view


def narrow(stage: Stage, refuse: Callable[[int, int], Reply] = replies.overflow, room: int = ROOM) -> None:
    """From now on the upstream takes what it was sent first, and so many tokens more."""

    def refused(exchange: Exchange) -> Reply | None:
        limit, used = count(stage.forwarded[0].json()) + room, count(exchange.json())
        return refuse(limit, used) if used > limit else None

    stage.upstream.answer(refused)


# -- any refusal ---------------------------------------------------------------------------------------------


def failed(streamed: bool) -> Reply:
    """An error under a good status."""
    if streamed:
        return replies.stream(b": keep-alive\n\n", replies.stream_error("The engine died."))
    return replies.json_reply(replies.error_body("The engine died."))


def broken_off(reply: Reply) -> Reply:
    """A reply in one piece that ends in its middle."""
    return replace(reply, steps=(cast("bytes", reply.steps[0])[:MAX_BYTES],), cut=True)


ROLE = replies.chunk({"role": "assistant", "content": ""})
DIED = replies.stream_error("The engine died.")
BEHIND_THE_FIRST_EVENT = {
    "error-event": replies.stream(ROLE, DIED),
    "named-event": replies.stream(ROLE, b"event: error\ndata: it died\n\n", done=False),
    "cut": replies.stream(ROLE, cut=True),
    "cut-at-once": replies.stream(b": wait\n\n", cut=True),
    "ended": replies.stream(ROLE, done=False),
    "cut-in-a-hidden-call": replies.stream(*reply_opening(None), *reply_calls(search("zzz"))[:1], cut=True),
}


BROKEN = {
    "error": failed(streamed=False),
    "broken-off": broken_off(reply_of(FOUND, streamed=False)),
    "broken-error": broken_off(replies.error(500, "a long message that does not come whole" * 3)),
}
FORGOTTEN: list[tuple[bool, tuple[Reply, ...]]] = [
    *((streamed, refusal) for streamed in (False, True) for refusal in REFUSALS.values()),
    *((False, (reply,)) for reply in BROKEN.values()),
    *((True, (reply,)) for reply in (failed(streamed=True), *BEHIND_THE_FIRST_EVENT.values())),
]
IDS = [*REFUSALS, *(f"{name}-streamed" for name in REFUSALS), *BROKEN, "error-event-alone", *BEHIND_THE_FIRST_EVENT]


@pytest.mark.parametrize(("streamed", "failing"), FORGOTTEN, ids=IDS)
def test_a_refused_search_is_forgotten_and_the_question_answered(streamed: bool, failing: tuple[Reply, ...]) -> None:
    with remembering() as stage:
        searching = reply_of(None, search(), streamed=streamed, usage=(100, 10))
        stage.upstream.reply(searching, *failing, reply_of(PLAIN, streamed=streamed, usage=(90, 7)))
        completion = asks(stage, streamed)
        assert text_of(completion) == PLAIN
        assert completion.usage is not None
        assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (90, 17)
        assert [offers_search(each) for each in stage.forwarded] == [*[True] * (len(failing) + 1), False]
        asked_for = views(stage)[0]
        assert stage.last_view == asked_for
        after = next_view(stage, streamed, PLAIN)
        assert is_prefix(asked_for, after)
        assert SEARCH not in str(after)


TEXT, THOUGHT = replies.chunk({"content": "It "}), replies.chunk({"reasoning_content": "Let me think."})


@pytest.mark.parametrize(
    ("text", "failing"),
    [
        *(("Let me look. ", refusal) for refusal in REFUSALS.values()),
        *((None, (replies.stream(ROLE, said, DIED, done=False),)) for said in (TEXT, THOUGHT)),
        *((None, (replies.stream(ROLE, said, cut=True),)) for said in (TEXT, THOUGHT)),
    ],
)
def test_once_something_has_flowed_a_failure_ends_the_stream_with_one_error(
    text: str | None, failing: tuple[Reply, ...]
) -> None:
    with remembering() as stage:
        stage.upstream.reply(reply_of(text, search(), streamed=True), *failing)
        with pytest.raises(openai.APIError):
            asks(stage, True)
        assert len(stage.forwarded) == 1 + len(failing)


def test_an_error_event_after_text_is_told_once_as_it_came() -> None:
    with remembering() as stage:
        stage.upstream.reply(reply_of("Let me look. ", search(), streamed=True), replies.stream(ROLE, DIED))
        answer = stage.post(body_of(question(), stage.model, stream=True), [*controls(session="s"), TOOL])
        assert answer.body.count(b'"error"') == 1
        assert answer.body.endswith(DIED)
        assert len(stage.forwarded) == 2


def test_signs_of_life_after_a_search_reach_the_client() -> None:
    gate = Signal("the upstream may go on")
    with remembering() as stage:
        slow = replies.stream(b": working\n\n", ROLE, gate, DIED)
        stage.upstream.reply(
            reply_of(None, search(), streamed=True), slow, reply_of(PLAIN, streamed=True, usage=(90, 7))
        )
        with streaming(stage) as response:
            wire.until(response, b": working")
            gate.set()
            assert b"hangs." in response.read()


@both
def test_an_error_with_a_good_status_is_the_clients(streamed: bool) -> None:
    with remembering() as stage:
        stage.upstream.reply(reply_of(None, search(), streamed=streamed), failed(streamed), *GONE)
        answer = stage.post(body_of(question(), stage.model, stream=streamed), [*controls(session="s"), TOOL])
        assert b"The engine died." in answer.body


SLOW = replies.error(429, "slow down", code="slow", headers=[("retry-after", "7")])
BUSY = replies.error(503, "too busy", code="busy")


@both
@pytest.mark.parametrize(
    ("failing", "code"),
    [((replies.error(500, "oops"), SLOW), "slow"), ((BUSY, *GONE), "busy")],
    ids=["refused", "gone"],
)
def test_a_question_that_fails_too_gets_the_upstreams_last_error(
    failing: tuple[Reply, ...], code: str, streamed: bool
) -> None:
    with remembering() as stage:
        stage.upstream.reply(reply_of(None, search(), streamed=streamed), *failing)
        with pytest.raises(openai.APIError, match=r"slow down|too busy") as raised:
            asks(stage, streamed)
        assert raised.value.code == code
        if isinstance(raised.value, openai.RateLimitError):
            assert raised.value.response.headers["retry-after"] == "7"


def test_unstreamed_text_before_a_forgotten_search_is_forgotten() -> None:
    with remembering() as stage:
        stage.upstream.reply(
            reply_of("Let me look. ", search(), streamed=False), *REFUSALS["429"], reply_of(PLAIN, streamed=False)
        )
        assert text_of(asks(stage, False)) == PLAIN


def test_a_call_in_an_answer_without_search_is_the_clients() -> None:
    with remembering() as stage:
        stage.upstream.reply(
            reply_of(None, search(), streamed=True), *REFUSALS["429"], reply_of(None, LOOKS, streamed=True)
        )
        (choice,) = asks(stage, True, tools=[LOOK]).choices
        assert [call.id for call in choice.message.tool_calls or ()] == [LOOKS.id]
        assert choice.finish_reason == "tool_calls"


def test_the_second_of_two_searches_takes_the_first_with_it() -> None:
    with remembering() as stage:
        stage.upstream.reply(
            reply_of(None, search("zzz"), streamed=True),
            reply_of(None, search(id="call_m2"), streamed=True),
            *REFUSALS["400"],
            reply_of(PLAIN, streamed=True),
        )
        assert text_of(asks(stage, True)) == PLAIN
        assert views(stage)[3] == views(stage)[0]


# -- a prompt that is too long -------------------------------------------------------------------------------


def late(limit: int, used: int) -> Reply:
    """A refusal that comes when the stream has begun."""
    message = f"This model's maximum context length is {limit} tokens. However, you requested {used} tokens."
    return replies.stream(ROLE, replies.stream_error(message, "context_length_exceeded"))


@pytest.mark.parametrize(("refuse", "streamed"), [(replies.overflow, False), (replies.overflow, True), (late, True)])
@pytest.mark.parametrize("text", [None, "Let me look. "], ids=["at-once", "after-text"])
def test_what_was_found_is_cut_to_what_the_upstream_has_room_for(
    text: str | None, refuse: Callable[[int, int], Reply], streamed: bool
) -> None:
    with remembering() as stage:
        narrow(stage, refuse)
        found = reply_of(FOUND, streamed=streamed)
        stage.upstream.reply(reply_of(text, search("plant0n1 plant2n3 plant3n4"), streamed=streamed), found)
        told = (text or "") + FOUND
        assert text_of(asks(stage, streamed)) == told
        refused, taken = (view[-1]["content"] for view in views(stage)[1:])
        assert taken != NO_ROOM
        assert "plant3n4" in taken
        assert len(taken) < len(refused)
        assert not offers_search(stage.forwarded[-1])
        hidden = stage.last_view[-2:]
        assert next_view(stage, streamed, told)[-4:-2] == hidden


def numberless(limit: int, used: int) -> Reply:
    return replies.error(400, "Please reduce the length of the messages.", code="context_length_exceeded")


@both
def test_where_nobody_knows_how_much_fits_nothing_is_shown(streamed: bool) -> None:
    with remembering() as stage:
        narrow(stage, numberless)
        stage.upstream.reply(
            reply_of(None, search("plant0n1 plant2n3 plant3n4"), search("plant3n4", id="call_m2"), streamed=streamed),
            reply_of(FOUND, streamed=streamed),
        )
        assert text_of(asks(stage, streamed)) == FOUND
        assert [each["content"] for each in stage.last_view[-2:]] == [NO_ROOM, NO_ROOM]
        hidden = stage.last_view[-3:]
        assert next_view(stage, streamed, FOUND)[-5:-2] == hidden


@both
def test_where_not_even_that_fits_the_question_is_answered_without_the_search(streamed: bool) -> None:
    with remembering() as stage:
        narrow(stage, room=0)
        stage.upstream.reply(reply_of(None, search(), streamed=streamed), reply_of(PLAIN, streamed=streamed))
        assert text_of(asks(stage, streamed)) == PLAIN
        assert len(stage.forwarded) == 4
        assert stage.last_view == views(stage)[0]


def test_the_next_request_knows_the_window_of_a_refused_search() -> None:
    with remembering(window=None, marks={"most": 0}) as stage:
        narrow(stage)
        stage.upstream.reply(
            reply_of(None, search("plant0n1 plant2n3"), streamed=False), reply_of(FOUND, streamed=False)
        )
        asks(stage, False)
        limit = count(stage.forwarded[0].json()) + ROOM
        stage.ask(question(), controls(session="s"))
        seen = stage.proxy.journal.to()[-1].response_header("x-condenser-window")
        assert str(seen).startswith(str(limit))


def test_a_number_that_the_model_has_searched_for_is_no_window() -> None:
    with remembering(window=None, marks={"most": 0}) as stage:
        narrow(stage, lambda _, used: replies.overflow(4_096, used))
        query = search("plant0n1 plant2n3 in 4096 pots")
        stage.upstream.reply(reply_of(None, query, streamed=False), reply_of(FOUND, streamed=False))
        asks(stage, False)
        stage.upstream.answer(None)
        assert stage.ask(question()).window == "unknown"
