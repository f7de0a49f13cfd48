"""The forms in which servers are asked: what refusals and cut answers teach, and what an answer of a reasoner is."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from proxy.asking import ROOM_TO_THINK
from proxy.asking.dispatch import Caller
from proxy.protocols.chat import CHAT_ENDPOINT
from proxy.protocols.endpoint import Endpoint
from proxy.protocols.messages import MESSAGES_ENDPOINT
from proxy.protocols.replies import named_event
from proxy.protocols.responses import RESPONSES_ENDPOINT
from proxy.settings.profile import Profile
from proxy.settings.tables import JudgeRole, SummarizerRole
from strategies.core.effects import Answer, Ask, Ballot, Failure
from tests.proxy.asking.support import ASK, CALLER, NOWHERE, asking
from tests.support.recording import Exchange
from tests.support.replies import Reply, chunk, completion, error, json_reply, sse, stream, text_chunks, usage_chunk
from tests.support.stage import summary, vote
from tests.support.upstream import ScriptedUpstream

Rule = Callable[[dict[str, Any]], Reply | None]
BELOW = {"role": "user", "content": "Write it down.\n\n<history>"}
"""The question of `ASK` at a server that takes no system prompt of the proxy's."""
OAUTH = replace(
    CALLER,
    headers=[(b"authorization", b"Bearer sk-ant-oat01-x"), (b"anthropic-beta", b"oauth-2025-04-20")],
    members={"system": '[{"type":"text","text":"You are Claude Code."}]', "tools": '[{"name":"read"}]'},
    endpoint=MESSAGES_ENDPOINT,
    path=MESSAGES_ENDPOINT.path,
    query="beta=true",
)
OF_RESPONSES = Caller("m", NOWHERE, CALLER.headers, endpoint=RESPONSES_ENDPOINT, path=RESPONSES_ENDPOINT.path)
OF_MESSAGES = Caller("m", NOWHERE, CALLER.headers, endpoint=MESSAGES_ENDPOINT, path=MESSAGES_ENDPOINT.path)


def text(said: str) -> Reply:
    return json_reply({"type": "message", "content": [{"type": "text", "text": said}], "stop_reason": "end_turn"})


def roles(exchange: Exchange) -> list[str]:
    return [each["role"] for each in exchange.json()["messages"]]


@pytest.mark.parametrize(
    "said",
    [
        "System role not supported",
        "Unsupported value: 'messages[0].role' does not support 'system' with this model.",
        "Developer instruction is not enabled for models/gemma-3-27b-it",
        "Conversation roles must alternate user/assistant/user/assistant/...",
        "messages.0.role: Input should be 'user' or 'assistant'",
    ],
)
async def test_instructions_go_into_the_user_message(said: str, upstream: ScriptedUpstream) -> None:
    upstream.answer(lambda exchange: error(400, said) if "system" in roles(exchange) else completion("record"))
    async with asking(upstream.base_url) as own:
        for _ in range(2):
            await own.answer()
    assert list(map(roles, upstream.journal)) == [["system", "user"], ["user"], ["user"]]
    assert list(upstream.journal)[-1].json()["messages"] == [BELOW]


async def test_a_server_gets_a_message_between_result_and_user(upstream: ScriptedUpstream) -> None:
    view = [{"role": "user", "content": "x"}, {"role": "tool", "tool_call_id": "1", "content": "y"}]

    def strict(exchange: Exchange) -> Reply:
        spoken = roles(exchange)
        is_after = any(pair == ("tool", "user") for pair in pairwise(spoken))
        return error(400, "Unexpected role 'user' after role 'tool'") if is_after else completion("record")

    upstream.answer(strict)
    async with asking(upstream.base_url) as own:
        await own.answer(Ask("", "Record it.", 500, view=json.dumps(view)))
    assert roles(list(upstream.journal)[-1]) == ["user", "tool", "assistant", "user"]


async def test_a_lesson_holds_for_its_credential_and_model_alone(upstream: ScriptedUpstream) -> None:
    upstream.answer(lambda exchange: error(400, "no system") if "system" in roles(exchange) else completion("record"))
    other = replace(CALLER, headers=[(b"authorization", b"Bearer sk-2")])
    async with asking(upstream.base_url) as own:
        for caller in (CALLER, CALLER, other, replace(CALLER, model="m2")):
            await own.ask(caller=caller)
    assert [len(roles(each)) for each in upstream.journal] == [2, 1, 1, 2, 1, 2, 1]


