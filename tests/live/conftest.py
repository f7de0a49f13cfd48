"""Servers that several tests share: one of llama.cpp takes a second to start, one of vLLM half a minute."""

from collections.abc import Iterator

import pytest

from tests.live.llama import IS_VLLM, llama, vllm
from tests.live.templates import HERMES

_BLOCKS = 9
"""Of vLLM's cache, 128 tokens each, one in reserve: requests that need more than a window wait for each other."""


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """A server with a window of 1,024 tokens and as much cache, of llama.cpp with one slot."""
    with (
        vllm(max_model_len=1_024, num_gpu_blocks_override=_BLOCKS, chat_template=HERMES)
        if IS_VLLM
        else llama(n_ctx=1_024, n_parallel=1)
    ) as url:
        yield url


@pytest.fixture
def server_with_tools(request: pytest.FixtureRequest) -> Iterator[str]:
    """A server whose chat template shows the model its tools."""
    if IS_VLLM:
        yield request.getfixturevalue("server")
        return
    with llama(n_ctx=1_024, n_parallel=1, chat_template=HERMES) as url:
        yield url


@pytest.fixture
def pool(request: pytest.FixtureRequest) -> Iterator[tuple[str, int]]:
    """A server of several requests at a time that share the tokens of one window, and that window."""
    if IS_VLLM:
        yield request.getfixturevalue("server"), 1_024
        return
    with llama(n_ctx=512, n_parallel=-1) as url:
        yield url, 512
