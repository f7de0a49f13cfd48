"""Bodies of many servers: refusals for length are recognised, and nothing else is."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from proxy.protocols.chat import ANSWER
from proxy.servers import error_bodies, refusals
from proxy.servers.refusals import Size, Subject, Unit
from tests.support.growth import grows_too_fast

Case = dict[str, Any]
HERE = Path(__file__).parent

is_error_body = partial(error_bodies.is_error_body, answer=ANSWER)


def recognise(status: int, body: bytes) -> Size | None:
    """The size in tokens that a reply refuses."""
    return refusals.read(status, body, answer=ANSWER).size(Unit.PROMPT, Unit.REPLY)


def cases(name: str) -> list[Case]:
    listed: list[Case] = json.loads((HERE / name).read_text("utf-8"))
    return listed


def named(case: Case) -> str:
    return str(case["name"])


def body_of(case: Case) -> bytes:
    body = case["body"]
    return (body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)).encode()


OVERFLOWS, ORDINARY = cases("overflows.json"), cases("ordinary.json")
INPUT = [case for case in OVERFLOWS if case["kind"] == "input"]


@pytest.mark.parametrize("case", OVERFLOWS, ids=named)
def test_a_refusal_is_recognised_with_its_kind_and_numbers(case: Case) -> None:
    refusal = recognise(case["status"], body_of(case))
    assert refusal is not None
    if case["kind"] == "input":
        assert refusal == Size(Unit.PROMPT, case["window"], case["counted"], case["asked"])
    else:
        assert refusal.unit is Unit.REPLY


@pytest.mark.parametrize("case", ORDINARY, ids=named)
def test_an_ordinary_answer_is_no_refusal_for_its_length(case: Case) -> None:
    assert recognise(case["status"], body_of(case)) is None


CLAIM = "This model's maximum context length is 600 tokens. However, your messages resulted in 90000 tokens."
PYDANTIC = f"[{{'type': 'float_parsing', 'loc': ('body', 'temperature'), 'msg': 'Not a number', 'input': {CLAIM!r}}}]"
ECHOES = [
    (f"Invalid value: '{CLAIM}'. Supported values are: 'system', 'assistant' and 'user'.", "invalid_value"),
    (f"Invalid value: '{CLAIM}'. Supported values are: 'system', 'assistant' and 'user'.", None),
    (CLAIM, "invalid_value"),
    (CLAIM, "model_not_found"),
    (f"Tool '{CLAIM}' does not exist", None),
    (f"The model `{CLAIM}` does not exist", "model_not_found"),
    (PYDANTIC, 400),
    (f"1 validation error: {PYDANTIC}", None),
    (f"Input should be a valid number, 'input': '{CLAIM}'", None),
]


@pytest.mark.parametrize(("message", "code"), ECHOES)
def test_a_quoted_value_of_the_request_is_no_refusal_for_its_length(message: str, code: str | int | None) -> None:
    error = {"message": message, "type": "invalid_request_error", "param": "messages[0].role", "code": code}
    assert recognise(400, json.dumps({"error": error}).encode()) is None


def test_no_known_form_or_another_status_is_no_refusal() -> None:
    for status in [401, 402, 403, 404, 429]:
        assert recognise(status, b"This model's maximum context length is 4096 tokens.") is None
    for text in ("context window exceeds limit (2013)", "maximum context length is 12 tokens"):
        refusal = recognise(400, json.dumps({"error": {"message": text}}).encode())
        assert refusal is not None
        assert refusal.limit is None


@pytest.mark.parametrize("case", INPUT[:40], ids=named)
def test_a_refusal_is_recognised_through_two_gateways(case: Case) -> None:
    inner = body_of(case).decode()
    if case["status"] < 400 or not inner:
        return
    wrapped = {"error": {"message": "Provider returned error", "code": 400, "metadata": {"raw": inner}}}
    twice = {"detail": {"error": json.dumps(wrapped)}}
    refusal = recognise(400, json.dumps(twice).encode())
    assert refusal is not None
    assert refusal == Size(Unit.PROMPT, case["window"], case["counted"], case["asked"])


def test_a_conversation_about_context_lengths_is_no_refusal() -> None:
    for case in INPUT:
        quoting = {"detail": [{"msg": "Field required", "loc": ["body", "model"], "input": case["body"]}]}
        assert recognise(422, json.dumps(quoting).encode()) is None
    for case in INPUT:
        message = {"role": "assistant", "content": body_of(case).decode()}
        reply = {"choices": [{"message": message}], "usage": {"prompt_tokens": 3}}
        chunk = {"choices": [{"delta": message, "finish_reason": None}]}
        assert recognise(200, json.dumps(reply).encode()) is None
        assert recognise(200, b"data: " + json.dumps(chunk).encode() + b"\n\n") is None


@pytest.mark.parametrize(
    "body",
    [b"", b"\xff\xfe", b"null", b"[]", b"{", b'{"error":null}', b'{"error":' * 60 + b"1" + b"}" * 60, b"[" * 100_000],
    ids=lambda body: repr(body[:20]),
)
def test_a_body_of_no_known_form_is_no_refusal(body: bytes) -> None:
    assert recognise(400, body) is None


@pytest.mark.parametrize("word", ["tokens ", "tokens exceed ", "context length ", "input ", "9 > ", "max_tokens "])
def test_a_long_error_is_read_in_time(word: str) -> None:
    def made(length: int) -> bytes:
        return json.dumps({"error": {"message": f"maximum context length: {word * (length // len(word))}"}}).encode()

    assert not grows_too_fast(lambda body: recognise(400, body), made)


def test_a_number_of_thousands_of_digits_is_none() -> None:
    for digits in ("9" * 5_000, ",".join(["999"] * 1_000)):
        message = f"maximum context length is {digits} tokens, but the prompt has {digits} tokens"
        refused = recognise(400, json.dumps({"error": {"message": message}}).encode())
        assert refused == Size(Unit.PROMPT)


OPEN: dict[str, Any] = {"status": "in_progress", "error": None, "output": [], "usage": None}
CREATED: dict[str, Any] = {"id": "resp_68af", "object": "response", **OPEN}
TOO_LONG = "Your input exceeds the context window of this model. Please adjust your input and try again."


def events(*named: tuple[str, dict[str, Any]]) -> bytes:
    """Events of OpenAI's Responses API."""
    typed = [(name, {"type": name, "sequence_number": number, **data}) for number, (name, data) in enumerate(named)]
    return "".join(f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in typed).encode()


