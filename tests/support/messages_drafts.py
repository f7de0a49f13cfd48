"""Conversations of the Messages API, generated for properties: each is one that the strict upstream takes.

Replies are signed as the strict upstream signs them, so a view of such a conversation shows whether its thinking still
stands behind the prefix that it was produced behind.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from tests.support.messages_upstream import redacted, text, thinking, web_search
from tests.support.strict_messages import signed

Body = dict[str, Any]

SYSTEM = "You are careful."
TOOLS: list[Any] = [{"name": "bash", "input_schema": {"type": "object"}}]
KINDS = (
    "user", "user", "say", "call", "call", "calls3", "read", "write", "think", "mixed", "system", "search", "picture",
    "error", "blocks", "empty-result", "two-users", "redacted", "output", "inside", "beside",
)  # fmt: skip
SIZES = (1, 6, 30, 120, 500)
_TEXTS = (
    "some words of text",
    "修复解析器中的错误，然后运行测试。",
    "ERROR: test_x failed (exit 1)",
    'x = {"a": [1, 2]}',
)
_PICTURE: Body = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}


def request_of(messages: Sequence[Mapping[str, Any]], **members: Any) -> Body:
    """The request with these messages."""
    return {"model": "m", "max_tokens": 100, "system": SYSTEM, "tools": TOOLS, "messages": list(messages), **members}


class Draft:
    """Turns drawn events into a message list, a legal one after each event."""

    def __init__(self) -> None:
        self.messages: list[Body] = [{"role": "user", "content": "no 0: Fix the parser. Never touch main.py."}]

    def add(self, kind: str, size: int, variant: int) -> None:
        """Adds the messages of one event."""
        said = f"no {len(self.messages)} " + " ".join([_TEXTS[variant]] * max(size // 4, 1))
        match kind:
            case "user" | "two-users":
                self._user([said if variant else [text(said)], f"{said} too"][: 2 if kind == "two-users" else 1])
            case "picture":
                self._user([[_PICTURE, text(said)]])
            case "say":
                self._reply(text(said))
            case "search":
                self._reply(thinking("I search."), *web_search(said[:20], "https://moss.example"), text(said))
            case "system":
                if self.messages[-1]["role"] == "user":
                    self.messages.append({"role": "system", "content": said if variant else [text(said)]})
            case "output":
                self._reply(text(f"```\nls {len(self.messages)}\n```"))
                self._user([f"<returncode>0</returncode>\n<output>\n{said}\n</output>"])
            case "inside" | "beside":
                self._server_tool(said, variant, is_inside=kind == "inside")
            case _:
                self._round(kind, said, variant)

    def _server_tool(self, said: str, variant: int, *, is_inside: bool) -> None:
        """A server's tool that ends after rounds of the client's tools, which are called inside of it or beside it."""
        running = f"srvtoolu_{len(self.messages)}"
        name = "code_execution" if is_inside else "web_search"
        use = {"type": "server_tool_use", "id": running, "name": name, "input": {"code": said[:30]}}
        caller = {"caller": {"type": "code_execution_20260120", "tool_id": running}} if is_inside else {}
        for place in range(max(variant, 1) if is_inside else 1):
            one = f"toolu_{len(self.messages)}"
            self._reply(*[use][: place == 0], {**_call(one), **caller})
            self._user([[_result(one, said)]])
        end = {"type": f"{name}_tool_result", "tool_use_id": running, "content": {"stdout": said[:60]}}
        one = f"toolu_{len(self.messages)}"
        self._reply(end, *[_call(one) if variant % 2 else text("Done.")])
        if variant % 2:
            self._user([[_result(one, said)]])

    def _user(self, contents: Iterable[Any]) -> None:
        self.messages += [{"role": "user", "content": content} for content in contents]

    def _reply(self, *content: Body) -> None:
        number = len(self.messages)
        written = signed(content, request_of(self.messages), f"r{number}")
        if self.messages[-1]["role"] == "assistant":
            self._user(["Go on."])
            written = signed(content, request_of(self.messages), f"r{number}")
        self.messages.append({"role": "assistant", "content": written})

    def _round(self, kind: str, said: str, variant: int) -> None:
        one = f"toolu_{len(self.messages)}"
        path = f"src/file{variant}.py"
        given: dict[str, list[Body]] = {
            "calls3": [_call(one), _call(f"{one}b", "grep", {"pattern": "x", "path": path}), _call(f"{one}c")],
            "read": [_call(one, "read_file", {"path": path})],
            "write": [_call(one, "write_file", {"path": path, "content": said})],
        }
        uses = given.get(kind, [_call(one, "bash", {"command": said[:60]})])
        thoughts = {"think": [thinking(f"Because of {said[:40]}")], "redacted": [redacted(), thinking("And.")]}
        self._reply(*thoughts.get(kind, []), *[text("I look.")][: variant % 2], *uses)
        results = [_result(use["id"], said if use["id"] == one else "ok") for use in reversed(uses)]
        self.messages.append({"role": "user", "content": [*_varied(kind, results, said)]})


def _call(one: str, name: str = "bash", arguments: Body | None = None) -> Body:
    return {"type": "tool_use", "id": one, "name": name, "input": arguments or {}}


def _result(one: str, content: Any) -> Body:
    return {"type": "tool_result", "tool_use_id": one, "content": content}


def _varied(kind: str, results: list[Body], said: str) -> list[Body]:
    last = results[-1]
    match kind:
        case "mixed":
            return [*results, text(f"Also: {said}")]
        case "error":
            return [{**last, "is_error": True}]
        case "blocks":
            return [{**last, "content": [text(said), _PICTURE, text("the end")]}]
        case "empty-result":
            return [{key: value for key, value in last.items() if key != "content"}]
    return results


def drafted(events: Iterable[tuple[str, int, int]]) -> list[Body]:
    """The message list of events; it ends with a user's message, as requests do."""
    draft = Draft()
    for event in events:
        draft.add(*event)
    if draft.messages[-1]["role"] == "assistant":
        draft.add("user", 6, 0)
    return draft.messages


def messages_conversations(at_most: int = 30) -> st.SearchStrategy[list[Body]]:
    """Message lists of up to `at_most` events."""
    event = st.tuples(st.sampled_from(KINDS), st.sampled_from(SIZES), st.integers(0, 3))
    return st.lists(event, min_size=1, max_size=at_most).map(drafted)
