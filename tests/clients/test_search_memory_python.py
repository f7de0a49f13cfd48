"""The official openai package for Python before a model that searches its memory: it sees nothing of that."""

from collections.abc import Callable
from typing import Any

import pytest
from openai import OpenAI

from tests.clients.cases import KEY, MODEL, tool_result, user
from tests.clients.cases import ZURICH as CALL
from tests.clients.searching import HEADERS, HISTORY, POSITIONS, QUESTION, TOOLS, TURNS, check, script
from tests.support.proxy import Proxy
from tests.support.upstream import ScriptedUpstream


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


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("position", POSITIONS)
def test_it_sees_nothing_of_a_search(proxy: Proxy, upstream: ScriptedUpstream, position: str, streamed: bool) -> None:
    script(proxy, upstream, position, streamed=streamed)
    with OpenAI(base_url=proxy.base_url, api_key=KEY, max_retries=0, default_headers=HEADERS) as client:

        def ask(messages: list[Any]) -> Any:
            body: Any = {"model": MODEL, "messages": messages, "tools": TOOLS}
            if not streamed:
                return client.chat.completions.create(**body).choices[0].message
            with client.chat.completions.stream(**body, stream_options={"include_usage": True}) as stream:
                completion = stream.get_final_completion()
            assert completion.usage is not None
            assert completion.choices[0].finish_reason in ("stop", "tool_calls")
            return completion.choices[0].message

        check(proxy, upstream, converse(ask), position)
