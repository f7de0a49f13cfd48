"""The official openai package for Python before a model that searches its memory: it sees nothing of that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from openai import OpenAI

from tests.clients.cases import KEY, MODEL, tool_result, user
from tests.clients.cases import ZURICH as CALL
from tests.clients.searching import HEADERS, HISTORY, POSITIONS, QUESTION, TOOLS, TURNS, check, script
from tests.support.proxy import Proxy
from tests.support.upstream import ScriptedUpstream

positions = pytest.mark.parametrize("position", POSITIONS)


def converse(ask: Callable[[list[Any]], Any]) -> list[str | None]:
    """The whole conversation; the text of each reply that the client was given one for."""
    messages: list[Any] = [*HISTORY, QUESTION]
    texts: list[str | None] = []
    for turn in (*TURNS, None):
        reply = ask(messages)
        if reply.tool_calls:
            assert [call.id for call in reply.tool_calls] == [CALL.id]
            messages += [reply, tool_result(CALL, "21")]
            reply = ask(messages)
        texts.append(reply.content)
        messages += [reply, user(turn)]
    return texts


@positions
def test_a_reply_in_one_piece(proxy: Proxy, upstream: ScriptedUpstream, position: str) -> None:
    script(proxy, upstream, position, streamed=False)
    with OpenAI(base_url=proxy.base_url, api_key=KEY, max_retries=0, default_headers=HEADERS) as client:

        def ask(messages: list[Any]) -> Any:
            return client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS).choices[0].message

        check(proxy, upstream, converse(ask), position)


@positions
def test_a_streamed_reply(proxy: Proxy, upstream: ScriptedUpstream, position: str) -> None:
    script(proxy, upstream, position, streamed=True)
    with OpenAI(base_url=proxy.base_url, api_key=KEY, max_retries=0, default_headers=HEADERS) as client:

        def ask(messages: list[Any]) -> Any:
            usage: Any = {"include_usage": True}
            with client.chat.completions.stream(
                model=MODEL, messages=messages, tools=TOOLS, stream_options=usage
            ) as stream:
                completion = stream.get_final_completion()
            assert completion.usage is not None
            assert completion.choices[0].finish_reason in ("stop", "tool_calls")
            return completion.choices[0].message

        check(proxy, upstream, converse(ask), position)
