"""A conversation in which the model searches its memory: what the upstream answers, and what holds for every client.

The client asks a question. Where it is given a call of its own, it answers that and asks again. Then come three turns.
"""

from itertools import pairwise
from typing import Any

from proxy.protocols.hidden_calls import NO_ANSWER
from tests.clients.cases import KEY, MODEL, TOOL, ZURICH
from tests.http.strict import problems
from tests.http.test_memory_injection import FORCE, diary
from tests.support import replies, wire
from tests.support.proxy import Proxy
from tests.support.recording import CHAT
from tests.support.replies import Reply, ToolCall
from tests.support.searching import CALLED, SEARCH, is_prefix, reply_of, reply_opening, search
from tests.support.upstream import ScriptedUpstream

HEADERS = {
    "X-Condenser-Session": "searching",
    "X-Condenser-Strategy": "recent",
    "X-Condenser-Memory": "tool",
    "X-Condenser-Window": "8192",
}
HISTORY = diary(12)[:-1]
"""What was said before; its beginning is condensed away."""
QUESTION: dict[str, Any] = {"role": "user", "content": "Where does the greenhouse key hang?"}
TOOLS: list[Any] = [TOOL]
FOUND = "Behind the blue barrel."
POSITIONS = ("first", "twice", "beside", "after-text", "split", "broken", "for-ever")
TURNS = ("And the shed?", "And the pump?", "Thanks.")


def first_turn(position: str, streamed: bool) -> list[Reply]:
    """What the upstream answers until the question is answered."""
    found = reply_of(FOUND, streamed=streamed)
    match position:
        case "twice":
            return [*(reply_of(None, search(id=f"call_m{each}"), streamed=streamed) for each in (1, 2)), found]
        case "beside":
            return [reply_of(None, search(), ZURICH, streamed=streamed), found]
        case "after-text":
            return [reply_of("Let me look. ", search(), streamed=streamed), found]
        case "split" if streamed:
            return [_split(), found]
        case "broken":
            return [reply_of(None, ToolCall(SEARCH, '{"query', "call_m1"), streamed=streamed), found]
        case "for-ever":
            return [reply_of(None, search(id=f"call_m{each}"), streamed=streamed) for each in range(4)]
    return [reply_of(None, search(), streamed=streamed), found]


def _split() -> Reply:
    opening = {**search().as_json(), "index": 0, "function": {"name": SEARCH, "arguments": ""}}
    pieces = ({"index": 0, "function": {"arguments": each}} for each in search().arguments)
    deltas = [replies.chunk({"tool_calls": [each]}) for each in (opening, *pieces)]
    return replies.stream(*reply_opening(None), *deltas, CALLED, replies.usage_chunk(100, 10))


def script(proxy: Proxy, upstream: ScriptedUpstream, position: str, streamed: bool) -> None:
    """Has the history condensed, and the upstream play the whole conversation after it."""
    headers = [*HEADERS.items(), ("Authorization", f"Bearer {KEY}"), FORCE]
    body = {"model": MODEL, "messages": diary(12), "tools": TOOLS}
    assert wire.post_json(proxy.url, CHAT, body, headers).status == 200
    proxy.journal.clear()
    upstream.journal.clear()
    later = [reply_of(f"Nothing of that, {turn}", streamed=streamed) for turn in TURNS]
    upstream.reply(*first_turn(position, streamed), *later)


def text_of(position: str) -> str:
    """The text that the client gets for its question, in all."""
    return {"after-text": f"Let me look. {FOUND}", "for-ever": NO_ANSWER}.get(position, FOUND)


def check(proxy: Proxy, upstream: ScriptedUpstream, texts: list[str | None], position: str) -> None:
    """The client saw one reply to each request and nothing of a search; each view begins with the one before."""
    assert [text or "" for text in texts] == [text_of(position), *(f"Nothing of that, {turn}" for turn in TURNS)]
    assert all(SEARCH.encode() not in exchange.sent for exchange in proxy.journal.to(CHAT))
    views = [exchange.json()["messages"] for exchange in upstream.journal.to(CHAT)]
    assert len(views) > len(proxy.journal.to(CHAT)) or position == "beside"
    assert all(is_prefix(earlier, later) for earlier, later in pairwise(views))
    assert all(problems(view) == set() for view in views)
    assert any(call["function"]["name"] == SEARCH for each in views[-1] for call in each.get("tool_calls") or ())
