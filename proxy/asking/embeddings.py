"""Embeddings: the vectors of texts, from the upstream's own endpoint, by the rules of every call of ours.

In the background a call waits for its turn in the lane, and has the caller's credential for `CREDENTIAL_LIFE` seconds.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

from proxy.asking.calls import CREDENTIAL_LIFE, EXPIRED, Call
from proxy.asking.lanes import Held, Lane, Lanes
from proxy.asking.questions import Caller, headers_for, is_lent
from proxy.errors import UpstreamUnavailable
from proxy.loose_json import count_at, json_or_none
from proxy.setting_tables import ModelRole
from proxy.upstream import JsonReply, Upstream
from strategies.core.effects import Failure

ROLE = "embeddings"
_REFUSALS = (429, 503)
_LARGEST = 1e30


class Embedded(NamedTuple):
    """A vector for each text, all equally long, and the tokens of the call; 0 where the server does not tell."""

    vectors: tuple[Sequence[float], ...]
    tokens: int


class Embeddings:
    """Asks for embeddings; one per app. `told` is given every call when it has ended."""

    def __init__(
        self,
        upstream: Upstream,
        lanes: Lanes,
        clock: Callable[[], float],
        told: Callable[[Call], None] | None,
        own_key: bool,
    ) -> None:
        self._upstream = upstream
        self._lanes = lanes
        self._clock = clock
        self._told = told
        self._own_key = own_key

    async def of(self, texts: Sequence[str], role: ModelRole, caller: Caller) -> Embedded | Failure:
        """The vectors of texts, in one call at most; failures are those of every question."""
        lane = self._lanes.to(self._upstream.server(role.base_url))
        if not caller.background:
            with lane.foreground():
                return await self._told_of(texts, role, caller, lane)
        now, lent = self._clock(), not self._own_key and is_lent(headers_for(role, caller), role)
        deadline = caller.asked_at + CREDENTIAL_LIFE if lent else now + role.timeout
        if now > deadline:
            return Failure(EXPIRED)
        try:
            async with lane.background(deadline, caller.mode):
                return await self._told_of(texts, role, caller, lane)
        except Held as held:
            return Failure(held.reason)

    async def _told_of(self, texts: Sequence[str], role: ModelRole, caller: Caller, lane: Lane) -> Embedded | Failure:
        failure, tokens = "cancelled", 0
        try:
            found = await self._made(texts, role, caller, lane)
            failure, tokens = (found.reason, 0) if isinstance(found, Failure) else ("", found.tokens)
            return found
        finally:
            if self._told is not None:
                self._told(Call(ROLE, caller.background, failure, tokens))

    async def _made(self, texts: Sequence[str], role: ModelRole, caller: Caller, lane: Lane) -> Embedded | Failure:
        # ASCII, because a transcript may hold lone surrogates, which UTF-8 cannot.
        data = json.dumps({"model": role.model or caller.model, "input": list(texts)}).encode()
        try:
            async with asyncio.timeout(role.timeout):
                reply = await self._upstream.embed(role.base_url, headers_for(role, caller), data, role.timeout)
        except TimeoutError:
            return Failure("timeout")
        except UpstreamUnavailable as error:
            return Failure("timeout" if error.code == "upstream_timeout" else "unreachable")
        if reply.status in _REFUSALS:
            lane.refused(reply.retry_after)
        elif caller.background and not _is_down(reply.status):
            lane.served()
        return await asyncio.to_thread(_read, reply, len(texts))


def _read(reply: JsonReply, texts: int) -> Embedded | Failure:
    """The vectors of so many texts, or why there are none."""
    if reply.status == 429:
        return Failure("rate-limited")
    if _is_down(reply.status):
        return Failure("server-error")
    if reply.status // 100 != 2:
        return Failure("http-error")
    body = json_or_none(reply.body)
    data = body.get("data") if isinstance(body, dict) else None
    found = _vectors(data) if isinstance(data, list) else []
    if len(found) != texts or len({len(each) for each in found}) != 1:
        return Failure("unreadable")
    return Embedded(tuple(found), count_at(body.get("usage"), "total_tokens"))


def _is_down(status: int) -> bool:
    """Whether a server could not answer this time, as while it loads the model; what it lacks altogether is 501."""
    return status >= HTTPStatus.INTERNAL_SERVER_ERROR and status != HTTPStatus.NOT_IMPLEMENTED


def _vectors(data: list[Any]) -> list[Sequence[float]]:
    """The vectors in the order of their texts; none at all where one is no vector."""
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
