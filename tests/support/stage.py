"""Talking to the real proxy over HTTP: requests in, what was forwarded out, and an upstream that also summarizes.

The summarizer's calls arrive at the same upstream as everything else; they are known by their system prompt.
"""

import json
import sqlite3
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proxy.protocols.chat import ChatCounter
from proxy.tokens.counter import Counter, Tokenizers
from strategies.dialects.chat import SYSTEM_ROLES
from strategies.prompts import prompt
from tests.support import replies, wire
from tests.support.prefixes import remembered
from tests.support.proxy import Proxy, running_proxy
from tests.support.recording import CHAT, Exchange
from tests.support.replies import Reply
from tests.support.upstream import Counting, ScriptedUpstream
from tests.support.wire import Answer

Message = Mapping[str, Any]
Headers = Sequence[tuple[str, str]]

WINDOW = 4_096
MODEL = "scripted-1"
SUMMARY = (
    "Goal: keep the garden alive.\nRules: never water at noon.\nDone: beds 1 to 9 were dug, planted and watered in the"
    " order of the plan; the soil of bed 4 was changed, because it was too wet for roses.\nOpen: bed 10."
)
MORE = "Each step was taken in its turn and looked at afterwards. " * 4  # without it, a short record would be a crumb
_JUDGE = prompt("judge")[:60]
_PROMPTS = [
    prompt(name)[:40]
    for name in ("summary", "semantic", "semantic-zh", "dynacontext", "dynacontext-sections", "rolling", "rolling-zh")
]
_COUNTER: list[Counter] = []


def counter() -> Counter:
    """The counter of the models in these tests; its rank file is read once."""
    if not _COUNTER:
        _COUNTER.append(Tokenizers().for_model(MODEL, ChatCounter))
    return _COUNTER[0]


def count(body: Mapping[str, Any]) -> int:
    """Tokens of a whole request as the proxy's own tokenizer has them."""
    has_system = any(each["role"] in SYSTEM_ROLES for each in body["messages"])
    return sum(map(_tokens, body["messages"])) + counter().overhead(body, has_system=has_system)


@remembered
def _tokens(message: Message) -> int:
    return counter().message(message)


def rounds_over(tokens: int) -> int:
    """The rounds of the shortest chat that has more tokens than that."""
    return bisect_right(range(400), tokens, key=lambda rounds: count({"messages": chat(rounds)}))


def is_summary_call(exchange: Exchange) -> bool:
    """Whether the proxy asks a summarizer here."""
    return _system(exchange).startswith(tuple(_PROMPTS))


def is_vote(exchange: Exchange) -> bool:
    """Whether the proxy asks a judge here."""
    return _system(exchange).startswith(_JUDGE)


def is_own(exchange: Exchange) -> bool:
    """Whether the proxy made this call on its own account."""
    return is_summary_call(exchange) or is_vote(exchange)


def _system(exchange: Exchange) -> str:
    return exchange.opening if exchange.path == CHAT else ""


def vote(decision: str, reasoning: str = "The beds are planned.") -> Reply:
    """A judge's answer."""
    return summary(f"<reasoning>{reasoning}</reasoning>\n<decision>{decision}</decision>")


def summary(text: str = SUMMARY, *, finish: str = "stop", **message: Any) -> Reply:
    """A summarizer's answer; a record that is plain words stands in the tags that were asked for."""
    text = f"<summary>{text}</summary>" if text[:1].isalpha() else text
    choice = {"index": 0, "message": {"role": "assistant", "content": text, **message}, "finish_reason": finish}
    return replies.json_reply({"object": "chat.completion", "choices": [choice], "usage": replies.usage(900, 40)})


def controls(*, session: str | None = None, window: int | None = None, **more: str | None) -> list[tuple[str, str]]:
    """Request headers of ours: `controls(session="s", dry_run="true")`."""
    given = {"session": session, "window": None if window is None else str(window), **more}
    return [(f"X-Condenser-{key.replace('_', '-')}", value) for key, value in given.items() if value is not None]


