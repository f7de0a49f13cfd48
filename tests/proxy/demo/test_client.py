"""How the demo's client reads errors; what it does on the wire is tested with the scripted model."""

from __future__ import annotations

import pytest

from proxy.demo.client import is_overflow


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 8192 tokens.",
        "the request exceeds the available context size. try increasing the context size",
        "Input is too long for requested model.",
        "prompt has too many tokens",
    ],
)
def test_an_overflow_is_recognised_in_the_words_of_several_servers(message: str) -> None:
    assert is_overflow(None, message)


def test_an_overflow_is_recognised_by_its_code_whatever_is_said() -> None:
    assert is_overflow("context_length_exceeded", "no")


@pytest.mark.parametrize(
    "message", ["Incorrect API key provided", "The model `x` does not exist", "Rate limit reached"]
)
def test_another_refusal_is_no_overflow(message: str) -> None:
    assert not is_overflow("invalid_request_error", message)
