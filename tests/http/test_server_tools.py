"""Server tools whose results come in a later message than their calls, before an upstream that refuses torn pairs."""

from collections.abc import Sequence

import pytest

from tests.http.test_messages import HEADERS, NARROW, SUMMARY, Agent, Json, is_own, result, said_in
from tests.support import wire
from tests.support.messages_upstream import MESSAGES, Script, StrictMessages, text, tool_use
from tests.support.proxy import proxy_before
from tests.support.strict_messages import Body, blocks

ROUNDS = 24


def inside(body: Body) -> Sequence[Json] | str:
    """Code of the server calls the client's tool twice before it ends."""
    return _reply(body, {"type": "code_execution_20260120"}, 2)


def beside(body: Body) -> Sequence[Json] | str:
    """A server's tool and one of the client's are called in one message."""
    return _reply(body, {}, 1)


def _reply(body: Body, caller: Json, calls: int) -> Sequence[Json] | str:
    if is_own(body):
        return f"<summary>{SUMMARY}</summary>"
    said = [block for message in body["messages"] for block in blocks(message["content"])]
    ended = {block["tool_use_id"] for block in said if block["type"] == "code_execution_tool_result"}
    running = next((b["id"] for b in said if b["type"] == "server_tool_use" and b["id"] not in ended), None)
    step = len(body["messages"])
    read = tool_use("read", {"path": f"src/{step}.py"})
    if running is None:
        use = {"type": "server_tool_use", "id": f"srvtoolu_{step}", "name": "code_execution", "input": {"code": "x"}}
        return [text("I look."), use, {**read, "caller": {**caller, "tool_id": use["id"]}} if caller else read]
    if sum(block.get("caller", {}).get("tool_id") == running for block in said) < calls and caller:
        return [{**read, "caller": {**caller, "tool_id": running}}]
    return [{"type": "code_execution_tool_result", "tool_use_id": running, "content": {"stdout": "ok"}}, read]


@pytest.mark.parametrize("strategy", ["mask+extract", "half-window", "recent", "native"])
@pytest.mark.parametrize("script", [inside, beside])
def test_no_view_parts_a_server_tool_from_its_result(script: Script, strategy: str) -> None:
    server = StrictMessages(script, window=NARROW, compacts=strategy == "native")
    with proxy_before(server, strategy=strategy, window=NARROW) as (upstream, proxy):
        agent, actions = Agent(proxy.url), set[str | None]()
        for number in range(ROUNDS):
            answer = wire.post_json(proxy.url, MESSAGES, agent.body(), HEADERS)
            assert answer.status == 200, answer.body
            actions.add(answer.action)
            content = said_in(answer)
            results = [result(b["id"], f"line {number} of it. " * 250) for b in content if b["type"] == "tool_use"]
            agent.messages += [{"role": "assistant", "content": content}, {"role": "user", "content": results}]
            proxy.quiet()
        assert {"condensed", "replayed"} <= actions
        assert upstream.refusals == []
