"""What Anthropic's servers check of a Messages request, in their words; `messages_upstream.py` answers by it.

`refused(body)` is the text of the 400 that a body gets, "" where it is taken. Neighbours of one role count as one
turn, as the API merges them. Thinking blocks carry a signature that `signed` made: it knows the prefix that the block
was produced behind (system, tools and every block that is no thinking), the thinking block before it, its own text,
and its place among the thinking of its message. So a change of the prefix, a gap and an edited block are seen without
a memory of earlier requests. Blocks that were left out at the front of a conversation leave no gap.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.prefixes import Prefix, canonical, name_of, remembered, sealed, tokens, unsealed
from tests.support.replies import Json
from tests.support.strict_compaction import blocks_of, compaction_of, continued

Body = Mapping[str, Any]

MOST_MARKERS = 4
THINKING = ("thinking", "redacted_thinking")
_ROLES = ("user", "assistant", "system")
_SIDES = {"tool_use": "assistant", "server_tool_use": "assistant", "thinking": "assistant"} | {"tool_result": "user"}


@dataclass(frozen=True)
class Block:
    """A content block and where it stands."""

    message: int
    place: int
    value: Json

    @property
    def type(self) -> str:
        return str(self.value.get("type"))

    @property
    def path(self) -> str:
        return f"messages.{self.message}.content.{self.place}"


@dataclass
class Turn:
    """Neighbouring messages of one role."""

    role: str
    blocks: list[Block] = field(default_factory=list)

    def of(self, *types: str) -> list[Block]:
        return [block for block in self.blocks if block.type in types]


@dataclass(frozen=True)
class Signature:
    """What a thinking block is bound to."""

    prefix: str
    before: str  # the signature of the thinking block before it, "" for the first of a conversation
    text: str
    reply: str
    place: int
    of: int


def refusal_of(body: Body, *, bound: bool = True, systems: bool = True, counting: bool = False) -> str:
    """The refusal of a body, "" where it is taken.

    Without `bound` the model lets thinking stand behind another prefix; without `systems` it is one that takes no
    system message in the list; `counting` is the request of `count_tokens`.
    """
    wrong = next(_shape(body, counting), "") or next(_markers(body), "")
    if wrong:
        return wrong
    turns = turns_of(body)
    for rule in (_systems_fit if systems else _no_systems, _pairs, _server_pairs, _opens_with_thinking, _signatures):
        if wrong := next(rule(turns, body), ""):
            return wrong
    return next(_bound(turns, body), "") if bound and not drops(body) else ""


def drops(body: Body) -> bool:
    """Whether a client asked that thinking behind another prefix be dropped."""
    binding = (body.get("thinking") or {}).get("block_binding") or {}
    return bool(binding.get("prefix_mismatch_behavior") == "drop_block")


def turns_of(body: Body) -> list[Turn]:
    turns: list[Turn] = []
    for index, message in enumerate(body["messages"]):
        if not turns or turns[-1].role != message["role"]:
            turns.append(Turn(message["role"]))
        turns[-1].blocks += [Block(index, place, value) for place, value in enumerate(blocks(message["content"]))]
    return turns


def blocks(content: object) -> list[Json]:
    """The blocks of a content, which may be a text."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content or ())  # type: ignore[call-overload]


# -- shape -------------------------------------------------------------------------------------------------


def _shape(body: Body, counting: bool) -> Iterator[str]:
    for member in ("model", "messages") if counting else ("model", "messages", "max_tokens"):
        if member not in body:
            yield f"{member}: Field required"
    messages = body["messages"]
    if not messages:
        yield "messages: at least one message is required"
    for index, message in enumerate(messages):
        if message.get("role") not in _ROLES:
            yield f"messages.{index}.role: Input should be 'user', 'assistant' or 'system'"
        for member in message.keys() - {"role", "content"}:
            yield f"messages.{index}.{member}: Extra inputs are not permitted"
        if not message.get("content") and (index + 1 < len(messages) or message["role"] != "assistant"):
            exempt = "except for the optional final assistant message"
            yield f"messages.{index}: all messages must have non-empty content {exempt}"
        for place, value in enumerate(blocks(message.get("content"))):
            yield from _block(Block(index, place, value), message["role"])
    if messages and messages[0]["role"] == "assistant" and next(blocks_of(messages), (1, 1, {}))[:2] != (0, 0):
        yield 'messages: first message must use the "user" role'