async def test_a_call_has_the_query_of_its_request_at_the_upstream_only(upstream: ScriptedUpstream) -> None:
    upstream.answer(lambda _: completion("record"))
    azure = replace(CALLER, path="/openai/deployments/m/chat/completions", query="api-version=2024-10-21")
    with ScriptedUpstream() as other:
        other.answer(lambda _: completion("record"))
        async with asking(upstream.base_url) as own:
            await own.ask(caller=azure)
            await own.ask(caller=azure, role=SummarizerRole(base_url=other.base_url))
        assert other.journal.only().target == "/v1/chat/completions"
    assert [each.target for each in upstream.journal] == [
        "/openai/deployments/m/chat/completions?api-version=2024-10-21"
    ]


async def test_a_subscription_is_used_with_the_system_prompt_of_its_request(upstream: ScriptedUpstream) -> None:
    upstream.answer(lambda _: text("record"))
    async with asking(upstream.base_url) as own:
        await own.answer(caller=OAUTH)
    [asked] = upstream.journal
    body = asked.json()
    assert body["system"] == [{"type": "text", "text": "You are Claude Code."}]
    assert "tools" not in body
    assert body["messages"] == [{"role": "user", "content": [{"type": "text", "text": BELOW["content"]}]}]
    assert asked.header("anthropic-beta") == "oauth-2025-04-20"


@pytest.mark.parametrize(
    ("endpoint", "member", "said"),
    [
        (MESSAGES_ENDPOINT, "system", "This credential is only authorized for use with Claude Code and nothing else."),
        (RESPONSES_ENDPOINT, "instructions", "Instructions are not valid"),
    ],
)
async def test_a_credential_that_wants_its_system_prompt_is_learned(
    endpoint: Endpoint, member: str, said: str, upstream: ScriptedUpstream
) -> None:
    output = [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "record"}]}]
    answer = text("record") if endpoint is MESSAGES_ENDPOINT else json_reply({"status": "completed", "output": output})
    upstream.answer(lambda exchange: error(400, said) if exchange.json().get(member) != "Theirs." else answer)
    caller = Caller(
        "m", NOWHERE, [(b"authorization", b"Bearer x")], {member: '"Theirs."'}, endpoint=endpoint, path="/v1/x"
    )
    async with asking(upstream.base_url) as own:
        await own.ask(caller=caller)
        await own.ask(caller=caller)
    assert [each.json().get(member) == "Theirs." for each in upstream.journal] == [False, True, True]


THOUGHT: dict[str, Any] = {"reasoning_content": "They want a record, so I must list"}


def thinker(most: int, *, low: bool | None = None, refuses_room: bool = False) -> Rule:
    """A model whose thoughts need `most` tokens; `low`: whether it can think little, None: does not know how."""

    def answers(body: dict[str, Any]) -> Reply | None:
        limit = body["max_completion_tokens"]
        if "reasoning_effort" in body and low is None:
            return error(400, "Unrecognized request argument supplied: reasoning_effort")
        if refuses_room and limit > 4_096:
            return error(400, "max_tokens is too large: this model supports at most 4096 completion tokens")
        if limit > most or (low and "reasoning_effort" in body):
            return summary("Goal: it is told. Next: mend the roof.")
        return summary("", finish="length", **THOUGHT)

    return answers


@pytest.mark.parametrize(
    ("rule", "limits", "efforts"),
    [
        (thinker(2_500), [500, 500 + ROOM_TO_THINK], [None, None]),
        (thinker(10**6, low=True), [500, 500 + ROOM_TO_THINK, 500 + ROOM_TO_THINK], [None, None, "low"]),
        (thinker(10**6, low=True, refuses_room=True), [500, 500 + ROOM_TO_THINK, 500, 500], [None, None, None, "low"]),
    ],
    ids=["more room is enough", "and less effort", "no more room"],
)
async def test_an_answer_that_reasoning_cut_short_is_asked_for_again(
    rule: Rule, limits: list[int], efforts: list[str | None], upstream: ScriptedUpstream
) -> None:
    upstream.answer(lambda exchange: rule(exchange.json()))
    async with asking(upstream.base_url) as own:
        first = await own.answer()
        second = await own.answer()
    assert (first.finish_reason, second.finish_reason) == ("stop", "stop")
    bodies = [each.json() for each in upstream.journal]
    assert [body["max_completion_tokens"] for body in bodies] == [*limits, limits[-1]]
    assert [body.get("reasoning_effort") for body in bodies] == [*efforts, efforts[-1]]
    assert first.tokens == 940 * len([0 for each in list(upstream.journal)[:-1] if each.status == 200])


