"""Conversations for tests: builders, recorded ones, generated ones, and counters of tokens.

Builders make message bodies as a client would send them; `transcript_of` reads them as the proxy does, with the real
patterns of tool output. `WORDS` counts in a way that can be checked by eye and needs no rank file. Recorded
conversations stand beside a checkout; where they are missing, tests that need them skip and say so.
"""

import gzip
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from random import Random
from typing import Any

import pytest
from hypothesis import strategies as st

from proxy import tool_output_patterns
from proxy.protocols.chat import ChatCounter
from proxy.tokens.counter import ESTIMATE, Tokenizers
from strategies.core.condensation import Condensation
from strategies.core.messages import Message, Reader, TokenCounter
from strategies.core.pieces import Keep
from strategies.core.transcript import Transcript
from strategies.core.view import View, fold
from strategies.dialects.chat import CHAT, call_fields, content_text
from tests.support.data import FOLDER, MISSING

Body = dict[str, Any]

READER = Reader(*tool_output_patterns())

RULES = [
    "Never deploy on Fridays; not even a hotfix for web-01, please.",
    "请始终用中文回复客户。",
    "All money is in cents and must be an integer.",
    "From now on, keep every reply under 120 words!",
    "Don't touch the table billing_2019.",
]
"""What a user rules in the first turns of a conversation."""

_PIECE = re.compile(r"[A-Za-z0-9_]{1,4}|[^\sA-Za-z0-9_]")
_FRAME, _CALL_FRAME, _OTHER_PART = 4, 3, 85
_VOCABULARY, _LETTERS = 4_000, "aeioubcdfghklmnprst"


def condensation_of(**members: Any) -> Condensation:
    """A condensation: that of one message, but for the members given."""
    plain = {
        "id": "c1",
        "digest": b"d",
        "covered": 1,
        "depth": 1,
        "pieces": (Keep(0),),
        "window": 1_000,
        "strategy": "mask",
        "requirement": "soft",
        "trigger": "threshold",
        "tokens_before": 900,
        "tokens_after": 300,
        "created_at": 0.0,
    }
    return Condensation(**{**plain, **members})


@lru_cache(maxsize=4_096)  # a simulated session counts its messages in every request
def _pieces(text: str) -> int:
    return len(_PIECE.findall(text))


class Words:
    """Four letters or digits, or one other sign, are a token; a message has four more, a call three, a picture 85."""

    dialect, factor = CHAT, 1.0

    def text(self, text: str) -> int:
        """Tokens of a text; never more for a whole than for its parts."""
        return _pieces(text)

    def message(self, body: Mapping[str, object]) -> int:
        """Tokens of a message with its framing."""
        calls = sum(_CALL_FRAME + sum(map(self.text, fields)) for fields in call_fields(body))
        return _FRAME + calls + self._content(body.get("content")) + self._names(body)

    def _names(self, body: Mapping[str, object]) -> int:
        return sum(self.text(str(body[key])) for key in ("name", "tool_call_id") if body.get(key))

    def _content(self, content: object) -> int:
        if not isinstance(content, list):
            return self.text(content_text(content))
        return sum(self.text(part["text"]) if _is_text(part) else _OTHER_PART for part in content)


def english(random: Random, words: int) -> str:
    """Words of which few are frequent and many rare."""
    return " ".join(_word(int(_VOCABULARY * random.random() ** 3)) for _ in range(words))


def _word(number: int) -> str:
    letters = ""
    while number or len(letters) < 4:
        number, letter = divmod(number, len(_LETTERS))
        letters += _LETTERS[letter]
    return letters


def _is_text(part: object) -> bool:
    return isinstance(part, Mapping) and isinstance(part.get("text"), str)


WORDS = Words()


@cache
def tiktoken_counter(model: str = "gpt-4o") -> TokenCounter:
    """The real counter of a model; skips the test where its rank file is missing."""
    counter = Tokenizers().for_model(model, ChatCounter)
    if counter.name == ESTIMATE:
        pytest.skip(f"no rank file for {model}: `make ranks` fetches it")
    return counter


# --- builders ---------------------------------------------------------------------------------------------------


def system(text: str = "You help.", role: str = "system") -> Body:
    """A system message, or with `role` a developer one."""
    return {"role": role, "content": text}


def user(content: Any) -> Body:
    """A user message."""
    return {"role": "user", "content": content}


def assistant(content: Any = None, *calls: Body) -> Body:
    """An assistant message with tool calls."""
    return {"role": "assistant", "content": content, **({"tool_calls": list(calls)} if calls else {})}


