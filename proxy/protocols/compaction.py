"""The vendors' own compaction on demand: how it is asked for in each protocol, and what an answer means. Pure.

    messages     `summarize`  the request with the member `compaction`, under a beta; the answer is one signed block
    responses    `endpoint`   `POST …/responses/compact`; the answer is the next list as it stands, with one opaque item
                 `trigger`    the request with a last item `compaction_trigger`; the answer is one opaque item
    chat         none

Many servers lack it, and some ignore members that they do not know, so they answer as if the list were a turn. So only
an answer in the vendor's own form is a compaction. Any other complete answer, like a refusal that names the form, shows
that the server lacks the form (`MISSING`). An answer without content shows nothing: the vendor gives it if the summary
did not get finished, and bills it.

Sources: platform.claude.com, "Compaction on demand", "Compaction and thinking blocks"; developers.openai.com,
"Compaction", "Keep the prefix unchanged"; types of the SDKs anthropic 2.14.0 and openai 3.57.0.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

from proxy.http.headers import Headers
from proxy.protocols.endpoint import Endpoint
from proxy.protocols.replies import tokens_in
from proxy.servers import refusals
from proxy.servers.refusals import Subject
from proxy.values import json_or_none, list_at, object_at, objects_at, word_at
from strategies.core.effects import Compacted, Failure
from strategies.core.messages import dump
from strategies.dialects.messages import MESSAGES
from strategies.dialects.responses import REASONING, RESPONSES
from strategies.native import NO_COMPACTION

SUMMARIZE, ENDPOINT, TRIGGER = "summarize", "endpoint", "trigger"
FORMS: Mapping[str, Sequence[str]] = {MESSAGES.name: (SUMMARIZE,), RESPONSES.name: (ENDPOINT, TRIGGER)}
"""The forms of each protocol, in the order in which they are tried."""
MISSING = Failure(NO_COMPACTION)
BETA_HEADER, BETA = b"anthropic-beta", b"compact-2026-09-04"
COMPACTION = "compaction"
MOST, LEAST = 16_384, 1_024
"""The bounds of the room for a summary and the thinking before it, in tokens; too little gives an empty answer."""
_ABSENT = (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED)
_FAMILY = re.compile(r"[a-z]+")
MEMBERS: Mapping[str, Sequence[str]] = {
    SUMMARIZE: ("system", "tools", "thinking", "metadata", "service_tier", "mcp_servers"),
    ENDPOINT: ("prompt_cache_key", "service_tier"),
    TRIGGER: ("instructions", "tools", "text", "reasoning", "parallel_tool_calls", "prompt_cache_key", "service_tier"),
}
"""The members of a request that its compaction repeats, so that the prompt begins with the same bytes."""


def members_of(endpoint: Endpoint) -> Iterator[str]:
    """All members of a request that one of the endpoint's forms may repeat."""
    for form in FORMS.get(endpoint.dialect.name, ()):
        yield from MEMBERS[form]


def maker(base_url: str, model: str) -> str:
    """Names who can read a compaction: an upstream, and the models of one family."""
    name = model.lower().rpartition("/")[2]
    family = _FAMILY.match(name)
    return f"{base_url} {family[0] if family else name}"


def accepting(headers: Headers) -> Headers:
    """The headers of a request whose list has a compaction of Anthropic, or that asks for one."""
    betas = b",".join(value for name, value in headers if name == BETA_HEADER)
    if BETA in [beta.strip() for beta in betas.split(b",")]:
        return headers
    others = [pair for pair in headers if pair[0] != BETA_HEADER]
    return [*others, (BETA_HEADER, b",".join(filter(None, (betas, BETA))))]


class CompactionCall(NamedTuple):
    path: str  # what follows the request's own path
    body: bytes


def call(form: str, model: str, members: Mapping[str, str], view: str, room: int) -> CompactionCall:
    """The call that asks for a compaction of a list (JSON text); `members` of the request are JSON texts too."""
    repeated = {name: text for name in MEMBERS[form] if (text := members.get(name)) and text.strip() != "null"}
    path, own = "", {"model": json.dumps(model)}
    if form == SUMMARIZE:
        thinking = object_at({"thinking": json_or_none(repeated.get("thinking", "null"))}, "thinking")
        budget = thinking.get("budget_tokens")
        most = max(min(MOST, room), LEAST) + (budget if isinstance(budget, int) else 0)
        own |= {"max_tokens": str(most), COMPACTION: '{"type":"summarize"}', "messages": view}
    elif form == ENDPOINT:
        path = "/compact"
        own["input"] = view
    else:
        items = view.strip().removesuffix("]")
        own |= {"store": "false", "input": f'{items},{{"type":"compaction_trigger"}}]'}
    text = ",".join(f'"{name}":{value}' for name, value in {**repeated, **own}.items())
    return CompactionCall(path, f"{{{text}}}".encode("utf-8", "surrogatepass"))


def read(form: str, status: int, body: bytes) -> Compacted | Failure:
    """What an answer means; its `maker` is still to be named."""
    if form == ENDPOINT and status in _ABSENT:
        return MISSING  # the other forms are at the request's own path, which has just answered
    if status >= HTTPStatus.BAD_REQUEST:
        if Subject.COMPACTION in refusals.read(status, body).subjects:
            return MISSING
        return Failure("rate-limited" if status == HTTPStatus.TOO_MANY_REQUESTS else "http-error")
    document = json_or_none(body)
    return _read_block(document) if form == SUMMARIZE else _read_items(form, document)


def _read_block(document: Any) -> Compacted | Failure:
    content, usage = list_at(document, "content"), object_at(document, "usage")
    if not content:
        return Failure("empty" if word_at(document, "stop_reason") else "unreadable")
    block = content[0]
    if word_at(document, "stop_reason") != COMPACTION or word_at(block, "type") != COMPACTION or len(content) > 1:
        return MISSING
    if not word_at(block, "content"):
        return Failure("empty")
    # The call's own counts are 0: its cost stands in its iterations.
    tokens = sum(map(tokens_in, objects_at(usage, "iterations"))) or tokens_in(usage)
    return Compacted((dump({"role": "assistant", "content": [block]}),), "", SUMMARIZE, tokens)


def _read_items(form: str, document: Any) -> Compacted | Failure:
    items = objects_at(document, "output")
    if not items:
        return Failure("empty" if isinstance(document, dict) else "unreadable")
    opaque = [item for item in items if word_at(item, "type") == COMPACTION and item.get("encrypted_content")]
    is_ours = word_at(document, "object") == "response.compaction" if form == ENDPOINT else len(items) == 1
    if len(opaque) != 1 or not is_ours:
        return MISSING
    # A message that has kept its id while its reasoning is gone would be refused (openai-agents-python, issue 2727).
    has_reasoning = any(word_at(item, "type") == REASONING for item in items)
    kept = items if has_reasoning else [_without_id(item) if _is_reply(item) else item for item in items]
    return Compacted(tuple(map(dump, kept)), "", form, tokens_in(object_at(document, "usage")))


def _is_reply(item: Mapping[str, Any]) -> bool:
    return word_at(item, "role") == "assistant"


def _without_id(item: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: value for name, value in item.items() if name != "id"}
