"""Calls to a server's embeddings endpoint, through the dispatcher (`dispatch`)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from proxy.asking.dispatch import Caller, Dispatcher, fetch_reply, headers_for, is_down
from proxy.asking.lanes import Lane
from proxy.http.headers import is_success
from proxy.settings.tables import ModelRole
from proxy.upstream import JsonReply, Upstream
from proxy.values import count_at, json_or_none
from strategies.core.effects import Failure

ROLE = "embeddings"
PATH = "/v1/embeddings"
_LARGEST = 1e30


class Embedded(NamedTuple):
    """A vector for each text, all of one length, and the tokens of the call; 0 if the server does not report them."""

    vectors: tuple[Sequence[float], ...]
    tokens: int


@dataclass(slots=True)
class Embeddings:
    """Asks for embeddings; one per app."""

    upstream: Upstream
    dispatcher: Dispatcher

    async def embed(self, texts: Sequence[str], model: ModelRole, caller: Caller) -> Embedded | Failure:
        """The vectors of texts, in at most one call; for its failures see `Asking.embed`."""

        async def call(lane: Lane) -> Embedded | Failure:
            return await self._send(texts, model, caller, lane)

        deadline = self.dispatcher.deadline(model, caller)
        return await self.dispatcher.dispatch(ROLE, model, caller, deadline, call)

    async def _send(self, texts: Sequence[str], model: ModelRole, caller: Caller, lane: Lane) -> Embedded | Failure:
        # ASCII, because a transcript may hold lone surrogates, which UTF-8 cannot.
        data = json.dumps({"model": model.model or caller.model, "input": list(texts)}).encode()
        sending = self.upstream.ask(model.base_url, PATH, headers_for(model, caller), data, model.timeout)
        reply = await fetch_reply(sending, model.timeout, caller, lane)
        return reply if isinstance(reply, Failure) else await asyncio.to_thread(_read, reply, len(texts))


def _read(reply: JsonReply, texts: int) -> Embedded | Failure:
    """The vectors in a reply for this number of texts, or the failure that it amounts to."""
    if reply.status == 429:
        return Failure("rate-limited")
    if is_down(reply.status):
        return Failure("server-error")
    if not is_success(reply.status):
        return Failure("http-error")
    body = json_or_none(reply.body)
    data = body.get("data") if isinstance(body, dict) else None
    found = _vectors(data) if isinstance(data, list) else []
    if len(found) != texts or len({len(each) for each in found}) != 1:
        return Failure("unreadable")
    return Embedded(tuple(found), count_at(body.get("usage"), "total_tokens"))


def _vectors(data: list[Any]) -> list[Sequence[float]]:
    """The vectors in the order of their texts; an empty list where any of them is missing or is no vector."""
    members = [each for each in data if isinstance(each, dict) and isinstance(each.get("index"), int)]
    ordered = sorted(members, key=lambda each: int(each["index"]))
    found = [each.get("embedding") for each in ordered]
    if [each["index"] for each in ordered] != list(range(len(data))) or not all(map(_is_vector, found)):
        return []
    return [each for each in found if isinstance(each, list)]


def _is_vector(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_number, value))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and -_LARGEST < value < _LARGEST