def _block(block: Block, role: str) -> Iterator[str]:
    side = _SIDES.get(block.type, role)
    if side != role:
        yield f"messages.{block.message}: `{block.type}` blocks can only be in `{side}` messages"
    if block.type == "text" and not str(block.value.get("text", "")).strip():
        empty = "be non-empty" if not block.value.get("text") else "contain non-whitespace text"
        yield f"messages: text content blocks must {empty}"
    if block.type in ("tool_use", "server_tool_use") and not isinstance(block.value.get("input"), dict):
        yield f"{block.path}.{block.type}.input: Input should be a valid dictionary"


def _no_systems(turns: Sequence[Turn], body: Body) -> Iterator[str]:
    if any(turn.role == "system" for turn in turns):
        yield "role 'system' is not supported on this model"


def _systems_fit(turns: Sequence[Turn], body: Body) -> Iterator[str]:
    before = ""
    for turn in turns:
        if turn.role == "system" and before != "user":
            yield f"messages.{turn.blocks[0].message}: role 'system' must immediately follow a user message"
        before = turn.role


# -- the cache ---------------------------------------------------------------------------------------------


def _markers(body: Body) -> Iterator[str]:
    marked = [(path, value) for path, value in _cacheable(body) if value.get("cache_control")]
    for path, value in marked:
        if value.get("type") in THINKING:
            yield f"{path}.{value['type']}.cache_control: Extra inputs are not permitted"
    found = len(marked) + bool(body.get("cache_control"))
    if found > MOST_MARKERS:
        yield f"A maximum of {MOST_MARKERS} blocks with cache_control may be provided. Found {found}."
    short = False
    for path, value in marked:
        ttl = value["cache_control"].get("ttl", "5m")
        if ttl == "1h" and short:
            yield (
                f"{path}.cache_control.ttl: a ttl='1h' cache_control block must not come after a ttl='5m' "
                "cache_control block. Note that blocks are processed in the following order: `tools`, `system`, "
                "`messages`."
            )
        short = short or ttl == "5m"


def _cacheable(body: Body) -> Iterator[tuple[str, Json]]:
    """All that a marker can stand on, in the order of the cache."""
    yield from ((f"tools.{i}", tool) for i, tool in enumerate(body.get("tools") or ()))
    yield from ((f"system.{i}", block) for i, block in enumerate(blocks(body.get("system"))))
    for index, message in enumerate(body["messages"]):
        for place, block in enumerate(blocks(message["content"])):
            path = f"messages.{index}.content.{place}"
            if block.get("type") == "tool_result":
                yield from ((f"{path}.content.{i}", part) for i, part in enumerate(blocks(block.get("content"))))
            yield path, block


def boundaries(body: Body) -> Iterator[tuple[str, int, bool]]:
    """Each block as the cache sees it: the name of the prefix up to it, its tokens, whether it is marked."""
    prefix = Prefix()
    found = list(_cacheable(body))
    for place, (path, value) in enumerate(found):
        item, size = _measured(value)
        prefix.add(item)
        nested = ".content." in path.partition(".content.")[2]
        marked = bool(value.get("cache_control") or (body.get("cache_control") and place + 1 == len(found)))
        yield prefix.name, 0 if nested else size, marked


@remembered
def _measured(value: Json) -> tuple[bytes, int]:
    """A block as it counts for the prefix, and its tokens."""
    return canonical(value), tokens({key: member for key, member in value.items() if key != "cache_control"})


# -- pairs -------------------------------------------------------------------------------------------------


def _pairs(turns: Sequence[Turn], body: Body) -> Iterator[str]:
    called: Counter[object] = Counter()
    uses: list[Block] = []
    for turn in [*turns, Turn("end")]:
        yield from _answers(turn, uses)
        for use in turn.of("tool_use"):
            called[use.value["id"]] += 1
            if called[use.value["id"]] > 1:
                yield f"{use.path}: `tool_use` ids must be unique"
        uses = turn.of("tool_use")