def call(call_id: str, name: str = "bash", arguments: object = None) -> Body:
    """A tool call; `arguments` that are no text are written as JSON."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}


def tool(call_id: str, content: Any = "ok") -> Body:
    """The result of a tool call."""
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def words(count: int, word: str = "word") -> str:
    """A text of exactly `count` tokens by `WORDS`, in lines of twenty."""
    lines = [[word] * min(20, count - done) for done in range(0, count, 20)]
    return "\n".join(" ".join(line) for line in lines)


def step(number: int, size: int = 50, name: str = "bash", arguments: object = None) -> list[Body]:
    """A round of one call and its result of `size` tokens or a few more."""
    call_id = f"c{number}"
    return [
        assistant(None, call(call_id, name, arguments or {"command": f"step {number}"})),
        tool(call_id, f"{number}\n{words(size)}"),
    ]


def deployments(turns: int, lines: int = 10) -> Iterator[Body]:
    """A chat with `RULES` in its first turns; every later message carries newer identifiers."""
    yield system("You run deployments.")
    for i in range(turns):
        rule = RULES[i] if i < len(RULES) else f"The ticket is OPS-{i} on node-{i}."
        yield user(f"How is deployment {i}? {rule}")
        log = " ".join(f"job_{i}_{line} took {line * 7 % 90} ms on host-{i}-{line}." for line in range(lines))
        yield assistant(f"Deployment {i} is under way. {log}")


def agent(rounds: int, size: int = 50, task: str = "Fix the bug in the parser.") -> list[Body]:
    """One user message and `rounds` rounds: an agent in the middle of its work."""
    return [system(), user(task), *(body for i in range(rounds) for body in step(i, size))]


def chat(turns: int, size: int = 50, *, pending: bool = True) -> list[Body]:
    """`turns` questions with answers of `size` tokens; with `pending` one more question."""
    bodies = [system()]
    for i in range(turns):
        bodies += [user(f"Question {i}?"), assistant(f"Answer {i}: {words(size)}")]
    return [*bodies, user("And now?")] if pending else bodies


def message(body: Body, counter: TokenCounter = WORDS, raw: str | None = None) -> Message:
    """A message as the proxy reads it; `raw` where its JSON text matters."""
    return READER.read(raw or json.dumps(body, ensure_ascii=False), body, counter.message(body), counter.dialect)


def transcript_of(bodies: Iterable[Body], counter: TokenCounter = WORDS) -> Transcript:
    """The transcript of a message list."""
    return Transcript.of([message(body, counter) for body in bodies])


def view_of(bodies: Iterable[Body], fixed: int = 0, counter: TokenCounter = WORDS) -> View:
    """The view of a message list to which nothing was done yet."""
    return fold(transcript_of(bodies, counter), (), fixed, counter)


def from_cache(view: View) -> View:
    """A view to which nothing was done yet, of messages as a later request has them: without their parsed JSON."""
    transcript = view.transcript
    chain = tuple(message.lean() for message in transcript.chain)
    systems = tuple((place, message.lean()) for place, message in transcript.systems)
    lean = replace(transcript, chain=chain, systems=systems)
    return fold(lean, (), view.fixed_tokens - transcript.system_tokens, view.counter)


def bodies_of(view: View) -> list[Body]:
    """The message list that a view sends."""
    bodies: list[Body] = json.loads(view.to_json())
    return bodies


def requests_of(bodies: Sequence[Body]) -> Iterator[list[Body]]:
    """What a client sent on the way to `bodies`: all before each reply, then the whole; systems stay where they are."""
    spoke = ""
    for i, body in enumerate(bodies):
        role = body.get("role")
        if role == "assistant" and spoke not in ("", "assistant"):
            yield list(bodies[:i])
        if role not in ("system", "developer"):
            spoke = str(role)
    yield list(bodies)


# --- recorded ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recorded:
    """A published conversation."""

    id: str
    source: str
    kind: str
    language: str
    messages: list[Body]
    tools: list[Body]


@cache
def recorded(name: str = "traces-dev") -> tuple[Recorded, ...]:
    """All conversations of a file; skips the test where the data is missing."""
    path = FOLDER / f"{name}.jsonl.gz"
    if not path.exists():
        pytest.skip(MISSING)
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return tuple(_recorded(json.loads(line)) for line in lines)


def _recorded(row: dict[str, Any]) -> Recorded:
    return Recorded(row["id"], row["source"], row["kind"], row["lang"], row["messages"], row.get("tools") or [])


@cache
def largest_of_each_kind(name: str = "traces-dev", each: int = 1, at_most: int = 400) -> tuple[Recorded, ...]:
    """The longest conversations of every kind and language, `each` of them, none over `at_most` messages."""
    by_kind: dict[tuple[str, str], list[Recorded]] = {}
    for one in recorded(name):
        if len(one.messages) <= at_most:
            by_kind.setdefault((one.kind, one.language), []).append(one)
    return tuple(one for group in by_kind.values() for one in sorted(group, key=_size, reverse=True)[:each])


def _size(one: Recorded) -> int:
    return len(json.dumps(one.messages, ensure_ascii=False).encode())


# --- generated --------------------------------------------------------------------------------------------------

SIZES = (0, 1, 6, 30, 120, 500)
SOUND = (
    "user", "user", "say", "call", "call", "calls2", "calls3", "output", "system", "developer", "read", "write",
    "reuse", "function", "picture", "empty-user", "empty-result", "not-json", "greeting", "custom",
)  # fmt: skip
BROKEN = ("orphan", "unanswered", "late", "reversed", "half", "twice", "odd-calls")
_TEXTS = (
    "some words of text",
    "修复解析器中的错误，然后运行测试。",
    "ERROR: test_x failed (exit 1)",
    'x = {"a": [1, 2]}',
)


class Draft:
    """Turns drawn events into a message list; every text says where it was written, so that no two are alike."""

    def __init__(self) -> None:
        self.bodies: list[Body] = []

    def add(self, kind: str, size: int, variant: int) -> None:
        """Adds the messages of one event."""
        text = self._text(size, variant)
        match kind:
            case "user" | "picture" | "empty-user":
                self.bodies.append(user(_user_content(kind, text, variant)))
            case "say" | "greeting":
                self.bodies.append(assistant(text if kind == "say" or variant else ""))
            case "system" | "developer":
                self.bodies.append(system(text, kind))
            case "output":
                self.bodies += [assistant(f"```\nls {len(self.bodies)}\n```"), user(_output(text))]
            case "function":
                self.bodies += _function(text)
            case _:
                self._calls(kind, text, variant)

    def _text(self, size: int, variant: int) -> str:
        return f"no {len(self.bodies)} " + " ".join([_TEXTS[variant % len(_TEXTS)]] * max(size // 4, 1))

    def _calls(self, kind: str, text: str, variant: int) -> None:
        one, two = f"c{len(self.bodies)}", f"c{len(self.bodies)}b"
        path = f"src/file{variant}.py"
        match kind:
            case "call" | "empty-result":
                result = tool(one, [None, "", []][variant % 3] if kind == "empty-result" else text)
                self.bodies += [assistant("I look.", call(one, "bash", {"command": text[:40]})), result]
            case "calls2":
                self.bodies += [assistant(None, call(one), call(two)), tool(one, text), tool(two, "second")]
            case "calls3":
                both = [call(one), call(two, "grep", {"pattern": "x", "path": path}), call(one + "c")]
                self.bodies += [assistant("", *both), tool(two, "b"), tool(one + "c", text), tool(one, text[:50])]
            case "read":
                self.bodies += [assistant(None, call(one, "read_file", {"path": path})), tool(one, text)]
            case "write":
                written = call(one, "write_file", {"path": path, "content": text})
                self.bodies += [assistant(None, written), tool(one, "written")]
            case "reuse":
                self.bodies += [assistant(None, call("again")), tool("again", text)]
            case "not-json":
                self.bodies += [assistant(None, call(one, "bash", '{"command": "' + text[:60])), tool(one, text)]
            case "custom":
                custom = {"id": one, "type": "custom", "custom": {"name": "patch", "input": text}}
                self.bodies += [assistant(None, custom), tool(one, "applied")]
            case _:
                self._broken(kind, text, one, two)

    def _broken(self, kind: str, text: str, one: str, two: str) -> None:
        match kind:
            case "orphan":
                self.bodies.append(tool("again" if len(text) % 2 else one, text))
            case "unanswered":
                self.bodies.append(assistant(text, call("again")))
            case "late":
                self.bodies += [assistant(None, call(one)), user("Wait: " + text[:60]), tool(one, text)]
            case "reversed":
                self.bodies += [tool(one, text), assistant(None, call(one))]
            case "half":
                self.bodies += [assistant(None, call(one), call(two)), tool(two, text)]
            case "twice":
                self.bodies += [assistant(None, call(one)), tool(one, text), tool(one, text)]
            case "odd-calls":
                odd = {"role": "assistant", "content": None, "tool_calls": [None, call(one, "bash", {"command": text})]}
                self.bodies += [odd, tool(one, "done")]


def _user_content(kind: str, text: str, variant: int) -> Any:
    if kind == "empty-user":
        return [None, "", [], [{"type": "text", "text": ""}]][variant]
    if kind == "picture":
        return [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    return [{"type": "text", "text": text}] if variant == 3 else text


def _output(text: str) -> str:
    return f"<returncode>0</returncode>\n<output>\n{text}\n</output>"


def _function(text: str) -> list[Body]:
    old_style = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"a": 1}'}}
    return [old_style, {"role": "function", "name": "f", "content": text}]


def drafted(events: Iterable[tuple[str, int, int]]) -> list[Body]:
    """The message list of events; it has at least one message that is not the system's."""
    draft = Draft()
    for event in events:
        draft.add(*event)
    if all(body["role"] in ("system", "developer") for body in draft.bodies):
        draft.add("user", 6, 0)
    return draft.bodies


def conversations(*, broken: bool = False, at_most: int = 30) -> st.SearchStrategy[list[Body]]:
    """Message lists of up to `at_most` events; with `broken` also what no server would take."""
    kinds = SOUND + BROKEN if broken else SOUND
    event = st.tuples(st.sampled_from(kinds), st.sampled_from(SIZES), st.integers(0, 3))
    return st.lists(event, min_size=1, max_size=at_most).map(drafted)
