"""What OpenAI's servers check of a Responses request, in their words; `responses_upstream.py` answers by it.

`refused(body, known)` is the refusal of a body whose `input` is whole (a list, with what `previous_response_id` named
before it), None where it is taken; `known` are the items that the server keeps. Reasoning is bound to its prefix by
its `encrypted_content`, which `produced` made: `mismatched` names the items that a server would drop.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.support.prefixes import Prefix, canonical, name_of, remembered, sealed, tokens, unsealed
from tests.support.replies import Json

Body = Mapping[str, Any]

ANSWERS = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "local_shell_call": "local_shell_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
    "computer_call": "computer_call_output",
    "tool_search_call": "tool_search_output",
    "program": "program_output",
    "mcp_approval_request": "mcp_approval_response",
}
CALLS = {answer: call for call, answer in ANSWERS.items()}
PRODUCED = {
    *(ANSWERS.keys() - {"program"}),
    "program",
    "reasoning",
    "mcp_call",
    "mcp_list_tools",
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "image_generation_call",
    "compaction",
}
_PARTS = {"assistant": ("output_text", "refusal"), "user": ("input_text", "input_image", "input_file", "input_audio")}
_KEY = "encrypted_content"


@dataclass(frozen=True)
class Refusal:
    message: str
    code: str | None = None
    param: str | None = "input"


@dataclass(frozen=True)
class Known:
    """An item that the server keeps, and the reasoning that it followed."""

    item: Json
    reasoning: str = ""


def refusal_of(body: Body, known: Mapping[str, Known] | None = None) -> Refusal | None:
    """The refusal of a body with a whole input, None where it is taken."""
    kept = known or {}
    for rule in (_shape, _ids, _reasoning, _pairs):
        if wrong := next(rule(body["input"], kept), None):
            return wrong
    return None


def kind_of(item: Body) -> str:
    return str(item.get("type") or "message")


def is_produced(item: Body) -> bool:
    """Whether the model, or a server tool for it, made this item."""
    return kind_of(item) in PRODUCED or (kind_of(item) == "message" and item.get("role") == "assistant")


# -- shape -------------------------------------------------------------------------------------------------


def _shape(items: Sequence[Json], known: Mapping[str, Known]) -> Iterator[Refusal]:
    for index, item in enumerate(items):
        where = f"input[{index}]"
        match kind_of(item):
            case "message":
                yield from _message(item, where)
            case "function_call" if not isinstance(item.get("arguments"), str):
                said = f"Invalid type for '{where}.arguments': expected a string, but got an object instead."
                yield Refusal(said, "invalid_type", f"{where}.arguments")
            case "function_call_output" if not isinstance(item.get("output"), str | list):
                yield Refusal(
                    f"Missing required parameter: '{where}.output'.", "missing_required_parameter", f"{where}.output"
                )
            case "compaction_trigger" if index + 1 < len(items):
                yield Refusal("The 'compaction_trigger' item must be the final input item.", "invalid_value", where)
            case "compaction" if unsealed(item.get(_KEY)) is None:
                # Only its maker reads it: openai/codex#36704, and the page "Compaction" of developers.openai.com.
                said = f"The encrypted content for item {item.get('id')} could not be verified."
                yield Refusal(said, "invalid_encrypted_content", where)


def _message(item: Json, where: str) -> Iterator[Refusal]:
    role, content = item.get("role"), item.get("content")
    if role not in ("user", "assistant", "system", "developer"):
        yield Refusal(f"Invalid value: '{role}'.", "invalid_value", f"{where}.role")
    if not isinstance(content, str | list):
        yield Refusal(
            f"Missing required parameter: '{where}.content'.", "missing_required_parameter", f"{where}.content"
        )
    wanted = _PARTS.get(str(role), _PARTS["user"])
    for place, part in enumerate(content if isinstance(content, list) else ()):
        if part.get("type") not in wanted:
            listed = ", ".join(f"'{one}'" for one in wanted[:-1]) + f", and '{wanted[-1]}'"
            said = f"Invalid value: '{part.get('type')}'. Supported values are: {listed}."
            yield Refusal(said, "invalid_value", f"{where}.content[{place}]")


def _ids(items: Sequence[Json], known: Mapping[str, Known]) -> Iterator[Refusal]:
    seen: set[str] = set()
    for item in items:
        one = item.get("id")
        bare = kind_of(item) == "item_reference" or (kind_of(item) == "reasoning" and not item.get(_KEY))
        if one is None and not bare:
            continue
        if one in seen:
            yield Refusal(f"Duplicate item found with id {one}. Remove duplicate items from your input and try again.")
        seen.add(str(one))
        if bare and one not in known:
            yield Refusal(
                f"Item with id '{one}' not found. Items are not persisted when `store` is set to false. Try again with "
                "`store` set to true, or remove this item from your input."
            )


# -- reasoning and pairs -----------------------------------------------------------------------------------


def _reasoning(items: Sequence[Json], known: Mapping[str, Known]) -> Iterator[Refusal]:
    whole = [resolved(item, known) for item in items]
    for item, follower in zip(whole, [*whole[1:], None], strict=True):
        if kind_of(item) == "reasoning":
            blob = item.get(_KEY)
            if blob and unsealed(blob) is None:
                said = f"The encrypted content {blob[:4]}...{blob[-4:]} could not be verified."
                yield Refusal(said, "invalid_encrypted_content")
            if follower is None or not is_produced(follower):
                one = item.get("id")
                yield Refusal(f"Item '{one}' of type 'reasoning' was provided without its required following item.")
    given = {item.get("id") for item in whole}
    for item in whole:
        needed = known[item["id"]].reasoning if item.get("id") in known else ""
        if needed and needed not in given:
            yield Refusal(
                f"Item '{item['id']}' of type '{kind_of(item)}' was provided without its required 'reasoning' item: "
                f"'{needed}'."
            )


def resolved(item: Json, known: Mapping[str, Known]) -> Json:
    """An item, or what it refers to."""
    return known[item["id"]].item if kind_of(item) == "item_reference" and item["id"] in known else item


def _pairs(items: Sequence[Json], known: Mapping[str, Known]) -> Iterator[Refusal]:
    called: dict[str, set[object]] = {}
    answered: dict[str, set[object]] = {}
    whole = [resolved(item, known) for item in items]
    for item in whole:
        kind, caller = kind_of(item), (item.get("caller") or {}).get("caller_id")
        if caller and caller not in called.get("program", ()):
            yield Refusal(f"No program found for {_words(kind)} with caller_id {caller}.")
        if kind in CALLS or kind.endswith("_output"):
            call = CALLS.get(kind, kind.removesuffix("_output"))
            if key_of(item) is not None and key_of(item) not in called.get(call, ()):
                yield Refusal(f"No tool call found for {_words(call)} output with call_id {key_of(item)}.")
            answered.setdefault(call, set()).add(key_of(item))
        else:
            called.setdefault(kind, set()).update(_keys(item))
    for item in whole:
        kind = kind_of(item)
        is_due = kind not in CALLS and not kind.endswith("_output") and kind != "mcp_approval_request"
        if is_due and _keys(item) and not _keys(item) & answered.get(kind, set()):
            yield Refusal(f"No tool output found for {_words(kind)} {key_of(item)}.")


def _words(kind: str) -> str:
    return kind.replace("_", " ")


def key_of(item: Body) -> object:
    """By what a call and its output know each other."""
    match kind_of(item):
        case "mcp_approval_request" | "local_shell_call_output":
            return item.get("id")
        case "mcp_approval_response":
            return item.get("approval_request_id")
    return item.get("call_id")


def _keys(item: Body) -> set[object]:
    """Both keys of a local shell call, whose output names either; else the one."""
    keys = {key_of(item)} | ({item.get("id")} if kind_of(item) == "local_shell_call" else set())
    return keys - {None}


# -- prefixes ----------------------------------------------------------------------------------------------


def boundaries(body: Body, known: Mapping[str, Known]) -> Iterator[tuple[str, int, bool]]:
    """Each item as the cache sees it: the name of the prefix up to it, its tokens, and that it is kept."""
    prefix, size = _head(body), tokens(body.get("instructions")) + tokens(body.get("tools"))
    yield prefix.name, size, True
    for item in body["input"]:
        whole = resolved(item, known)
        prefix.add(_canonical(whole))
        yield prefix.name, _tokens(whole), True


def mismatched(body: Body, known: Mapping[str, Known]) -> list[Json]:
    """What a server tells of the reasoning that it drops, since what stands before it has changed."""
    chain = _Chain(body)
    removed: list[Json] = []
    for item in body["input"]:
        whole = resolved(item, known)
        if kind_of(whole) == "reasoning" and _blob(whole, known) != sealed(chain.name):
            removed.append({"id": whole["id"], "action": "removed", "reason": "prefix_mismatch", "type": "reasoning"})
        chain.add(whole)
    return removed


def produced(output: Sequence[Json], body: Body, known: Mapping[str, Known]) -> list[Json]:
    """The output of a reply to `body` whose reasoning is bound to what stands before it."""
    chain = _Chain(body)
    for item in body["input"]:
        chain.add(resolved(item, known))
    written = []
    for item in output:
        made = {**item, _KEY: sealed(chain.name)} if kind_of(item) == "reasoning" else item
        chain.add(made)
        written.append(made)
    return written


def compacted(body: Body, known: Mapping[str, Known]) -> str:
    """The sealed text of a compaction. Reasoning that is valid behind the list is valid behind the item.

    developers.openai.com, "Keep the prefix unchanged".
    """
    chain = _Chain(body)
    for item in body["input"]:
        if kind_of(item) != "compaction_trigger":
            chain.add(resolved(item, known))
    return sealed("compaction", chain.items.state)


class _Chain:
    """What reasoning is bound to: instructions and tools, and the items, of which a compaction stands for many."""

    def __init__(self, body: Body) -> None:
        self._head = _head(body).name
        self.items = Prefix()

    @property
    def name(self) -> str:
        return name_of(self._head + self.items.state)

    def add(self, item: Json) -> None:
        fields = unsealed(item.get(_KEY)) if kind_of(item) == "compaction" else None
        if fields is not None and len(fields) == 2:
            self.items = Prefix(fields[1])
        else:
            self.items.add(_canonical(item))


def _blob(item: Json, known: Mapping[str, Known]) -> object:
    return item.get(_KEY) or known[str(item["id"])].item.get(_KEY)


def _head(body: Body) -> Prefix:
    prefix = Prefix()
    prefix.add(str(body.get("instructions") or "").encode())
    for tool in body.get("tools") or ():
        prefix.add(canonical(tool))
    return prefix


@remembered
def _canonical(item: Json) -> bytes:
    """An item without its id and status; a message by its parts, reasoning by what it was bound to."""
    kind = kind_of(item)
    if kind == "reasoning":
        return name_of(f"reasoning {item.get('id')}").encode()
    parts = [_part(part) for part in _contents(item)] if kind == "message" else item.get("content")
    return canonical({**item, "type": kind, "content": parts}, ("id", "status"))


_tokens = remembered(tokens)


def _contents(item: Json) -> list[Json]:
    content = item.get("content")
    kind = "output_text" if item.get("role") == "assistant" else "input_text"
    return [{"type": kind, "text": content}] if isinstance(content, str) else list(content or ())


def _part(part: Json) -> str:
    return canonical(part, ("annotations", "logprobs")).decode()
