"""The official openai package for Python, synchronous: a changed `base_url` is the only change."""

import errno
import json
import socket
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.clients.cases import (
    CANCELLED_WITHIN,
    KEY,
    LOOK,
    MODEL,
    OSLO,
    TOOL,
    WEATHER_JSON,
    ZURICH,
    Weather,
    tool_result,
    user,
)
from tests.clients.guides import Guides
from tests.support import wire
from tests.support.proxy import Proxy, assert_relayed
from tests.support.recording import CHAT
from tests.support.replicas import await_answer, replica
from tests.support.replies import (
    Reply,
    assistant,
    completion,
    error,
    error_body,
    json_reply,
    raw,
    stream,
    stream_error,
    text_chunks,
    tool_call_chunks,
    usage_chunk,
)
from tests.support.signals import Signal
from tests.support.upstream import BINARY, ScriptedUpstream

HI: list[Any] = [user("Grüezi 👋")]


def text_of(chunks: Any) -> str:
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


# -- addresses ---------------------------------------------------------------------------------------------


def test_every_address_of_this_machine_reaches_the_proxy(upstream: ScriptedUpstream, proxy: Proxy) -> None:
    assert_answers(proxy.url.replace("127.0.0.1", "localhost"))
    if not has_ipv6():
        pytest.skip("this machine has no IPv6 on loopback")
    with replica(upstream.base_url, "memory://", "mask", 4_096, CONDENSER_HOST="::1") as (listening, process):
        url = listening.replace("127.0.0.1", "[::1]")
        await_answer(url, process)
        assert_answers(url)


def assert_answers(url: str) -> None:
    with OpenAI(base_url=url + "/v1", api_key=KEY, max_retries=0) as client:
        assert client.chat.completions.create(model=MODEL, messages=HI).choices[0].message.content


def has_ipv6() -> bool:
    with socket.socket(socket.AF_INET6) as probe:
        return probe.connect_ex(("::1", 9)) in (0, errno.ECONNREFUSED)


# -- replies -----------------------------------------------------------------------------------------------

VENDORS = {**assistant("ok"), "reasoning_content": "hm", "vendor": {"big": 2**80}}
WHOLE = {
    "text": completion("Hallo, Zürich", headers=[("x-request-id", "req_1")]),
    "choices": completion("heads", "tails"),
    "logprobs": completion("yes", logprobs=True),
    "calls": completion(None, tool_calls=[ZURICH, OSLO]),
    "unknown members": json_reply({"id": "x", "choices": [{"index": 0, "message": VENDORS}], "new": [1.0]}),
}
INTERLEAVED = zip(text_chunks("a b", index=0), text_chunks("c d", index=1), strict=True)
STREAMS = {
    "choices": stream(*(chunk for pair in INTERLEAVED for chunk in pair)),
    "logprobs": stream(*text_chunks("yes", logprobs=True)),
    "calls": stream(*tool_call_chunks(ZURICH, OSLO)),
    "usage": stream(*text_chunks("ok"), usage_chunk(11, 1)),
}
AUDIO = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
EXTRA = {"top_k": 40, "vendor": {"big": 2**80, "tiny": 1e-300}}


@pytest.mark.parametrize("reply", WHOLE.values(), ids=WHOLE)
def test_a_completion_arrives_as_it_was_written(
    reply: Reply, client: OpenAI, proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    upstream.reply(reply)
    raw_reply = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=[user([*LOOK, AUDIO])], seed=2**53, extra_body=EXTRA
    )
    assert raw_reply.parse().to_dict() == json.loads(upstream.journal.only().sent)
    assert raw_reply.headers["x-condenser-action"] == "passed"
    assert raw_reply.request_id == dict(reply.headers).get("x-request-id")
    assert_relayed(proxy, upstream)


