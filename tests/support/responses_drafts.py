"""Conversations of the Responses API, generated for properties: each is one that the strict upstream takes.

Reasoning is sealed as the strict upstream seals it, so a view of such a conversation shows which of it a server would
drop.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from tests.support.responses_upstream import custom_tool_call, function_call, message, reasoning, web_search_call
from tests.support.strict_responses import produced

Body = dict[str, Any]

INSTRUCTIONS = "You are careful."
TOOLS: list[Any] = [{"type": "function", "name": "bash", "parameters": {"type": "object"}}]
KINDS = (
    "user", "user", "say", "call", "call", "calls3", "read", "write", "think", "think3", "developer", "search",
    "picture", "custom", "shell", "local-shell", "program", "approval", "tools", "unknown", "interleaved",
    "inside", "beside",
)  # fmt: skip
SIZES = (1, 6, 30, 120, 500)
_TEXTS = (
    "some words of text",
    "修复解析器中的错误，然后运行测试。",
    "ERROR: test_x failed (exit 1)",
    'x = {"a": [1, 2]}',
)


def request_of(items: Sequence[Mapping[str, Any]], **members: Any) -> Body:
    """The request with these items, none of which the server keeps."""
    return {"model": "m", "store": False, "instructions": INSTRUCTIONS, "tools": TOOLS, "input": list(items), **members}


class Draft:
    """Turns drawn events into a list of items, a legal one after each event."""

    def __init__(self) -> None:
        self.items: list[Body] = [{"role": "user", "content": "no 0: Fix the parser. Never touch main.py."}]

    def add(self, kind: str, size: int, variant: int) -> None:
        """Adds the items of one event."""
        number = len(self.items)
        said = f"no {number} " + " ".join([_TEXTS[variant]] * max(size // 4, 1))
        match kind:
            case "user":
                self.items.append({"role": "user", "content": said if variant else [_input(said)]})
            case "picture":
                picture = {"type": "input_image", "image_url": "data:image/png;base64,aGk="}
                self.items.append({"type": "message", "role": "user", "content": [picture, _input(said)]})
            case "developer":
                self.items.append({"type": "message", "role": "developer", "content": [_input(said)]})
            case "say":
                self._reply(message(said))
            case "search":
                self._reply(reasoning("I search."), web_search_call(said[:20]), message(said))
            case "tools":
                self.items.append(
                    {"type": "additional_tools", "role": "developer", "tools": TOOLS, "id": f"at_{number}"}
                )
            case "unknown":
                self._reply({"type": "new_thing", "data": said}, message("New."))
            case "inside" | "beside":
                self._around(kind, said, variant)
            case _:
                self._round(kind, said, variant)

    def _around(self, kind: str, said: str, variant: int) -> None:
        """A program that makes calls in several steps, or a pair of an unknown type that is open in the meantime."""
        one = f"c{len(self.items)}"
        opening, end = ("program", "program_output") if kind == "inside" else ("new_call", "new_call_output")
        caller = {"caller": {"type": "program", "caller_id": one}} if kind == "inside" else {}
        self._reply({"type": opening, "call_id": one, "code": said[:40]})
        for place in range(max(variant, 1)):
            nested = f"{one}-{place}"
            self._pair({**_call(nested), **caller}, _output(nested, said))
        self.items.append({"type": end, "call_id": one, "output": said[:40]})

    def _reply(self, *output: Body) -> None:
        number = len(self.items)
        named = [{"id": f"it_{number}_{place}", **item} for place, item in enumerate(output)]
        self.items += produced(named, request_of(self.items), {})

    def _round(self, kind: str, said: str, variant: int) -> None:
        one = f"c{len(self.items)}"
        path = f"src/file{variant}.py"
        match kind:
            case "calls3" | "think3" | "interleaved":
                thoughts = [reasoning(f"Because of {said[:40]}")] if kind == "think3" else []
                many = [_call(one, "bash", {"command": said[:60]}), _call(f"{one}b"), _call(f"{one}c")]
                outputs = [_output(f"{one}b", "ok"), _output(one, said), _output(f"{one}c", "ok")]
                self._reply(*thoughts, *many)
                self.items += outputs
                if kind == "interleaved":
                    self.items[-6:] = [many[0], outputs[1], many[1], outputs[0], many[2], outputs[2]]
            case "read":
                self._pair(_call(one, "read_file", {"path": path}), _output(one, said))
            case "write":
                self._pair(_call(one, "write_file", {"path": path, "content": said}), _output(one, "written"))
            case "custom":
                output = {"type": "custom_tool_call_output", "call_id": one, "output": "applied"}
                self._pair({"call_id": one, **custom_tool_call("apply_patch", said)}, output)
            case "shell":
                shell: Body = {"type": "shell_call", "call_id": one, "action": {"commands": ["ls"]}}
                self._pair(shell, {**shell, "type": "shell_call_output", "output": [{"stdout": said}]})
            case "local-shell":
                output = {"type": "local_shell_call_output", "id": one, "output": said}
                self._pair({"type": "local_shell_call", "call_id": one, "action": {"command": ["ls"]}}, output)
            case "program":
                output = {"type": "program_output", "call_id": one, "output": said}
                self._pair({"type": "program", "call_id": one, "fingerprint": "f", "code": said[:40]}, output)
            case "approval":
                request = {"type": "mcp_approval_request", "name": "n", "arguments": "{}", "server_label": "s"}
                answer = {"type": "mcp_approval_response", "approval_request_id": one, "approve": True}
                self._pair({**request, "id": one}, answer)
            case _:
                thoughts = [reasoning(f"Because of {said[:40]}")] if kind == "think" else []
                words = [message("I look.")][: variant % 2]
                self._reply(*thoughts, *words, _call(one, "bash", {"command": said[:60]}))
                self.items.append(_output(one, said if variant else [_input(said), {"type": "input_image"}]))

    def _pair(self, call: Body, output: Body) -> None:
        self._reply(reasoning("So."), call)
        self.items.append(output)


def _input(said: str) -> Body:
    return {"type": "input_text", "text": said}


def _call(one: str, name: str = "bash", arguments: Body | None = None) -> Body:
    return {"call_id": one, **function_call(name, arguments or {})}


def _output(one: str, output: Any) -> Body:
    return {"type": "function_call_output", "call_id": one, "output": output}


def drafted(events: Iterable[tuple[str, int, int]]) -> list[Body]:
    """The items of events; the list ends with what a user or a tool said, as requests do."""
    draft = Draft()
    for event in events:
        draft.add(*event)
    if draft.items[-1].get("type") in ("message", "new_thing", "additional_tools"):
        draft.add("user", 6, 0)
    return draft.items


def responses_conversations(at_most: int = 30) -> st.SearchStrategy[list[Body]]:
    """Lists of items of up to `at_most` events."""
    event = st.tuples(st.sampled_from(KINDS), st.sampled_from(SIZES), st.integers(0, 3))
    return st.lists(event, min_size=1, max_size=at_most).map(drafted)