async def test_a_server_that_knows_no_effort_is_left_alone_with_it(upstream: ScriptedUpstream) -> None:
    rule = thinker(10**6)
    upstream.answer(lambda exchange: rule(exchange.json()))
    async with asking(upstream.base_url) as own:
        for _ in range(2):
            answer = await own.answer()
            assert answer.finish_reason == "length"
    assert ["reasoning_effort" in each.json() for each in upstream.journal] == [False, False, True, False, False]


async def test_the_limit_of_the_settings_is_taken_back_where_it_is_refused(upstream: ScriptedUpstream) -> None:
    rule = thinker(100, refuses_room=True)
    upstream.answer(lambda exchange: rule(exchange.json()))
    async with asking(upstream.base_url) as own:
        await own.answer(role=SummarizerRole(max_tokens=8_000))
    assert [each.json()["max_completion_tokens"] for each in upstream.journal] == [8_000, 500]


@pytest.mark.parametrize(("said", "calls"), [("Goal: it is", 1), ("<think>They want", 2), ("", 2)])
async def test_only_reasoning_raises_a_limit(said: str, calls: int, upstream: ScriptedUpstream) -> None:
    upstream.answer(
        lambda exchange: (
            summary(said, finish="length") if exchange.json()["max_completion_tokens"] == 500 else summary("Goal.")
        )
    )
    async with asking(upstream.base_url) as own:
        await own.ask(ASK)
    assert len(upstream.journal) == calls


async def test_votes_of_a_thinking_judge_are_asked_for_with_more_room(upstream: ScriptedUpstream) -> None:
    upstream.answer(
        lambda exchange: (
            vote("YES") if exchange.json()["max_completion_tokens"] > 2_000 else summary("", finish="length", **THOUGHT)
        )
    )
    async with asking(upstream.base_url) as own:
        votes = await own.votes(Ballot("Judge.", "it", 1, 3, 300), judge=JudgeRole())
    assert [each.yes for each in votes.votes] == [True]


# -- members of our own --------------------------------------------------------------------------------------------

STATUSES = (400, 404, 422, 500)
VIEW = '[{"role":"user","content":"hi"}]'
OWN: dict[str, tuple[Caller, Ask | Ballot]] = {
    "max_completion_tokens": (CALLER, ASK),
    "temperature": (CALLER, ASK),
    "tool_choice": (replace(CALLER, members={"tools": '[{"name":"read"}]'}), replace(ASK, system="", view=VIEW)),
    "n": (CALLER, Ballot("Judge.", "it", 3, 3, 300, at_once=True)),
    "max_output_tokens": (OF_RESPONSES, ASK),
    "store": (OF_RESPONSES, ASK),
}


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("name", OWN)
async def test_a_question_is_asked_once_more_without_what_a_refusal_names(
    name: str, status: int, upstream: ScriptedUpstream
) -> None:
    caller, effect = OWN[name]
    message = {"type": "message", "content": [{"type": "output_text", "text": "record"}]}
    answer = vote("YES") if isinstance(effect, Ballot) else completion("record")
    answer = json_reply({"status": "completed", "output": [message]}) if caller is OF_RESPONSES else answer

    def refuses(exchange: Exchange) -> Reply:
        if name not in (body := exchange.json()):
            return answer
        found = {"type": "extra_forbidden", "loc": ["body", name], "msg": "Extra inputs are not permitted"}
        detail = json_reply({"message": {"detail": [{**found, "input": body}]}}, status=status)
        return detail if status == 422 else error(status, f"Unsupported parameter: '{name}'.")

    upstream.answer(refuses)
    async with asking(upstream.base_url) as own:
        role = SummarizerRole(temperature=0.2)
        for _ in range(2):
            (found,) = await own.ask(effect, role=role, judge=JudgeRole(temperature=0.2), caller=caller)
            assert not isinstance(found, Failure)
    assert [name in each.json() for each in upstream.journal][:2] == [True, False]
    assert sum(name in each.json() for each in upstream.journal) == 1  # it is learned