def _answers(turn: Turn, uses: Sequence[Block]) -> Iterator[str]:
    """What is wrong with the results of a turn behind these calls."""
    first = next((at for at, block in enumerate(turn.blocks) if block.type != "tool_result"), len(turn.blocks))
    leading = [block.value.get("tool_use_id") for block in turn.blocks[:first]]
    if any(use.value["id"] not in leading for use in uses):
        yield _unanswered(uses, leading)
    known = {use.value["id"] for use in uses}
    answered: set[object] = set()
    for result in turn.of("tool_result"):
        one = result.value.get("tool_use_id")
        if one not in known:
            yield (
                f"{result.path}: unexpected `tool_use_id` found in `tool_result` blocks: {one}. Each `tool_result` "
                "block must have a corresponding `tool_use` block in the previous message."
            )
        if one in answered:
            yield (
                f"{result.path}: each tool_use must have a single result. Found multiple `tool_result` blocks with "
                f"id: {one}"
            )
        answered.add(one)


def _unanswered(uses: Sequence[Block], answered: Sequence[object]) -> str:
    missing = [use for use in uses if use.value["id"] not in answered]
    return (
        f"messages.{missing[0].message}: `tool_use` ids were found without `tool_result` blocks immediately after: "
        f"{', '.join(str(use.value['id']) for use in missing)}. Each `tool_use` block must have a corresponding "
        "`tool_result` block in the next message."
    )


def _server_pairs(turns: Sequence[Turn], body: Body) -> Iterator[str]:
    """A server's results stand behind their calls, in one turn or after turns of results that the server waited for.

    Only the last turn of the assistant may still wait for one. A call that code of the server made names that code.
    """
    open_calls: dict[object, Block] = {}
    replies = [turn for turn in turns if turn.role == "assistant"]
    for turn in turns:
        for block in turn.blocks:
            caller = (block.value.get("caller") or {}).get("tool_id")
            if caller and caller not in open_calls:
                yield f"{block.path}.caller.tool_id: no `server_tool_use` with id {caller} is running"
            if block.type in ("server_tool_use", "mcp_tool_use"):
                open_calls[block.value["id"]] = block
            elif block.type.endswith("_tool_result"):
                one = block.value.get("tool_use_id")
                if open_calls.pop(one, None) is None:
                    call = "mcp_tool_use" if block.type == "mcp_tool_result" else "server_tool_use"
                    yield (
                        f"{block.path}: unexpected `tool_use_id` found in `{block.type}` blocks: {one}. Each "
                        f"`{block.type}` block must have a corresponding `{call}` block before it."
                    )
        is_awaited = turn.role == "system" or turn.of("tool_use") or _is_loop(turn) or turn in replies[-1:]
        for one, call_block in open_calls.items():
            if not is_awaited:
                name = call_block.value.get("name")
                yield (
                    f"messages.{call_block.message}: `{name}` tool use with id `{one}` was found without a "
                    f"corresponding `{name}_tool_result` block"
                )


# -- thinking ----------------------------------------------------------------------------------------------


def _opens_with_thinking(turns: Sequence[Turn], body: Body) -> Iterator[str]:
    """With manual thinking, a tool loop that is still open begins with a thinking block."""
    if (body.get("thinking") or {}).get("type") != "enabled" or turns[-1].role != "user":
        return
    if len(turns[-1].of("tool_result")) < len(turns[-1].blocks):
        return
    asked = max((at for at, turn in enumerate(turns) if turn.role == "user" and not _is_loop(turn)), default=-1)
    opening = next(turn for turn in turns[asked + 1 :] if turn.role == "assistant").blocks[0]
    if opening.type not in THINKING:
        yield (
            f"{opening.path}.type: Expected `thinking` or `redacted_thinking`, but found `{opening.type}`. When "
            "`thinking` is enabled, a final `assistant` message must start with a thinking block (preceeding the "
            "lastmost set of `tool_use` and `tool_result` blocks). We recommend you include thinking blocks from "
            "previous turns. To avoid this requirement, disable `thinking`."
        )


def _is_loop(turn: Turn) -> bool:
    return len(turn.of("tool_result")) == len(turn.blocks)