@pytest.mark.parametrize("reply", STREAMS.values(), ids=STREAMS)
def test_a_stream_arrives_as_it_was_written(
    reply: Reply, client: OpenAI, proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    upstream.reply(reply)
    chunks = [each.to_dict() for each in client.chat.completions.create(model=MODEL, messages=HI, stream=True)]
    *events, done = wire.events(upstream.journal.only().sent)
    assert (chunks, done) == ([json.loads(each) for each in events], "[DONE]")
    assert_relayed(proxy, upstream)


def test_structured_output_is_parsed(client: OpenAI, upstream: ScriptedUpstream) -> None:
    upstream.reply(completion(WEATHER_JSON))
    reply = client.chat.completions.parse(model=MODEL, messages=HI, response_format=Weather)
    assert reply.choices[0].message.parsed == Weather(city="Zürich", degrees=21)


def test_a_stream_arrives_while_it_is_written(client: OpenAI, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    gate = Signal()
    role, one, *rest = text_chunks("one two three")
    upstream.reply(stream(role, one, gate, *rest))
    with client.chat.completions.create(model=MODEL, messages=HI, stream=True) as chunks:
        assert text_of([next(chunks), next(chunks)]) == "one "
        gate.set()
        assert text_of(chunks) == "two three"
    assert_relayed(proxy, upstream)


@pytest.mark.parametrize("calls", [[ZURICH], [ZURICH, OSLO]], ids=["one", "parallel"])
def test_a_tool_round_goes_there_and_back(
    calls: list[Any], client: OpenAI, proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    upstream.reply(completion(None, tool_calls=calls), completion("21 degrees"))
    asked = client.chat.completions.create(model=MODEL, messages=HI, tools=[TOOL])  # type: ignore[list-item]
    message = asked.choices[0].message
    got = [(c.id, c.function.arguments) for c in message.tool_calls or [] if c.type == "function"]
    assert got == [(call.id, call.arguments) for call in calls]
    history = [*HI, message, *(tool_result(call, "21") for call in calls)]
    told = client.chat.completions.create(model=MODEL, messages=history, tools=[TOOL])  # type: ignore[list-item]
    assert told.choices[0].message.content == "21 degrees"
    assert_relayed(proxy, upstream)


# -- errors ------------------------------------------------------------------------------------------------

STATUSES: list[tuple[int, type[openai.APIStatusError]]] = [
    (400, openai.BadRequestError),
    (401, openai.AuthenticationError),
    (403, openai.PermissionDeniedError),
    (404, openai.NotFoundError),
    (409, openai.ConflictError),
    (422, openai.UnprocessableEntityError),
    (429, openai.RateLimitError),
    (500, openai.InternalServerError),
    (503, openai.InternalServerError),
]


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("status", "kind"), STATUSES)
def test_an_upstream_error_reaches_the_client_with_status_body_and_headers(
    status: int,
    kind: type[openai.APIStatusError],
    streamed: bool,
    client: OpenAI,
    proxy: Proxy,
    upstream: ScriptedUpstream,
) -> None:
    headers = [("retry-after", "17"), ("x-ratelimit-remaining-tokens", "0")]
    upstream.reply(error(status, "no ünits left", code="quota", headers=headers))
    with pytest.raises(kind) as caught:
        client.chat.completions.create(model=MODEL, messages=HI, stream=streamed)
    assert caught.value.status_code == status
    assert caught.value.body == error_body("no ünits left", code="quota")["error"]
    assert caught.value.response.headers["retry-after"] == "17"
    assert_relayed(proxy, upstream)


def test_an_error_that_is_no_json_arrives_as_it_is(client: OpenAI, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.reply(raw(b"<h1>Bad Gateway</h1>", "text/html", status=502))
    with pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(model=MODEL, messages=HI)
    assert caught.value.response.text == "<h1>Bad Gateway</h1>"
    assert_relayed(proxy, upstream)


def test_each_retry_of_the_sdk_is_forwarded(client: OpenAI, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    soon = [("retry-after-ms", "1")]
    upstream.reply(error(503, headers=soon), error(429, headers=soon), completion("at last"))
    retrying = client.with_options(max_retries=2)
    reply = retrying.chat.completions.create(model=MODEL, messages=HI)
    assert reply.choices[0].message.content == "at last"
    attempts = upstream.journal.to(CHAT)
    assert [e.header("x-stainless-retry-count") for e in attempts] == ["0", "1", "2"]
    assert_relayed(proxy, upstream)


def test_an_error_event_is_raised_with_its_code(client: OpenAI, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.reply(stream(*text_chunks("half")[:2], stream_error("GPU lost", "gpu"), done=False))
    chunks = client.chat.completions.create(model=MODEL, messages=HI, stream=True)
    with pytest.raises(openai.APIError, match="GPU lost") as caught:
        list(chunks)
    assert caught.value.code == "gpu"
    assert_relayed(proxy, upstream)


def test_a_stream_that_breaks_off_is_raised_after_its_text(client: OpenAI, upstream: ScriptedUpstream) -> None:
    upstream.reply(stream(*text_chunks("one two")[:2], cut=True))
    chunks = client.chat.completions.create(model=MODEL, messages=HI, stream=True)
    assert text_of([next(chunks), next(chunks)]) == "one "
    with pytest.raises(openai.APIError) as caught:
        next(chunks)
    assert isinstance(caught.value.body, dict)
    assert set(caught.value.body) == {"message", "type", "param", "code"}


# -- leaving early -----------------------------------------------------------------------------------------


def test_closing_a_stream_stops_the_upstream(client: OpenAI, upstream: ScriptedUpstream) -> None:
    upstream.reply(stream(*text_chunks("one two")[:2], Signal()))
    chunks = client.chat.completions.create(model=MODEL, messages=HI, stream=True)
    next(chunks)
    chunks.close()
    upstream.journal.only().disconnected.wait(CANCELLED_WITHIN)


# -- other endpoints ---------------------------------------------------------------------------------------


def test_models_are_listed_and_retrieved(client: OpenAI, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve("org/name:tag").id.endswith("tag")
    assert upstream.journal.to("/v1/models")[-1].header("authorization") == f"Bearer {KEY}"
    assert proxy.journal.only("/v1/models").status == 200


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_embeddings_arrive(encoding: Any, client: OpenAI, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    client.embeddings.create(model=MODEL, input=["a", "b"], encoding_format=encoding)
    assert_relayed(proxy, upstream, "/v1/embeddings", action=None)


def test_a_file_is_downloaded_byte_for_byte(client: OpenAI, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    assert client.files.content("file-1").read() == BINARY
    assert_relayed(proxy, upstream, "/v1/files/file-1/content", action=None)


def test_a_file_is_uploaded_byte_for_byte(client: OpenAI, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.reply(json_reply({"id": "file-1", "object": "file", "filename": "ünï.bin"}))
    sent = client.files.create(file=("ünï.bin", BINARY), purpose="user_data")
    assert sent.id == "file-1"
    assert BINARY in upstream.journal.only("/v1/files").body
    assert_relayed(proxy, upstream, "/v1/files", action=None)


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_old_completions_are_bypassed(streamed: bool, client: OpenAI, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    reply: Any = client.completions.create(model=MODEL, prompt="hi", stream=streamed)
    final = list(reply)[-1] if streamed else reply
    assert final.choices[0].text == "completed"
    assert_relayed(proxy, upstream, "/v1/completions", action="bypassed")


def test_its_guide_runs(guide: Guides) -> None:
    guide("openai")