async def test_a_refusal_that_repeats_the_request_names_no_member_by_that(upstream: ScriptedUpstream) -> None:
    upstream.answer(lambda each: json_reply({"error": "The model is down.", "body": each.json()}, status=500))
    async with asking(upstream.base_url) as own:
        await own.ask()
    assert all("max_completion_tokens" in each.json() for each in upstream.journal)


async def test_a_prompt_that_is_too_long_teaches_no_question_to_do_without_its_limit(
    upstream: ScriptedUpstream,
) -> None:
    said = (
        "'max_tokens' or 'max_completion_tokens' is too large: 1024. This model's maximum context length is 4096 tokens"
        " and your request has 3500 input tokens (1024 > 4096 - 3500)."
    )
    upstream.reply(error(400, said), completion("record"))
    async with asking(upstream.base_url) as own:
        (found,) = await own.ask()
        assert isinstance(found, Failure)
        assert (await own.answer()).text == "record"
    assert ["max_completion_tokens" in each.json() for each in upstream.journal] == [True, True]


# -- streams -------------------------------------------------------------------------------------------------------


def streamed(caller: Caller, said: str) -> Reply:
    """An answer as a stream of the caller's protocol; a Responses server does not repeat its items at its end."""
    if caller.endpoint is CHAT_ENDPOINT:
        thought = chunk({"reasoning_content": "Hm."})
        return stream(*text_chunks(said)[:1], thought, *text_chunks(said)[1:], usage_chunk(90, 10))
    part = {"type": "output_text", "text": said}
    events: list[dict[str, Any]]
    if caller.endpoint is RESPONSES_ENDPOINT:
        item: dict[str, Any] = {"output_index": 0, "item": {"type": "message", "content": [part]}}
        ended = {"object": "response", "status": "completed", "output": [], "usage": {"input_tokens": 90}}
        events = [{"type": "response.output_item.done", **item}, {"type": "response.completed", "response": ended}]
    else:
        block, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": said}
        events = [
            {"type": "message_start", "message": {"usage": {"input_tokens": 90}}},
            {"type": "content_block_start", "index": 0, "content_block": block},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 10}},
            {"type": "message_stop"},
        ]
    return stream(*map(named_event, events), done=False)


@pytest.mark.parametrize("caller", [CALLER, OF_RESPONSES, OF_MESSAGES], ids=["chat", "responses", "messages"])
@pytest.mark.parametrize(
    ("status", "said"),
    [
        (400, "Stream must be set to true"),
        (400, "This model only support stream mode, please enable the stream parameter to access the model."),
        (400, "parameter.enable_thinking must be set to false for non-streaming calls"),
        (404, "Only streaming is supported."),
        (422, "stream: input should be true"),
        (500, "该模型仅支持流式输出"),
    ],
)
async def test_a_server_that_wants_streams_gets_them(
    caller: Caller, status: int, said: str, upstream: ScriptedUpstream
) -> None:
    upstream.answer(lambda each: streamed(caller, "record") if each.json().get("stream") else error(status, said))
    async with asking(upstream.base_url) as own:
        for _ in range(2):
            answer = await own.answer(caller=caller)
            assert (answer.text, answer.finish_reason) == ("record", "stop")
            assert answer.tokens >= 90
    assert [each.json().get("stream") for each in upstream.journal] == [None, True, True]


async def test_a_server_that_says_nothing_except_in_streams_is_asked_for_one(upstream: ScriptedUpstream) -> None:
    upstream.answer(lambda each: streamed(CALLER, "record") if each.json().get("stream") else completion(""))
    async with asking(upstream.base_url) as own:
        assert [(await own.answer()).text for _ in range(2)] == ["record", "record"]
    assert [each.json().get("stream") for each in upstream.journal] == [None, True, True]


async def test_a_server_that_never_says_anything_is_asked_twice_once_only(upstream: ScriptedUpstream) -> None:
    upstream.answer(lambda _: completion(""))
    async with asking(upstream.base_url) as own:
        for _ in range(3):
            await own.ask()
    assert len(upstream.journal) == 4


@pytest.mark.parametrize("first", [b"id: 1\n", b"retry: 3000\n\n", b"\xef\xbb\xbf", b": ping\n\n", b"\n"])
async def test_a_stream_is_known_by_whatever_it_begins_with(first: bytes, upstream: ScriptedUpstream) -> None:
    *texts, last = map(sse, text_chunks("the record"))
    upstream.answer(lambda _: stream(first, *texts, last.rstrip(), done=False))  # no blank line at its end
    async with asking(upstream.base_url) as own:
        found = await own.answer(caller=replace(CALLER, streams=True))
    assert (found.text, found.finish_reason) == ("the record", "stop")