@dataclass
class Stage:
    """A proxy, the upstream behind it, and the requests between them."""

    proxy: Proxy
    upstream: ScriptedUpstream
    model: str = MODEL
    key: str = "sk-first"
    sent: list[bytes] = field(default_factory=list)

    def post(self, body: bytes, headers: Headers = ()) -> Answer:
        """Sends these bytes with a credential."""
        self.sent.append(body)
        own = [*wire.JSON, ("Authorization", f"Bearer {self.key}")]
        return wire.request(self.proxy.url, "POST", CHAT, body, [*own, *headers])

    def ask(self, messages: Sequence[Message], headers: Headers = (), **members: Any) -> Answer:
        """Asks with this history; fails the test where the answer is not 200."""
        answer = self.post(body_of(messages, self.model, **members), headers)
        assert answer.status == 200, answer.body
        return answer

    def forget(self) -> None:
        """Drops what was recorded: a long conversation is sent a thousand times."""
        self.sent.clear()
        self.proxy.journal.clear()
        self.upstream.journal.clear()

    @property
    def forwarded(self) -> list[Exchange]:
        """The clients' requests as they reached the upstream, oldest first."""
        return [each for each in self.upstream.journal.to() if not is_own(each)]

    @property
    def summaries(self) -> list[Exchange]:
        """The proxy's calls to a summarizer."""
        return [each for each in self.upstream.journal.to() if is_summary_call(each)]

    @property
    def votes(self) -> list[Exchange]:
        """The proxy's calls to a judge."""
        return [each for each in self.upstream.journal.to() if is_vote(each)]

    @property
    def last_view(self) -> list[dict[str, Any]]:
        """The message list that was forwarded last."""
        messages: list[dict[str, Any]] = self.forwarded[-1].json()["messages"]
        return messages


def body_of(messages: Sequence[Message], model: str = MODEL, **members: Any) -> bytes:
    """A request with odd spacing, as no serialiser of ours would write it."""
    listed = " ,\n  ".join(json.dumps(each, ensure_ascii=False) for each in messages)
    rest = "".join(f', "{key}" :  {json.dumps(value)}' for key, value in members.items())
    return f'{{ "model" : {json.dumps(model)} , "messages":[ {listed} ]{rest} }}\n'.encode()


@contextmanager
def proxy_with_upstream(
    *, window: int | None = WINDOW, answers: Callable[[Exchange], Reply | None] | None = None, **settings: Any
) -> Iterator[Stage]:
    """A proxy and an upstream that counts; `answers` plays the summarizer (by default it says `SUMMARY`)."""
    with ScriptedUpstream(counting=Counting(count)) as upstream:
        upstream.answer(lambda exchange: (answers or _answering)(exchange) if is_own(exchange) else None)
        known = {"window": window} if window is not None else {}
        with running_proxy(upstream.url, **{**known, **settings}) as proxy:
            yield Stage(proxy, upstream)


def _answering(exchange: Exchange) -> Reply:
    return vote("NO") if is_vote(exchange) else summary()


def chat(rounds: int, *, words: int = 75, ends_with_user: bool = True) -> list[Message]:
    """A conversation without tools: a task, `rounds` rounds of about `words` words each, and a question."""
    messages: list[Message] = [
        {"role": "system", "content": "You are a gardener."},
        {"role": "user", "content": "Plan my garden. Never water at noon."},
    ]
    for number in range(rounds):
        filling = " ".join(f"seed{number}x{each}" for each in range(words))
        messages.append({"role": "assistant", "content": f"Bed {number}: {filling}", "refusal": None})
        messages.append({"role": "user", "content": f"And what of bed {number + 1}?"})
    return messages if ends_with_user else messages[:-1]


def agent(rounds: int, *, lines: int = 12) -> list[Message]:
    """An agent's conversation: one task, then `rounds` calls with a result of `lines` lines each."""
    messages: list[Message] = [
        {"role": "system", "content": "Use tools."},
        {"role": "user", "content": "Fix the door."},
    ]
    for number in range(rounds):
        call = {
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": "run", "arguments": json.dumps({"command": f"make step{number}"})},
        }
        result = "\n".join(f"step {number} line {line}: hinge {line * 37 % 101} checked" for line in range(lines))
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"call_{number}", "content": result})
    return messages


def store_rows(path: Path) -> dict[str, int]:
    """How much a SQLite store holds: saved sessions, records of condensations, entries of the chain index."""
    queries = {
        "sessions": "SELECT count(*) FROM sessions WHERE meta IS NOT NULL",
        "records": "SELECT count(*) FROM records",
        "index": "SELECT count(*) FROM chain",
    }
    with closing(sqlite3.connect(path)) as connection:
        return {name: connection.execute(query).fetchone()[0] for name, query in queries.items()}


EMPTY = {"sessions": 0, "records": 0, "index": 0}


@contextmanager
def proxy_with_sqlite(path: Path, **settings: Any) -> Iterator[Stage]:
    """As `proxy_with_upstream`, with its store in a file that `store_rows` can look into."""
    with proxy_with_upstream(store={"url": f"sqlite:///{path}"}, **settings) as stage:
        yield stage
