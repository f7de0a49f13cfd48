"""Effects resolved: the texts that strategies ask for, from the model that the settings name.

Without settings of its own a role is played by the request's own upstream, model and credential. A credential of
the caller never goes to another address than its request did. Calls carry no tools and no sampling
parameters. A server that refuses `max_completion_tokens` is asked with `max_tokens`, and that is remembered.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proxy.errors import UpstreamUnavailable
from proxy.headers import CREDENTIALS, Headers
from proxy.settings import ModelRole
from proxy.upstream import JsonReply, Upstream
from strategies.core.effects import Answer, Ask, Effect, Failure, Result

_NEW_LIMIT = "max_completion_tokens"
_OLD_LIMIT = "max_tokens"


@dataclass(frozen=True, slots=True)
class Caller:
    """On whose behalf we ask: the model and the headers of the request."""

    model: str
    headers: Headers


class Summarizer:
    """Asks models; one per app."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._limits: dict[tuple[str | None, str], str] = {}

    async def resolve(self, effects: Sequence[Effect], role: ModelRole, caller: Caller) -> tuple[Result, ...]:
        """One result for each effect, all asked for at the same time; failures are results too."""
        return tuple(await asyncio.gather(*(self._one(effect, role, caller) for effect in effects)))

    async def _one(self, effect: Effect, role: ModelRole, caller: Caller) -> Result:
        if not isinstance(effect, Ask):
            return Failure("unknown-effect")
        try:
            async with asyncio.timeout(role.timeout):
                return await self._ask(effect, role, caller)
        except TimeoutError:
            return Failure("timeout")
        except UpstreamUnavailable as error:
            return Failure("timeout" if error.code == "upstream_timeout" else "unreachable")

    async def _ask(self, ask: Ask, role: ModelRole, caller: Caller) -> Result:
        model = role.model or caller.model
        server = (role.base_url, model)
        limit = self._limits.get(server, _NEW_LIMIT)
        response = await self._post(ask, role, caller, limit)
        if response.status == 400 and limit == _NEW_LIMIT and _NEW_LIMIT.encode() in response.body:
            self._limits[server] = _OLD_LIMIT
            response = await self._post(ask, role, caller, _OLD_LIMIT)
        return read_answer(response)

    async def _post(self, ask: Ask, role: ModelRole, caller: Caller, limit: str) -> JsonReply:
        body = {
            "model": role.model or caller.model,
            "messages": [{"role": "system", "content": ask.system}, {"role": "user", "content": ask.user}],
            limit: ask.max_tokens,
        }
        return await self._upstream.ask(role.base_url, headers_for(role, caller), body, role.timeout)


def headers_for(role: ModelRole, caller: Caller) -> Headers:
    """The credential for a call of ours: the role's own, else the caller's where it goes to the same place."""
    if role.api_key is not None:
        return [(b"authorization", b"Bearer " + role.api_key.get_secret_value().encode())]
    if role.base_url is not None:
        return []
    return [(name, value) for name, value in caller.headers if name in CREDENTIALS or name.startswith(b"openai-")]


def read_answer(response: JsonReply) -> Result:
    """The answer in a chat completion."""
    if response.status == 429:
        return Failure("rate-limited")
    if response.status // 100 != 2:
        return Failure("http-error")
    try:
        body = json.loads(response.body)
        choice = body["choices"][0]
        message = choice["message"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return Failure("unreadable")
    if not isinstance(message, Mapping):
        return Failure("unreadable")
    text = message.get("content")
    return Answer(
        text=text if isinstance(text, str) else "",
        finish_reason=str(choice.get("finish_reason")),
        tokens=_total(body.get("usage")),
        called_tools=bool(message.get("tool_calls") or message.get("function_call")),
    )


def _total(usage: Any) -> int:
    total = usage.get("total_tokens") if isinstance(usage, Mapping) else None
    return total if isinstance(total, int) else 0
