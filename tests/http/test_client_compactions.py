"""What becomes of a session whose client compacts by itself: Claude Code, Codex in its three ways, and SDKs.

Each client is a row: what it sends to have its history compacted, and what it makes of the answer. All are played with
an id and without one.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.http.test_agents import MESSAGES, RESPONSES, Api
from tests.http.test_messages import said_in
from tests.http.test_responses import response_in
from tests.support import wire
from tests.support.proxy import Proxy, running_proxy
from tests.support.redis_server import RedisServer
from tests.support.responses_upstream import COMPACT
from tests.support.stage import EMPTY, store_rows
from tests.support.wire import Answer

Json = dict[str, Any]

WINDOW = 32_000
FACTS = "1. Primary Request: fix the parser, and never touch main.py, as the user has said twice."
SUMMARY = (
    f"<analysis>\nLet me think at length about all that was done here, step by step and file by file, before I write."
    f"\n</analysis>\n\n<summary>\n{FACTS}\n\n2. Files: src/1-0.py was read; its third function is the one that fails."
    "\n\n3. Next: write the test.\n</summary>"
)
PREFACE = "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.\n\n- Tool calls will be REJECTED.\n\n"
CLAUDE_PROMPT = f"{PREFACE}Your task is to create a detailed summary of the conversation so far."
CODEX_PROMPT = "You are performing a CONTEXT CHECKPOINT COMPACTION. Create a handoff summary for another LLM."
BETA = ("anthropic-beta", "compact-2026-09-04")


def is_asked_to_compact(body: Json) -> bool:
    last = json.dumps((body.get("messages") or body["input"])[-1])
    return "compaction" in body or any(word in last for word in ("summary of", "CHECKPOINT", "compaction_trigger"))


def said(text: str) -> str:
    """What clients show of such an answer."""
    return text.partition("<summary>")[2].partition("</summary>")[0].strip()


@dataclass(frozen=True)
class Client:
    """How one client asks (`body` is its next request), what it is answered, and with what it goes on."""

    api: Api
    asks: Callable[[Json], Json]
    answer: str
    goes_on: Callable[[list[Json], Answer], list[Json]]
    """The list behind the compaction, by the list before it and the answer."""
    path: str = ""
    headers: Sequence[tuple[str, str]] = ()

    @property
    def upstream(self) -> Any:
        more = {"compacts": True} if BETA in self.headers else {}
        return self.api.upstream(self.script, **more)

    def script(self, body: Json) -> Sequence[Json] | str:
        if is_asked_to_compact(body):
            return self.answer
        answer: Sequence[Json] | str = self.api.tests.reader(body)
        return answer

    def compact(self, proxy: str, agent: Any) -> Answer:
        path = self.path or self.api.path
        answer = wire.post_json(proxy, path, self.asks(agent.body()), [*self.api.key, *self.headers])
        assert answer.status == 200, answer.body
        return answer


def with_last(member: str, item: Json) -> Callable[[Json], Json]:
    return lambda body: {**body, member: [*body[member], item]}


def joined(body: Json) -> Json:
    """Claude Code joins its prompt with the results that it has to send."""
    *before, last = body["messages"]
    content = [*last["content"], {"type": "text", "text": CLAUDE_PROMPT}]
    return {**body, "messages": [*before, {**last, "content": content}]}


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def users_of(items: Sequence[Json]) -> list[Json]:
    return [item for item in items if item.get("role") == "user"]


CONTINUED = "This session is being continued from a previous conversation that ran out of context.\n\nSummary:\n"
HANDED_OVER = "Another language model started to solve this problem and produced a summary of its thinking process."
CLIENTS = {
    "Claude Code": Client(
        MESSAGES,
        joined,
        SUMMARY,
        lambda _, __: [user(f"{CONTINUED}{said(SUMMARY)}\n\nIf you need details, read the transcript.")],
    ),
    "Codex, local": Client(
        RESPONSES,
        with_last("input", user(CODEX_PROMPT)),
        SUMMARY,
        lambda items, _: [*users_of(items), user(f"{HANDED_OVER}\n{SUMMARY}")],
    ),
    "Codex, by a trigger": Client(
        RESPONSES,
        with_last("input", {"type": "compaction_trigger"}),
        "",
        lambda items, answer: [*users_of(items), *response_in(answer)["output"], user("Go on, please.")],
    ),
    "the endpoint's": Client(
        RESPONSES,
        lambda body: {key: value for key, value in body.items() if key not in ("stream", "store")},
        "",
        lambda _, answer: [*answer.json()["output"], user("Go on, please.")],
        COMPACT,
    ),
    "an SDK of Anthropic's": Client(
        MESSAGES,
        lambda body: {**body, "compaction": {"type": "summarize"}},
        "",
        lambda _, answer: [{"role": "user", "content": [*said_in(answer), {"type": "text", "text": "Go on, please."}]}],
        headers=[BETA],
    ),
}
each_client = pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS.keys())


@each_client
@pytest.mark.parametrize("session", [True, False], ids=["with an id", "without"])
def test_a_clients_own_compaction_goes_on_with_its_branch(client: Client, session: bool) -> None:
    with (
        client.upstream as upstream,
        running_proxy(upstream.url, strategy="mask+half-window", window=WINDOW) as proxy,
    ):
        agent = client.api.tests.Agent(proxy.url)
        if session:
            agent.body = with_session(agent.body)
        name = played(agent, proxy)
        path = client.path or client.api.path
        calls = len(upstream.journal.to(path))
        answer = client.compact(proxy.url, agent)
        proxy.quiet()
        assert (answer.action, answer.reason) == ("replayed", "client-compaction")
        assert len(upstream.journal.to(path)) == calls + 1
        listed = client.goes_on(items_of(agent), answer)
        first = sent(client, agent, listed)
        assert (first.session, first.branch, first.reason) == (name, "main", "below-marks")
        assert client.api.views(upstream)[-1] == listed
        again = sent(client, agent, [*listed, *said_by(client), user("And what of the rest?")])
        assert (again.session, again.branch) == (name, "main")
        asked = {"query": "which file of src was read", "session": name}
        found = wire.post_json(proxy.url, "/_condenser/own/search", asked, client.api.key)
        assert any("read({" in hit["text"] for hit in found.json()["data"])


def with_session(body: Callable[[], Json]) -> Callable[[], Json]:
    return lambda: {**body(), "condenser": {"session": "s"}}


def test_a_compaction_that_would_not_fit_is_condensed_and_opens_no_branch(tmp_path: Path) -> None:
    client = CLIENTS["Claude Code"]
    store = {"url": f"sqlite:///{tmp_path / 'c.db'}"}
    with (
        client.upstream as upstream,
        running_proxy(upstream.url, strategy="mask+extract", window=200_000) as elsewhere,
        running_proxy(upstream.url, strategy="mask+extract", window=WINDOW // 2, store=store) as proxy,
    ):
        agent = client.api.tests.Agent(elsewhere.url)
        for _ in range(24):
            agent.turn()
        answer = client.compact(proxy.url, agent)
        assert (answer.action, answer.trigger) == ("condensed", "context_limit")
        assert store_rows(tmp_path / "c.db") == EMPTY
        assert sent(client, agent, [user("Begin."), *said_by(client), user("Go on.")]).branch == "main"


def test_another_replica_knows_the_answer_too(redis: RedisServer) -> None:
    client = CLIENTS["Codex, local"]
    with (
        client.upstream as upstream,
        running_proxy(upstream.url, store={"url": redis.url}, strategy="mask", window=WINDOW) as first,
        running_proxy(upstream.url, store={"url": redis.url}, strategy="mask", window=WINDOW) as second,
    ):
        agent = client.api.tests.Agent(first.url)
        names = {agent.turn().session for _ in range(14)}
        answer = client.compact(first.url, agent)
        agent.url = second.url
        answer = sent(client, agent, client.goes_on(items_of(agent), answer))
        assert (answer.session in names, answer.branch) == (True, "main")


def played(agent: Any, proxy: Proxy) -> str:
    """The session of an agent that is some turns behind a condensation and has results to send, by its name."""
    actions: list[str | None] = []
    while "condensed" not in actions[:-2] or items_of(agent)[-1].get("role") == "system":
        answer = agent.turn()
        proxy.quiet()
        actions.append(answer.action)
    return str(answer.session)


def items_of(agent: Any) -> list[Json]:
    return list(getattr(agent, "items", None) or agent.messages)


def said_by(client: Client) -> list[Json]:
    if client.api is MESSAGES:
        return [{"role": "assistant", "content": "I go on."}]
    return [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I go on."}]}]


def sent(client: Client, agent: Any, listed: list[Json]) -> Answer:
    body = {**agent.body(), client.api.listed: listed}
    answer = wire.post_json(agent.url, client.api.path, body, [*client.api.key, *client.headers])
    assert answer.status == 200, answer.body
    return answer