@pytest.mark.parametrize("caller", [CALLER, OF_RESPONSES, OF_MESSAGES], ids=["chat", "responses", "messages"])
async def test_where_the_client_streams_own_calls_do_too(caller: Caller, upstream: ScriptedUpstream) -> None:
    upstream.answer(lambda _: streamed(caller, "record"))
    async with asking(upstream.base_url) as own:
        assert (await own.answer(caller=replace(caller, streams=True))).text == "record"
    with ScriptedUpstream() as other:  # of which the client says nothing
        other.answer(lambda _: completion("record"))
        async with asking(upstream.base_url) as own:
            await own.ask(caller=replace(CALLER, streams=True), role=SummarizerRole(base_url=other.base_url))
        assert "stream" not in other.journal.only().json()
    assert [each.json()["stream"] for each in upstream.journal] == [True]


async def test_a_stream_that_cannot_tell_its_usage_is_not_asked_for_it(upstream: ScriptedUpstream) -> None:
    def strict(exchange: Exchange) -> Reply:
        is_asked = "stream_options" in exchange.json()
        return error(400, "Unknown parameter: stream_options") if is_asked else stream(*text_chunks("record"))

    upstream.answer(strict)
    caller = replace(CALLER, streams=True)
    async with asking(upstream.base_url) as own:
        for each in (caller, caller, replace(caller, model="m2", profile=Profile(stream_options=False))):
            assert (await own.answer(caller=each)).text == "record"
    assert ["stream_options" in each.json() for each in upstream.journal] == [True, False, False, False]


VOTE = "<reasoning>Because.</reasoning>\n<decision>YES</decision>"


async def test_several_votes_come_in_one_stream(upstream: ScriptedUpstream) -> None:
    texts = [chunk({"content": VOTE}, finish="stop", index=index) for index in range(3)]
    upstream.answer(lambda _: stream(*texts))
    async with asking(upstream.base_url) as own:
        ballot = Ballot("Judge.", "it", 3, 3, 300, at_once=True)
        votes = await own.votes(ballot, caller=replace(CALLER, streams=True))
    assert [each.yes for each in votes.votes] == [True] * 3
    assert len(upstream.journal) == 1


@pytest.mark.parametrize("failed", [{"error": {"message": "overloaded"}}, None], ids=["an error", "no end"])
async def test_a_stream_that_breaks_off_is_no_answer(failed: dict[str, Any] | None, upstream: ScriptedUpstream) -> None:
    begun = text_chunks("record")[:-1]
    upstream.answer(lambda _: stream(*begun, *([failed] if failed else []), done=False))
    async with asking(upstream.base_url) as own:
        (found,) = await own.ask(caller=replace(CALLER, streams=True))
    assert isinstance(found, Failure) == (failed is not None)
    assert not isinstance(found, Answer) or found.finish_reason == "None"  # which no strategy accepts


# -- in the other protocols ----------------------------------------------------------------------------------------

THINKING = {"type": "message", "content": [{"type": "thinking", "thinking": "Hm."}], "stop_reason": "max_tokens"}
REASONING = {"object": "response", "status": "incomplete", "output": [{"type": "reasoning", "id": "r", "summary": []}]}


@pytest.mark.parametrize(
    ("caller", "cut", "low"),
    [
        (OAUTH, THINKING, {"thinking": {"type": "disabled"}}),
        (
            OF_RESPONSES,
            {**REASONING, "incomplete_details": {"reason": "max_output_tokens"}},
            {"reasoning": {"effort": "low"}},
        ),
    ],
    ids=["messages", "responses"],
)
async def test_in_the_other_protocols_too(
    caller: Caller, cut: dict[str, Any], low: dict[str, Any], upstream: ScriptedUpstream
) -> None:
    upstream.answer(lambda _: json_reply(cut))
    async with asking(upstream.base_url) as own:
        await own.ask(caller=caller)
    asked = [each.json() for each in upstream.journal]
    limits = [body.get("max_tokens") or body["max_output_tokens"] for body in asked]
    assert limits == [500, 500 + ROOM_TO_THINK, 500 + ROOM_TO_THINK]
    assert [low.items() <= body.items() for body in asked] == [False, False, True]