def _signatures(turns: Sequence[Turn], body: Body) -> Iterator[str]:
    latest = next((turn for turn in reversed(turns) if turn.role == "assistant"), None)
    for turn in turns:
        replies: dict[str, list[Signature]] = {}
        edited = False
        for block in turn.of(*THINKING):
            signature = signature_of(block.value)
            if signature is None or (signature.text != _text_name(block.value) and turn is not latest):
                yield f"{block.path}: Invalid `signature` in `thinking` block"
            else:
                edited = edited or signature.text != _text_name(block.value)
                replies.setdefault(signature.reply, []).append(signature)
        if turn is latest and (edited or any(not _whole(found) for found in replies.values())):
            yield (
                f"{turn.of(*THINKING)[0].path}: `thinking` or `redacted_thinking` blocks in the latest assistant "
                "message cannot be modified. These blocks must remain as they were in the original response."
            )


def _whole(found: Sequence[Signature]) -> bool:
    return [signature.place for signature in found] == list(range(found[0].of))


def _bound(turns: Sequence[Turn], body: Body) -> Iterator[str]:
    for block, prefix, before in _prefixes(turns, body, _head(body)):
        signature = signature_of(block.value)
        assert signature is not None
        if signature.prefix != prefix or (before and signature.before != before):
            yield (
                f"{block.path}: Invalid `signature` in `thinking` block. The block is bound to a different "
                "conversation. Remove the block, or set `thinking.block_binding.prefix_mismatch_behavior` to "
                '"drop_block".'
            )


def _prefixes(turns: Sequence[Turn], body: Body, prefix: Prefix) -> Iterator[tuple[Block, str, str]]:
    """Every thinking block with the name of its prefix and the thinking block before it.

    `prefix` is that of system and tools, and at the end that of the whole list.
    """
    head, before = _head(body), ""
    for turn in turns:
        prefix.add(turn.role.encode())
        for place, block in enumerate(turn.blocks):
            if block.type == "compaction":
                prefix.state = continued(block.value, head).state
                if place + 1 < len(turn.blocks):
                    prefix.add(turn.role.encode())
            elif block.type in THINKING:
                yield block, prefix.name, before
                before = _before(block.value)
            else:
                prefix.add(_canonical(block.value))


def compacted(body: Body, account: str, said: str) -> Json:
    """The reply to a request that asks for a compaction of its list."""
    prefix = _head(body)
    head = prefix.name
    for _ in _prefixes(turns_of(body), body, prefix):
        pass
    return compaction_of(body, prefix, head, account, said)


def _head(body: Body) -> Prefix:
    prefix = Prefix()
    for one in (*blocks(body.get("system")), *(body.get("tools") or ())):
        prefix.add(_canonical(one))
    return prefix


@remembered
def _canonical(block: Json) -> bytes:
    result = block.get("type") == "tool_result"
    content = {"content": [_canonical(part).decode() for part in blocks(block.get("content"))]} if result else {}
    return canonical({**block, **content}, ("citations", "caller"))


def signature_of(block: Body) -> Signature | None:
    """What a thinking block is bound to; None where its signature was made elsewhere."""
    fields = unsealed(block.get("signature") or block.get("data"))
    if fields is None or len(fields) != 6:
        return None
    prefix, before, text, reply, place, of = fields
    return Signature(prefix, before, text, reply, int(place), int(of))


def _text_name(block: Body) -> str:
    return name_of(str(block.get("thinking", "")))


def _before(block: Body) -> str:
    return name_of(str(block.get("signature") or block.get("data")))


def signed(content: Sequence[Json], body: Body, reply: str) -> list[Json]:
    """The content of a reply to `body` whose thinking blocks are bound to what stands before them."""
    total = sum(block["type"] in THINKING for block in content)
    written: list[Json] = []
    for block in content:
        if block["type"] not in THINKING:
            written.append(block)
            continue
        asking = {**body, "messages": [*body["messages"], {"role": "assistant", "content": [*written, block]}]}
        *_, (_, prefix, before) = _prefixes(turns_of(asking), asking, _head(asking))
        place = sum(one["type"] in THINKING for one in written)
        seal = sealed(prefix, before, _text_name(block), reply, str(place), str(total))
        written.append({**block, ("data" if block["type"] == "redacted_thinking" else "signature"): seal})
    return written