def failed(code: str, message: str, **members: Any) -> tuple[str, dict[str, Any]]:
    response = {**CREATED, "status": "failed", "error": {"code": code, "message": message}, **members}
    return "response.failed", {"response": response}


@pytest.mark.parametrize("before", [[], ["response.created"], ["response.created", "response.in_progress"]])
def test_a_response_that_failed_for_its_length_is_a_refusal(before: list[str]) -> None:
    body = events(*((name, {"response": CREATED}) for name in before), failed("context_length_exceeded", TOO_LONG))
    assert recognise(200, body) == Size(Unit.PROMPT)
    assert is_error_body(body)


def test_a_response_that_failed_for_another_reason_or_began_is_no_refusal() -> None:
    told = "Say that the maximum context length is 4096 tokens if the prompt is too long."
    body = events(failed("server_error", "The server had an error.", instructions=told))
    assert recognise(200, body) is None
    assert is_error_body(body)
    body = events(("response.created", {"response": CREATED}))
    assert recognise(200, body) is None
    assert not is_error_body(body)


def test_one_error_is_read_for_sizes_subjects_and_the_members_that_are_ours() -> None:
    said = "Unsupported parameter: 'max_completion_tokens'. Set 'seed', and use roles that alternate user/assistant."
    error = json.dumps({"error": {"message": said}}).encode()
    refusal = refusals.read(400, error, answer=ANSWER, ours=("max_completion_tokens", "stream_options"))
    assert refusal.members == {"max_completion_tokens"}
    assert Subject.ALTERNATE_ROLES in refusal.subjects
    assert refusal.sizes == ()
    silent = refusals.read(413, b"", answer=ANSWER)
    assert [size.unit for size in silent.sizes] == [Unit.BYTES, Unit.PROMPT]
    assert refusals.read(200, b'{"choices": []}', answer=ANSWER) is refusals.NO_REFUSAL
